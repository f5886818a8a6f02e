import numpy as np
import pytest
import torch
from federated_round import (
    MULTICLASS,
    REGRESSION,
    Federation,
    distance,
    make_clients,
    make_parties,
    make_task,
    run_rounds,
    same_bits,
)
from references.sharing_admm_numpy import sharing_round
from scipy.optimize import minimize
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.svm import LinearSVC

from lit_fed.algorithms import SharingADMM
from lit_fed.clients import VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.targets import Binary
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError
from lit_fed.models import MLP

BLOCKS = [3, 2, 4]
BINARY = Binary()


def table(rows=12, target=REGRESSION, features=9, seed=0, dtype=torch.float64):
    """Rows with labels of noise around a line."""
    return make_clients([rows], features, target, seed, dtype)


def parties(pool, blocks=BLOCKS):
    """The rows of a table at each party, with zeros for the features of the others."""
    owner = torch.arange(len(blocks)).repeat_interleave(torch.tensor(blocks))
    x = torch.cat([pool.x * (owner == party) for party in range(len(blocks))])
    return Split(x, pool.y.repeat(len(blocks)), torch.arange(len(blocks) + 1) * len(pool.y))


def fitted(algorithm, train, rounds, trainer=None, target=REGRESSION, **fields):
    task = make_task(target, train.x.shape[1], **{"dtype": train.x.dtype})
    return run_rounds(algorithm, trainer or VectorizedTrainer(), train, rounds=rounds, task=task, **fields)


def arrays(pool):
    """Features with the constant last, and labels."""
    return np.append(pool.x.numpy(), np.ones((len(pool.y), 1)), 1), pool.y.double().numpy()


def ridge(pool, mu):
    A, b = arrays(pool)
    penalty = mu * np.eye(A.shape[1])
    penalty[-1, -1] = 0
    return np.linalg.solve(A.T @ A + penalty, A.T @ b)


def weights(federation):
    return federation.weights[0].numpy()


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize(("rho", "mu"), [(1.0, 0.5), (0.3, 2.0)])
@pytest.mark.parametrize("target", [REGRESSION, BINARY], ids=lambda one: one.kind)
def test_rounds_are_those_of_the_reference(target, rho, mu, client_trainer):
    pool = table(target=target)
    algorithm = SharingADMM(mu, penalty_weight=rho)
    task = make_task(target, pool.x.shape[1])
    federation = Federation(algorithm, parties(pool), task, trainer=client_trainer)
    A, b = arrays(pool)
    cuts = [A[:, [0, 1, 2, 9]], A[:, 3:5], A[:, 5:9]]
    b = b if target == REGRESSION else 2 * b - 1
    xs, z, u = [np.zeros(own.shape[1]) for own in cuts], np.zeros(12), np.zeros(12)
    for _ in range(4):
        xs, z, u = sharing_round(xs, z, u, cuts, b, rho=rho, mu=mu, logistic=target == BINARY)
        federation.round()
        expected = np.concatenate([xs[0][:3], xs[1], xs[2], xs[0][3:]])
        np.testing.assert_allclose(weights(federation), expected, rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.shared.mean_target.numpy(), z, rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.shared.dual.numpy(), u, rtol=0, atol=1e-10)
    (predicted, *_) = federation.predictions(pool)
    logits = arrays(table(target=target))[0] @ expected
    expected = logits[:, None] if target == REGRESSION else np.log([1 / (1 + np.exp(s * logits)) for s in (1, -1)]).T
    np.testing.assert_allclose(predicted.numpy(), expected, rtol=0, atol=1e-9)


# ---------------------------------------------------------------------- the optimum of all features together
@pytest.mark.parametrize(("blocks", "rounds"), [(BLOCKS, 180), ([1] * 9, 260)])
def test_ridge_is_the_central_solution(blocks, rounds):
    pool = table()
    federation = fitted(SharingADMM(), parties(pool, blocks), rounds)
    np.testing.assert_allclose(weights(federation), ridge(pool, 1.0), rtol=0, atol=1e-10)


def test_one_party_is_ordinary_admm():
    """With ½‖s − b‖² + r(x), s = Ax: alternating solves and a multiplier, to the ridge solution."""
    pool = table()
    A, b = arrays(pool)
    penalty = 0.7 * np.eye(10) * (np.arange(10) < 9)
    federation = Federation(SharingADMM(0.7, penalty_weight=2.0), parties(pool, [9]), make_task(REGRESSION, 9))
    s = u = np.zeros(12)
    for _ in range(5):
        x = np.linalg.solve(penalty + 2 * A.T @ A, 2 * A.T @ (s - u))
        s = (b + 2 * (A @ x + u)) / 3
        u = u + A @ x - s
        federation.round()
        np.testing.assert_allclose(weights(federation), x, rtol=0, atol=1e-12)
    federation = fitted(SharingADMM(0.7), parties(pool, [9]), 20)
    np.testing.assert_allclose(weights(federation), ridge(pool, 0.7), rtol=0, atol=1e-10)


@pytest.mark.parametrize("mu", [0.5, 4.0])
def test_lasso_is_that_of_scikit_learn(mu):
    pool = table(40)
    federation = fitted(SharingADMM(mu, "lasso", penalty_weight=2.0, inner_steps=20), parties(pool), 80)
    expected = Lasso(mu / 40, tol=1e-12, max_iter=100000).fit(pool.x.numpy(), pool.y.numpy())
    np.testing.assert_allclose(weights(federation), np.append(expected.coef_, expected.intercept_), rtol=0, atol=1e-7)
    assert (np.abs(expected.coef_) < 1e-12).any() == (mu == 4.0)


def test_logistic_regression_is_that_of_a_generic_solver():
    pool = table(30, BINARY)
    federation = fitted(SharingADMM(0.8, penalty_weight=0.5), parties(pool), 250, target=BINARY)
    A, y = arrays(pool)
    signs = 2 * y - 1

    def objective(w):
        margins = signs * (A @ w)
        slope = -A.T @ (signs / (1 + np.exp(margins)))
        return np.logaddexp(0, -margins).sum() + 0.4 * w[:-1] @ w[:-1], slope + 0.8 * np.append(w[:-1], 0)

    best = minimize(objective, np.zeros(10), jac=True, method="BFGS", options={"gtol": 1e-11})
    np.testing.assert_allclose(weights(federation), best.x, rtol=0, atol=1e-7)
    sklearn = LogisticRegression(C=1 / 0.8, tol=1e-10, max_iter=5000).fit(pool.x.numpy(), y)
    np.testing.assert_allclose(weights(federation)[:-1], sklearn.coef_[0], rtol=0, atol=1e-4)


def test_hinge_is_a_support_vector_machine():
    """scikit-learn's penalises the intercept, next to nothing if its feature is large."""
    pool = table(30, BINARY)
    federation = fitted(SharingADMM(0.8, loss="hinge", penalty_weight=0.3), parties(pool), 250, target=BINARY)
    options = {"C": 1 / 0.8, "loss": "hinge", "dual": True, "tol": 1e-10, "max_iter": 2000000}
    sklearn = LinearSVC(intercept_scaling=100.0, random_state=0, **options).fit(pool.x.numpy(), pool.y.numpy())
    np.testing.assert_allclose(weights(federation)[:-1], sklearn.coef_[0], rtol=0, atol=2e-3)


# ---------------------------------------------------------------------- who knows what
def test_labels_of_other_parties_change_nothing(client_trainer):
    for target in (REGRESSION, BINARY):
        train = parties(table(target=target))
        other = Split(train.x, train.y.clone(), train.offsets)
        other.y[12:] = 77
        one, two = (fitted(SharingADMM(), data, 5, client_trainer, target) for data in (train, other))
        assert same_bits((one.shared, one.states), (two.shared, two.states))
        assert one.metrics == two.metrics
        train.y[0] = 1 - train.y[0]
        assert distance(fitted(SharingADMM(), train, 5, client_trainer, target).shared, one.shared) > 1e-3


def test_a_party_has_no_weight_for_the_features_of_others(client_trainer):
    for regulariser in ("ridge", "lasso"):
        federation = fitted(SharingADMM(0.1, regulariser), parties(table()), 5, client_trainer)
        owner = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 0])
        own = owner == torch.arange(3)[:, None]
        assert not federation.states.weights[~own].any()
        assert federation.states.weights[own].any()
        assert distance(federation.states.weights.sum(0), federation.weights[0]) < 1e-12
        assert distance(federation.states.fit.mean(0), federation.shared.mean_fit) < 1e-12


def test_parties_in_another_order_change_nothing():
    """Without the constant, which stays with party 0, on labels of mean 0 and features of mean 0."""
    pool = table()
    pool = Split(pool.x - pool.x.mean(0), pool.y - pool.y.mean(), pool.offsets)
    one = parties(pool)
    order = torch.tensor([2, 0, 1])
    rows = (order[:, None] * 12 + torch.arange(12)).flatten()
    other = Split(one.x[rows], one.y[rows], one.offsets)
    first, second = (fitted(SharingADMM(), data, 6) for data in (one, other))
    assert distance(first.shared, second.shared) < 1e-12
    assert distance(tree.index(first.states.fit, order), second.states.fit) < 1e-12


def test_one_number_per_row_each_way(client_trainer):
    train = parties(table(dtype=torch.float32))
    federation = fitted(SharingADMM(), train, 2, client_trainer)
    assert federation.bits.tolist() == [3 * 12 * 32, 3 * 12 * 32]


@pytest.mark.parametrize("target", [REGRESSION, BINARY], ids=lambda one: one.kind)
def test_the_loss_is_that_of_the_joint_model_before_the_round(target, client_trainer):
    pool = table(target=target)
    federation = fitted(SharingADMM(), parties(pool), 4, client_trainer, target)
    before = fitted(SharingADMM(), parties(pool), 3, client_trainer, target)
    expected = before.evaluate(pool, states=before.states[0][:1])[0]
    assert federation.metrics["loss"] == pytest.approx(float(expected[1]) / 12, abs=1e-12)


# ---------------------------------------------------------------------- parties as clients
def test_an_unseen_client_is_served_by_the_joint_model():
    federation = fitted(SharingADMM(), parties(table()), 20)
    unseen = make_clients([7], 9, REGRESSION, seed=5, first_id=3)
    (prediction,) = federation.predictions(unseen, seen=False)
    assert federation.algorithm.adapt_work(federation.context("adapt"), seen=False) is None
    expected = arrays(unseen)[0] @ weights(federation)
    np.testing.assert_allclose(prediction[:, 0].numpy(), expected, rtol=0, atol=1e-12)


def test_all_rows_at_all_parties():
    pool = make_clients([4, 6], 4)
    split = make_parties(pool)
    assert split.sizes.tolist() == [10, 10]
    assert torch.equal(split.client(0).x + split.client(1).x, pool.x)
    assert not split.client(1).x[:, :2].any()
    assert torch.equal(split.client(1).y, pool.y)


# ---------------------------------------------------------------------- what is refused


def test_other_data_and_networks_are_refused():
    with pytest.raises(ConfigError, match="the same training rows at each party, and of 2 parties the largest has 5"):
        Federation(SharingADMM(), make_clients([5, 3]))
    with pytest.raises(ConfigError, match="SharingADMM learns regression and binary labels, and these are multiclass"):
        Federation(SharingADMM(), make_parties(make_clients([5, 3], target=MULTICLASS)), make_task(MULTICLASS))
    with pytest.raises(ConfigError, match=r"SharingADMM trains linear models, and MLP is no .*--model\.network Linear"):
        Federation(SharingADMM(), make_parties(make_clients([5, 3])), make_task(network=MLP))
