"""FedSGD: gradient descent on all clients' samples; each client sends the gradient of its samples.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. "Communication-Efficient Learning of Deep Networks from Decentralized
Data". AISTATS 2017. https://arxiv.org/abs/1602.05629, Section 2 (Algorithm 1 with B = ∞, E = 1).

Symbols:
    w_t -> shared.models    the global model, leaves [1, ...]
    g_k -> message.value    ∇F_k(w_t) over all samples of client k, leaves [1, ...]; sent with running statistics
    n_k -> message.weight   samples of client k
    η   -> solver.lr
Deviations:
    A client accumulates its gradient batch by batch, so `data.batch_size` bounds the memory without changing results.
    Ours: BatchNorm in training mode is the exception, since it sees each batch separately (`data.batch_size 0` is one
    batch); its running statistics are averaged like models.
    Ours: the solver acts at the server, once per round, and keeps its state there: its momentum, weight decay, clipping
    and Adam are those of one machine with all samples. The paper's server takes plain steps, the solver's default.
    Local epochs and steps, stragglers and `solver.persist_optimizer` have no meaning here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, MessageSpec, Participation
from lit_fed.core.context import Context
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, LocalWork, Message, ModelState, Phase, Reduced

__all__ = ["FedSGD", "GradientWork", "ServerSolver"]


class ServerSolver(NamedTuple):
    """The server's state."""

    models: ModelState  # w_t, leaves [1, ...]
    optimizer: OptimizerState  # state of the server's solver


class GradientWork(NamedTuple):
    """A client's pass over its samples."""

    buffers: Leaves  # running statistics, leaves [1, ...]
    gradient: Leaves  # sum over the samples so far, leaves [1, ...]
    loss: Tensor  # [] sum over the samples so far
    samples: Tensor  # [] number of samples so far


@dataclass(frozen=True)
class FedSGD(Algorithm[ServerSolver, tuple[()], GradientWork]):
    """One step of gradient descent per round, on the gradient over all samples of the clients that take part."""

    message = MessageSpec("changes")
    participation = Participation(fills_in_absent=False)
    incompatible = {
        "noise_in_steps": "gradients beside the local solver",
        "personal_parts": "lets clients send gradients without a local step of their own",
        "client_lr": "takes its steps at the server",
        "local_norm": "sends gradients, so a normalisation that clients keep would never be trained",
    }
    server_only = ("optimizer",)

    def shared_init(self, ctx: Context) -> ServerSolver:
        """w_0, and a fresh solver."""
        models = ctx.task.init(1, ctx.seed)
        return ServerSolver(models, ctx.solver.init(models))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One pass over all local samples, whatever the solver's local work."""
        return (Phase("train", client_ids, LocalWork(epochs=1, is_whole=True)),)

    def client_init(
        self, ctx: Context, shared: ServerSolver, state: tuple[()], data: ClientData, losses: None
    ) -> GradientWork:
        """No sample seen yet."""
        zero = torch.zeros((), dtype=ctx.task.dtype, device=ctx.lr.device)
        gradient = tree.zeros_like(shared.models.parameters)
        return GradientWork(shared.models.buffers, gradient, zero, zero.clone())

    def client_step(self, ctx: Context, shared: ServerSolver, work: GradientWork, batch: Batch) -> GradientWork:
        """Add the gradient of a batch at w_t."""
        samples = batch.mask.sum().to(ctx.task.dtype)
        models = shared.models._replace(buffers=work.buffers)
        loss, gradient, buffers = ctx.task.value_and_grad(models, batch)
        gradient = tree.add(work.gradient, tree.scale(gradient, samples))
        return GradientWork(buffers, gradient, work.loss + samples * loss.mean(), work.samples + samples)

    def client_final(self, ctx: Context, shared: ServerSolver, work: GradientWork, data: ClientData) -> ClientResult:
        """Send the mean gradient g_k = ∇F_k(w_t)."""
        share = 1 / work.samples.clamp(min=1)
        message = ModelState(tree.scale(work.gradient, share), work.buffers)
        return ClientResult(Message(message, ctx.client_weight(data)), (), {"loss": work.loss * share})

    def server_step(self, ctx: Context, shared: ServerSolver, reduced: Reduced, client_ids: Tensor) -> ServerSolver:
        """A step of the solver: w_{t+1} <- w_t − η Σ_k n_k/n g_k."""
        mean: ModelState = cast_like(reduced.value, shared.models)
        parameters, optimizer = ctx.solver.update(shared.models.parameters, mean.parameters, shared.optimizer, ctx.lr)
        return ServerSolver(ModelState(parameters, mean.buffers), optimizer)
