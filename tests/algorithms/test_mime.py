import numpy as np
import pytest
import torch
from federated_round import (
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
    two_quadratics,
)
from references.logistic import predict
from references.mime_numpy import Adam, Momentum, mime_round

from lit_fed.algorithms import FedAvg, FedSGD, Mime, MimeLite
from lit_fed.core.local_solver import LocalSolver

SIZES = [5, 2, 8]
BASES = {
    "momentum": ({"lr": 0.3, "momentum": 0.8, "weight_decay": 0.05}, Momentum(0.8, 0.05)),
    "adam": ({"lr": 0.05, "optimizer": "adam", "eps": 1e-3}, Adam((0.9, 0.999), 1e-3)),
}
both = pytest.mark.parametrize("cls", [Mime, MimeLite])


@both
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_rounds_are_those_of_the_reference(cls, base, weighting, client_trainer):
    options, rule = BASES[base]
    train = make_clients(SIZES)
    federation = Federation(
        cls(), train, solver=LocalSolver(local_epochs=2, **options), trainer=client_trainer, batch_size=2,
        weighting=weighting,
    )  # fmt: skip
    theta = federation.weights[0].numpy()
    statistics = rule.start(theta)
    for cohort in ([0, 1, 2], [0, 2], [1, 2]):
        theta, statistics = mime_round(
            theta, statistics, as_arrays(train), batch_orders(federation), rule, lr=options["lr"],
            corrected=cls is Mime, present=cohort, sizes=SIZES if weighting == "samples" else None,
        )  # fmt: skip
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), theta, rtol=0, atol=1e-10)
        first = statistics if base == "momentum" else statistics[1]
        np.testing.assert_allclose(flat(federation.shared.statistics.first)[0].numpy(), first, rtol=0, atol=1e-10)
    for found, (x, _) in zip(federation.predictions(), as_arrays(train), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_mime_ends_at_the_minimiser_of_two_quadratics(momentum):
    """½w² and ½·3(w − 4)², whose sum is least at 3; MimeLite, with several local steps, ends elsewhere."""
    solver = LocalSolver(lr=0.1, local_steps=3, momentum=momentum)
    ends = [float(run_rounds(cls(), rounds=22, **two_quadratics(solver=solver)).weights) for cls in (Mime, MimeLite)]
    assert ends[0] == pytest.approx(3, abs=1e-3)
    assert abs(ends[1] - 3) > 0.05


@pytest.mark.parametrize("network", [None, small_mlp], ids=["linear", "mlp"])
def test_mime_lite_without_statistics_is_fedavg(network, client_trainer):
    options = {"train": make_clients(SIZES), "weighting": "uniform", "solver": LocalSolver(lr=0.3, local_epochs=2)}
    options |= {"task": make_task(network=network)} if network else {}
    ours, plain = (run_rounds(one, client_trainer, **options) for one in (MimeLite(), FedAvg()))
    assert distance(ours.shared.models, plain.shared.models) < 1e-14
    assert ours.metrics == pytest.approx(plain.metrics)


def test_one_step_of_mime_is_the_step_of_one_machine(client_trainer):
    """Whole batches and one step: the base optimizer on the mean gradient, as FedSGD takes it, with momentum."""
    options = {"train": make_clients(SIZES), "batch_size": 0, "solver": LocalSolver(lr=0.3, momentum=0.9)}
    ours, central = (run_rounds(one, client_trainer, weighting="uniform", **options) for one in (Mime(), FedSGD()))
    assert distance(ours.shared.models, central.shared.models) < 1e-12
    assert distance(ours.shared.statistics, central.shared.optimizer) < 1e-12


@both
def test_kept_optimizers_change_nothing(cls, client_trainer):
    solver = {"lr": 0.3, "momentum": 0.5}
    one, other = (
        run_rounds(cls(), client_trainer, make_clients(SIZES), solver=LocalSolver(persist_optimizer=keep, **solver))
        for keep in (False, True)
    )
    assert same_bits(one.shared, other.shared)


def test_bytes(client_trainer):
    """Up a model and a gradient; down the model, the momentum and the number of its steps, and in Mime c."""
    solver = LocalSolver(momentum=0.9)
    bits = [
        run_rounds(cls(), client_trainer, make_clients(SIZES), rounds=1, solver=solver).bits for cls in (MimeLite, Mime)
    ]
    assert (bits[0] / 64).tolist() == [3 * 10, 3 * 11]
    assert (bits[1] / 64).tolist() == [3 * 10, 3 * 16]


def test_unseen_clients_are_served_by_the_server_model():
    federation, unseen = run_rounds(Mime(), None, make_clients(SIZES)), make_clients([4], seed=3, first_id=3)
    (found,), (x, _) = federation.predictions(unseen, seen=False), as_arrays(unseen)[0]
    torch.testing.assert_close(found.exp(), torch.from_numpy(predict(federation.weights[0].numpy(), x)))
