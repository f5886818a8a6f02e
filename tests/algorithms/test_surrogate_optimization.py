from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from federated_round import (
    BINARY,
    MULTICLASS,
    REGRESSION,
    Federation,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    make_clients,
    make_task,
    quadratics,
    run_rounds,
    small_mlp,
)
from local_norm import local_norm
from normalised import NormalisedMLP
from references.surrogate_optimization_numpy import federated_round, mixture, moreau

from lit_fed.algorithms import FedAvg, FedEM, FedProx, PFedMe, SurrogateOptimization
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.known_surrogates import IdentitySurrogate, MixtureSurrogate, MoreauSurrogate
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, Linear

SIZES = [6, 1, 9, 3]
COHORTS = [[0, 1, 2, 3], [2, 0], [1, 3, 3]]
SOLVERS = [
    {"lr": 0.5},
    {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05, "local_epochs": 2},
    {"lr": 0.05, "optimizer": "adam"},
    {"lr": 0.3, "clip_norm": 0.05, "local_steps": 3},
]
MIXTURE, MOREAU = SurrogateOptimization(MixtureSurrogate(3)), SurrogateOptimization(MoreauSurrogate(2.0))


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", SOLVERS[:2], ids=str)
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("instance", ["mixture", "moreau"])
def test_rounds_are_those_of_the_reference(options, weighting, instance, client_trainer):
    train = make_clients([5, 2, 8])
    algorithm, build = {"mixture": (MIXTURE, mixture), "moreau": (MOREAU, moreau(2.0))}[instance]
    options = options | {"local_epochs": 2}
    settings = {"solver": LocalSolver(**options), "trainer": client_trainer, "batch_size": 2, "weighting": weighting}
    federation = Federation(algorithm, train, **settings)
    u, vs = federation.weights.numpy(), [np.full(3, 1 / 3)] * 3
    weights = np.array([5, 2, 8]) / 15 if weighting == "samples" else np.full(3, 1 / 3)
    numbers = {name: value for name, value in options.items() if name != "local_epochs"}
    for _ in range(3):
        orders = batch_orders(federation)
        u, vs = federated_round(u, vs, as_arrays(train), orders, build, weights, **numbers)
        federation.round()
        np.testing.assert_allclose(federation.weights.numpy(), u, rtol=0, atol=1e-10)
        parameters = tree.leaves(federation.states)
        own = torch.cat([leaf.flatten(1) for leaf in parameters], dim=1).numpy()
        np.testing.assert_allclose(own, np.stack(vs), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- FedEM
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize(("target", "network"), [(BINARY, Linear), (MULTICLASS, small_mlp)], ids=["linear", "mlp"])
@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
def test_with_the_mixture_surrogate_it_is_fedem(solver, target, network, aggregation, trainer):
    options = {
        "train": make_clients(SIZES, target=target), "task": make_task(target, network=network),
        "solver": LocalSolver(**solver), "aggregation": aggregation, "cohorts": COHORTS,
    }  # fmt: skip
    ours, fedem = (run_rounds(one, trainer, **options) for one in (MIXTURE, FedEM(3)))
    assert distance(ours.shared, fedem.shared) < 1e-12
    assert distance(ours.states, fedem.states) < 1e-12
    assert ours.metrics == pytest.approx(fedem.metrics, abs=1e-12)
    assert ours.bits.tolist() == fedem.bits.tolist()
    assert distance(ours.predictions(), fedem.predictions()) < 1e-12
    unseen = make_clients([5, 1, 2], target=target, seed=9, first_id=len(SIZES))
    assert distance(ours.predictions(unseen, seen=False)[:2], fedem.predictions(unseen, seen=False)[:2]) < 1e-12
    assert distance(ours.serve(unseen, seen=False), fedem.serve(unseen, seen=False)) < 1e-12


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_unseen_clients_fit_their_weights_as_in_fedem(steps, client_trainer):
    ours = SurrogateOptimization(MixtureSurrogate(3), unseen_steps=steps)
    fedem = FedEM(3, em_steps=steps)
    train, unseen = make_clients(SIZES), make_clients([5, 1, 2], seed=9, first_id=len(SIZES))
    ours, fedem = (run_rounds(one, client_trainer, train) for one in (ours, fedem))
    assert distance(ours.serve(unseen, seen=False), fedem.serve(unseen, seen=False)) < 1e-12
    assert distance(ours.serve(), fedem.serve()) < 1e-12
    assert distance(ours.states, fedem.states) < 1e-12


def test_it_is_fedem_with_local_batch_norm(trainer):
    options = {
        "train": make_clients([6, 9, 3]), "task": make_task(network=NormalisedMLP), "batch_size": 3,
        "solver": LocalSolver(lr=0.1, momentum=0.5),
    }  # fmt: skip
    ours, fedem = (run_rounds(local_norm(one), trainer, **options) for one in (MIXTURE, FedEM(3)))
    assert distance((ours.shared, ours.states), (fedem.shared, fedem.states)) < 1e-12
    assert ours.bits.tolist() == fedem.bits.tolist()


# ---------------------------------------------------------------------- pFedMe
@pytest.mark.parametrize("target", [BINARY, MULTICLASS, REGRESSION], ids=lambda one: one.kind)
@pytest.mark.parametrize("prox_weight", [0.5, 4.0])
def test_one_exact_step_makes_the_new_model_the_mean_of_the_proximal_points(prox_weight, target, client_trainer):
    solver = LocalSolver(lr=1 / prox_weight, local_steps=1)
    algorithm = SurrogateOptimization(MoreauSurrogate(prox_weight))
    task, train = make_task(target), make_clients(SIZES, target=target)
    federation = Federation(algorithm, train, task, solver, client_trainer, batch_size=0)
    assert federation.weighting == "uniform"
    for _ in range(3):
        federation.round()
        mean = tree.map_leaves(lambda leaf: leaf.mean(0), federation.states.models)
        assert distance(federation.shared.models, mean) < 1e-12


@pytest.mark.parametrize("target", [BINARY, MULTICLASS, REGRESSION], ids=lambda one: one.kind)
@pytest.mark.parametrize("lr", [0.25, 0.1])
def test_with_the_moreau_surrogate_it_is_pfedme_of_one_exact_step(target, lr, trainer):
    options = {
        "train": make_clients(SIZES, target=target), "task": make_task(target),
        "cohorts": [[0, 1, 2, 3], [2, 0], [1, 3]],
        "solver": LocalSolver(lr=lr, local_steps=1), "batch_size": 0,
    }  # fmt: skip
    pfedme = PFedMe(prox_weight=4.0, local_solve="exact", server_mix=1.0)
    ours, theirs = (
        run_rounds(one, trainer, **options) for one in (SurrogateOptimization(MoreauSurrogate(4.0)), pfedme)
    )
    assert distance(ours.shared, theirs.shared) < 1e-12
    assert distance(ours.states.models, theirs.states) < 1e-12
    assert distance(ours.predictions(), theirs.predictions()) < 1e-12
    assert ours.bits.tolist() == theirs.bits.tolist()


def test_rounds_go_to_the_minimum_of_the_envelopes(client_trainer):
    # f_1 = ½x², f_2 = ½·3(x − 4)², λ = 1: w = 2.4 and the personal models 1.2 and 3.6
    task, train = make_task(REGRESSION, 1, Scale), quadratics([1, 3], [0, 4])
    options = {"solver": LocalSolver(lr=0.5, local_steps=1), "batch_size": 0, "rounds": 70}
    federation = run_rounds(SurrogateOptimization(MoreauSurrogate(1.0)), client_trainer, train, task=task, **options)
    assert federation.weights.item() == pytest.approx(2.4, abs=1e-9)
    assert federation.states.models.parameters["weight"].flatten().tolist() == pytest.approx([1.2, 3.6], abs=1e-9)
    unseen = quadratics([1], [1.4])
    unseen.first_id = 2
    served = federation.serve(unseen, seen=False)  # its proximal point, (1.4 + 2.4) / 2
    assert served.models.parameters["weight"].item() == pytest.approx(1.9, abs=1e-9)


def test_a_network_too_large_for_an_exact_solve_is_refused():
    task = make_task(network=lambda shape, outputs: MLP(shape, outputs, (2000,)))
    with pytest.raises(ConfigError, match="an exact local solve needs the Hessian"):
        run_rounds(MOREAU, None, make_clients([4]), task=task, rounds=0)


# ---------------------------------------------------------------------- FedAvg
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize(("target", "network"), [(BINARY, Linear), (MULTICLASS, small_mlp)], ids=["linear", "mlp"])
def test_with_the_objective_as_its_own_surrogate_it_is_fedavg(solver, target, network, trainer):
    options = {
        "train": make_clients(SIZES, target=target), "task": make_task(target, network=network),
        "solver": LocalSolver(**solver), "cohorts": COHORTS,
    }  # fmt: skip
    ours, plain = (
        run_rounds(one, trainer, **options) for one in (SurrogateOptimization(IdentitySurrogate()), FedAvg())
    )
    assert distance(ours.shared, plain.shared) < 1e-12
    assert distance(ours.predictions(), plain.predictions()) < 1e-12
    assert ours.bits.tolist() == plain.bits.tolist()


# ---------------------------------------------------------------------- a surrogate of one's own
class Anchored(NamedTuple):
    anchor: dict
    value: torch.Tensor


@dataclass(frozen=True)
class Anchoring(IdentitySurrogate):
    """g adds half the squared distance from u⁰ to the loss."""

    def build(self, task, models, local, data, losses):
        return Anchored(models.parameters, super().build(task, models, local, data, losses).value)

    def gradient(self, task, bound, local, models, batch):
        gradient, buffers = super().gradient(task, bound, local, models, batch)
        return tree.add(gradient, tree.sub(models.parameters, bound.anchor)), buffers


def test_a_surrogate_of_ones_own_is_fedprox(client_trainer):
    task, train = make_task(REGRESSION), make_clients(SIZES, target=REGRESSION)
    options = {"train": train, "task": task, "solver": LocalSolver(lr=0.1, local_epochs=3)}
    ours, prox = (
        run_rounds(one, client_trainer, **options)
        for one in (SurrogateOptimization(Anchoring()), FedProx(prox_weight=1.0))
    )
    assert distance(ours.shared, prox.shared) < 1e-12


# ---------------------------------------------------------------------- state, traffic, settings
def test_the_surrogate_says_models_and_weights():
    assert (SurrogateOptimization(MixtureSurrogate(5)).num_models, MIXTURE.participation.weighting) == (5, "samples")
    assert (MOREAU.num_models, MOREAU.participation.weighting) == (1, "uniform")
    assert SurrogateOptimization() == MIXTURE
