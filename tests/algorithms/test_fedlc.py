import numpy as np
import pytest
from federated_round import (
    BINARY,
    MULTICLASS,
    Federation,
    as_arrays,
    batch_orders,
    distance,
    make_clients,
    make_task,
    same_bits,
)
from few_classes import COHORTS, HEAVY, close, samples, started
from references.fedlc_numpy import fedlc_round

from lit_fed.algorithms import FedLC
from lit_fed.core.local_solver import LocalSolver


@pytest.mark.parametrize("denominator", ["all", "others"])
def test_rounds_are_those_of_the_reference(denominator, client_trainer):
    """One client has no sample of one class; with the others alone in the denominator every client has all."""
    train = samples([6, 6, 8], seed=4)
    if denominator == "others":
        train.y[:6], train.y[6:12] = (train.y.new_tensor([0, 1, 2, 2, 2, 1]) for _ in range(2))
    federation, clients = started(FedLC(1.5, denominator), client_trainer, train=train)
    counts = np.array([np.bincount(y, minlength=3) for _, y in clients])
    assert (counts.min() == 0) == (denominator == "all")
    w, with_true = federation.weights[0].numpy(), denominator == "all"
    for cohort in COHORTS:
        orders = batch_orders(federation)
        w = fedlc_round(w, clients, orders, tau=1.5, with_true=with_true, present=cohort, **HEAVY)
        federation.round(cohort)
        close(federation.weights, [w])


@pytest.mark.parametrize("target", [MULTICLASS, BINARY], ids=["three classes", "two"])
def test_a_client_with_a_single_class_has_no_denominator_without_it(target, client_trainer):
    """Its loss is 0 and it stays; others are as without it, but for their share of the average."""
    train = make_clients([4, 6], target=target)
    train.y[:4] = 1
    task = make_task(target)
    federation = Federation(FedLC(1.5, "others"), train, task, trainer=client_trainer, weighting="uniform")
    start = federation.weights
    federation.round([0])
    assert same_bits(federation.weights, start)
    assert federation.metrics["loss"] == 0
    federation.round([0, 1])
    alone = Federation(FedLC(1.5, "others"), train, task, trainer=client_trainer, weighting="uniform", round_idx=1)
    alone.round([1])
    close(federation.weights, (start + alone.weights) / 2)


@pytest.mark.parametrize("tau", [0.0, 1e-12, 1.0])
@pytest.mark.parametrize("denominator", ["all", "others"])
def test_a_class_without_samples_never_moves(tau, denominator, client_trainer):
    """However small the margins: its weights and its bias stay where they were, bit for bit."""
    train = samples([6])
    train.y[:] = train.y % 2
    task = make_task(MULTICLASS)
    federation = Federation(FedLC(tau, denominator), train, task, trainer=client_trainer)
    start = federation.shared.models.parameters
    federation.round()
    found = federation.shared.models.parameters
    assert all(same_bits(leaf[0, 2], start[name][0, 2]) for name, leaf in found.items())
    assert distance(found["linear.weight"][0, :2], start["linear.weight"][0, :2]) > 1e-3


def test_two_classes_have_the_margin_of_their_logit():
    """One output s stands for the logits 0 and s: a step on log(1 + exp(−s + Δ)), by hand."""
    data = make_clients([5])
    data.y[:] = data.y.new_tensor([1, 0, 0, 0, 1])
    federation = Federation(FedLC(2.0), data, solver=LocalSolver(lr=0.3), batch_size=0)
    w = federation.weights[0].numpy()
    ((x, y),) = as_arrays(data)
    margin = 2.0 * (2**-0.25 - 3**-0.25)
    federation.round()
    close(federation.weights, [w - 0.3 * gradient(w, x, y, shift=-margin)])


def gradient(w, x, y, shift):
    """Of the mean logistic loss of moved scores."""
    away = 1 / (1 + np.exp(-(x @ w[:-1] + w[-1] + shift))) - y
    return np.append(x.T @ away, away.sum()) / len(y)
