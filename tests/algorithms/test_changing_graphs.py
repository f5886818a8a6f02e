"""Clients without a server on graphs that change from round to round, or whose edges are given in one direction.

A round of D-FedEM with one full batch is the derivative of one sum: the mixture's negative log-likelihood. Its slope
for the components is the M-step's gradient, and that for the weights tells the E-step's.
"""

import networkx as nx
import numpy as np
import pytest
from federated_round import Federation, as_arrays, make_clients
from references.objectives_numpy import half_square, loss, losses, slope

from lit_fed.algorithms import DFedEM, FedU
from lit_fed.core.graphs.topology import ErdosRenyi, GraphFile, Ring, TimeVarying
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import generator

SIZES = [5, 2, 8, 3, 6]
COHORTS = [[0, 1, 2, 3, 4], [4, 1, 2], [0, 1, 3, 4], [3], [1, 2, 0], [0, 1, 2, 3, 4]]


def edges_of(changing, seed, round_idx):
    """The pairs of a round: a draw stays for some rounds, and each round has edges of its own that are missing."""
    pairs = list(changing.topology.graph(len(SIZES), seed, round_idx // changing.every).edges)
    draws = generator(seed, round_idx, 0, "missing edges").random(len(pairs))
    return [pair for pair, draw in zip(pairs, draws, strict=True) if draw < changing.edge_fraction]


def mixing_of(pairs, cohort, lazy):
    """Metropolis' weights of all pairs; those between clients present are kept, and the diagonal takes the rest."""
    degrees = np.bincount(np.array(pairs, dtype=int).ravel(), minlength=len(SIZES))
    matrix = np.zeros((len(SIZES), len(SIZES)))
    for a, b in pairs:
        if a in cohort and b in cohort:
            matrix[a, b] = matrix[b, a] = 1 / (max(degrees[a], degrees[b]) + lazy)
    for one in range(len(SIZES)):
        matrix[one, one] = 1 - matrix[one].sum()
    return matrix


def likelihood(thetas, pi, x, y):
    """Mean over samples of −log Σ_m π_m p(y | x, θ_m)."""
    return -np.log(sum(weight * np.exp(-losses(theta, x, y)) for theta, weight in zip(thetas, pi, strict=True))).mean()


def em_step(thetas, pi, x, y, lr, share):
    """θ_m − η·share·∂/∂θ_m and −π_m·∂/∂π_m of the negative log-likelihood."""
    descended = thetas - lr * share * slope(lambda moved: likelihood(moved, pi, x, y), thetas)
    return descended, -pi * slope(lambda moved: likelihood(thetas, moved, x, y), pi)


def rows(federation):
    """Models of all clients, [T, M, d + 1]."""
    leaves = [leaf.flatten(2).numpy() for leaf in federation.shared.parameters.values()]
    return np.concatenate(leaves, axis=2)


def run_dfedem(federation, matrices, cohorts):
    """Rounds of D-FedEM and of the derivatives side by side."""
    sizes, clients = np.array(SIZES), as_arrays(federation.train)
    shares = len(sizes) * sizes / sizes.sum() if federation.weighting == "samples" else np.ones(len(sizes))
    thetas, pis = rows(federation), federation.states.mixture.numpy()
    for matrix, cohort in zip(matrices, cohorts, strict=True):
        trained, pis = thetas.copy(), pis.copy()
        for i in cohort:
            trained[i], pis[i] = em_step(thetas[i], pis[i], *clients[i], 0.4, shares[i])
        thetas = np.tensordot(matrix, trained, axes=1)
        federation.round(cohort)
        np.testing.assert_allclose(rows(federation), thetas, rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.states.mixture.numpy(), pis, rtol=0, atol=1e-10)
    assert federation.algorithm.num_components == 1 or np.ptp(pis) > 1e-2


# ---------------------------------------------------------------------- graphs that change
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize(
    ("num_components", "changing", "mixing"),
    [
        (1, TimeVarying(ErdosRenyi(0.6)), "metropolis"),
        (3, TimeVarying(ErdosRenyi(0.6), every=2, edge_fraction=0.6), "metropolis"),
        (2, TimeVarying(Ring(), every=3, edge_fraction=0.5), "lazy_metropolis"),
    ],
    ids=["drawn", "kept for two rounds", "ring"],
)
def test_dfedem(num_components, changing, mixing, weighting, trainer):
    algorithm = DFedEM(num_components, changing, mixing, common_start=False)
    fields = {"solver": LocalSolver(lr=0.4), "trainer": trainer, "batch_size": 0, "weighting": weighting, "seed": 7}
    federation = Federation(algorithm, make_clients(SIZES), **fields)
    graphs = [edges_of(changing, 7, round_idx) for round_idx in range(6)]
    assert len({tuple(one) for one in graphs}) >= 4  # rings lose the same edges at times
    lazy = mixing == "lazy_metropolis"
    matrices = [mixing_of(pairs, cohort, lazy) for pairs, cohort in zip(graphs, COHORTS, strict=True)]
    run_dfedem(federation, matrices, COHORTS)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_fedu(weighting, trainer):
    """Local steps, then one on η/2·Σ ‖w_i − w_j‖² over the pairs present, as long as the local ones together."""
    changing = TimeVarying(ErdosRenyi(0.7), every=2, edge_fraction=0.7)
    fields = {"solver": LocalSolver(lr=0.2, local_steps=3), "trainer": trainer, "weighting": weighting, "seed": 7}
    federation = Federation(FedU(0.3, changing), make_clients(SIZES), batch_size=0, **fields)
    sizes, models = np.array(SIZES), rows(federation)[:, 0]
    shares = 5 * sizes / sizes.sum() if weighting == "samples" else np.ones(5)
    for round_idx, cohort in enumerate(COHORTS):
        pairs = [pair for pair in edges_of(changing, 7, round_idx) if set(pair) <= set(cohort)]
        trained = models.copy()
        for i in cohort:
            for _ in range(3):
                fit = lambda theta, i=i: shares[i] * loss(theta, *as_arrays(federation.train)[i])  # noqa: E731
                trained[i] = trained[i] - 0.2 * slope(fit, trained[i])
        energy = lambda w, pairs=pairs: 0.3 * sum(half_square(w[a] - w[b]) for a, b in pairs)  # noqa: E731
        models = trained - 0.2 * 3 * slope(energy, trained) if pairs else trained
        federation.round(cohort)
        np.testing.assert_allclose(rows(federation)[:, 0], models, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- directions
@pytest.mark.parametrize("num_components", [1, 3])
def test_arcs_of_a_file_go_both_ways(num_components, tmp_path, trainer):
    """Mixing matrices are symmetric: who hears of a client is heard by it, though a file names one direction alone."""
    arcs = [(0, 1), (2, 1), (2, 0), (4, 2), (3, 4)]
    path = tmp_path / "arcs.txt"
    path.write_text("".join(f"{a} {b}\n" for a, b in arcs))
    assert not nx.is_strongly_connected(nx.DiGraph(arcs))  # followed one way, some would never hear of the others
    algorithm = DFedEM(num_components, GraphFile(str(path)), "metropolis", common_start=False)
    fields = {"solver": LocalSolver(lr=0.4), "trainer": trainer, "batch_size": 0}
    federation = Federation(algorithm, make_clients(SIZES), **fields)
    run_dfedem(federation, [mixing_of(arcs, cohort, lazy=False) for cohort in COHORTS], COHORTS)
