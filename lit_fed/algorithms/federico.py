"""FedeRiCo: every client predicts with the models of suitable others, and trains the models that it uses.

Sui, Wen, Lau, Ross, Cresswell. "Find Your Friends: Personalized Federated Learning with the Right Collaborators". 2022.
https://arxiv.org/abs/2210.06597, Algorithm 1 (Appendix B), Section 3.3.

Symbols:
    φ_i  -> shared.peers    model of client i, leaves [T, 1, ...]
    ℓ_ij -> state.last      loss of φ_j on the samples of client i when it last saw φ_j, [T]
    L̂_ij -> state.tracked   its moving average, [T]; with `tracking: accumulated` its sum over rounds, L_ij
    w_ij -> state.weights   weight of φ_j for client i, [T], sums to 1
    B^t  -> work.owners     clients whose models it requests, [k]
    g_bi -> message.value   gradient of φ_b, or φ_b after local steps, with the weight w_ib, leaves [k, ...]
Deviations:
    The pseudo-code leaves open whether B^t holds the client itself; Section 4.5 (M = 0 is like Local) says so.
    Ours: the initial losses 0 of unknown models select them first, as printed, but give them no weight.
    "Multiple gradient steps" are a remark in the paper. Ours: each model of B^t takes the solver's local work on the
    plain loss and w_ib scales its change, since Adam is invariant to a factor on the loss; weights that sum to more
    than 1 are scaled to 1. Optimizers are fresh in every round; `solver.persist_optimizer` keeps one per position in
    B^t. A gradient is applied by the owner's solver, which keeps its state; BatchNorm sees its batches separately.
    Sequences: ℓ_ij sums the samples' losses, each the mean over its positions; with `position_loss: sum` the E-step
    uses the likelihood of all positions, L·ℓ_ij for texts of L. Serving mixes each position.
    Ours: absent clients are not selected and take no step. An unseen client requests all models; its weights follow
        from
    one E-step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from lit_fed.core import tree
from lit_fed.core.algorithm import MessageSpec, Participation, Served
from lit_fed.core.context import Context
from lit_fed.core.graphs.neighbours import Acquaintance, Tracking, greedy_neighbours, remember, stranger
from lit_fed.core.graphs.peers import Peers, models_of, put_models, same_start
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.mixtures.e_step import PositionLoss, num_factors
from lit_fed.core.reduce import cast_like
from lit_fed.core.types import (
    Batch,
    ClientData,
    ClientResult,
    Leaves,
    LocalWork,
    Message,
    ModelState,
    Phase,
    Reduced,
    Tree,
)
from lit_fed.errors import ConfigError, check_settings

__all__ = ["Borrowed", "Exchange", "FedeRiCo", "Owned", "Returned"]

Exchange = Literal["gradient", "pseudo_gradient"]
"""The answer to an owner: the gradient over all samples, which goes through its optimizer; or what local steps made of
its model, of which it takes the weighted mean of the changes."""


class Owned(NamedTuple):
    """One model for each client, and its owner's optimizer."""

    peers: Peers  # leaves [T, 1, ...]
    optimizer: OptimizerState | None  # leaves [T, ...]; None if no gradients are returned


class Borrowed(NamedTuple):
    """A client's work in a phase: the models borrowed from B^t, and their gradients or updates."""

    models: ModelState  # leaves [k, ...]
    optimizer: Tree  # optimizer of the local steps; () without any
    gradient: Leaves  # gradient so far, leaves [k, ...]; {} with local steps
    divisor: Tensor  # divisor of the sum of losses, []
    owners: Tensor  # owners of the models, [k]
    asked: Tensor  # False for owners that are absent, [k]
    weights: Tensor  # weights of the returned models, [k] float64; 0 if the owner is absent
    kept: Tree = None  # the client's state


class Returned(NamedTuple):
    """A client's message value: for each of B^t a gradient or a new model, with the weight of that model."""

    owners: Tensor  # [k]
    weights: Tensor  # [k] float64
    models: ModelState  # the gradient or new parameters, and the running statistics, leaves [k, ...]


@dataclass(frozen=True)
class FedeRiCo(Served[Owned, Acquaintance, Borrowed]):
    """One model per client, trained by the clients that use it; each predicts with a mixture of suitable models.

    Args:
        num_neighbours: M, models that a client requests in a round.
        explore_probability: ε, probability of choosing them at random; otherwise by largest weight.
        loss_momentum: β, share of the new loss in the moving average.
        tracking: `ema`, the moving average from 0 as printed; `corrected_ema`, without its bias for new models;
            `accumulated`, the sum over rounds, the exact posterior if all models are requested.
        loss: `sum` over a client's samples, or their `mean`, a temperature of n_i; gradients are scaled likewise.
        exchange: `gradient` over all samples, once per round; or `pseudo_gradient`, the change by local steps.
        include_self: whether a client always selects its own model; otherwise it is ranked like the others.
        common_start: start all clients from the same model (they stay equal if all request all); otherwise from
            different ones.
        position_loss: loss of a sequence in the E-step: the `mean` over its positions, or their `sum`,
            the likelihood of the whole text.
    """

    num_neighbours: int = 3
    explore_probability: float = 0.3
    loss_momentum: float = 0.6
    tracking: Tracking = "ema"
    loss: Literal["sum", "mean"] = "sum"
    exchange: Exchange = "gradient"
    include_self: bool = True
    common_start: bool = False
    position_loss: PositionLoss = "mean"

    in_every_combination = True
    message = MessageSpec("rows", reduce="stack")
    participation = Participation(fills_in_absent=False)
    state_reads_data = True
    incompatible = {
        "size_sampling": "adds up what clients send to each other, each of them once",
        "local_norm": "trains all leaves of a model at those who use it",
    }
    has_server = False

    def __post_init__(self) -> None:
        least = f">= {1 - self.include_self}"
        check_settings(self, num_neighbours=least, explore_probability="[0, 1]", loss_momentum="(0, 1]")

    def shared_init(self, ctx: Context) -> Owned:
        """φ_i (line 1)."""
        if self.position_loss == "sum" and ctx.task.target.partly_labelled:
            raise ConfigError(
                "--model.algorithm.position_loss is sum, and samples have labels to ignore, so that their numbers of "
                "positions differ; give mean"
            )
        return _first_models(ctx, self.exchange, common_start=self.common_start)

    def state_init(self, ctx: Context, shared: Owned, data: ClientData) -> Acquaintance:
        """L̂_ij = ℓ_ij = 0 and w_ij = 1/T (line 3)."""
        return stranger(ctx.num_clients, data.client_id)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """A gradient is one pass over the local samples, whatever the solver's local work."""
        whole = LocalWork(epochs=1, is_whole=True)
        return (Phase("train", client_ids, whole if self.exchange == "gradient" else ctx.solver.work),)

    def client_init(self, ctx: Context, shared: Owned, state: Acquaintance, data: ClientData, losses: None) -> Borrowed:
        """B^t and its models (lines 7-9), then the E-step (lines 10-13)."""
        adapt, rank = ctx.phase == "adapt", state.tracked
        rank = rank if ctx.present is None else rank.masked_fill(~ctx.present, torch.inf)
        count = ctx.num_clients if adapt else self.num_neighbours
        ids, asked = greedy_neighbours(
            ctx, state.client_id, rank, count, self.explore_probability, include_self=self.include_self
        )
        models = _borrow(shared, ids)
        each = ctx.task.losses_of(models, data.x, data.y) * data.mask.unsqueeze(1)
        divisor = data.num_samples.clamp(min=1) if self.loss == "mean" else torch.ones_like(data.num_samples)
        factors, beta = num_factors(ctx.task, data, self.position_loss), 1.0 if adapt else self.loss_momentum
        found = each.sum(0, dtype=torch.float64) * factors / divisor
        state = remember(state, ids, found, asked, self.tracking, beta)
        return _loan_work(ctx, self.exchange, models, ids, asked, divisor, state.weights)._replace(kept=state)

    def client_step(self, ctx: Context, shared: Owned, work: Borrowed, batch: Batch) -> Borrowed:
        """The M-step (lines 14-15)."""
        return _work_on(ctx, self.exchange, work, batch)

    def client_final(self, ctx: Context, shared: Owned, work: Borrowed, data: ClientData) -> ClientResult:
        """Send g_bi to each of B^t (line 15), whose model was received; keep w_i. The loss is Σ_j w_ij ℓ_ij / n_i."""
        state: Acquaintance = work.kept
        samples = data.num_samples.clamp(min=1) * num_factors(ctx.task, data, self.position_loss)
        loss = (state.weights * state.last).sum() * work.divisor / samples
        return ClientResult(_give_back(ctx, work, data), state, {"loss": loss})

    def server_step(self, ctx: Context, shared: Owned, reduced: Reduced, client_ids: Tensor) -> Owned:
        """φ_i <- Opt(φ_i, Σ_j g_ij) over the clients j that requested i (lines 17-21), computed for all owners here."""
        return _take_back(ctx, shared, reduced.value)

    def collaboration(self, ctx: Context, shared: Owned, states: Acquaintance) -> Tensor:
        """w_ij, one row per served client i."""
        return states.weights

    def log_prob(self, ctx: Context, shared: Owned, state: Acquaintance, x: Tensor, outputs: None) -> Tensor:
        """Log Σ_j w_ij p(y | x, φ_j), the largest weights first, [B, C]."""
        weights, ids = state.weights.topk(ctx.num_clients)
        weights = (weights / weights.sum()).to(ctx.task.dtype)
        return ctx.task.mix(weights, ctx.task.outputs(_borrow(shared, ids), x))


def _first_models(ctx: Context, exchange: Exchange, *, common_start: bool) -> Owned:
    """The initial models of all clients: equal, or each from a separate seed."""
    peers = same_start(ctx.task.init(1, ctx.seed), ctx.num_clients)
    if not common_start:
        own = tree.map_leaves(lambda leaf: leaf.unsqueeze(1), ctx.task.init(ctx.num_clients, ctx.seed))
        peers = put_models(peers, torch.arange(ctx.num_clients), own)
    if exchange == "pseudo_gradient":
        return Owned(peers, None)
    optimizer = ctx.solver.init(ModelState(peers.parameters, {}))
    return Owned(peers, optimizer._replace(step=optimizer.step.repeat(ctx.num_clients)))


def _borrow(owned: Owned, ids: Tensor) -> ModelState:
    """The models of some clients [k], leaves [k, ...]."""
    return tree.map_leaves(lambda leaf: leaf[:, 0], models_of(owned.peers, ids))  # type: ignore[no-any-return]


def _loan_work(
    ctx: Context, exchange: Exchange, models: ModelState, ids: Tensor, asked: Tensor, divisor: Tensor, weights: Tensor
) -> Borrowed:
    """The start of the work on borrowed models.

    Args:
        ctx: the context.
        exchange: the kind of result.
        models: leaves [k, ...].
        ids: their owners, [k].
        asked: False for owners that are absent, [k].
        divisor: divisor of the sum of losses, [].
        weights: weights of all clients' models for this client, [T] float64.
    """
    steps = exchange == "pseudo_gradient"
    optimizer = ctx.solver.init(models) if steps else ()
    gradient = {} if steps else tree.zeros_like(models.parameters)
    return Borrowed(models, optimizer, gradient, divisor, ids, asked, weights.gather(0, ids) * asked)


def _work_on(ctx: Context, exchange: Exchange, work: Borrowed, batch: Batch) -> Borrowed:
    """The gradient of one more batch, or one more local step."""
    if exchange == "gradient":
        _, gradient, buffers = ctx.task.value_and_grad(work.models, batch)
        share = batch.mask.sum() / work.divisor
        return work._replace(
            models=work.models._replace(buffers=buffers), gradient=tree.add(work.gradient, tree.scale(gradient, share))
        )
    models, optimizer, _ = ctx.solver.step(ctx.task, work.models, work.optimizer, batch, ctx.lr)
    return work._replace(models=models, optimizer=optimizer)


def _give_back(ctx: Context, work: Borrowed, data: ClientData) -> Message:
    """The message for the owners; the client exchanges one model with each of them, except itself."""
    found = ModelState(work.gradient or work.models.parameters, work.models.buffers)
    others = (work.asked & (work.owners != data.client_id)).sum(dtype=torch.float64)
    bits = tree.bits(found) // len(work.owners) * others
    return Message(Returned(work.owners, work.weights, found), ctx.client_weight(data), bits, bits)


def _take_back(ctx: Context, owned: Owned, returned: Returned) -> Owned:
    """All owners after applying the returned results, leaves [C, k, ...]: φ_i ← Opt(φ_i, Σ_j w_ji g_ji).

    Changes by local steps, and running statistics, move a model at most to the weighted mean of the returned ones,
    φ_i + Σ_j w_ji (φ_ji − φ_i) / max(1, Σ_j w_ji): the length of Adam's steps does not depend on the number of clients
    that use a model, and a variance would become negative beyond the mean. Absent owners are unchanged.
    """
    rows: Returned = tree.map_leaves(lambda leaf: leaf.flatten(0, 1), returned)
    rows = rows._replace(models=tree.map_leaves(lambda leaf: leaf.unsqueeze(1), rows.models))
    old, num_clients = owned.peers.each, ctx.num_clients
    total: Tensor = _sums(num_clients, rows, torch.ones_like(rows.weights))
    found: ModelState = _sums(num_clients, rows, rows.models)
    share = 1 / total.clamp(min=1)
    means = tree.map_leaves(partial(_times, share), found)
    moved: ModelState = tree.map_leaves(partial(_plus_old_share, 1 - share * total), old, means)
    optimizer, parameters = None, moved.parameters  # meaningless if gradients were returned
    if owned.optimizer is not None:
        gradient = cast_like(found.parameters, old.parameters)
        factors = ctx.of_clients.get("client_lr")
        rates = ctx.lr if factors is None else ctx.lr * factors.to(ctx.lr.device)  # of the owners, [T]
        step = vmap(ctx.solver.update, in_dims=(0, 0, 0, 0 if rates.ndim else None))
        parameters, optimizer = step(old.parameters, gradient, owned.optimizer, rates)
        if ctx.present is not None:
            parameters = tree.map_leaves(partial(_where_present, ctx.present), parameters, old.parameters)
            optimizer = tree.map_leaves(partial(_where_present, ctx.present), optimizer, owned.optimizer)
    new = cast_like(ModelState(parameters, moved.buffers), old)
    return Owned(put_models(owned.peers, torch.arange(num_clients, device=total.device), new), optimizer)


def _sums(num_clients: int, rows: Returned, leaves: Tree) -> Tree:
    """Σ_r w_r x_r over the rows r of each owner, leaves [T, ...] float64."""

    def total(leaf: Tensor) -> Tensor:
        weighted = leaf.reshape(len(leaf), -1).double() * rows.weights[:, None]
        sums = weighted.new_zeros(num_clients, weighted.shape[1]).index_add(0, rows.owners, weighted)
        return sums.view(num_clients, *leaf.shape[1:])

    return tree.map_leaves(total, leaves)


def _times(factor: Tensor, leaf: Tensor) -> Tensor:
    """Each row t of a leaf [T, ...] times its factor, [T]."""
    return factor.view(-1, *[1] * (leaf.ndim - 1)) * leaf


def _plus_old_share(kept: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Interpolation between old and new rows by shares [T]."""
    return _times(kept, old) + new


def _where_present(present: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The new rows of owners that are present, the old ones of all others."""
    return torch.where(present.view(-1, *[1] * (old.ndim - 1)), new, old)
