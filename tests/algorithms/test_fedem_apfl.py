import numpy as np
import pytest
import torch
from federated_round import (
    MULTICLASS,
    REGRESSION,
    Federation,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    small_mlp,
)
from references.fedem_apfl_numpy import ensemble_round, predict

from lit_fed.algorithms import FedAvg, FedEMAPFL, Local
from lit_fed.core.local_solver import LocalSolver

SIZES = [5, 2, 8]


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize("local_share", [0.5, 0.2])
def test_rounds_are_those_of_the_reference(options, local_share, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(FedEMAPFL(local_share), train, solver=solver, trainer=client_trainer, batch_size=2)
    w = federation.weights[0].numpy()
    vs = [w] * 3
    for _ in range(3):
        w, vs = ensemble_round(w, vs, as_arrays(train), batch_orders(federation), **options)
        federation.round()
        np.testing.assert_allclose(federation.weights[0].numpy(), w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(federation.states).numpy(), np.stack(vs), rtol=0, atol=1e-10)
    for found, v, (x, _) in zip(federation.predictions(test), vs, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(w, v, x, local_share), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- what it consists of
@pytest.mark.parametrize(("target", "network"), [(MULTICLASS, small_mlp), (REGRESSION, small_mlp)])
def test_it_is_fedavg_and_local_side_by_side(target, network, client_trainer):
    run = {"task": make_task(target, network=network), "cohorts": [[0, 1, 2], [1, 2], [0, 2]]}
    run["solver"] = LocalSolver(lr=0.05, momentum=0.9, clip_norm=1.0)
    train = make_clients(SIZES, target=target)
    both, averaged, alone = (run_rounds(one, client_trainer, train, **run) for one in (FedEMAPFL(), FedAvg(), Local()))
    assert same_bits(both.shared, averaged.shared)
    assert same_bits(both.states.local, alone.states.models)
    assert both.metrics["loss"] == pytest.approx((averaged.metrics["loss"] + alone.metrics["loss"]) / 2, abs=1e-12)
    for found, one, other in zip(both.predictions(), averaged.predictions(), alone.predictions(), strict=True):
        mixed = (one + other) / 2 if target is REGRESSION else ((one.exp() + other.exp()) / 2).log()
        assert distance(found, mixed) < 1e-12


@pytest.mark.parametrize(("local_share", "other"), [(0.0, FedAvg()), (1.0, Local())], ids=["global", "local"])
@pytest.mark.parametrize("target", [MULTICLASS, REGRESSION], ids=["multiclass", "regression"])
def test_a_share_of_one_is_one_of_them(local_share, other, target, client_trainer):
    run = {"task": make_task(target), "solver": LocalSolver(lr=0.05)}
    train = make_clients(SIZES, target=target)
    ours, one = (run_rounds(each, client_trainer, train, **run) for each in (FedEMAPFL(local_share), other))
    assert distance(ours.predictions(), one.predictions()) < 1e-12


def test_probabilities_are_mixed_not_logits(client_trainer):
    federation = run_rounds(FedEMAPFL(), client_trainer, make_clients(SIZES), solver=LocalSolver(lr=2.0))
    logits = lambda weights, x: torch.from_numpy(x) @ weights[:-1] + weights[-1]  # noqa: E731
    x, _ = as_arrays(federation.train)[0]
    both = [logits(weights, x) for weights in (federation.weights[0], flat(federation.states)[0])]
    found = federation.predictions()[0][:, 1].exp()
    assert distance(found, (torch.sigmoid(both[0]) + torch.sigmoid(both[1])) / 2) < 1e-12
    assert distance(found, torch.sigmoid((both[0] + both[1]) / 2)) > 1e-3


# ---------------------------------------------------------------------- unseen clients
@pytest.mark.parametrize("local_share", [0.0, 0.5, 1.0])
def test_an_unseen_client_is_served_by_the_global_model(local_share, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=3)
    ours, averaged = (run_rounds(one, client_trainer, train) for one in (FedEMAPFL(local_share), FedAvg()))
    assert distance(ours.predictions(unseen, seen=False), averaged.predictions(unseen, seen=False)) < 1e-12
