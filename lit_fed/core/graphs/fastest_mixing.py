"""The fastest mixing Markov chain on a graph.

Boyd, Diaconis, Xiao. "Fastest Mixing Markov Chain on a Graph". SIAM Review 46(4), 2004.
https://doi.org/10.1137/S0036144503423264

Minimise ‖P − J‖ over symmetric P >= 0 with P1 = 1 and P_ij = 0 off the graph; J = 11ᵀ/N, the norm is the spectral one.
Its dual, Section 4, is to maximise 1ᵀz over Y and z with ‖Y‖_* <= 1, Y1 = 0 and (z_i + z_j)/2 <= Y_ij on the graph.

Operator splitting (Douglas-Rachford, that is ADMM) needs two closed forms: the nearest matrix on the graph, by clipping
entries, and the one with P1 = 1 that trades ‖P − J‖ against distance, by clipping eigenvalues. The clipped part is a
dual Y, so each iterate has a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lit_fed.system.packages import imported_later, nx

__all__ = ["Certified", "Jumps", "certified", "fastest_mixing", "lower_bound"]

if TYPE_CHECKING:
    from scipy import optimize
else:
    optimize = imported_later("scipy.optimize")

SMALL = 100
"""Maximum number of nodes for which steps are cheap enough to reach a tight certificate."""

GAP, STEPS = {"small": 1e-6, "large": 1e-3}, {"small": 2000, "large": 1000}
"""Tolerated gap, relative to the smaller of SLEM and 1 − SLEM, and maximum number of steps."""
ROUNDING, CHECK_EVERY, BALANCE_EVERY, LAST_BALANCE = 1e-10, 10, 50, 1000
RELAXATION, FIRST_WEIGHT, IMBALANCE = 1.6, 0.3, 3.0


class Certified(NamedTuple):
    """A mixing matrix with bounds on its SLEM."""

    matrix: Tensor  # [N, N] float64
    dual: Tensor  # Y, [N, N]; lower_bound(dual, edges) is `lower`
    lower: float  # no mixing matrix of the graph has a smaller SLEM
    upper: float  # SLEM of the matrix


def fastest_mixing(edges: Tensor) -> Tensor:
    """The mixing matrix of a graph with the smallest second-largest eigenvalue modulus (SLEM), [N, N] float64.

    The SLEM of a disconnected graph is 1 for any weights, so each component is solved alone.

    Args:
        edges: adjacency, [N, N] float64.
    """
    matrix = torch.eye(len(edges), dtype=torch.float64)
    for part in nx.connected_components(nx.from_numpy_array(edges.numpy())):
        nodes = torch.tensor(sorted(part))
        if len(nodes) > 1:
            matrix[nodes[:, None], nodes] = certified(edges[nodes[:, None], nodes]).matrix
    return matrix


def certified(edges: Tensor) -> Certified:
    """The fastest mixing matrix of a connected graph with its certificate; never worse than simple weights.

    Args:
        edges: adjacency, [N, N] float64, N >= 2.
    """
    size = "small" if len(edges) <= SMALL else "large"
    on_graph = edges + torch.eye(len(edges), dtype=torch.float64) > 0
    upper, point = min(((_slem(one), one) for one in _simple_weights(edges)), key=lambda one: one[0])
    best = Certified(point, torch.zeros_like(edges), 0.0, upper)
    weight, jumps, before = FIRST_WEIGHT, Jumps(), point
    for step in range(1, STEPS[size] + 1):
        if best.upper - best.lower <= max(GAP[size] * min(best.upper, 1 - best.upper), ROUNDING):
            break
        sparse = torch.where(on_graph, point, 0).clamp(min=0)
        dense, dual = _clip_eigenvalues(2 * sparse - point, weight)
        if step % CHECK_EVERY == 0:
            best = _better(best, _repaired(sparse), dual, edges)
        if step % BALANCE_EVERY == 0 and step <= LAST_BALANCE:
            apart, moved = (dense - sparse).norm() / _centred(sparse).norm(), (sparse - before).norm()
            factor = _balance(float(apart * (sparse - point).norm() / moved))
            if factor != 1:  # keeps the multiplier, weight * (sparse - point)
                weight, point, jumps = weight * factor, sparse - (sparse - point) / factor, Jumps()
                continue
        before, point = sparse, jumps.next(point, RELAXATION * (dense - sparse))
    return best


def lower_bound(dual: Tensor, edges: Tensor) -> float:
    """A lower bound on the SLEM of all mixing matrices of the graph, from any symmetric matrix.

    With Y made feasible, ‖P − J‖ >= ⟨Y, P − J⟩ = ⟨Y, P⟩. The right side is smallest at a permutation along edges and
    loops, since doubly stochastic matrices are means of permutations; finding it also finds the best z.

    Args:
        dual: Y, [N, N].
        edges: adjacency, [N, N].
    """
    dual = _centred(dual)
    dual = dual / torch.linalg.eigvalsh(dual).abs().sum().clamp(min=1)
    on_graph = edges + torch.eye(len(edges), dtype=torch.float64) > 0
    cost = dual.masked_fill(~on_graph, torch.inf).numpy()
    return max(0.0, float(cost[optimize.linear_sum_assignment(cost)].sum()))


def _slem(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix - 1 / len(matrix)).abs().max())


def _simple_weights(edges: Tensor) -> list[Tensor]:
    """Metropolis, lazy Metropolis and maximum-degree weights; the last two are optimal for some graphs."""
    degree = edges.sum(1)
    larger = torch.maximum(degree[:, None], degree)
    return [_repaired(edges / one) for one in (larger, larger + 1, degree.max())]


def _repaired(matrix: Tensor) -> Tensor:
    """A mixing matrix near one whose rows may not sum to 1: edges of nodes with total weight above 1 shrink."""
    weight = (matrix + matrix.T).fill_diagonal_(0) / 2
    total = weight.sum(1).clamp(min=1)
    weight = weight / torch.maximum(total[:, None], total)
    return weight + torch.diag(1 - weight.sum(1))


def _centred(matrix: Tensor) -> Tensor:
    """C M C with C = I − J."""
    matrix = matrix - matrix.mean(0)
    return matrix - matrix.mean(1, keepdim=True)


def _clip_eigenvalues(matrix: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """The P with P1 = 1 that minimises ‖P − J‖ + weight/2 ‖P − M‖_F², and Y = weight (M − P) off 1, ‖Y‖_* <= 1."""
    centred = _centred(matrix)
    values, vectors = torch.linalg.eigh(centred)
    summed = values.abs().sort(descending=True).values.cumsum(0)
    largest = ((summed - 1 / weight) / torch.arange(1, len(values) + 1)).max().clamp(min=0)
    clipped = (vectors * torch.minimum(torch.maximum(values, -largest), largest)) @ vectors.T
    return clipped + 1 / len(matrix), weight * (centred - clipped)


def _better(best: Certified, matrix: Tensor, dual: Tensor, edges: Tensor) -> Certified:
    upper, lower = _slem(matrix), lower_bound(dual, edges)
    best = best._replace(matrix=matrix, upper=upper) if upper < best.upper else best
    return best._replace(dual=dual, lower=lower) if lower > best.lower else best


def _balance(ratio: float) -> float:
    """Factor on the weight that balances convergence: more weight pulls P and M together, less moves Y."""
    return 2.0 if ratio > IMBALANCE else 0.5 if ratio < 1 / IMBALANCE else 1.0


JUMP_EVERY, MEMORY = 5, 10
RIDGE = 1e-8
"""Regularises the small linear system if steps are similar, relative to its mean diagonal."""


class Jumps:
    """Anderson acceleration of x ← G(x): every few steps, jump to the fixed point of a linear fit to the last ones.

    Anderson. "Iterative Procedures for Nonlinear Integral Equations". Journal of the ACM 12(4), 1965.
    https://doi.org/10.1145/321296.321305

    Plain steps of an averaged map never grow. A jump is undone if the next step is longer than the previous one, so the
    iteration still converges.
    """

    def __init__(self) -> None:
        self.moves: list[Tensor] = []
        self.images: list[Tensor] = []
        self.plain: Tensor | None = None  # the point without the last jump
        self.length, self.count = torch.inf, 0

    def next(self, point: Tensor, move: Tensor) -> Tensor:
        """The next point.

        Args:
            point: x, of any shape; the result of the last call.
            move: G(x) − x.
        """
        length = float(move.norm())
        if self.plain is not None and length > self.length:
            point, self.plain, self.moves, self.images = self.plain, None, [], []
            return point
        image = point + move
        self.moves, self.images = [*self.moves[-MEMORY:], move], [*self.images[-MEMORY:], image]
        self.plain, self.length, self.count = None, length, self.count + 1
        if self.count % JUMP_EVERY or len(self.moves) <= MEMORY:
            return image
        self.plain = image
        changes = torch.stack(self.moves).flatten(1).diff(dim=0)
        gram = changes @ changes.T
        gram = gram + RIDGE * gram.diagonal().mean() * torch.eye(MEMORY, dtype=gram.dtype)
        share: Tensor = torch.linalg.solve(gram, changes @ move.flatten())
        past = torch.stack(self.images).flatten(1).diff(dim=0)
        return image - (share @ past).view_as(image)
