"""FedAvgM: FedAvg with momentum at the server.

Hsu, Qi, Brown. "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification". 2019.
https://arxiv.org/abs/1909.06335. It is Algorithm 1 of Reddi et al., "Adaptive Federated Optimization", ICLR
2021, https://arxiv.org/abs/2003.00295, with SGD at the server.

Symbols:
    w  -> shared.models     the global model, leaves [1, ...]
    Δw -> change            the average of w_i − w, an ascent direction
    v  -> shared.momentum   leaves [1, ...]
    β  -> server_momentum
    η  -> solver.lr, of the clients
Deviations:
    Hsu et al. use rate 1 at the server; `server_lr` is that of Reddi et al. As in torch.optim.SGD, Δw has no factor
    1 − β.
    Averages are weighted by samples, unless `model.weighting: uniform` is given.
    Ours: running statistics of BatchNorm are averaged as in FedAvg; they have no momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, LocalRun, ranged
from lit_fed.core.context import Context
from lit_fed.core.reduce import exact_average
from lit_fed.core.types import Leaves, ModelState, Reduced

__all__ = ["FedAvgM", "Momentum"]


class Momentum(NamedTuple):
    """The server's state."""

    models: ModelState  # w, leaves [1, ...]
    momentum: Leaves  # v, leaves [1, ...]


@dataclass(frozen=True)
class FedAvgM(Algorithm[Momentum, tuple[()], LocalRun]):
    """FedAvg with momentum at the server; with rate 1 and momentum 0 it is FedAvg.

    Args:
        server_lr: rate of the server's steps.
        server_momentum: β, share of the last round's change that carries over to this one.
    """

    server_lr: float = ranged(1.0, "> 0")
    server_momentum: float = ranged(0.9, "[0, 1)")

    in_every_combination = True
    server_only = ("momentum",)

    def shared_init(self, ctx: Context) -> Momentum:
        """The initial model and v = 0."""
        models = ctx.task.init(1, ctx.seed)
        return Momentum(models, tree.zeros_like(models.parameters))

    def server_step(self, ctx: Context, shared: Momentum, reduced: Reduced, client_ids: Tensor) -> Momentum:
        """The new v = βv + Δw and w + v, times the server's rate; in float64, since Δw may be small beside w."""
        average = exact_average(ctx, shared.models, reduced)
        change = tree.sub(average.parameters, shared.models.parameters)
        momentum = tree.add(tree.scale(shared.momentum, self.server_momentum), change)
        parameters = tree.add(shared.models.parameters, tree.scale(momentum, self.server_lr))
        return Momentum(ModelState(parameters, average.buffers), momentum)
