"""Fine-tuned serving around any algorithm: the reference, limits, what it leaves alone, and what is refused."""

import numpy as np
import pytest
import torch
from combination import refuse
from federated_round import (
    BINARY,
    MULTICLASS,
    POSITIONS,
    Federation,
    Tagger,
    as_arrays,
    batch_orders,
    distance,
    facts,
    flat,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
)
from partial_models import small_mlp
from references import fedavg_plus_numpy, fine_tuning_numpy
from test_algorithms import SIZES, SMALL, after_rounds, all_algorithms, network_of, unseen_clients

from lit_fed import FederatedModule
from lit_fed.algorithms import (
    IFCA,
    MOCHA,
    Ditto,
    FedAvg,
    FedAvgPlus,
    FedBABU,
    FedEM,
    FedProto,
    FedRoD,
    Local,
    OfficialFedEM,
    Oracle,
)
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import fine_tuning, tree
from lit_fed.core.fine_tuning import FineTuning, TunedState
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork, Population, Split
from lit_fed.errors import ClientError, ConfigError
from lit_fed.models import Linear
from lit_fed.settings import model_settings
from lit_fed.training.history import Difference, plain_settings
from lit_fed.wrappers.base import innermost
from lit_fed.wrappers.personal.parts import PersonalParts
from lit_fed.wrappers.privacy.client_level import ClientPrivacy, PrivateAverage
from lit_fed.wrappers.privacy.example_level import ExamplePrivacy
from lit_fed.wrappers.serving.wrapper import FineTuned

ALL = [cls(**SMALL.get(cls.__name__, {})) for cls in all_algorithms()]
REFUSED = [one for one in ALL if "fine_tuning" in one.incompatible]
TUNED = [one for one in ALL if one not in REFUSED]
TUNING = FineTuning(3, 0.1)
SOLVER = LocalSolver(lr=0.2, momentum=0.5)


def fine_tuned(algorithm, *tuning):
    return FineTuned(algorithm, FineTuning(*tuning))


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize(("epochs", "lr", "tune"), [(1, None, None), (3, 0.4, None), (2, 0.4, "*.bias")])
def test_a_mixture_is_tuned_by_responsibility(epochs, lr, tune, client_trainer):
    """As in FedEM's M-step, then E-steps; an unseen client first takes its own E-steps."""
    federation = run_rounds(
        fine_tuned(FedEM(2), epochs, lr, tune), client_trainer, make_clients(SIZES), solver=SOLVER, batch_size=2
    )
    plain = Federation(FedEM(2), federation.train, shared=federation.shared, round_idx=3, solver=SOLVER)
    for data, seen in ((federation.train, True), (unseen_clients(), False)):
        thetas, start = federation.weights.numpy(), (federation.states if seen else plain.serve(data, seen=False))
        orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs), data)
        served, shown = federation.serve(data, seen=seen), federation.predictions(data, seen=seen)
        for one, (order, (x, y)) in enumerate(zip(orders, as_arrays(data), strict=True)):
            expected, pi = fine_tuning_numpy.tuned(
                thetas, start.mixture[one].numpy(), x, y, order, lr=lr or 0.2, momentum=0.5, moving=tune and [4]
            )
            found = tree.index((served.models, served.weights), one)
            np.testing.assert_allclose(flat(found[0].parameters).numpy(), expected, rtol=0, atol=1e-10)
            np.testing.assert_allclose(found[1].numpy(), pi, rtol=0, atol=1e-10)
            assert same_bits(served.mixture, served.weights)
            np.testing.assert_allclose(
                shown[one].exp().numpy(), fine_tuning_numpy.predict(expected, pi, x), rtol=0, atol=1e-10
            )
            assert np.abs(expected - thetas).max() > 1e-3


def test_a_personal_model_is_tuned_after_its_own_training(client_trainer):
    """An unseen client of Local trains as in a round, and so do the passes of the tuning with another shuffle."""
    federation = run_rounds(fine_tuned(Local(), 2, 0.3), client_trainer, make_clients(SIZES), solver=SOLVER)
    for data, seen in ((federation.train, True), (unseen_clients(), False)):
        alone = Federation(Local(), federation.train, shared=federation.shared, round_idx=3, solver=SOLVER)
        start = flat(federation.states if seen else alone.serve(data, seen=False)).numpy()
        orders = batch_orders(federation, "adapt", LocalWork(epochs=2), data)
        shown = federation.predictions(data, seen=seen)
        for theta, own, (x, y), found in zip(start, orders, as_arrays(data), shown, strict=True):
            expected = fedavg_plus_numpy.serve(theta, x, y, own, x, 0.3, momentum=0.5)
            np.testing.assert_allclose(found.exp().numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("plus", "tuning"),
    [(FedAvgPlus(3, 0.05), (3, 0.05)), (FedAvgPlus(2, None, "*.bias"), (2, None, "*.bias"))],
    ids=str,
)
def test_fedavg_plus_is_fedavg_with_it(plus, tuning, client_trainer):
    one, other = (
        run_rounds(algorithm, client_trainer, make_clients(SIZES), solver=SOLVER)
        for algorithm in (plus, fine_tuned(FedAvg(), *tuning))
    )
    assert same_bits((one.shared, one.serve(), one.predictions()), (other.shared, other.serve(), other.predictions()))
    assert same_bits(*(run.predictions(unseen_clients(), seen=False) for run in (one, other)))


BEFORE = {
    "plus": (
        FedAvgPlus(3, 0.05),
        [-1.25519513756, -0.654102986032, -0.488386371719, -0.643397604794, -1.05413775909, -0.78791891662],
    ),
    "bias": (
        FedAvgPlus(2, None, ("*.bias",)),
        [-0.845841447446, -0.487335616601, -0.343894404818, -0.684644121246, -0.807815994689, -1.36038933963],
    ),
    "whole": (
        FedBABU(),
        [-2.23776715396, -1.11828505393, -1.55621619696, -0.759661975566, -0.825317225533, -0.0317799979905],
    ),
    "head": (
        FedBABU(tune="head", adapt_epochs=2),
        [-0.902499288177, -0.730030705319, -0.694471444052, -0.697217203928, -0.604116567148, -0.281835320775],
    ),
}
"""Log-probability of the second class for the first sample of each seen and each unseen client, as it was when these
classes tuned their clients themselves."""


@pytest.mark.parametrize("name", BEFORE)
def test_numbers_are_those_of_a_tuning_of_their_own(name):
    algorithm, numbers = BEFORE[name]
    federation = after_rounds(algorithm, make_clients(SIZES), rounds=2, solver=SOLVER, network=network_of(algorithm))
    shown = federation.predictions() + federation.predictions(unseen_clients(), seen=False)
    np.testing.assert_allclose([float(one[0, 1]) for one in shown], numbers, rtol=1e-11)


# ---------------------------------------------------------------------- around every algorithm
@pytest.mark.every_combination
@pytest.mark.parametrize("algorithm", TUNED, ids=lambda one: type(one).__name__)
def test_training_is_the_algorithms(algorithm):
    """Shared state, states and traffic bit for bit; both client trainers serve alike, and not as without it."""
    options = {"rounds": 2, "solver": SOLVER, "network": network_of(algorithm)}
    plain = after_rounds(algorithm, make_clients(SIZES), **options)
    one, other = (
        after_rounds(FineTuned(algorithm, TUNING), make_clients(SIZES), trainer=trainer(), **options)
        for trainer in (SequentialTrainer, VectorizedTrainer)
    )
    assert same_bits((plain.shared, plain.states, plain.bits), (one.shared, one.states, one.bits))
    shown = [[run.predictions(), run.predictions(unseen_clients(), seen=False)] for run in (one, other, plain)]
    assert distance(*shown[:2]) < 1e-9
    assert all(distance(*pair) > 1e-3 for pair in zip(shown[0], shown[2], strict=True))
    assert innermost(one.algorithm) is algorithm


@pytest.mark.parametrize("algorithm", REFUSED, ids=lambda one: type(one).__name__)
def test_what_it_does_not_go_around_is_refused(algorithm):
    with pytest.raises(
        ConfigError, match=rf"fine_tune_epochs is 2, which .* {type(algorithm).__name__} .*; (leave|give)"
    ):
        refuse(algorithm, serving=FineTuning(2))


def test_prototypes_are_refused_and_a_head_is_not():
    with pytest.raises(ConfigError, match=r"FedProto predicts by the nearest prototype; give .*predict head"):
        refuse(FedProto(), serving=FineTuning(1))
    refuse(FedProto(predict="head"), serving=FineTuning(1))


@pytest.mark.parametrize("algorithm", [FedRoD(), FedProto(), MOCHA()], ids=lambda one: type(one).__name__)
def test_a_prediction_that_is_no_mixture_of_outputs_fails_by_name(algorithm):
    """Of a user's algorithm nothing is declared: without outputs, beside them, and of changed ones."""
    task = make_task(MULTICLASS, network=Linear if isinstance(algorithm, MOCHA) else small_mlp)
    federation = run_rounds(fine_tuned(algorithm, 1), None, make_clients(SIZES, target=MULTICLASS), task=task)
    with pytest.raises(ClientError, match=r"--model\.serving\.fine_tune_epochs trains .* not predict by a mixture"):
        federation.serve()


# ---------------------------------------------------------------------- limits
def test_one_component_is_a_single_model(client_trainer):
    one, other = (
        run_rounds(fine_tuned(algorithm, 2), client_trainer, make_clients(SIZES)) for algorithm in (FedEM(1), FedAvg())
    )
    assert distance(one.serve().models, other.serve().models) < 1e-14


def test_a_cluster_is_tuned_alone(client_trainer):
    federation = run_rounds(fine_tuned(IFCA(2), 2, 0.5), client_trainer, make_clients(SIZES))
    served = federation.serve()
    for mixture, weights, models in zip(
        served.mixture, served.weights, map(flat, map(tree.index, [served.models] * 4, range(4))), strict=True
    ):
        moved = (models - federation.weights).abs().amax(1) > 1e-6
        assert torch.equal(moved, mixture > 0)
        assert torch.equal(weights, mixture)


def test_a_client_without_samples_is_served_as_without_it(client_trainer):
    empty = make_clients([0, 3], first_id=4)
    for algorithm in (FedAvg(), FedEM(2), Local(), Ditto()):
        tuned, plain = (
            run_rounds(one, client_trainer, make_clients([4, 0, 3]), solver=SOLVER)
            for one in (fine_tuned(algorithm, 4), algorithm)
        )
        x = make_clients([5, 5, 5], seed=4)
        assert same_bits(tuned.predictions(x)[1], plain.predictions(x, plain.serve())[1]) or (
            distance(tuned.predictions(x, tuned.serve())[1], plain.predictions(x, plain.serve())[1]) < 1e-12
        )
        unseen = tree.index((tuned.serve(empty, seen=False).models,), 0)
        assert all(bool(leaf.isfinite().all()) for leaf in tree.leaves(unseen))


def test_personal_leaves_are_tuned_too(client_trainer):
    task = make_task(network=small_mlp)
    options = {"task": task, "solver": SOLVER, "batch_size": 0}
    train = make_clients(SIZES)
    wrapped = [PersonalParts(one, ("head",)) for one in (fine_tuned(FedAvg(), 2), FedAvg())]
    tuned, plain = (run_rounds(one, client_trainer, train, **options) for one in wrapped)
    assert same_bits((tuned.shared, tuned.states), (plain.shared, plain.states))
    for data, seen in ((train, True), (unseen_clients(), False)):
        served, start = tuned.serve(data, seen=seen), plain.serve(data, seen=seen)
        assert same_bits(served.personal, start.personal)
        assert isinstance(served.inner, TunedState)
        for name, leaf in served.inner.models.parameters.items():
            own = start.personal.parameters.get(name)
            before = plain.shared.inner.models.parameters[name] if own is None else own
            assert distance(leaf, before.expand_as(leaf)) > 1e-4


@pytest.mark.parametrize("position_loss", ["mean", "sum"])
def test_positions_count_as_in_the_e_step(position_loss, client_trainer, monkeypatch):
    """At a rate of 0 the weights are those after an E-step of FedEM."""
    monkeypatch.setattr(fine_tuning, "E_STEPS", 1)
    train, task = make_clients(SIZES), make_task(POSITIONS, network=Tagger)
    train = Split(torch.arange(19 * 2).view(19, 2) % 7, torch.arange(19 * 2).view(19, 2) % 3, train.offsets)
    mixture = FedEM(2, em_steps=1, position_loss=position_loss)
    tuned = run_rounds(fine_tuned(mixture, 1, 0.0), client_trainer, train, task=task)
    again = Federation(OfficialFedEM(2, position_loss=position_loss), train, task, shared=tuned.shared, round_idx=3)
    again.states = tuned.states
    assert distance(tuned.serve().weights, again.serve().mixture) < 1e-12


# ---------------------------------------------------------------------- privacy
PRIVACY = {"noise_multiplier": 0.5, "clip_norm": 0.1, "delta": 1e-3, "noise_seed": 0}


@pytest.mark.parametrize(
    "around",
    [
        lambda one: PrivateAverage(one, ClientPrivacy(**PRIVACY)),
        lambda one: ExamplePrivacy(**PRIVACY, sample_rate=0.5).around(one),
    ],
    ids=["clients", "samples"],
)
def test_serving_releases_nothing(around, client_trainer):
    """Shared state with its charges, and traffic, are those without it; tuned models hold no noise."""
    tuned, plain = (
        run_rounds(around(one), client_trainer, make_clients(SIZES)) for one in (fine_tuned(FedAvg(), 2), FedAvg())
    )
    before = tree.map_leaves(torch.clone, tuned.shared)
    served = tuned.serve()
    assert same_bits((tuned.shared, tuned.states, tuned.bits), (plain.shared, plain.states, plain.bits))
    assert same_bits(before, tuned.shared)
    inner = tuned.shared.inner
    alone = Federation(fine_tuned(FedAvg(), 2), tuned.train, shared=inner, round_idx=3, trainer=tuned.trainer)
    found = getattr(served, "inner", served) if not isinstance(served, TunedState) else served
    assert distance(found.models, alone.serve().models) < 1e-12


# ---------------------------------------------------------------------- settings
def test_without_epochs_nothing_is_wrapped():
    algorithm = FedEM()
    assert model_settings(algorithm=algorithm, serving=FineTuning(0, 0.3)).wrapped is algorithm
    heads = model_settings(algorithm=algorithm, serving=FineTuning(1), personal="head").wrapped
    assert isinstance(heads.inner, FineTuned)
    assert heads.inner.inner is algorithm


def test_a_checkpoint_may_be_served_with_other_tuning():
    """No identity of a run names it; a run that goes on keeps it, or says that it changes."""
    wrapped = PersonalParts(fine_tuned(FedEM(), 3))
    assert plain_settings(wrapped) == plain_settings(PersonalParts(FedEM()))
    for name in vars(FineTuning()):
        changed = Difference(f"model.serving.{name}", 0, 1)
        assert changed.decides_serving(wrapped)
        assert changed.may_change


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ({"fine_tune_epochs": -1}, r"--model\.serving\.fine_tune_epochs is -1; give a whole number >= 0"),
        ({"fine_tune_lr": -0.5}, r"--model\.serving\.fine_tune_lr is -0\.5; give a number >= 0"),
    ],
)
def test_wrong_values_are_refused(tuning, message):
    with pytest.raises(ConfigError, match=message):
        FineTuning(**tuning)


def test_a_misspelled_part_is_named_before_training():
    module = FederatedModule(FedEM(), network=Linear, serving=FineTuning(1, tune="haed"))
    train = make_clients(SIZES, dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"--model\.serving\.tune has 'haed', .* did you mean head\?"):
        module.build(
            facts(BINARY, (4,), num_clients=4, total_samples=19), Population(train, train, train, list("abcd"))
        )


def test_groups_are_served_by_their_model(client_trainer):
    """The oracle's clients see one model, so the others do not move."""
    federation = run_rounds(fine_tuned(Oracle(), 2), client_trainer, make_clients(SIZES), groups=torch.arange(4) % 2)
    assert len(tree.leaves(federation.serve().models)[0][0]) == 1
