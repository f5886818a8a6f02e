"""FedU: every client trains a personal model, tied to those of its neighbours by the graph's Laplacian.

Dinh, Vu, Tran, Dao, Zhang. "A New Look and Convergence Rate of Federated Multi-Task Learning with Laplacian
Regularization". IEEE TNNLS 2024. https://arxiv.org/abs/2102.07148, algorithms FedU and dFedU.

Symbols:
    w_i  -> shared            model of client i, leaves [T, 1, ...]
    a_ij -> topology          1 for an edge of the graph, 0 elsewhere; L = D − A is its Laplacian
    η    -> laplacian_weight  min Σ_i f_i(w_i) + η/2·Σ_{i<j} a_ij·‖w_i − w_j‖², each pair counted once
    μ, K -> solver            rate and number of local steps; μ̃ = μ·K is stable for μ̃·η·λ_max(L) < 2
Deviations:
    Both ends of an edge need the same K. Ours: that of the largest client, so f_i has weight K_i/K if its epochs are
    fewer steps.
    All f_i have equal weight in the paper; `--model.weighting samples` scales them by T·n_i/n. Edges have weight 1.
    The Laplacian step (commented out in the authors' code) moves parameters; running statistics stay at the client.
    Ours: an unseen client is a neighbour of all: it starts from their mean and trains as in a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core.algorithm import (
    LocalRun,
    MessageSpec,
    Participation,
    Personal,
    local_result,
    local_run,
    local_step,
    tuned,
)
from lit_fed.core.context import Context
from lit_fed.core.graphs.mixing import initial_peers, traffic
from lit_fed.core.graphs.peers import Peers, own_models, put_models
from lit_fed.core.graphs.topology import Complete, TimeVarying, Topology, adjacency
from lit_fed.core.plan import most_steps
from lit_fed.core.types import Batch, ClientData, ClientResult, ModelState, Phase, Reduced
from lit_fed.errors import ConfigError

__all__ = ["FedU", "TaskState", "laplacian"]


class TaskState(NamedTuple):
    """A client's state."""

    client_id: Tensor  # [] int64, client whose model serves it
    tuned: ModelState | tuple[()] = ()  # that of an unseen client, leaves [1, ...]


@dataclass(frozen=True)
class FedU(Personal[Peers, TaskState, LocalRun]):
    """Local steps of each client on its model; then all models move towards those of their neighbours at once.

    Args:
        laplacian_weight: η; 0 gives Local.
        topology: the graph between clients.
        exchange: via a `server`, or `decentralized`, with each neighbour; the arithmetic is the same.
    """

    laplacian_weight: float = tuned(0.01, 0.001, 0.01, 0.1, within=">= 0")
    topology: Topology = Complete()  # noqa: RUF009 - frozen
    exchange: Literal["server", "decentralized"] = "server"

    message = MessageSpec("rows", reduce="stack")
    participation = Participation(weighting="uniform", fills_in_absent=False)
    state_reads_data = True
    incompatible = {
        "size_sampling": "mixes along edges, at which a client stands once however often it is drawn",
        "client_lr": "mixes models in proportion to one rate",
        "client_batch_size": "mixes models in proportion to the steps of the largest client, in batches of one size",
        "local_norm": "sends a client's model whole, and keeps it with those of all",
    }

    def shared_init(self, ctx: Context) -> Peers:
        """All w_i start equal."""
        return initial_peers(ctx, 1, common=True)

    def state_init(self, ctx: Context, shared: Peers, data: ClientData) -> TaskState:
        """Only the client's id: the server, or the network, holds w_i."""
        return TaskState(data.client_id)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One phase, in which a client drawn twice counts once; a Laplacian step that would diverge is refused."""
        client_ids = torch.unique(client_ids)
        _check_descent(ctx, self.topology, self.laplacian_weight, len(client_ids))
        return (Phase("train", client_ids, ctx.solver.work),)

    def client_init(self, ctx: Context, shared: Peers, state: TaskState, data: ClientData, losses: None) -> LocalRun:
        """Training continues from w_i."""
        share = ctx.client_share(data) if ctx.phase == "train" else torch.ones_like(data.num_samples)
        return local_run(ctx, own_models(shared, data.client_id), share.to(ctx.task.dtype))

    def client_step(self, ctx: Context, shared: Peers, work: LocalRun, batch: Batch) -> LocalRun:
        """w_i <- w_i − μ·∇f_i(w_i) on a batch."""
        return local_step(ctx, work, batch, weight=work.extra.expand(len(batch.mask), 1))

    def client_final(self, ctx: Context, shared: Peers, work: LocalRun, data: ClientData) -> ClientResult:
        """Send w_i to the server, which returns it after the Laplacian step; or exchange it with each neighbour."""
        bits = traffic(ctx, None if self.has_server else self.topology, work.models.parameters, data.client_id)
        state = TaskState(data.client_id, () if ctx.phase == "train" else work.models)
        work = work._replace(loss=work.loss / work.extra)
        return local_result(ctx, work, data, state=state, up=bits, down=bits)

    def server_step(self, ctx: Context, shared: Peers, reduced: Reduced, client_ids: Tensor) -> Peers:
        """w_i <- w_i − μ̃·η·Σ_j a_ij·(w_i − w_j), for all i at once, over those j that took part."""
        matrix = _descent(ctx, self.topology, self.laplacian_weight)
        return put_models(shared, client_ids, reduced.value, matrix, mix_buffers=False)

    @property
    def has_server(self) -> bool:  # type: ignore[override]
        """Whether the server does the Laplacian step."""
        return self.exchange == "server"

    def collaboration(self, ctx: Context, shared: Peers, states: TaskState) -> Tensor:
        """a_ij."""
        return adjacency(self.topology, ctx.num_clients, ctx.seed, ctx.round_idx)

    def served(self, ctx: Context, shared: Peers, state: TaskState) -> ModelState:
        """w_i."""
        return state.tuned or own_models(shared, state.client_id)


def _check_descent(ctx: Context, topology: Topology, weight: float, count: int) -> None:
    """Refuse a weight for which the Laplacian steps diverge: μ·K·weight·λ_max >= 2.

    Args:
        ctx: the context.
        topology: the graph.
        weight: `--model.algorithm.laplacian_weight`.
        count: clients that take part; no eigenvalue of a graph is larger than its number of nodes.

    Raises:
        ConfigError: naming the largest weight.
    """
    largest = min(_largest_eigenvalue(topology, ctx.num_clients, ctx.seed, ctx.round_idx), count)
    if _step_length(ctx, weight) * largest >= 2:
        raise ConfigError(
            f"--model.algorithm.laplacian_weight is {weight}, with which the models of neighbours would run away from "
            f"each other; give a number below {2 / _step_length(ctx, largest):.3g}, or a lower learning rate or fewer "
            "local steps"
        )


@lru_cache(maxsize=8)
def _largest_eigenvalue(topology: Topology, num_clients: int, seed: int, round_idx: int) -> float:
    """The largest eigenvalue of the Laplacian of a round's graph; for a subset of its clients it is never larger.

    Args:
        topology: the graph.
        num_clients: number of clients T.
        seed: seed of the training.
        round_idx: round, from 0; a static graph is requested for round 0 only.
    """
    if not isinstance(topology, TimeVarying) and round_idx:
        return _largest_eigenvalue(topology, num_clients, seed, 0)
    edges = adjacency(topology, num_clients, seed, round_idx)
    return float(torch.linalg.eigvalsh(laplacian(edges))[-1])


def laplacian(edges: Tensor, present: Tensor | None = None) -> Tensor:
    """The Laplacian L = D − A, [T, T] float64; (Lx)_i is the sum of x_i − x_j over the neighbours j of i.

    Args:
        edges: adjacency, [T, T] float64.
        present: True for the clients that take part, [T]; edges of the others are removed. None: all.

    Example:
        >>> laplacian(torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])).tolist()
        [[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]]
    """
    kept = edges if present is None else edges * (present[:, None] & present)
    return torch.diag(kept.sum(1)) - kept


def _step_length(ctx: Context, weight: float) -> float:
    """Total step length of the K local steps of a round at rate μ for a term of this weight: μ·K·weight.

    K is that of the largest client, so that it is the same at both ends of an edge.
    """
    return float(ctx.lr) * most_steps(ctx) * weight


def _descent(ctx: Context, topology: Topology, weight: float) -> Tensor:
    """I − μ·K·weight·L of the round's graph between those present, [T, T] float64; rows and columns sum to 1."""
    edges = adjacency(topology, ctx.num_clients, ctx.seed, ctx.round_idx)
    matrix = laplacian(edges, None if ctx.present is None else ctx.present.cpu())
    return torch.eye(len(edges), dtype=torch.float64) - _step_length(ctx, weight) * matrix
