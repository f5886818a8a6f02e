import numpy as np
import pytest
import torch
from federated_round import (
    BINARY,
    MULTICLASS,
    Federation,
    as_arrays,
    batch_orders,
    distance,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    small_mlp,
)
from references.decentralized_surrogate_numpy import decentralized_round, identity
from references.dfedem_numpy import metropolis
from references.surrogate_optimization_numpy import mixture, moreau

from lit_fed.algorithms import DecentralizedSurrogate, DFedEM
from lit_fed.core import tree
from lit_fed.core.graphs.topology import ErdosRenyi, PathGraph, Ring
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.known_surrogates import IdentitySurrogate, MixtureSurrogate, MoreauSurrogate
from lit_fed.errors import ConfigError
from lit_fed.models import Linear

SIZES = [6, 1, 9, 3]
COHORTS = [[0, 1, 2, 3], [2, 0], [1, 3, 2]]
SOLVERS = [
    {"lr": 0.5},
    {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05, "local_epochs": 2},
    {"lr": 0.05, "optimizer": "adam"},
    {"lr": 0.3, "clip_norm": 0.05, "local_steps": 3},
]
CHAIN = {"topology": PathGraph(), "mixing": "metropolis"}


def rows(federation):
    """The models of all clients, [T, M, d + 1]."""
    leaves = federation.shared.parameters
    return torch.cat([leaves["linear.weight"].flatten(2), leaves["linear.bias"]], dim=2).numpy()


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", SOLVERS[:2], ids=str)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("instance", ["mixture", "moreau", "identity"])
def test_rounds_are_those_of_the_reference(options, weighting, instance, client_trainer):
    """With the identity these are local steps of SGD, then gossip."""
    surrogate, build, start = {
        "mixture": (MixtureSurrogate(3), mixture, np.full(3, 1 / 3)),
        "moreau": (MoreauSurrogate(2.0), moreau(2.0), None),
        "identity": (IdentitySurrogate(), identity, None),
    }[instance]
    train = make_clients(SIZES)
    settings = {"solver": LocalSolver(**options), "batch_size": 2, "weighting": weighting}
    algorithm = DecentralizedSurrogate(surrogate, **CHAIN, common_start=False)
    federation = Federation(algorithm, train, trainer=client_trainer, **settings)
    numbers = {name: value for name, value in options.items() if name != "local_epochs"}
    matrix = metropolis(np.eye(4, k=1) + np.eye(4, k=-1))
    shares = 4 * np.array(SIZES) / sum(SIZES) if weighting == "samples" else None
    us, vs = rows(federation), [start] * 4
    for _ in range(3):
        orders = batch_orders(federation)
        us, vs = decentralized_round(us, vs, as_arrays(train), orders, build, matrix, shares=shares, **numbers)
        federation.round()
        np.testing.assert_allclose(rows(federation), us, rtol=0, atol=1e-10)
        if instance != "identity":
            own = torch.cat([leaf.flatten(1) for leaf in tree.leaves(federation.states.local)], dim=1).numpy()
            np.testing.assert_allclose(own, np.stack(vs), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- D-FedEM
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize(("target", "network"), [(BINARY, Linear), (MULTICLASS, small_mlp)], ids=["linear", "mlp"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_with_the_mixture_surrogate_it_is_dfedem(solver, target, network, weighting, trainer):
    graph = {"topology": ErdosRenyi(0.6), "mixing": "metropolis", "common_start": weighting == "samples"}
    options = {
        "train": make_clients(SIZES, target=target), "task": make_task(target, network=network), "cohorts": COHORTS,
        "solver": LocalSolver(**solver), "weighting": weighting, "trainer": trainer,
    }  # fmt: skip
    ours = run_rounds(DecentralizedSurrogate(MixtureSurrogate(3), **graph), **options)
    dfedem = run_rounds(DFedEM(3, **graph), **options)
    assert distance(ours.shared, dfedem.shared) < 1e-12
    assert distance(ours.states.local, dfedem.states[:1]) < 1e-12
    assert ours.metrics == pytest.approx(dfedem.metrics, abs=1e-12)
    assert ours.bits.tolist() == dfedem.bits.tolist()
    assert distance(ours.predictions(), dfedem.predictions()) < 1e-12
    unseen = make_clients([5, 1], target=target, seed=9, first_id=4)
    assert distance(ours.predictions(unseen, seen=False), dfedem.predictions(unseen, seen=False)) < 1e-12


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_unseen_clients_fit_their_weights_as_in_dfedem(steps, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([5, 1, 0], seed=9, first_id=4)
    ours = run_rounds(DecentralizedSurrogate(MixtureSurrogate(3), **CHAIN, unseen_steps=steps), client_trainer, train)
    dfedem = run_rounds(DFedEM(3, **CHAIN, em_steps=steps), client_trainer, train)
    served, expected = ours.serve(unseen, seen=False), dfedem.serve(unseen, seen=False)
    assert distance(served.local, expected[:1]) < 1e-12
    assert served.client_id.tolist() == [4, 5, 6]
    assert distance(ours.states.local, dfedem.states[:1]) < 1e-12


# ---------------------------------------------------------------------- limits
def test_one_exact_step_gives_each_the_mixed_proximal_points(trainer):
    """pFedMe with lr = 1/λ: u_t <- Σ_j W_tj θ_j."""
    solver = LocalSolver(lr=0.5, local_steps=1)
    algorithm = DecentralizedSurrogate(MoreauSurrogate(2.0), **CHAIN)
    federation = Federation(algorithm, make_clients(SIZES), solver=solver, trainer=trainer)
    matrix = torch.from_numpy(metropolis(np.eye(4, k=1) + np.eye(4, k=-1)))
    for _ in range(2):
        federation.round()
        points = federation.states.local.models.parameters
        mixed = {name: torch.tensordot(matrix, leaf, 1) for name, leaf in points.items()}
        assert distance(federation.shared.parameters, mixed) < 1e-12


# ---------------------------------------------------------------------- who takes part
@pytest.mark.parametrize(("surrogate", "num_models"), [(MixtureSurrogate(4), 4), (MoreauSurrogate(), 1)], ids=str)
def test_all_models_go_along_each_edge_in_both_directions(surrogate, num_models, client_trainer):
    federation = Federation(DecentralizedSurrogate(surrogate, **CHAIN), make_clients(SIZES), trainer=client_trainer)
    for cohort, edges in (([0, 1, 2, 3], 6), ([0, 1, 3], 2), ([0, 2], 0)):
        federation.round(cohort)
        assert federation.bits.tolist() == [edges * num_models * 5 * 64] * 2


# ---------------------------------------------------------------------- what it tells, and settings
def test_an_unseen_client_of_pfedme_gets_the_proximal_point_at_the_mean(client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=4)
    federation = run_rounds(DecentralizedSurrogate(MoreauSurrogate(2.0), **CHAIN), client_trainer, train)
    mean = rows(federation).mean(axis=0)
    served = federation.serve(unseen, seen=False).local.models.parameters
    found = torch.cat([served["linear.weight"].flatten(2), served["linear.bias"]], dim=2)[:, 0].numpy()
    expected = [moreau(2.0)(mean, None, x, y)[0] for x, y in as_arrays(unseen)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_all_clients_start_alike_or_apart():
    for common in (True, False):
        algorithm = DecentralizedSurrogate(MixtureSurrogate(2), common_start=common)
        federation, dfedem = (
            Federation(one, make_clients(SIZES)) for one in (algorithm, DFedEM(2, common_start=common))
        )
        assert same_bits(federation.shared, dfedem.shared)
        assert (rows(federation) == rows(federation)[0]).all() == common
    assert algorithm.num_models == 2
    assert DecentralizedSurrogate() == DecentralizedSurrogate(MixtureSurrogate(3))


def test_wrong_settings_are_named_before_training():
    with pytest.raises(ConfigError, match="needs the topology Complete"):
        Federation(DecentralizedSurrogate(topology=Ring(), mixing="uniform"), make_clients(SIZES))
    with pytest.raises(ConfigError, match="makes 4 clients swap models and never agree"):
        Federation(DecentralizedSurrogate(topology=Ring(), mixing="metropolis"), make_clients([2] * 4))
