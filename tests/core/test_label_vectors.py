"""Several labels of a sample, and vectors as labels, against SciPy and against sums over all label vectors."""

from itertools import product

import numpy as np
import pytest
import torch
from federated_round import make_task
from scipy.special import expit
from scipy.stats import norm
from test_targets import check_residual

from lit_fed.core.mixtures.e_step import expectation
from lit_fed.core.targets import MultiLabel, Target, VectorRegression
from lit_fed.core.types import Batch
from lit_fed.models import MLP, Linear

TARGETS = [MultiLabel(3), VectorRegression(3)]
every_kind = pytest.mark.parametrize("target", TARGETS, ids=repr)
WEIGHTS = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


def samples(target, num_models=3, seed=0):
    """Outputs [6, M, 3] and labels [6, 3]."""
    rng = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randn(6, num_models, 3, generator=rng, dtype=torch.float64)
    y = torch.randn(6, 3, generator=rng, dtype=torch.float64)
    return outputs, y if target.continuous else (y > 0).long()


def log_likelihood(target, outputs, y):
    """log p(y | x, θ) of each sample by SciPy, [6], of label vectors [6, 3]; a constant of the normal one left out."""
    outputs, y = outputs.numpy(), y.numpy()
    if target.continuous:
        return (norm.logpdf(y, outputs) - norm.logpdf(0)).sum(-1)
    return np.log(np.where(y > 0, expit(outputs), expit(-outputs))).sum(-1)


def close(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, torch.as_tensor(expected), rtol=0, atol=tolerance)


@every_kind
def test_what_they_are(target):
    assert (target.num_outputs, target.vectors, target.positions) == (3, True, False)
    assert target.output_shape((3,)) == (3,)
    assert Target.from_plain(target.kind, target.num_classes, target.positions) == target
    assert [target.name for target in TARGETS] == ["multilabel", "vectorregression"]
    assert [target.kind for target in TARGETS] == ["multilabel", "vector_regression"]
    assert [target.metric for target in TARGETS] == ["accuracy", "mse"]


@every_kind
def test_the_loss_is_that_of_the_joint_likelihood(target):
    outputs, y = samples(target)
    found = target.losses(outputs, target.for_models(y.unsqueeze(1), outputs))
    for m in range(3):
        close(found[:, m], -log_likelihood(target, outputs[:, m], y))


def test_probabilities_of_all_label_vectors_sum_to_one():
    outputs, _ = samples(MultiLabel(3), 1)
    every = [torch.tensor(y).expand(6, 3) for y in product((0, 1), repeat=3)]
    close(sum((-MultiLabel(3).losses(outputs[:, 0], y)).exp() for y in every), torch.ones(6).double())


@every_kind
@pytest.mark.parametrize("soft", [False, True])
def test_the_residual_is_the_gradient_of_the_loss(target, soft):
    outputs, y = samples(target)
    check_residual(target, outputs, target.soft_labels(samples(target, 1, seed=1)[0][:, 0], y, 0.3) if soft else y)


@every_kind
def test_soft_labels_are_between_labels_and_predictions(target):
    outputs, y = samples(target, 1)
    outputs = outputs[:, 0]
    predicted = outputs if target.continuous else torch.sigmoid(outputs)
    close(target.soft_labels(outputs, y, 0.3), 0.3 * y.double() + 0.7 * predicted)


def test_responsibilities_are_those_of_whole_label_vectors():
    """By Bayes' rule on p(y | x, θ_m), the product over a sample's labels."""
    target = MultiLabel(3)
    outputs, y = samples(target)
    losses = target.losses(outputs, target.for_models(y.unsqueeze(1), outputs))
    _, found, _ = expectation(WEIGHTS, losses, torch.ones(6))
    joint = WEIGHTS.numpy() * np.exp(np.stack([log_likelihood(target, outputs[:, m], y) for m in range(3)], 1))
    close(found, joint / joint.sum(1, keepdims=True))


def test_a_mixture_predicts_the_marginals_of_its_joint_distribution():
    """Sums over all label vectors of Σ_m π_m p(y | x, θ_m)."""
    target = MultiLabel(3)
    outputs, y = samples(target)
    expected = np.zeros((6, 3, 2))
    for labels in product((0, 1), repeat=3):
        every = torch.tensor(labels).expand(6, 3)
        each = np.stack([np.exp(log_likelihood(target, outputs[:, m], every)) for m in range(3)], 1)
        for label, value in enumerate(labels):
            expected[:, label, value] += each @ WEIGHTS.numpy()
    found = target.mix(WEIGHTS, outputs)
    close(found.exp(), expected)
    close(target.shown(found), expected[..., 1])
    loss, hit = target.score(found, y)
    close(loss, -np.log(np.take_along_axis(expected, y.numpy()[..., None], 2)).sum((1, 2)))
    close(hit, ((expected[..., 1] > 0.5) == (y.numpy() > 0)).mean(1))


def test_a_mixture_of_vectors_predicts_their_mean():
    target = VectorRegression(3)
    outputs, y = samples(target)
    found = target.mix(WEIGHTS, outputs)
    close(found, np.einsum("m,bmk->bk", WEIGHTS, outputs))
    assert target.shown(found) is found
    loss, square = target.score(found, y)
    close(square, ((found - y) ** 2).mean(1))
    close(loss, 1.5 * square)


@every_kind
def test_the_score_of_one_model_has_its_loss(target):
    outputs, y = samples(target, 1)
    close(target.score(target.mix(outputs.new_ones(1), outputs), y)[0], -log_likelihood(target, outputs[:, 0], y))


@every_kind
@pytest.mark.parametrize("network", [Linear, MLP])
@pytest.mark.parametrize("axis", ["loop", "vmap"])
@pytest.mark.parametrize("own_batches", [False, True])
def test_gradients_of_a_task(target, network, axis, own_batches):
    """Closed form, one model after another and all at once, against differences of the loss."""
    task = make_task(target, network=network, model_axis=axis)
    models, (_, y) = task.init(2, 0), samples(target)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(2)).double()
    batch = Batch(x, y, torch.arange(6), torch.ones(6))
    if own_batches:
        batch = Batch(*(torch.stack([one, one]) for one in batch))
    value, gradient, _ = task.value_and_grad(models, batch)
    close(value, task.losses(task.outputs(models, x), y).mean(0))
    bias = list(gradient)[-1]
    around = [
        models._replace(parameters=models.parameters | {bias: models.parameters[bias] + step}) for step in (1e-6, -1e-6)
    ]
    ahead, behind = (task.losses(task.outputs(moved, x), y).mean(0) for moved in around)
    close(gradient[bias].sum(1), (ahead - behind) / 2e-6, 1e-7)
