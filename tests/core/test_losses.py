"""The loss that local steps minimise: PyTorch's cross-entropy with weights and smoothing, and no likelihood."""

import pytest
import torch
from torch.nn import functional as F

from lit_fed.core.local_solver import LocalSolver, Penalty
from lit_fed.core.solvers.newton import minimise
from lit_fed.core.targets import Binary, Criterion, CrossEntropy, Loss, Multiclass, Regression, Sequences
from lit_fed.core.task import Task
from lit_fed.core.types import Batch
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, Linear

WEIGHT = (0.5, 1.0, 3.0)


def drawn(*shape, classes=3):
    rng = torch.Generator().manual_seed(1)
    outputs = torch.randn(*shape, classes, generator=rng, dtype=torch.float64)
    return outputs, torch.randint(classes, shape, generator=rng)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_several_classes_are_those_of_pytorch(weight, smoothing):
    outputs, y = drawn(8)
    given = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    wanted = F.cross_entropy(outputs, y, given, reduction="none", label_smoothing=smoothing)
    found = Criterion(CrossEntropy(weight, smoothing), Multiclass(3)).losses(outputs, y)
    assert torch.allclose(found, wanted, atol=1e-12)


def test_two_classes_with_one_logit_are_those_with_two():
    outputs, y = drawn(8, classes=2)
    loss = CrossEntropy((1.0, 4.0), 0.2)
    wanted = Criterion(loss, Multiclass(2)).losses(outputs, y)
    logit = (outputs[:, 1] - outputs[:, 0]).unsqueeze(1)
    assert torch.allclose(Criterion(loss, Binary()).losses(logit, y), wanted, atol=1e-12)


def test_positions_are_averaged():
    outputs, y = drawn(4, 5)
    loss = CrossEntropy(WEIGHT, 0.1)
    each = Criterion(loss, Multiclass(3)).losses(outputs, y)
    assert torch.allclose(Criterion(loss, Sequences(3)).losses(outputs, y), each.mean(1), atol=1e-12)


@pytest.mark.parametrize("target", [Binary(), Multiclass(3), Sequences(3)])
def test_the_residual_is_the_gradient(target):
    outputs, y = drawn(4, 5) if target.positions else drawn(4)
    outputs = outputs[..., : target.num_outputs].requires_grad_()
    y = y.clamp(max=target.num_classes - 1)
    criterion = Criterion(CrossEntropy(WEIGHT[: target.num_classes], 0.1), target)
    (wanted,) = torch.autograd.grad(criterion.losses(outputs, y).sum(), outputs)
    assert torch.allclose(criterion.residual(outputs.detach(), y), wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: CrossEntropy(label_smoothing=1.0), ["--model.loss.label_smoothing is 1.0", "[0, 1)"]),
        (lambda: CrossEntropy((-1.0, 1.0)), ["--model.loss.weight is [-1.0, 1.0]"]),
        (lambda: CrossEntropy((0.0, 0.0)), ["--model.loss.weight is [0.0, 0.0]", "above 0"]),
        (lambda: Criterion(CrossEntropy((1.0, 2.0)), Multiclass(3)), ["has 2 numbers, and there are 3 classes"]),
        (
            lambda: Criterion(CrossEntropy(), Regression()),
            ["CrossEntropy is for labels that are classes", "regression"],
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, parts):
    with pytest.raises(ConfigError) as refused:
        make()
    assert all(part in str(refused.value) for part in parts), refused.value


def batch_of(size=6):
    rng = torch.Generator().manual_seed(2)
    x = torch.randn(size, 4, generator=rng, dtype=torch.float64)
    return Batch(x, torch.randint(3, (size,), generator=rng), torch.arange(size), torch.ones(size))


def task_of(network, axis, loss):
    criterion = None if loss is None else Criterion(loss, Multiclass(3))
    return Task.create(
        lambda: network((4,), 3), Multiclass(3), dtype=torch.float64, model_axis=axis, criterion=criterion
    )


@pytest.mark.parametrize("network", [Linear, MLP])
def test_gradients_are_of_the_loss_and_all_else_is_the_likelihood(network):
    loss, batch = CrossEntropy(WEIGHT, 0.1), batch_of()
    found = {}
    for axis in ("loop", "vmap"):
        task = task_of(network, axis, loss)
        models = task.init(2, 0)
        mean, gradient, _ = task.value_and_grad(models, batch)
        given = torch.tensor(WEIGHT, dtype=torch.float64)
        outputs = task.outputs(models, batch.x)
        wanted = [F.cross_entropy(outputs[:, m], batch.y, given, reduction="none", label_smoothing=0.1) for m in (0, 1)]
        assert torch.allclose(mean, torch.stack([one.mean() for one in wanted]), atol=1e-12)
        assert torch.equal(task.losses(outputs, batch.y), task_of(network, axis, None).losses(outputs, batch.y))
        found[axis] = gradient
    for name, leaf in found["loop"].items():
        assert torch.allclose(leaf, found["vmap"][name], atol=1e-12)


class Squared(Loss):
    """(1 − p_y)², a loss of one's own without a residual."""

    def check(self, target):
        pass

    def losses(self, target, outputs, y):
        labels = (y.unsqueeze(-1) == torch.arange(3)).to(outputs.dtype)
        return (1 - (torch.softmax(outputs, -1) * labels).sum(-1)).square()


def test_a_loss_of_ones_own_has_its_gradient_in_a_closed_form_too():
    batch, models = batch_of(), task_of(Linear, "loop", None).init(1, 0)
    closed = task_of(Linear, "loop", Squared()).grad(models, batch)[0]
    plain = task_of(lambda _, k: torch.nn.Linear(4, k), "loop", Squared())
    renamed = models._replace(
        parameters={name.removeprefix("linear."): leaf for name, leaf in models.parameters.items()}
    )
    opened = plain.grad(renamed, batch)[0]
    for name, leaf in opened.items():
        assert torch.allclose(closed[f"linear.{name}"], leaf, atol=1e-12)


def test_an_exact_solve_minimises_the_loss():
    batch, task = batch_of(), task_of(Linear, "loop", CrossEntropy(WEIGHT, 0.1))
    start = task.init(1, 0)
    prox = Penalty(0.5, start.parameters)
    found = minimise(task, start, batch, prox)
    slope, pull = task.grad(found, batch)[0], prox.gradient(found.parameters)
    assert all((slope[name] + pull[name]).abs().max() < 1e-8 for name in slope)
    plain = task_of(Linear, "loop", None).grad(found, batch)[0]
    assert any((plain[name] + pull[name]).abs().max() > 1e-2 for name in plain)


@pytest.mark.parametrize("axis", ["loop", "vmap"])
def test_adamw_is_that_of_pytorch(axis):
    batch, task = batch_of(), task_of(MLP, axis, None)
    solver = LocalSolver(optimizer="adamw", lr=0.05, weight_decay=0.3, betas=(0.8, 0.9))
    models = task.init(1, 0)
    state, theirs = solver.init(models), task.build().double()
    theirs.load_state_dict({name: leaf[0] for name, leaf in models.parameters.items()})
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.05, weight_decay=0.3, betas=(0.8, 0.9))
    for _ in range(4):
        models, state, _ = solver.step(task, models, state, batch, torch.tensor(0.05, dtype=torch.float64))
        optimizer.zero_grad()
        F.cross_entropy(theirs(batch.x), batch.y).backward()
        optimizer.step()
    for name, leaf in theirs.named_parameters():
        assert torch.allclose(models.parameters[name][0], leaf, atol=1e-10), name
