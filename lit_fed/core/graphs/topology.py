"""Graphs between clients: pairs of neighbours may exchange messages.

A topology is a frozen dataclass whose signature is its configuration; `graph` is a pure function of the number of
clients, the seed and the round. Nodes are client ids 0 … T − 1; edges are undirected, without loops.
"""

# Annotations are not postponed, so that the command line can read those of subclasses in other modules.
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.seeds import generator
from lit_fed.errors import ConfigError, check_settings
from lit_fed.system.packages import nx

__all__ = [
    "Bipartite", "Complete", "ErdosRenyi", "GraphFile", "Grid", "PathGraph", "RandomGeometric", "Ring", "Star",
    "TimeVarying", "Topology", "adjacency", "two_colours",
]  # fmt: skip

PLACE = "--model.algorithm.topology"

DRAWS = 1000
"""Maximum number of draws until a random graph is connected."""


class Topology(ABC):
    """Base class of `--model.algorithm.topology`."""

    needs_connection = True
    """Whether the graph must be connected in every round."""

    @abstractmethod
    def graph(self, num_clients: int, seed: int, round_idx: int) -> "nx.Graph":
        """The graph of a round, with nodes 0 … num_clients − 1; the same arguments give the same graph."""


@dataclass(frozen=True)
class Complete(Topology):
    """All clients are neighbours."""

    def graph(self, num_clients: int, seed: int, round_idx: int) -> "nx.Graph":
        return nx.complete_graph(num_clients)


@dataclass(frozen=True)
class Ring(Topology):
    """A cycle in the order of the ids."""

    def graph(self, num_clients: int, seed: int, round_idx: int) -> "nx.Graph":
        """The cycle; two clients have one edge between them, a single client has none."""
        return nx.cycle_graph(num_clients) if num_clients > 2 else nx.path_graph(num_clients)


@dataclass(frozen=True)
class PathGraph(Topology):
    """A chain in the order of the ids.

    Args:
        shuffled: use a random order.
    """

    shuffled: bool = False

    def graph(self, num_clients: int, seed: int, round_idx: int) -> "nx.Graph":
        order = np.arange(num_clients)
        if self.shuffled:
            generator(seed, round_idx, 0, "topology").shuffle(order)
        return _with_nodes(num_clients, zip(order[:-1].tolist(), order[1:].tolist(), strict=True))


@dataclass(frozen=True)
class Star(Topology):
    """One client is the neighbour of all others.

    Args:
        centre: id of that client.
    """

    centre: int = 0

    def __post_init__(self) -> None:
        check_settings(self, {"centre": (self.centre >= 0, "a whole number >= 0")}, PLACE)

    def graph(self, num_clients: int, seed: int, round_idx: int) -> "nx.Graph":
        if self.centre >= num_clients:
            raise ConfigError(f"{PLACE}.centre is {self.centre}; give the id of one of the {num_clients} clients")
        return _with_nodes(num_clients, ((self.centre, one) for one in range(num_clients) if one != self.centre))


@dataclass(frozen=True)
class Grid(Topology):
    """A rectangle of rows and columns, as square as the number of clients allows.

    Args:
        periodic: join opposite sides to a torus.
    """

    periodic: bool = False

    def graph(self, num_clients: int, seed: int, round_idx: int) -> "nx.Graph":
        """The grid, numbered row by row; a prime number of clients has one row."""
        rows = next(one for one in range(math.isqrt(max(num_clients, 1)), 0, -1) if num_clients % one == 0)
        grid = nx.grid_2d_graph(rows, num_clients // rows, periodic=self.periodic)
        found = nx.convert_node_labels_to_integers(grid, ordering="sorted")
        found.remove_edges_from(list(nx.selfloop_edges(found)))
        return found


@dataclass(frozen=True)
class ErdosRenyi(Topology):
    """Every edge with the same probability; drawn again until the graph is connected.

    Args:
        edge_probability: probability of each edge.
    """

    edge_probability: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self, {"edge_probability": (0 < self.edge_probability <= 1, "a number in (0, 1]")}, PLACE)

    def graph(self, num_clients: int, seed: int, round_idx: int) -> "nx.Graph":
        draw = partial(nx.gnp_random_graph, num_clients, self.edge_probability)
        return _until_connected(draw, seed, round_idx, f"{PLACE}.edge_probability is {self.edge_probability}")


@dataclass(frozen=True)
class RandomGeometric(Topology):
    """Clients at random positions in the unit square, joined if near; drawn again until the graph is connected.

    Args:
        radius: maximum distance of two neighbours.
    """

    radius: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self, {"radius": (self.radius > 0, "a number > 0")}, PLACE)

    def graph(self, num_clients: int, seed: int, round_idx: int) -> "nx.Graph":
        """A connected draw; the node attribute `pos` holds the position."""
        draw = partial(nx.random_geometric_graph, num_clients, self.radius)
        return _until_connected(draw, seed, round_idx, f"{PLACE}.radius is {self.radius}")


@dataclass(frozen=True)
class Bipartite(Topology):
    """Random edges between even and odd ids only; drawn again until the graph is connected.

    Args:
        edge_probability: probability of each edge between the halves.
    """

    edge_probability: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self, {"edge_probability": (0 < self.edge_probability <= 1, "a number in (0, 1]")}, PLACE)

    def graph(self, num_clients: int, seed: int, round_idx: int) -> "nx.Graph":
        even, odd = (num_clients + 1) // 2, num_clients // 2
        names = {node: 2 * node if node < even else 2 * (node - even) + 1 for node in range(num_clients)}

        def draw(seed: np.random.Generator) -> "nx.Graph":
            found = nx.bipartite.random_graph(even, odd, self.edge_probability, seed=seed)
            return _with_nodes(num_clients, ((names[a], names[b]) for a, b in found.edges))

        return _until_connected(draw, seed, round_idx, f"{PLACE}.edge_probability is {self.edge_probability}")


@dataclass(frozen=True)
class GraphFile(Topology):
    """A graph from a file with one line `a b` per edge, with client ids from 0; `#` starts a comment.

    Args:
        path: the file.
    """

    path: str = "graph.txt"

    def graph(self, num_clients: int, seed: int, round_idx: int) -> "nx.Graph":
        try:
            edges = list(nx.read_edgelist(self.path, nodetype=int, data=False).edges)
        except OSError as error:
            raise ConfigError(f"{PLACE}.path is {self.path}: {error.strerror}; give a file of edges") from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.path}: {error}; each line holds two client ids, such as `0 1`") from error
        wrong = sorted({one for edge in edges for one in edge if not 0 <= one < num_clients})
        if wrong:
            raise ConfigError(f"{self.path} names the client {wrong[0]}; the ids of {num_clients} clients start at 0")
        return _with_nodes(num_clients, (edge for edge in edges if edge[0] != edge[1]))


@dataclass(frozen=True)
class TimeVarying(Topology):
    """A time-varying graph, drawn anew every few rounds, with missing edges.

    Args:
        topology: the topology to draw from.
        every: number of rounds between draws.
        edge_fraction: probability that an edge is present in a round; below 1, graphs may be disconnected.
    """

    topology: Topology = ErdosRenyi()
    every: int = 1
    edge_fraction: float = 1.0

    needs_connection = False

    def __post_init__(self) -> None:
        checks = {
            "every": (self.every >= 1, "a whole number >= 1"),
            "edge_fraction": (0 < self.edge_fraction <= 1, "a number in (0, 1]"),
        }
        check_settings(self, checks, PLACE)

    def graph(self, num_clients: int, seed: int, round_idx: int) -> "nx.Graph":
        """The current draw without the edges missing in this round."""
        drawn = self.topology.graph(num_clients, seed, round_idx // self.every)
        if self.edge_fraction == 1:
            return drawn
        there = generator(seed, round_idx, 0, "missing edges").random(drawn.number_of_edges()) < self.edge_fraction
        kept = (edge for edge, stays in zip(drawn.edges, there, strict=True) if stays)
        return _with_nodes(num_clients, kept)


@lru_cache(maxsize=8)
def adjacency(topology: Topology, num_clients: int, seed: int, round_idx: int) -> Tensor:
    """The graph of a round as a matrix, [T, T] float64: 1 for an edge, 0 elsewhere and on the diagonal.

    Args:
        topology: the topology; unless it is time-varying, round 0 is used.
        num_clients: number of clients T.
        seed: training seed.
        round_idx: round, from 0.

    Raises:
        ConfigError: if the graph must be connected and is not.
    """
    if not isinstance(topology, TimeVarying) and round_idx:
        return adjacency(topology, num_clients, seed, 0)
    graph = topology.graph(num_clients, seed, round_idx)
    if topology.needs_connection and num_clients > 1 and not nx.is_connected(graph):
        parts = f"{nx.number_connected_components(graph)} parts that never hear of each other"
        raise ConfigError(f"{PLACE} {topology} falls into {parts}; add edges between them")
    return torch.from_numpy(nx.to_numpy_array(graph, nodelist=range(num_clients), weight=None))


def two_colours(matrix: Tensor) -> Tensor:
    """Heads (True) and tails of a bipartite graph, [T]; the first client of each component is a head.

    Args:
        matrix: adjacency, [T, T].

    Raises:
        ConfigError: if the graph is not bipartite.
    """
    graph = nx.from_numpy_array(matrix.numpy())
    try:
        colours = nx.bipartite.color(graph)
    except nx.NetworkXError as error:
        raise ConfigError(
            f"{PLACE} has a cycle of odd length, and neighbours have to take turns; "
            "give a bipartite graph: PathGraph, Bipartite, Star, Grid, or a Ring of an even number of clients"
        ) from error
    head = {node: colours[min(part)] for part in nx.connected_components(graph) for node in part}
    return torch.tensor([colours[node] == head[node] for node in range(len(matrix))])


def _with_nodes(num_clients: int, edges: object) -> "nx.Graph":
    graph = nx.empty_graph(num_clients)
    graph.add_edges_from(edges)
    return graph


def _until_connected(draw: Callable[..., "nx.Graph"], seed: int, round_idx: int, setting: str) -> "nx.Graph":
    """The first connected draw; `draw` takes a generator as `seed`."""
    rng = generator(seed, round_idx, 0, "topology")
    for _ in range(DRAWS):
        graph = draw(seed=rng)
        if len(graph) < 2 or nx.is_connected(graph):
            return graph
    raise ConfigError(f"{setting}: none of {DRAWS} graphs of {len(graph)} clients was connected; give a larger one")
