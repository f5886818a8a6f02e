"""Mime and MimeLite: local steps with server optimizer statistics, which are fixed during a round.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. "Mime: Mimicking Centralized Stochastic Algorithms in Federated
Learning". 2020. https://arxiv.org/abs/2008.03606, Algorithm 1.

Symbols:
    x      -> shared.models      the global model, leaves [1, ...]
    s      -> shared.statistics  state of the base optimizer: momentum, or the moments of Adam, leaves [1, ...]
    c      -> shared.gradient    mean of ∇f_j(x) over the clients of the round, leaves [1, ...]; {} in MimeLite
    y_i    -> work.models        the model of client i, leaves [1, ...]
    U, V   -> solver.update      a step from the statistics s; the statistics after a step with a gradient at x
    η, K   -> solver.lr, local steps
Deviations:
    The base optimizer is the local solver, as fedjax passes one; s is the server's, so `solver.persist_optimizer` has
    no meaning. Its rules are PyTorch's. Momentum lacks the factor 1 − β, so that the paper's rate η is η(1 − β) here.
    The moments of Adam are corrected for their start, and that of squares holds the gradient of the local step, where
    the paper divides by √v of the server alone.
    Averages over clients are uniform, as in the paper; fedjax weighs by samples (`model.weighting`).
    The gradients at x are taken over all local samples, without dropout and with the running statistics of BatchNorm.
    fedjax multiplies the change of x by a server's learning rate; here it is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, MessageSpec, Participation, local_result
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.reduce import cast_like, server_average
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Message, ModelState, Phase, Reduced

__all__ = ["Mime", "MimeLite", "MimeRun", "MimeUpdate", "ServerStatistics"]

Leaves = dict[str, Tensor]


class ServerStatistics(NamedTuple):
    """The server's state, which is broadcast."""

    models: ModelState  # x, leaves [1, ...]
    statistics: OptimizerState  # s, leaves [1, ...]
    gradient: Leaves  # c of the round, leaves [1, ...]; {} in MimeLite


class MimeRun(NamedTuple):
    """A client's phase; s stays that of the server."""

    models: ModelState  # y_i, leaves [1, ...]
    loss: Tensor  # [] sum over steps of the mean loss of the batch, before the step
    steps: Tensor  # [] steps taken


class MimeUpdate(NamedTuple):
    """Message value in MimeLite; in Mime the gradient is sent first, and then the change y_i − x."""

    models: ModelState  # y_i, leaves [1, ...]
    gradient: Leaves  # ∇f_i(x), leaves [1, ...]


@dataclass(frozen=True)
class MimeLite(Algorithm[ServerStatistics, tuple[()], MimeRun]):
    """FedAvg whose local steps use the server's momentum or moments, updated by clients' gradients at x."""

    message = MessageSpec(beside_models=True)
    participation = Participation(weighting="uniform")
    incompatible: ClassVar[dict[str, str]] = {
        "noise_in_steps": "gradients of all samples at the server's model",
        "personal_parts": "lets clients send gradients at the server's model",
        "local_norm": "has statistics at the server that would steer a client's own normalisation",
    }

    def shared_init(self, ctx: Context) -> ServerStatistics:
        """A fresh x, and the base optimizer's first state."""
        models = ctx.task.init(1, ctx.seed)
        return ServerStatistics(models, ctx.solver.init(models), {})

    def client_init(
        self, ctx: Context, shared: ServerStatistics, state: tuple[()], data: ClientData, losses: None
    ) -> MimeRun:
        """y_i <- x."""
        zero = torch.zeros((), dtype=ctx.task.dtype, device=ctx.lr.device)
        return MimeRun(shared.models, zero, zero.clone())

    def client_step(self, ctx: Context, shared: ServerStatistics, work: MimeRun, batch: Batch) -> MimeRun:
        """y_i <- y_i − η·U(g_i, s)."""
        loss, gradient, buffers = ctx.task.value_and_grad(work.models, batch)
        gradient = self.local_gradient(ctx, shared, gradient, batch, work.models.buffers)
        parameters, _ = ctx.solver.update(work.models.parameters, gradient, shared.statistics, ctx.lr)
        return MimeRun(ModelState(parameters, buffers), work.loss + loss.mean(), work.steps + 1)

    def local_gradient(
        self, ctx: Context, shared: ServerStatistics, gradient: Leaves, batch: Batch, buffers: Leaves
    ) -> Leaves:
        """g_i: ∇f_i(y_i; ζ) as it is."""
        return gradient

    def client_final(self, ctx: Context, shared: ServerStatistics, work: MimeRun, data: ClientData) -> ClientResult:
        """Send y_i and ∇f_i(x)."""
        update = MimeUpdate(work.models, _gradient_at(ctx, shared.models, data))
        return local_result(ctx, work, data, update, down=tree.bits(shared))

    def server_step(
        self, ctx: Context, shared: ServerStatistics, reduced: Reduced, client_ids: Tensor
    ) -> ServerStatistics:
        """S <- V(mean ∇f_i(x), s) and x <- mean y_i."""
        update: MimeUpdate = reduced.value
        models = server_average(ctx, shared.models, reduced._replace(value=update.models))
        return ServerStatistics(models, _renewed(ctx, shared, update.gradient), {})


@dataclass(frozen=True)
class Mime(MimeLite):
    """MimeLite whose local gradients are corrected by those at the server's model, as in SVRG."""

    message = MessageSpec("changes")
    participation = Participation(weighting="uniform", fills_in_absent=False)
    incompatible: ClassVar[dict[str, str]] = MimeLite.incompatible | {
        "privacy": "averages gradients, and then models, of the same clients in one round"
    }

    def shared_init(self, ctx: Context) -> ServerStatistics:
        """A fresh x, the base optimizer's first state, and c = 0."""
        shared = super().shared_init(ctx)
        return shared._replace(gradient=tree.zeros_like(shared.models.parameters))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, Phase]:
        """Clients send ∇f_i(x), of which c is the mean; then they train."""
        return Phase("gradient", client_ids, LocalWork()), Phase("train", client_ids, ctx.solver.work)

    def local_gradient(
        self, ctx: Context, shared: ServerStatistics, gradient: Leaves, batch: Batch, buffers: Leaves
    ) -> Leaves:
        """g_i = ∇f_i(y_i; ζ) − ∇f_i(x; ζ) + c."""
        _, at_server, _ = ctx.task.value_and_grad(shared.models._replace(buffers=buffers), batch)
        return tree.add(tree.sub(gradient, at_server), shared.gradient)  # type: ignore[no-any-return]

    def client_final(self, ctx: Context, shared: ServerStatistics, work: MimeRun, data: ClientData) -> ClientResult:
        """Send ∇f_i(x), in exchange for x and s; then y_i − x, in exchange for c."""
        if ctx.phase == "gradient":
            weight = ctx.client_weight(data)
            down = torch.full_like(weight, tree.bits(shared._replace(gradient={})))
            return ClientResult(Message(_gradient_at(ctx, shared.models, data), weight, bits_down=down), (), {})
        change = tree.sub(work.models, shared.models)
        return local_result(ctx, work, data, change, down=tree.bits(shared.gradient))

    def server_step(
        self, ctx: Context, shared: ServerStatistics, reduced: Reduced, client_ids: Tensor
    ) -> ServerStatistics:
        """C <- mean ∇f_i(x); then s <- V(c, s) and x <- mean y_i."""
        if ctx.phase == "gradient":
            return shared._replace(gradient=reduced.value)
        models = tree.add(tree.map_leaves(Tensor.double, shared.models), reduced.value)
        return ServerStatistics(models, _renewed(ctx, shared, shared.gradient), shared.gradient)


def _gradient_at(ctx: Context, models: ModelState, data: ClientData) -> Leaves:
    """∇f_i(x) over all samples, leaves [1, ...]."""
    return ctx.task.full_gradient(models, data, training=False)[1]  # type: ignore[no-any-return]


def _renewed(ctx: Context, shared: ServerStatistics, gradient: Leaves) -> OptimizerState:
    """S after a step at x, whose model is not used."""
    parameters = shared.models.parameters
    return ctx.solver.update(parameters, cast_like(gradient, parameters), shared.statistics, ctx.lr)[1]
