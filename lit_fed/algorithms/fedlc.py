"""FedLC: FedAvg whose clients calibrate their logits by their number of samples of each class.

Zhang, Li, Li, Xu, Wu, Ding, Wu. "Federated Learning with Label Distribution Skew via Logits Calibration". ICML 2022.
https://arxiv.org/abs/2209.00189, Section 4.

Symbols:
    w         -> shared.models  the global model, leaves [1, ...]
    n_c       -> work.extra     samples of class c at the client, [C]
    τ         -> tau
    Δ_(y,c)   -> τ·(n_y^{−1/4} − n_c^{−1/4}), pairwise margin: the loss is log Σ_c exp(f_c − f_y + Δ_(y,c))
Deviations:
    A class without samples at the client has an infinite margin: it is excluded from the client's softmax.
    The paper's last formula omits the true class from the denominator: `denominator: others`. That loss has no lower
    bound, and no denominator at a client with samples of a single class, where it is 0; `all` is the softmax with the
    pairwise margins, as in public programs such as fluke.
    Counts are those of all local samples, of positions for sequences; PFLlib's are those of all clients together. The
    exponent −1/4 is that of label-distribution aware margins (Cao et al. 2019).
    An unseen client is served by the global model, whose logits are not calibrated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, local_run, local_step, ranged
from lit_fed.core.context import Context
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.prototypes import (
    EXCLUDED,
    check_classes,
    class_counts,
    class_logits,
    of_present,
    per_sample,
    shifted,
)
from lit_fed.core.types import Batch, ClientData

__all__ = ["FedLC"]


@dataclass(frozen=True)
class FedLC(Algorithm[GlobalModels, tuple[()], LocalRun]):
    """FedAvg whose local loss has larger margins for rarer classes.

    Args:
        tau: τ, size of the margins; 0 is FedAvg, apart from classes without samples at a client.
        denominator: classes in the denominator of the calibrated softmax: `all`, or the `others`, without the true one.
    """

    tau: float = ranged(1.0, ">= 0")
    denominator: Literal["all", "others"] = "all"

    incompatible = {
        "loss": "calibrates the cross-entropy",
        "noise_in_steps": "the client's counts of classes",
    }

    def shared_init(self, ctx: Context) -> GlobalModels:
        check_classes(ctx.task.target, "FedLC")
        return super().shared_init(ctx)

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: tuple[()], data: ClientData, losses: None
    ) -> LocalRun:
        """A copy of the global model, and n_c."""
        counts = class_counts(data, ctx.task.target.num_classes, ctx.task.dtype)
        return local_run(ctx, shared.models, counts)

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on the calibrated loss."""
        margins = of_present(-self.tau * work.extra.clamp(min=1).pow(-1 / 4), work.extra)
        objective = Objective(self.loss, constants=margins.unsqueeze(0))
        return local_step(ctx, work, batch, objective=objective)

    def loss(self, view: ModelView) -> Tensor:
        """−log of exp(f_y − τ·n_y^{−1/4}) over the sum of exp(f_c − τ·n_c^{−1/4}), [B]; 0 if no class is in the sum."""
        outputs = shifted(view.outputs, view.constants)
        if self.denominator == "all":
            return view.trained_on.losses(outputs, view.y)
        logits, true = class_logits(outputs), view.y.unsqueeze(-1)
        others = logits.scatter(-1, true, torch.finfo(logits.dtype).min)
        has_others = (view.constants > EXCLUDED).sum() > 1
        each = others.logsumexp(-1) - logits.gather(-1, true)[..., 0]
        return per_sample(torch.where(has_others, each, 0.0))
