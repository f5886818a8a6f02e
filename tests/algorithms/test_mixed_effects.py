import numpy as np
import pytest
import torch
from federated_round import BINARY, REGRESSION, Federation, as_arrays, make_clients, make_task
from references.mixed_effects_numpy import (
    design,
    error_covariance,
    expected_information,
    fitted,
    groups_of,
    held_out_loss,
    means,
    mode,
    posterior,
    variances,
)

from lit_fed.algorithms import MixedEffects
from lit_fed.core.solvers.linear_models import to_columns
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError

SIZES, UNSEEN = [12, 1, 9, 5, 30], [7, 1]
LARGE, SMALL, FEW = "labels in the thousands", "labels in the thousandths", "as many coefficients as rows"
SCALES = {LARGE: 3000, SMALL: 3e-3}


def started(algorithm, client_trainer=None, target=REGRESSION, sizes=SIZES, seed=0, **options):
    train = make_clients(sizes, num_features=3, target=target, seed=seed)
    return Federation(algorithm, train, make_task(target, num_features=3), trainer=client_trainer, **options)


def after(federation, rounds):
    for _ in range(rounds):
        federation.round()
    return federation


def coefficients(states):
    return to_columns(states.models.parameters)[:, 0, 0].numpy()


def close(found, expected, **tolerance):
    np.testing.assert_allclose(found, expected, **{"rtol": 1e-8, "atol": 1e-9} | tolerance)


@pytest.mark.parametrize(
    ("target", "random", "estimate"),
    [
        (REGRESSION, "slopes", "shrunk"),
        (REGRESSION, "intercept", "reml"),
        (REGRESSION, "diagonal", "ml"),
        (LARGE, "intercept", "shrunk"),
        (SMALL, "diagonal", "shrunk"),
        (FEW, "slopes", "reml"),
        (BINARY, "slopes", "shrunk"),
        (BINARY, "diagonal", "reml"),
    ],
    ids=str,
)
def test_rounds_are_those_of_the_reference(target, random, estimate, client_trainer):
    """One client has a single row."""
    binary, sizes, scale = target is BINARY, [4, 3, 4, 2, 4] if target is FEW else SIZES, SCALES.get(target, 1)
    target = BINARY if binary else REGRESSION
    federation = started(MixedEffects(random, estimate), client_trainer, target, sizes)
    federation.train.y.mul_(scale)
    clients, unseen = as_arrays(federation.train), make_clients(UNSEEN, 3, target, seed=9, first_id=len(SIZES))
    for rounds in (1, 4):
        after(federation, rounds - federation.round_idx)
        fit = fitted(clients, rounds=rounds, binary=binary, random=random, estimate=estimate)
        shared = federation.shared
        close(shared.mean[0], fit["mean"])
        close(shared.covariance[0], fit["cov"])
        close(shared.tau2[0], [fit["var"][group[0]] for group in groups_of(4, random)])
        close(shared.noise[0], fit["s2"])
        if estimate == "shrunk":
            close(shared.gamma2[0], fit["gamma2"])
        for train, seen in ((federation.train, True), (unseen, False)):
            states = federation.serve(None if seen else train, seen=seen)
            rows = [(design(x), y) for x, y in as_arrays(train)]
            close(coefficients(states), [posterior(X, y, fit, binary)[0] for X, y in rows])
            close(states.covariance, [error_covariance(X, y, fit, binary) for X, y in rows])


@pytest.mark.parametrize("target", [REGRESSION, BINARY], ids=["regression", "binary"])
def test_a_structure_is_chosen_by_held_out_rows(target, client_trainer):
    """The last fifth of each client's rows: none of fewer than five."""
    binary = target is BINARY
    federation = after(started(MixedEffects("choose"), client_trainer, target), 2)
    clients = as_arrays(federation.train)
    first = [int(np.ceil(0.8 * len(y))) for _, y in clients]
    inner = [(x[:n], y[:n]) for (x, y), n in zip(clients, first, strict=True)]
    outer = [(x[n:], y[n:]) for (x, y), n in zip(clients, first, strict=True)]
    structures = ("none", "intercept", "slopes")
    losses = [held_out_loss(inner, outer, rounds=2, binary=binary, random=one) for one in structures]
    close(federation.shared.held_out[:3], losses)
    fits = [fitted(clients, rounds=2, binary=binary, random=one) for one in structures]
    close(federation.shared.mean[3:], [one["mean"] for one in fits])
    best = fits[int(np.argmin(losses))]
    assert best is not fits[0]
    close(coefficients(federation.serve()), [posterior(design(x), y, best, binary)[0] for x, y in clients])


def test_without_variance_over_clients_it_is_pooled_least_squares():
    federation = started(MixedEffects(estimate="reml"))
    federation.train.x[:, 2].mul_(1e-4).add_(federation.train.x[:, 1])  # columns nearly determine each other
    federation.shared = federation.shared._replace(tau2=torch.zeros(1, 2, dtype=torch.float64))
    after(federation, 5)
    x, y = (np.concatenate(parts) for parts in zip(*as_arrays(federation.train), strict=True))
    solution, residual, *_ = np.linalg.lstsq(design(x), y)
    close(coefficients(federation.serve()), np.tile(solution, (len(SIZES), 1)), rtol=1e-6)
    close(federation.shared.noise, residual / (len(y) - 4), rtol=1e-6)


def test_with_endless_variance_over_clients_each_has_its_own_least_squares():
    federation = after(started(MixedEffects(), sizes=[12, 9, 30]), 1)
    federation.shared = federation.shared._replace(tau2=torch.full((1, 2), 1e14, dtype=torch.float64))
    expected = [np.linalg.lstsq(design(x), y)[0] for x, y in as_arrays(federation.train)]
    close(coefficients(federation.serve()), expected, rtol=1e-10, atol=0)


def test_rows_that_the_coefficients_use_up_leave_a_fiftieth(client_trainer):
    federation = started(MixedEffects(), client_trainer, sizes=[4, 3, 4])
    federation.shared = federation.shared._replace(tau2=torch.full((1, 2), 300.0, dtype=torch.float64))
    federation.round()
    clients = [(design(x), y) for x, y in as_arrays(federation.train)]
    fit = {"mean": np.zeros(4), "cov": np.zeros((4, 4)), "var": np.full(4, 300.0), "s2": 0.5, "gamma2": 0.1}
    fit = variances(means(fit, clients, False, True), clients, False, groups_of(4, "slopes"), False)
    close(federation.shared.noise, fit["s2"], rtol=1e-6, atol=0)


def test_an_unseen_client_with_the_rows_of_a_seen_one_gets_its_model():
    federation = after(started(MixedEffects()), 3)
    twin = Split.of([federation.train.client(2)[:2], federation.train.client(4)[:2]])
    twin.first_id = len(SIZES)
    unseen = coefficients(federation.serve(twin, seen=False))
    assert np.array_equal(unseen, coefficients(federation.serve())[[2, 4]])


@pytest.mark.parametrize("target", [REGRESSION, BINARY], ids=["regression", "binary"])
def test_a_client_without_rows_is_served_the_mean(target, client_trainer):
    federation = after(started(MixedEffects(), client_trainer, target, sizes=[12, 0, 9]), 3)
    unseen = Split.of([(torch.zeros(0, 3, dtype=torch.float64), federation.train.y[:0])])
    unseen.first_id = 3
    served = coefficients(federation.serve())[1], coefficients(federation.serve(unseen, seen=False))[0]
    assert all(np.array_equal(one, federation.shared.mean[0].numpy()) for one in served)
    others = Split.of([federation.train.client(one)[:2] for one in (0, 2)])
    close(federation.shared.mean, after(Federation(MixedEffects(), others, federation.task), 3).shared.mean)


@pytest.mark.parametrize("random", ["slopes", "diagonal"])
def test_standard_errors_are_those_of_the_expected_information(random):
    federation = started(MixedEffects(random, "ml"))
    clients = as_arrays(federation.train)
    fit = fitted(clients, rounds=2, random=random, estimate="ml")
    after(federation, 3)
    close(federation.shared.information[0], expected_information(fit, clients, groups_of(4, random)))


def test_columns_that_determine_others():
    """One-hot inputs add up to the constant: predictions are those without the last one, whatever the units."""
    train = make_clients([12, 9, 30], num_features=2, target=REGRESSION)
    third = torch.arange(len(train.y)) % 3
    onehot = torch.nn.functional.one_hot(third, 3).double() * torch.tensor([1.0, 1e3, 1e-3]).double()
    found = []
    for columns in (3, 2):
        x = torch.cat([train.x, onehot[:, :columns]], 1)
        federation = Federation(
            MixedEffects("intercept", "reml"), Split(x, train.y, train.offsets), make_task(REGRESSION, x.shape[1])
        )
        found.append(torch.cat(after(federation, 5).predictions()))
    close(*found, atol=1e-7)


def test_labels_without_noise_end_at_a_floor():
    train = make_clients([5, 6, 7], num_features=3, target=REGRESSION)
    train = Split(train.x, train.x.sum(1), train.offsets)
    federation = after(Federation(MixedEffects(), train, make_task(REGRESSION, 3)), 30)
    assert float(federation.shared.noise) == pytest.approx(1e-7 * float(train.y.square().mean()))
    close(coefficients(federation.serve()), np.tile([1, 1, 1, 0], (3, 1)), atol=1e-5)


def test_newton_steps_reach_the_mode_from_afar(client_trainer):
    """From a mean that all labels contradict undamped steps would leave for good."""
    federation = after(started(MixedEffects(), client_trainer, BINARY, sizes=[12, 9]), 1)
    clients = [(design(x), y) for x, y in as_arrays(federation.train)]
    far = {"mean": np.array([-3.0, 2.0, 3.0, 9.0]), "var": np.full(4, 100.0), "s2": 1.0}
    tau2, mean = torch.full((1, 2), 100.0, dtype=torch.float64), torch.from_numpy(far["mean"]).unsqueeze(0)
    federation.shared = federation.shared._replace(mean=mean, tau2=tau2)
    close(coefficients(federation.serve()), [mode(X, y, far) for X, y in clients], rtol=1e-6)


def test_a_structure_needs_held_out_rows():
    with pytest.raises(ConfigError, match=r"random is choose, .* and the largest client has 4; give intercept"):
        started(MixedEffects("choose"), sizes=[4, 3])
    assert float(after(started(MixedEffects("choose"), sizes=[5, 3]), 1).shared.held_out[0]) > 0


def test_too_many_inputs_are_refused():
    train = make_clients([2], num_features=1001, target=REGRESSION)
    with pytest.raises(ConfigError, match=r"matrices of 1002 x 1002 numbers .* takes up to 1000 inputs; give fewer"):
        Federation(MixedEffects(), train, make_task(REGRESSION, 1001))
