"""SCAFFOLD: local training whose drift is corrected by control variates.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning". ICML
2020. https://arxiv.org/abs/1910.06378, Algorithm 1.

Symbols:
    x   -> shared.models     the global model, leaves [1, ...]
    c   -> shared.control    estimate of the gradient of the global objective, leaves [1, ...]
    c_i -> state.control     estimate of the gradient of client i's objective, leaves [1, ...]
    y_i -> work.models       the model of client i, leaves [1, ...]
    K   -> work.steps        its local steps; each client counts its own
    η_l -> solver.lr
    η_g -> server_lr
    N   -> ctx.num_clients   all clients; S, those of the round
Deviations:
    All controls start at 0; the paper also allows the gradients of the first model.
    y_i is sent instead of y_i - x; running statistics are averaged without η_g. A client without steps keeps its c_i.
    The paper takes plain SGD. With momentum or Adam a model moves further than η_l times the sum of its gradients, so
    option II overestimates them; option I does not.
    Clients are drawn without replacement, as in the paper: c is the mean of all c_i only if each Δc_i counts once, and
    that of a client drawn twice would count twice (`data.client_sampling: size` is refused).
    The average is unweighted as in the paper; with `model.weighting: samples` p_i = n_i/n replaces 1/N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    Algorithm,
    LocalRun,
    MessageSpec,
    Participation,
    local_result,
    local_run,
    local_step,
    ranged,
)
from lit_fed.core.context import Context
from lit_fed.core.local_solver import Penalty
from lit_fed.core.networks.layers import check_sample_losses
from lit_fed.core.reduce import exact_average
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState, Reduced

__all__ = ["SCAFFOLD", "Control", "Controlled", "ScaffoldUpdate"]


class Controlled(NamedTuple):
    """The server's state."""

    models: ModelState  # x, leaves [1, ...]
    control: Leaves  # c, leaves [1, ...]


class Control(NamedTuple):
    """A client's state."""

    control: Leaves  # c_i, leaves [1, ...]


class ScaffoldUpdate(NamedTuple):
    """A client's message value."""

    models: ModelState  # y_i, leaves [1, ...]
    control: Leaves  # Δc_i = c_i⁺ - c_i, leaves [1, ...]


@dataclass(frozen=True)
class SCAFFOLD(Algorithm[Controlled, Control, LocalRun]):
    """FedAvg whose clients correct every gradient by the difference of the global and their own average gradient.

    Args:
        option: update of a client's control: `I`, its full gradient at the received model, for one more pass over its
            samples (not with BatchNorm); `II`, the mean of the gradients of its local steps, at no cost.
        server_lr: the server's step η_g along the average change of the clients' models.
    """

    option: Literal["I", "II"] = "II"
    server_lr: float = ranged(1.0, "> 0")

    in_every_combination = True
    message = MessageSpec(beside_models=True)
    participation = Participation(weighting="uniform")

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        """Option I takes gradients at the received model."""
        reasons = {
            "size_sampling": "keeps a mean of control variates, in which the change of each counts once",
            "local_norm": "has controls that would steer a client's own normalisation by the gradients of the others",
        }
        return reasons | {"noise_in_steps": "controls of option I"} if self.option == "I" else reasons

    def shared_init(self, ctx: Context) -> Controlled:
        """A fresh model x, and c = 0; option I refuses networks without per-sample losses."""
        if self.option == "I":
            check_sample_losses(ctx.task.network, "--model.algorithm.option I", "option II")
        models = ctx.task.init(1, ctx.seed)
        return Controlled(models, tree.zeros_like(models.parameters))

    def state_init(self, ctx: Context, shared: Controlled, data: ClientData) -> Control:
        """c_i = 0."""
        return Control(tree.zeros_like(shared.control))

    def client_init(self, ctx: Context, shared: Controlled, state: Control, data: ClientData, losses: None) -> LocalRun:
        """y_i <- x (line 7)."""
        correction = tree.sub(shared.control, state.control)
        return local_run(ctx, shared.models, (state.control, correction))

    def client_step(self, ctx: Context, shared: Controlled, work: LocalRun, batch: Batch) -> LocalRun:
        """y_i <- y_i - η_l (g_i(y_i) - c_i + c) (line 10)."""
        _, correction = work.extra
        return local_step(ctx, work, batch, penalty=Penalty(linear=correction))

    def client_final(self, ctx: Context, shared: Controlled, work: LocalRun, data: ClientData) -> ClientResult:
        """Send the model and the change of c_i; keep c_i⁺ (lines 12-14)."""
        (kept, _), renewed, moved = work.extra, self._renewed(ctx, shared, work, data), work.steps * ctx.lr > 0
        control = tree.map_leaves(lambda new, old: torch.where(moved, new, old), renewed, kept)
        update = ScaffoldUpdate(work.models, tree.sub(control, kept))
        return local_result(ctx, work, data, update, Control(control))

    def _renewed(self, ctx: Context, shared: Controlled, work: LocalRun, data: ClientData) -> Leaves:
        """c_i⁺: (I) the gradient at x, or (II) c_i - c + (x - y_i)/(K η_l) (line 12)."""
        if self.option == "I":
            return ctx.task.full_gradient(shared.models, data)[1]  # type: ignore[no-any-return]
        way = tree.sub(shared.models.parameters, work.models.parameters)
        slope = tree.scale(way, 1 / (work.steps * ctx.lr))  # not finite without steps, and then not used
        return tree.sub(slope, work.extra[1])  # type: ignore[no-any-return]

    def server_step(self, ctx: Context, shared: Controlled, reduced: Reduced, client_ids: Tensor) -> Controlled:
        """Steps x <- x + η_g mean(y_i - x) and c <- c + |S|/N mean(Δc_i) (lines 16-17)."""
        mean: ScaffoldUpdate = reduced.value
        models = exact_average(ctx, shared.models, reduced._replace(value=mean.models))
        parameters = tree.lerp(shared.models.parameters, models.parameters, self.server_lr)
        control = tree.add(shared.control, tree.scale(mean.control, reduced.weight / ctx.total_weight))
        return Controlled(models._replace(parameters=parameters), control)
