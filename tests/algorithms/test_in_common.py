"""What many algorithms share: what a round sends, what absent clients keep, and what clients are served with."""

import numpy as np
import pytest
import torch
from federated_round import as_arrays, distance, make_clients, make_task, run_rounds, same_bits

import lit_fed.algorithms as a
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.known_surrogates import MixtureSurrogate, MoreauSurrogate

SIZES = [5, 2, 8]

TRAFFIC = [
    (a.APFL(), 5, 5),
    (a.Ditto(), 5, 5),
    (a.EASGD(mode="synchronous", momentum=0.9), 5, 5),
    (a.EASGD(mode="asynchronous", momentum=0.9), 5, 5),
    (a.FedAdagrad(), 5, 5),
    (a.FedAdam(), 5, 5),
    (a.FedYogi(), 5, 5),
    (a.FedAMP(), 5, 5),
    (a.FedAvg(), 5, 5),
    (a.FedAvgM(), 5, 5),
    (a.FedAvgPlus(), 5, 5),  # tuning is not counted as traffic
    (a.FedEM(4), 4 * 5, 4 * 5),  # all components, and no weights
    (a.FedNova(), 6, 5),  # a change and its norm go up
    (a.FedProx(), 5, 5),
    (a.FedProx(0.1, 0.5), 5, 5),
    (a.FedProx(local_solve="exact"), 5, 5),
    (a.FedSGD(), 5, 5),
    (a.FML(), 5, 5),  # the meme model alone
    (a.Local(), 0, 0),
    *((a.MixtureADMM(form=form), 5, 5) for form in ("alternating_prox", "jacobi", "gauss_seidel")),
    (a.PerFedAvg(), 5, 5),
    (a.PFedMe(), 5, 5),
    (a.ProxAvg(), 5, 5),
    (a.QFedAvg(), 6, 5),
    (a.QFedSGD(), 6, 5),
    (a.SCAFFOLD(), 2 * 5, 2 * 5),
    (a.SurrogateOptimization(MixtureSurrogate(4)), 4 * 5, 4 * 5),  # all models, and no local variable
    (a.SurrogateOptimization(MoreauSurrogate()), 5, 5),
]


@pytest.mark.parametrize(("algorithm", "up", "down"), TRAFFIC, ids=repr)
def test_what_each_sampled_client_sends_and_gets(algorithm, up, down, client_trainer):
    """In numbers of 32 bits; a model has five."""
    options = {
        "task": make_task(dtype=torch.float32),
        "rounds": 1,
        "cohorts": [[0, 2]],
        "solver": LocalSolver(momentum=0.9),
    }
    federation = run_rounds(algorithm, client_trainer, make_clients(SIZES, dtype=torch.float32), **options)
    assert federation.bits.tolist() == [2 * up * 32, 2 * down * 32]


@pytest.mark.parametrize(
    ("algorithm", "gap"),
    [
        (a.APFL(), 1e-4),
        (a.ConsensusADMM(), 1e-3),
        (a.DecentralizedSurrogate(MixtureSurrogate(2)), 1e-4),
        (a.DecentralizedSurrogate(MoreauSurrogate(2.0)), 1e-4),
        (a.DFedEM(3), 1e-3),
        (a.Ditto(), 1e-3),
        (a.EASGD(momentum=0.9), 1e-3),
        (a.FedEM(), 1e-6),
        (a.FedU(0.3), 1e-3),
        (a.FML(), 1e-3),
        (a.Local(), 1e-3),
        (a.MixtureADMM(form="alternating_prox"), 1e-3),
        (a.MixtureADMM(form="jacobi"), 1e-3),
        (a.MixtureADMM(form="gauss_seidel"), 1e-3),
        (a.PFedMe(), 1e-6),
        (a.ProxAvg(1.0, "sgd"), 1e-3),
        (a.ProxAvg(1.0, "exact"), 1e-3),
        (a.SCAFFOLD(), 1e-3),
        (a.SurrogateOptimization(MixtureSurrogate(3)), 1e-3),
        (a.SurrogateOptimization(MoreauSurrogate()), 1e-3),
    ],
    ids=repr,
)
def test_absent_clients_keep_what_is_theirs(algorithm, gap, client_trainer):
    """Their states and, where each client has a model of its own at the server or none, that."""
    federation = run_rounds(algorithm, client_trainer, make_clients(SIZES), rounds=1, num_rounds=2)
    before = tree.map_leaves(torch.clone, (federation.states, getattr(federation.shared, "each", ())))
    federation.round([1])
    after = federation.states, getattr(federation.shared, "each", ())
    for one in (0, 2):
        assert same_bits(tree.index(after, one), tree.index(before, one))
    models = [getattr(own[0], "models", own) for own in (before, after)]
    assert distance(*(tree.index(one, 1) for one in models)) > gap


@pytest.mark.parametrize(
    "algorithm",
    [
        a.DecentralizedSurrogate(), a.DFedEM(), a.Ditto(), a.FedEM(), a.FedeRiCo(),
        a.FedFOMO(), a.FML(), a.Local(), a.ProxAvg(),
        a.SurrogateOptimization(MixtureSurrogate(3)),
    ],
    ids=repr,
)  # fmt: skip
def test_seen_clients_are_served_with_what_they_kept(algorithm, client_trainer):
    federation = run_rounds(algorithm, client_trainer, make_clients(SIZES))
    assert same_bits(federation.serve(), federation.states)


WITHOUT_STATES = [
    a.FedAdagrad(), a.FedAdam(), a.FedAvg(), a.FedAvgM(), a.FedProx(), a.FedSGD(), a.FedYogi(),
    a.QFedAvg(), a.QFedSGD(),
]  # fmt: skip


@pytest.mark.parametrize("algorithm", WITHOUT_STATES, ids=repr)
def test_nothing_is_kept_where_all_are_served_alike(algorithm, client_trainer):
    federation = run_rounds(algorithm, client_trainer, make_clients(SIZES))
    unseen = make_clients([6, 3], seed=2, first_id=3)
    assert federation.states == federation.serve() == federation.serve(unseen, seen=False) == ()
    for seen in (True, False):
        assert federation.algorithm.adapt_work(federation.context("adapt"), seen) is None


@pytest.mark.parametrize(
    "algorithm",
    [*WITHOUT_STATES, a.APFL(0.3), a.EASGD(serve="centre"), a.EASGD(serve="personal"), a.FedNova(), a.SCAFFOLD()],
    ids=repr,
)
def test_unseen_clients_are_served_with_the_global_model(algorithm, client_trainer):
    federation = run_rounds(algorithm, client_trainer, make_clients(SIZES))
    unseen = make_clients([6, 3], seed=2, first_id=3)
    w = federation.weights[0].numpy()
    for found, (x, _) in zip(federation.predictions(unseen, seen=False), as_arrays(unseen), strict=True):
        positive = 1 / (1 + np.exp(-(x @ w[:4] + w[4])))
        np.testing.assert_allclose(found.exp(), np.stack([1 - positive, positive], 1), rtol=0, atol=1e-12)
