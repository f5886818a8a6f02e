"""Labels for distillation: the gradient is that of a mixture of cross-entropy and Kullback-Leibler divergence."""

import pytest
import torch
from federated_round import (
    BINARY,
    MULTICLASS,
    POSITIONS,
    REGRESSION,
    Plain,
    Tagger,
    distance,
    make_task,
    perturbed,
    same_bits,
)
from torch.func import functional_call

from lit_fed.core import tree
from lit_fed.core.types import Batch
from lit_fed.models import MLP, Linear

CASES = [
    *((target, network) for target in (BINARY, MULTICLASS, REGRESSION) for network in (Linear, Plain, MLP)),
    (POSITIONS, Tagger),
]
cases = pytest.mark.parametrize(
    ("target", "network"), CASES, ids=[f"{one.kind}-{network.__name__}" for one, network in CASES]
)


def samples(target):
    if target.positions:
        return torch.randint(7, (6, 4)), torch.randint(3, (6, 4))
    x = torch.randn(6, 4, dtype=torch.float64)
    if target.kind == "regression":
        return x, torch.randn(6, dtype=torch.float64)
    return x, torch.randint(target.num_classes, (6,))


def make_batch(x, y, masked=0):
    mask = torch.ones(len(y))
    mask[len(y) - masked :] = 0
    return Batch(x, y, torch.arange(len(y)), mask)


def probabilities(target, outputs):
    """Of all classes, [B, C] or [B, L, C]."""
    if target.kind == "binary":
        positive = torch.sigmoid(outputs[..., 0])
        return torch.stack([1 - positive, positive], -1)
    return torch.softmax(outputs, -1)


def two_terms(target, outputs, y, teacher):
    """CE(y) and KL(teacher ‖ model) of each sample, by their definitions; for regression half the squared errors."""
    if target.kind == "regression":
        return 0.5 * (outputs[..., 0] - y) ** 2, 0.5 * (outputs[..., 0] - teacher[..., 0]) ** 2
    own, told = probabilities(target, outputs), probabilities(target, teacher)
    cross_entropy = -own.gather(-1, y.unsqueeze(-1)).squeeze(-1).log()
    divergence = (told * (told / own).log()).sum(-1)
    return cross_entropy.flatten(1).mean(1) if target.positions else cross_entropy, (
        divergence.flatten(1).mean(1) if target.positions else divergence
    )


@cases
@pytest.mark.parametrize("axis", ["loop", "vmap"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("num_models", [1, 2])
@pytest.mark.parametrize("masked", [0, 2])
def test_gradient_is_that_of_both_terms(target, network, axis, share, num_models, masked):
    task = make_task(target, network=network, model_axis=axis)
    students, teacher = task.init(num_models, 0), task.init(1, 5)
    x, y = samples(target)
    told = task.outputs(teacher, x)[:, 0]
    batch = make_batch(x, task.soft_labels(told, y, share), masked)
    _, gradient, _ = task.value_and_grad(students, batch)
    for m in range(num_models):
        own = {name: leaf[m].clone().requires_grad_() for name, leaf in students.parameters.items()}
        cross_entropy, divergence = two_terms(target, functional_call(task.network, own, (x,)), y, told)
        loss = (share * cross_entropy + (1 - share) * divergence)[: 6 - masked].mean()
        expected = torch.autograd.grad(loss, list(own.values()))
        assert distance(list(tree.index(gradient, m).values()), list(expected)) < 1e-12


@cases
def test_losses_are_both_terms_and_a_constant(target, network):
    """The entropy of the labels is what soft cross-entropy has beyond the divergence; labels alone leave the loss."""
    task = make_task(target, network=network)
    student, teacher = task.init(1, 0), task.init(1, 5)
    x, y = samples(target)
    outputs, told = task.outputs(student, x), task.outputs(teacher, x)
    for share in (0.0, 0.4, 1.0):
        ours = task.losses(outputs, task.soft_labels(told[:, 0], y, share))[:, 0]
        cross_entropy, divergence = two_terms(target, outputs[:, 0], y, told[:, 0])
        both = share * cross_entropy + (1 - share) * divergence
        moved = task.outputs(perturbed(student), x)
        theirs = task.losses(moved, task.soft_labels(told[:, 0], y, share))[:, 0]
        again = two_terms(target, moved[:, 0], y, told[:, 0])
        other = share * again[0] + (1 - share) * again[1]
        assert distance(ours - theirs, both - other) < 1e-12
    torch.testing.assert_close(task.losses(outputs, task.soft_labels(told[:, 0], y, 1.0)), task.losses(outputs, y))


@cases
def test_a_model_learns_nothing_from_itself(target, network):
    task = make_task(target, network=network)
    models = task.init(1, 0)
    x, y = samples(target)
    taught = make_batch(x, task.soft_labels(task.outputs(models, x)[:, 0], y, 0.0))
    _, gradient, _ = task.value_and_grad(models, taught)
    assert distance(gradient, tree.zeros_like(gradient)) < 1e-15


@cases
def test_shapes_and_types(target, network):
    task = make_task(target, network=network)
    x, y = samples(target)
    outputs = task.outputs(task.init(1, 0), x)[:, 0].requires_grad_()
    labels = task.soft_labels(outputs, y, torch.tensor(0.5, dtype=torch.float64))
    assert labels.shape == (outputs.shape if target.kind == "multiclass" else y.shape)
    assert labels.dtype == torch.float64
    assert not labels.requires_grad
    if target.kind == "multiclass":
        assert float((labels.sum(-1) - 1).abs().max()) < 1e-14
    assert same_bits(labels, task.soft_labels(outputs, y, 0.5))


def test_labels_of_confident_models_stay_finite():
    task = make_task(BINARY)
    sure = torch.tensor([[800.0], [-800.0]], dtype=torch.float64)
    y = torch.tensor([1, 0])
    assert task.soft_labels(sure, y, 0.5).tolist() == [1.0, 0.0]
    assert task.losses(sure[:, None], task.soft_labels(sure, y, 0.5))[:, 0].tolist() == [0.0, 0.0]
    assert task.losses(sure[:, None], task.soft_labels(-sure, y, 0.0))[:, 0].tolist() == [800.0, 800.0]
