import numpy as np
import pytest
import torch
from federated_round import (
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
from local_norm import local_norm
from references.fedper_numpy import fedper_round, probability, train
from torch import nn

from lit_fed.algorithms import FedAvg, FedPer, Local
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError
from lit_fed.models import Network

SIZES = [5, 2, 8]


class Normalised(Network):
    """BatchNorm in the base and in the head."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(input_shape[0], 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 3), nn.BatchNorm1d(3),
            nn.Linear(3, num_outputs),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


def arrays(models, one=None):
    """The parameters of a part of the network, of client `one`."""
    leaves = tree.index(models.parameters if one is None else tree.index(models.parameters, one), 0)
    return tuple(leaf.numpy() for leaf in leaves.values())


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
def test_rounds_are_those_of_the_reference(options, client_trainer):
    data, test = make_clients(SIZES), make_clients([4, 2, 3], seed=1)
    federation = Federation(
        FedPer(), data, make_task(network=small_mlp), LocalSolver(local_epochs=2, **options), client_trainer, 2
    )
    base, heads = arrays(federation.shared.models), [arrays(federation.states.own, one) for one in range(3)]
    for _ in range(3):
        base, heads = fedper_round(base, heads, as_arrays(data), batch_orders(federation), **options)
        federation.round()
        found = [arrays(federation.shared.models), *(arrays(federation.states.own, one) for one in range(3))]
        for ours, theirs in zip(found, [base, *heads], strict=True):
            for leaf, expected in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(leaf, expected, rtol=0, atol=1e-10)
    for prediction, head, (x, _) in zip(federation.predictions(test), heads, as_arrays(test), strict=True):
        np.testing.assert_allclose(prediction[:, 1].exp().numpy(), probability(base, head, x), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- identities
@pytest.mark.parametrize("network", [small_mlp, Normalised])
@pytest.mark.parametrize("options", [{"lr": 0.4}, {"lr": 0.2, "momentum": 0.9, "clip_norm": 0.1}], ids=str)
def test_without_private_layers_it_is_fedavg(network, options, client_trainer):
    run = {"task": make_task(network=network), "solver": LocalSolver(**options), "cohorts": [[0, 1, 2], [1, 2], [0]]}
    data, unseen = make_clients(SIZES), make_clients([3], first_id=3)
    ours, averaged = (run_rounds(one, client_trainer, data, **run) for one in (FedPer(private_layers=0), FedAvg()))
    assert same_bits(ours.shared.models, averaged.shared.models)
    assert ours.metrics == averaged.metrics
    assert ours.bits.tolist() == averaged.bits.tolist()
    assert distance(ours.predictions(), averaged.predictions()) < 1e-12
    assert distance(ours.predictions(unseen, seen=False), averaged.predictions(unseen, seen=False)) < 1e-12


@pytest.mark.parametrize(("network", "layers"), [(small_mlp, 2), (Normalised, 5)])
def test_with_all_layers_private_it_is_local(network, layers, client_trainer):
    solver = LocalSolver(lr=0.3, momentum=0.9)
    run = {"task": make_task(network=network), "solver": solver, "cohorts": [[0, 1, 2], [1, 2], [0]]}
    data, unseen = make_clients(SIZES), make_clients([3], first_id=3)
    ours, alone = (run_rounds(one, client_trainer, data, **run) for one in (FedPer(private_layers=layers), Local()))
    assert same_bits(ours.states.own, alone.states.models)
    assert ours.bits.tolist() == [0, 0]
    assert same_bits(ours.predictions(), alone.predictions())
    assert distance(ours.predictions(unseen, seen=False), alone.predictions(unseen, seen=False)) < 1e-12


# ---------------------------------------------------------------------- who owns what
def test_normalisation_belongs_to_its_side():
    run = {"task": make_task(network=Normalised), "solver": LocalSolver(lr=0.3)}
    federation = run_rounds(FedPer(private_layers=2), None, make_clients([5, 4]), **run)
    assert {name.split(".")[1] for part in federation.shared.models for name in part} == {"0", "1", "3"}
    assert {name.split(".")[1] for part in federation.states.own for name in part} == {"4", "5"}
    assert "layers.1.running_mean" in federation.shared.models.buffers
    assert "layers.4.running_mean" in federation.states.own.buffers


def test_absent_clients_keep_their_heads():
    run = {"task": make_task(network=small_mlp), "num_rounds": 2}
    federation = run_rounds(FedPer(), None, make_clients(SIZES), rounds=2, cohorts=[[0, 1, 2], [1]], **run)
    first = run_rounds(FedPer(), None, make_clients(SIZES), rounds=1, **run)
    for one in (0, 2):
        assert same_bits(tree.index(federation.states, one), tree.index(first.states, one))
    assert distance(tree.index(federation.states, 1), tree.index(first.states, 1)) > 1e-3


@pytest.mark.parametrize(("layers", "numbers"), [(0, 19), (1, 15), (2, 0)])
def test_the_base_travels_alone(layers, numbers, client_trainer):
    task = make_task(network=small_mlp, dtype=torch.float32)
    train = make_clients([5, 2], dtype=torch.float32)
    federation = run_rounds(FedPer(private_layers=layers), client_trainer, train, rounds=1, task=task)
    assert federation.bits.tolist() == [2 * numbers * 32] * 2


@pytest.mark.parametrize("layers", range(6))
def test_normalisation_of_the_base_may_stay_with_the_clients(layers):
    data, unseen = make_clients([5, 4]), make_clients([6, 3], seed=2, first_id=2)
    run = {"task": make_task(network=Normalised, dtype=torch.float64), "solver": LocalSolver(lr=0.3)}
    federation = run_rounds(local_norm(FedPer(private_layers=layers)), None, data, **run)
    numbers = {0: 15 + 12 + 4, 1: 15 + 12, 2: 15 + 12, 3: 15, 4: 15, 5: 0}[layers]
    assert federation.bits.tolist() == [2 * numbers * 64] * 2
    assert all(prediction.isfinite().all() for prediction in federation.predictions())
    assert all(prediction.isfinite().all() for prediction in federation.predictions(unseen, seen=False))


# ---------------------------------------------------------------------- unseen clients
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_an_unseen_client_trains_a_head_on_the_frozen_base(options, epochs, client_trainer):
    data, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=3)
    run = {"task": make_task(network=small_mlp), "solver": LocalSolver(local_epochs=epochs, **options)}
    federation = run_rounds(FedPer(), client_trainer, data, **run)
    base, head = arrays(federation.shared.models), arrays(Federation(FedPer(), data, **run).states.own, 0)
    states = federation.serve(unseen, seen=False)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs), unseen)
    for one, (own, (x, y)) in enumerate(zip(orders, as_arrays(unseen), strict=True)):
        expected = train(base, head, x, y, own, frozen=True, **options)[1]
        for leaf, theirs in zip(arrays(states.own, one), expected, strict=True):
            np.testing.assert_allclose(leaf, theirs, rtol=0, atol=1e-10)


def test_clipping_looks_at_the_trained_head_alone():
    """With all but one layer frozen, only that layer's gradient has a norm to be clipped."""
    data, unseen = make_clients(SIZES), make_clients([6], seed=2, first_id=3)
    task, solver = make_task(network=small_mlp), LocalSolver(lr=1.0, clip_norm=1e-3)
    federation = run_rounds(FedPer(), None, data, rounds=0, task=task, solver=solver, batch_size=0)
    before, after = tree.index(federation.states.own, slice(0, 1)), federation.serve(unseen, seen=False).own
    step = tree.sub(after.parameters, before.parameters)
    assert float(tree.norm(step)) == pytest.approx(1e-3, rel=1e-2)


def test_the_running_statistics_of_a_frozen_base_rest(client_trainer):
    data, unseen = make_clients([5, 4]), make_clients([6], seed=2, first_id=2)
    run = {"task": make_task(network=Normalised), "solver": LocalSolver(lr=0.3)}
    federation = run_rounds(FedPer(private_layers=2), client_trainer, data, **run)
    before = federation.shared.models.buffers["layers.1.running_mean"].clone()
    states = federation.serve(unseen, seen=False)
    assert same_bits(federation.shared.models.buffers["layers.1.running_mean"], before)
    assert set(states.own.buffers) == {f"layers.4.{name}" for name in
                                        ("running_mean", "running_var", "num_batches_tracked")}  # fmt: skip
    assert float(states.own.buffers["layers.4.running_mean"].abs().max()) > 0


def test_a_seen_client_is_served_with_its_head_as_it_is():
    federation = run_rounds(FedPer(), None, make_clients(SIZES), task=make_task(network=small_mlp))
    assert same_bits(federation.serve(), federation.states)


# ---------------------------------------------------------------------- wrong values


def test_more_layers_than_the_network_has_are_refused():
    with pytest.raises(ConfigError, match=r"private_layers is 3, and MLP has 2 layers"):
        Federation(FedPer(private_layers=3), make_clients(SIZES), make_task(network=small_mlp))
