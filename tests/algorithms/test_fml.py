import numpy as np
import pytest
import torch
from federated_round import (
    MULTICLASS,
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
from references.fml_numpy import fml_round, mutual
from references.logistic import probability

from lit_fed.algorithms import FML, FedAvg, Local
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork

SIZES = [5, 2, 8]


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.2, 0.9), (0.0, 0.0)])
def test_rounds_are_those_of_the_reference(options, alpha, beta, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(FML(alpha, beta), train, solver=solver, trainer=client_trainer, batch_size=2)
    theta = federation.weights[0].numpy()
    phis = [theta] * 3
    for _ in range(3):
        orders = batch_orders(federation)
        phis, theta, loss = fml_round(phis, theta, as_arrays(train), orders, alpha=alpha, beta=beta, **options)
        federation.round()
        np.testing.assert_allclose(flat(federation.states).numpy(), np.stack(phis), rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)
        assert federation.metrics["loss"] == pytest.approx(loss, abs=1e-10)
    for found, phi, (x, _) in zip(federation.predictions(test), phis, as_arrays(test), strict=True):
        np.testing.assert_allclose(found[:, 1].exp().numpy(), probability(phi, x), rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- identities
@pytest.mark.parametrize(("target", "network"), [("binary", None), ("multiclass", small_mlp)])
@pytest.mark.parametrize("options", [{"lr": 0.4}, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
def test_labels_alone_make_the_personal_model_local(target, network, options, client_trainer):
    task = make_task() if network is None else make_task(MULTICLASS, network=network)
    train = make_clients(SIZES, target=task.target)
    run = {"task": task, "solver": LocalSolver(local_epochs=2, **options)}
    mutual, alone = (run_rounds(one, client_trainer, train, **run) for one in (FML(alpha=1, beta=0.3), Local()))
    assert distance(mutual.states.personal, alone.states.models) < 1e-12
    if network is None:
        assert same_bits(mutual.states.personal, alone.states.models)
        assert same_bits(mutual.predictions(), alone.predictions())
    assert mutual.metrics["loss"] == pytest.approx(alone.metrics["loss"], abs=1e-12)


@pytest.mark.parametrize(("target", "network"), [("binary", None), ("multiclass", small_mlp)])
def test_labels_alone_make_the_meme_model_fedavg(target, network, client_trainer):
    task = make_task() if network is None else make_task(MULTICLASS, network=network)
    train = make_clients(SIZES, target=task.target)
    run = {"task": task, "solver": LocalSolver(momentum=0.9), "cohorts": [[0, 1, 2], [1, 2], [0, 2]]}
    mutual, averaged = (run_rounds(one, client_trainer, train, **run) for one in (FML(alpha=0.3, beta=1), FedAvg()))
    assert distance(mutual.shared, averaged.shared) < 1e-12
    if network is None:
        assert same_bits(mutual.shared, averaged.shared)


def test_both_models_learn_from_the_other_of_the_same_moment():
    """Neither sees the other's step: exchanging α and β, and the models, exchanges the results."""
    train = make_clients([6])
    run = {"rounds": 2, "solver": LocalSolver(momentum=0.5)}
    one, other = (run_rounds(FML(*shares), None, train, **run) for shares in ((0.2, 0.7), (0.7, 0.2)))
    assert distance(one.shared.models, tree.index(other.states.personal, 0)) < 1e-14
    assert distance(other.shared.models, tree.index(one.states.personal, 0)) < 1e-14
    assert distance(one.shared.models, other.shared.models) > 1e-3


# ---------------------------------------------------------------------- unseen clients
@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_an_unseen_client_distils_a_fresh_model(epochs, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=2, first_id=3)
    federation = run_rounds(FML(alpha=0.3), client_trainer, train, solver=LocalSolver(local_epochs=epochs))
    start = Federation(FML(), train).weights[0].numpy()
    meme = federation.weights[0].numpy()
    orders = batch_orders(federation, "adapt", LocalWork(epochs=epochs), unseen)
    expected = [
        mutual(start, meme, x, y, own, 0.3, 1.0, 0.1, meme_rests=True)[0] if own else start
        for own, (x, y) in zip(orders, as_arrays(unseen), strict=True)
    ]
    served = flat(federation.serve(unseen, seen=False)).numpy()
    np.testing.assert_allclose(served, np.stack(expected), rtol=0, atol=1e-10)
    assert distance(federation.weights[0], torch.tensor(start)) > 1e-3 or not epochs
