"""Quantiles and rankings: losses against scikit-learn and scipy, mixtures by hand, metrics, rounds on forecasts."""

import numpy as np
import pytest
import torch
from federated_round import Plain, run_rounds
from scipy import stats
from sklearn.metrics import mean_pinball_loss

from lit_fed import FedEM, Quantiles, Ranking
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.e_step import expectation, num_factors
from lit_fed.core.task import Task
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError
from lit_fed.metrics.selection import choose_metrics

LEVELS = (0.1, 0.5, 0.8)


def made(n=6, missing=False):
    """Labels of two steps and two channels, and outputs of two models [n, 2, 12]."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randn(n, 2, 2, generator=rng, dtype=torch.float64)
    if missing:
        y[0, 1, 0] = y[1] = -9
    return y, torch.randn(n, 2, 12, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("missing", [False, True])
def test_losses_are_pinball_losses_of_the_values_that_count(missing):
    y, outputs = made(missing=missing)
    target = Quantiles(levels=LEVELS, scale=0.5, missing=-9.0 if missing else None).fitted(y)
    assert (target.num_classes, target.num_outputs) == (4, 12)
    found = target.losses(outputs[:, 0], y)
    for one, label, out in zip(found, y.flatten(1), outputs[:, 0].unflatten(-1, (4, 3)), strict=True):
        kept = label != -9
        each = [mean_pinball_loss(label[kept], out[kept, q], alpha=LEVELS[q]) for q in range(3) if kept.any()]
        assert float(one) == pytest.approx(np.mean(each) / 0.5 if each else 0, abs=1e-12)
    # up to constants that is the asymmetric Laplace density of each level
    tau, rest = 0.8, np.array([0.7, -0.7])
    density = stats.laplace_asymmetric(np.sqrt(tau / (1 - tau)), scale=0.5 / np.sqrt(tau * (1 - tau)))
    each = np.array([mean_pinball_loss([one], [0], alpha=tau) for one in rest])
    np.testing.assert_allclose(density.logpdf(rest), np.log(tau * (1 - tau) / 0.5) - each / 0.5, rtol=1e-12)
    variable = outputs[:, 0].clone().requires_grad_()
    target.losses(variable, y).sum().backward()
    assert torch.equal(target.residual(outputs[:, 0], y), variable.grad)
    assert not missing or not variable.grad[1].any()


def test_mixtures_weigh_by_likelihood_and_average_quantiles():
    y, outputs = made(missing=True)
    target, weights = Quantiles(levels=LEVELS, missing=-9.0).fitted(y), torch.tensor([0.3, 0.7], dtype=torch.float64)
    each = target.losses(outputs, target.for_models(y.unsqueeze(1), outputs))  # [n, M]
    prediction = target.mix(weights, outputs)
    loss, error = target.score(prediction, y)
    torch.testing.assert_close(loss, -(weights * (-each).exp()).sum(1).log(), rtol=1e-12, atol=1e-14)
    shown = target.shown(prediction)
    by_hand = (weights[:, None, None] * outputs.unflatten(-1, (4, 3)).sort(-1).values).sum(1)
    torch.testing.assert_close(shown, by_hand, rtol=0, atol=1e-14)
    flat, kept = y.flatten(1), y.flatten(1) != -9
    expected = ((by_hand[..., 1] - flat).abs() * kept).sum(1) / kept.sum(1).clamp(min=1)
    torch.testing.assert_close(error, expected, rtol=0, atol=1e-14)
    # metrics: those of the quantiles, and those of torchmetrics of the median
    (found,) = measured(None, target, [(prediction, y)])
    inside = ((by_hand[..., 0] <= flat) & (flat <= by_hand[..., 2]))[kept].double().mean()
    losses = [mean_pinball_loss(flat[kept], by_hand[..., q][kept], alpha=LEVELS[q]) for q in range(3)]
    torch.testing.assert_close(found, torch.tensor([np.mean(losses), inside], dtype=torch.float64), rtol=1e-6, atol=0)
    (found,) = measured("MeanAbsoluteError", target, [(prediction, y)])
    assert float(found) == pytest.approx(float((by_hand[..., 1] - flat).abs()[kept].mean()), rel=1e-6)


def measured(given, target, clients):
    meter = choose_metrics(given, target).meter(len(clients))
    for row, (prediction, y) in enumerate(clients):
        meter.add(torch.tensor([row]), prediction[None], y[None], torch.ones(1, len(y)))
    return torch.stack([*meter.values().values()], dim=1)


def test_position_loss_sum_takes_the_likelihood_of_all_values():
    y, _ = made(missing=True)
    split = Split(torch.zeros(6, 3, dtype=torch.float64), y, torch.tensor([0, 6]))
    data = split.client(0)
    task = Task.create(lambda: Plain((3,), 12), Quantiles(levels=LEVELS, missing=-9.0).fitted(y), dtype=torch.float64)
    assert num_factors(task, data, "sum").flatten().tolist() == [3, 1, 4, 4, 4, 4]
    assert num_factors(task, data, "mean") == 1
    whole = Task.create(lambda: Plain((3,), 12), Quantiles(levels=LEVELS).fitted(y), dtype=torch.float64)
    assert num_factors(whole, data, "sum") == 4
    pi, _, _ = expectation(torch.tensor([0.5, 0.5]), torch.tensor([[9.0, 0.0]] * 6), task.target.counted(y, data.mask))
    assert float(pi[1]) > 0.99


@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer])
def test_a_mixture_of_forecasts_trains(trainer):
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(24, 3, generator=rng, dtype=torch.float64)
    sign = torch.tensor([1.0, -1.0]).repeat_interleave(12)[:, None, None]
    y = sign * x[:, :2, None] * torch.tensor([1.0, 2.0])  # [n, 2 steps, 2 channels]
    train, target = Split(x, y.double(), torch.tensor([0, 12, 24])), Quantiles().fitted(y)
    task = Task.create(lambda: Plain((3,), target.num_outputs), target, dtype=torch.float64)
    done = run_rounds(
        FedEM(num_components=2), trainer(), train, task=task, rounds=15, solver=LocalSolver(lr=4.0, local_epochs=4)
    )
    assert float(done.evaluate()[:, 1].sum() / 24) < 0.2  # one model for both: 0.41


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"levels": (0.9, 0.5)}, "rising numbers in"),
        ({"levels": (0.5, 1.0)}, "rising numbers in"),
        ({"levels": (0.1, 0.9)}, "with 0.5 among them"),
        ({"scale": 0.0}, "scale is 0.0"),
    ],
)
def test_wrong_levels_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        Quantiles(**given)


# ---------------------------------------------------------------------- rankings
def test_items_are_ranked_within_their_query():
    y = torch.tensor([[0.0, 0], [0, 0], [1, 0], [0, 1], [1, 1], [0, 1], [1, 1]])
    scores = torch.tensor([0.2, 0.3, 0.5, 0.1, 0.3, 0.5, 0.2])
    target = Ranking().fitted(y)
    prediction = target.mix(torch.ones(1), torch.logit(scores)[:, None, None])
    assert measured(None, target, [(prediction, y)]).item() == pytest.approx(0.8467, abs=1e-4)  # torchmetrics' example
    loss, _ = target.score(prediction, y)
    torch.testing.assert_close(loss, torch.nn.functional.binary_cross_entropy(scores, y[:, 0], reduction="none"))
    with pytest.raises(ConfigError, match="such as 2; give 0 and 1"):
        Ranking().fitted(y + torch.tensor([1.0, 0.0]))
    with pytest.raises(ConfigError, match="second column of the labels numbers the queries"):
        Ranking().fitted(y + 0.5)
    with pytest.raises(ConfigError, match=r"needs labels \[n, 2\]"):
        Ranking().fitted(y[:, 0])
