"""User-defined likelihoods: losses, mixtures and metrics by hand; that of a Gaussian trains as `Regression` does."""

import math
import sys
import types
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from doc_pages import blocks
from federated_round import Plain, distance, make_clients, make_task, run_rounds
from scipy import stats

from lit_fed import FML, FedAvg, FedEM, FederatedDataModule, Likelihood, Linear, Multiclass, Regression, Sequences
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Target
from lit_fed.errors import ClientError, ConfigError
from lit_fed.metrics.selection import choose_metrics


@dataclass(frozen=True)
class Gaussian(Likelihood):
    variance: float = 1.0

    num_outputs = 1

    def log_likelihood(self, outputs, y):
        return -0.5 * (outputs[..., 0] - y).square() / self.variance

    def predict(self, outputs):
        return outputs[..., 0]


class Counts(Likelihood):
    """Counts at each position, with an error of its own."""

    num_outputs, positions, metric = 1, True, "absolute_error"

    def log_likelihood(self, outputs, y):
        return y * outputs[..., 0] - outputs[..., 0].exp() - torch.lgamma(y + 1)

    def predict(self, outputs):
        return outputs[..., 0].exp()

    def error(self, predicted, y):
        return (predicted - y).abs()


@pytest.fixture(scope="module")
def survival():
    """The module of the guide."""
    (block,) = [one for one in blocks("docs/guides/own_likelihood.md") if one.title == "my_survival.py"]
    module = sys.modules["my_survival"] = types.ModuleType("my_survival")
    exec(block.text, module.__dict__)
    yield module
    del sys.modules["my_survival"]


# ---------------------------------------------------------------------- by hand
def test_weibull_is_that_of_scipy(survival):
    outputs = torch.tensor([[0.3, 1.0], [-0.2, 0.1], [1.0, 2.0]], dtype=torch.float64)
    y = torch.tensor([[1.5, 1.0], [0.7, 0.0], [2.0, 1.0]], dtype=torch.float64)
    shape = np.log1p(np.exp(outputs[:, 1].numpy()))
    of = stats.weibull_min(shape, scale=np.exp(outputs[:, 0].numpy()))
    expected = np.where(y[:, 1] > 0, of.logpdf(y[:, 0]), of.logsf(y[:, 0]))
    target = survival.Weibull()
    np.testing.assert_allclose(-target.losses(outputs, y), expected, rtol=1e-12)
    np.testing.assert_allclose(target.predict(outputs), of.median(), rtol=1e-12)
    with pytest.raises(ConfigError, match="pairs of a time >= 0"):
        target.fitted(torch.tensor([[1.0, 2.0]]))


def test_c_index_counts_comparable_pairs(survival):
    labels = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0], [4.0, 1.0]])
    metric = survival.ConcordanceIndex()
    metric.update(torch.tensor([2.0, 1.0, 2.0, 3.0]), labels)  # of four pairs two right, one a tie
    assert float(metric.compute()) == 0.625
    for time, predicted, index in (([1.0, 1, 2], [1.0, 2, 3], 1), ([1.0, 2, 3], [3.0, 2, 1], 0)):  # as lifelines has it
        metric.reset()
        metric.update(torch.tensor(predicted), torch.tensor([[one, 1.0] for one in time]))
        assert float(metric.compute()) == index
    chosen = choose_metrics(None, survival.Weibull())
    assert chosen.names == ["concordance_index"]
    assert not len(choose_metrics([], survival.Weibull()))


def test_a_mixture_mixes_likelihoods_and_predictions():
    outputs = torch.tensor([[[0.0], [2.0]]], dtype=torch.float64)  # [B, M, K]
    weights, y = torch.tensor([0.25, 0.75], dtype=torch.float64), torch.tensor([1.5], dtype=torch.float64)
    target = Gaussian(variance=0.5)
    prediction = target.mix(weights, outputs)
    loss, second = target.score(prediction, y)
    assert float(loss) == pytest.approx(-math.log(0.25 * math.exp(-(1.5**2)) + 0.75 * math.exp(-(0.5**2))), abs=1e-14)
    assert torch.equal(loss, second)  # clients are compared by it
    assert target.shown(prediction).tolist() == [1.5]
    assert target.residual(outputs[:, 0], y).tolist() == [[-3.0]]


def test_positions_of_counts():
    target, y = Counts(), torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    outputs = torch.tensor([[[[0.5], [0.1]], [[1.0], [-0.3]]]], dtype=torch.float64)  # [B, M, L, K]
    rate = outputs[0, :, :, 0].exp().numpy()
    each = stats.poisson(rate).pmf(y.numpy())  # [M, L]
    np.testing.assert_allclose(target.losses(outputs[:, 0], y), -np.log(each[0]).mean(), rtol=1e-12)
    loss, error = target.score(target.mix(torch.tensor([0.5, 0.5], dtype=torch.float64), outputs), y)
    np.testing.assert_allclose(loss, -np.log(each.mean(0)).mean(), rtol=1e-12)
    np.testing.assert_allclose(error, np.abs(rate.mean(0) - y.numpy()).mean(), rtol=1e-12)
    assert target.output_shape((2,)) == (2, 1)


# ---------------------------------------------------------------------- in rounds
@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer])
@pytest.mark.parametrize("network", [Linear, Plain])  # with and without a closed form
@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2)])
def test_a_gaussian_of_ones_own_trains_as_regression(algorithm, network, trainer):
    train = make_clients([5, 3, 4], target=Regression())
    own, ours = (
        run_rounds(algorithm, trainer(), train, task=make_task(target, network=network), solver=LocalSolver(lr=0.1))
        for target in (Gaussian(), Regression())
    )
    assert distance(own.shared.models, ours.shared.models) < 1e-12
    assert float(own.evaluate()[0, 1]) > 0


def test_what_has_no_soft_labels_is_refused():
    train = make_clients([5, 3], target=Regression())
    with pytest.raises(ClientError, match="Gaussian has no soft labels, which this algorithm trains on"):
        run_rounds(FML(), train=train, task=make_task(Gaussian()))


# ---------------------------------------------------------------------- what is stored and given
def test_stored_targets_import_nothing():
    target = Gaussian(variance=2.0)
    assert Target.from_plain(*target.plain, given=target) is not None
    assert Target.from_plain(*target.plain, given=target) == target
    with pytest.raises(ConfigError, match="labels are Gaussian, which this version cannot learn"):
        Target.from_plain(*target.plain)
    with pytest.raises(ConfigError, match="labels are Gaussian, and "):
        Target.from_plain(*target.plain, given=Multiclass())
    assert Target.from_plain("multiclass", 4, False, given=Multiclass()) == Multiclass(4)


def data_of(y, target):
    rng = np.random.default_rng(0)
    data = FederatedDataModule.from_clients({"ann": (rng.normal(size=(len(y), 3)), y)}, test_fraction=0)
    data.given_target = target
    data.setup()
    return data


THREE = np.arange(12) % 3


@pytest.mark.parametrize(
    ("y", "target", "expected", "kind"),
    [
        (THREE * 1.0, Multiclass(), Multiclass(3), torch.int64),
        (THREE, Multiclass(5), Multiclass(5), torch.int64),
        (THREE, Regression(), Regression(), torch.float32),
        (THREE, Gaussian(), Gaussian(), torch.float32),
        (np.stack([THREE, THREE], 1), Sequences(), Sequences(3), torch.int64),
    ],
)
def test_labels_take_the_type_of_the_given_target(y, target, expected, kind):
    data = data_of(y, target)
    assert (data.target, data.seen.train.y.dtype) == (expected, kind)


@pytest.mark.parametrize(
    ("y", "target", "message"),
    [
        (THREE + 0.5, Multiclass(), "Multiclass needs classes, and training label 0 is "),
        (THREE, Sequences(), r"Sequences needs labels of shape \[n, L\], and the training labels have shape \[12\]"),
        (np.array(["a", "b", "c"])[THREE], Regression(), "labels are the classes a, b, c, and --model.target regressi"),
        (
            np.stack([THREE, THREE], 1),
            Gaussian(),
            r"log_likelihood returns \[2, 2\] for outputs \[2, 1\] and labels \[2, 2\]",
        ),
    ],
)
def test_labels_of_another_kind_are_refused(y, target, message):
    with pytest.raises(ConfigError, match=message):
        data_of(y, target)
