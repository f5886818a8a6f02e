"""Mixing matrices (weights of neighbours' models) and gossip, in which each client mixes with its neighbours.

A mixing matrix W [T, T] is symmetric and non-negative, is 0 off the graph and the diagonal, and its rows sum to 1.
X ← WX keeps the mean of the clients; the second-largest eigenvalue modulus (SLEM) of W gives the rate of agreement.

Boyd, Diaconis, Xiao. "Fastest Mixing Markov Chain on a Graph". SIAM Review 46(4), 2004.
https://doi.org/10.1137/S0036144503423264
"""

from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import MessageSpec, Participation, Served, State, Work
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, links, put_models, same_start
from lit_fed.core.graphs.topology import TimeVarying, Topology, adjacency
from lit_fed.core.types import ModelState, Tree
from lit_fed.errors import ConfigError

__all__ = [
    "Gossiping", "MixingRule", "check_agreement", "gossip", "initial_peers", "mixing_matrix",
    "restrict", "second_eigenvalue", "traffic", "weights_of",
]  # fmt: skip

MixingRule = Literal["fmmc", "metropolis", "lazy_metropolis", "max_degree", "best_constant", "uniform", "identity"]

TOLERANCE = 1e-8
"""Rounding of a negative weight, or of an eigenvalue of ±1."""

DRAWS = 64
"""Draws of a time-varying graph that are checked for agreement."""


@lru_cache(maxsize=8)
def mixing_matrix(topology: Topology, rule: MixingRule, num_clients: int, seed: int, round_idx: int) -> Tensor:
    """The mixing matrix of a round, [T, T] float64.

    Args:
        topology: the graph.
        rule: rule for the weights.
        num_clients: number of clients T.
        seed: training seed.
        round_idx: round, from 0; a graph that does not change has one matrix for all rounds.

    Raises:
        ConfigError: if the rule does not suit the graph.
    """
    if not isinstance(topology, TimeVarying) and round_idx:
        return mixing_matrix(topology, rule, num_clients, seed, 0)
    return weights_of(adjacency(topology, num_clients, seed, round_idx), rule)


def weights_of(edges: Tensor, rule: MixingRule) -> Tensor:
    """The mixing matrix of a graph.

    Args:
        edges: adjacency, [T, T] float64.
        rule: `fmmc` has the smallest SLEM; `metropolis` gives an edge min(1/d_i, 1/d_j), `lazy_metropolis`
            1/(1 + max(d_i, d_j)), `max_degree` 1/max_i d_i, `best_constant` 2/(λ_1 + λ_{T−1}) of the graph's Laplacian;
            the diagonal completes rows to 1. `uniform` is 11ᵀ/T and needs a complete graph; `identity`: no mixing.

    Raises:
        ConfigError: `uniform` on an incomplete graph; `best_constant` if a diagonal entry would be negative.
    """
    degree = edges.sum(1)
    if rule == "identity" or len(edges) == 1:
        return torch.eye(len(edges), dtype=torch.float64)
    if rule == "uniform":
        if int((edges == 0).sum()) > len(edges):
            raise ConfigError("--model.algorithm.mixing is uniform, which needs the topology Complete; give fmmc")
        return torch.full_like(edges, 1 / len(edges))
    if rule == "fmmc":
        from lit_fed.core.graphs.fastest_mixing import fastest_mixing

        return fastest_mixing(edges)
    larger = torch.maximum(degree[:, None], degree).clamp(min=1)
    weight = {
        "metropolis": lambda: edges / larger,
        "lazy_metropolis": lambda: edges / (1 + larger),
        "max_degree": lambda: edges / degree.max().clamp(min=1),
        "best_constant": lambda: edges * _best_constant(edges),
    }[rule]()
    return weight + torch.diag(1 - weight.sum(1))


def _best_constant(edges: Tensor) -> float:
    laplacian = torch.linalg.eigvalsh(torch.diag(edges.sum(1)) - edges)
    constant = 2 / float(laplacian[-1] + laplacian[1])
    if constant * float(edges.sum(1).max()) > 1 + TOLERANCE:
        raise ConfigError("--model.algorithm.mixing best_constant gives this graph negative weights; give fmmc")
    return constant


def second_eigenvalue(matrix: Tensor) -> float:
    """SLEM: the second-largest modulus of the eigenvalues of a mixing matrix; 0 for a single client."""
    num_clients = len(matrix)
    return float(torch.linalg.eigvalsh(matrix - 1 / num_clients).abs().max())


def check_agreement(topology: Topology, rule: MixingRule, num_clients: int, seed: int) -> None:
    """Refuse a rule with which the models on a connected graph never converge to each other.

    They converge if the SLEM is below 1. Most rules ensure this on every connected graph: `lazy_metropolis`
    has a positive diagonal, `fmmc` and `best_constant` take the smallest SLEM of a family with a lazy member, and
    `identity` is not meant to mix. `metropolis` and `max_degree` have a zero diagonal if all degrees are equal; if such
    a graph is bipartite (an even ring, two clients, two equal halves joined completely), one eigenvalue is −1, and the
    halves swap their models forever.

    On a time-varying graph, a difference v of the clients persists if W_k²·v = v in every round k, so the mean of W_k²
    over draws replaces W². If the union of the draws is disconnected, the rule is accepted.

    Args:
        topology: the graph.
        rule: rule for the weights.
        num_clients: number of clients T.
        seed: training seed.

    Raises:
        ConfigError: naming the rule, the graph and rules that work.
    """
    if rule not in ("metropolis", "max_degree"):
        return
    every = topology.every if isinstance(topology, TimeVarying) else 0
    rounds = range(0, DRAWS * every, every) if every else [0]
    drawn = [mixing_matrix(topology, rule, num_clients, seed, round_idx) for round_idx in rounds]
    lazy = (torch.stack(drawn).mean(0) + torch.eye(num_clients, dtype=torch.float64)) / 2
    squares = torch.stack([one @ one for one in drawn]).mean(0)
    connected = second_eigenvalue(lazy) < 1 - TOLERANCE
    if connected and second_eigenvalue(squares) > 1 - TOLERANCE:
        raise ConfigError(
            f"--model.algorithm.mixing is {rule}, which on --model.algorithm.topology {topology} makes {num_clients} "
            "clients swap models and never agree (an eigenvalue of its matrix is -1); give lazy_metropolis or fmmc"
        )


def restrict(matrix: Tensor, active: Tensor) -> Tensor:
    """The matrix of a round with absent clients: the weights of their edges move to the diagonal.

    Args:
        matrix: W, [T, T].
        active: mask of the clients that take part, [T].

    Example:
        >>> restrict(torch.full((3, 3), 1 / 3, dtype=torch.float64), torch.tensor([True, True, False]))[0].tolist()
        [0.6666666666666667, 0.3333333333333333, 0.0]
    """
    kept = matrix * (active[:, None] & active) * (1 - torch.eye(len(matrix), dtype=matrix.dtype))
    return kept + torch.diag(1 - kept.sum(1))


# ---------------------------------------------------------------------- gossip
def initial_peers(ctx: Context, num_models: int, *, common: bool) -> Peers:
    """Fresh models, M per client: the same for all clients (`common`), or drawn for each."""
    peers = same_start(ctx.task.init(num_models, ctx.seed), ctx.num_clients)
    if common:
        return peers
    drawn = ctx.task.init(ctx.num_clients * num_models, ctx.seed)
    own = tree.map_leaves(lambda leaf: leaf.unflatten(0, (ctx.num_clients, num_models)), drawn)
    return put_models(peers, torch.arange(ctx.num_clients), own)


def gossip(
    ctx: Context, peers: Peers, client_ids: Tensor, models: ModelState, matrix: Tensor, share: Tensor | None = None
) -> Peers:
    """The peers after a round: the clients that took part mix; the weight of absent ones moves to the diagonal.

    Args:
        ctx: the context.
        peers: the peers before the round.
        client_ids: clients that took part, [C].
        models: their trained models, leaves [C, M, ...].
        matrix: W of all clients, [T, T].
        share: weight of each of these clients' models in averages, [C, M]; None: equal weights. Absent clients keep
            their weight, which enters only the mean of the peers.
    """
    matrix = matrix if ctx.present is None else restrict(matrix, ctx.present.cpu())
    if share is None:
        return put_models(peers, client_ids, models, matrix)
    assert peers.shares is not None
    shares = peers.shares.index_copy(0, client_ids, share.double())
    return put_models(peers, client_ids, models, matrix.to(share.device), shares=shares)


def traffic(ctx: Context, topology: Topology | None, value: Tree, client_id: Tensor) -> Tensor:
    """Bits to send a value to each neighbour that takes part in the phase, [] float64; as many are received.

    Without a topology the value is sent once, to a server.
    """
    if topology is None:
        return tree.bits(value) * torch.ones_like(client_id, dtype=torch.float64)
    edges = adjacency(topology, ctx.num_clients, ctx.seed, ctx.round_idx)
    return tree.bits(value) * links(ctx, edges, client_id)


class Gossiping(Served[Peers, State, Work]):
    """Algorithms without a server in which each client mixes its models with those of its neighbours."""

    # Annotations here are not postponed, for the same reason as those of `Algorithm`.
    topology: Topology
    mixing: MixingRule
    common_start: bool

    message = MessageSpec("rows", reduce="stack")
    participation = Participation(weighting="uniform", fills_in_absent=False)
    incompatible = {
        "size_sampling": "mixes along edges, at which a client stands once however often it is drawn",
        "local_norm": "mixes all leaves of the peers' models",
    }
    has_server = False
    state_reads_data = True

    def matrix(self, ctx: Context) -> Tensor:
        """W of the round, [T, T] float64."""
        return mixing_matrix(self.topology, self.mixing, ctx.num_clients, ctx.seed, ctx.round_idx)

    def shared_init(self, ctx: Context) -> Peers:
        """Fresh models; checks before training the first mixing matrix, and that the clients can agree."""
        self.matrix(ctx)
        check_agreement(self.topology, self.mixing, ctx.num_clients, ctx.seed)
        return initial_peers(ctx, self.num_models, common=self.common_start)

    def collaboration(self, ctx: Context, shared: Peers, states: State) -> Tensor:
        """The mixing matrix of the round."""
        return self.matrix(ctx)
