import pytest
import torch
from federated_round import BINARY, MULTICLASS, distance

from lit_fed.algorithms.mocha import _class_signs, _dual_run, _resized, coordinate_step
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.types import Batch


def test_signs():
    assert _class_signs(BINARY, torch.tensor([0, 1])).tolist() == [[-1], [1]]
    assert _class_signs(MULTICLASS, torch.tensor([0, 2])).tolist() == [[1, -1, -1], [-1, -1, 1]]


def test_resized():
    dual = torch.arange(6.0).view(2, 3)
    assert _resized(dual, 3) is dual or torch.equal(_resized(dual, 3), dual)
    assert _resized(dual, 2).tolist() == [[0, 1], [3, 4]]
    assert _resized(dual, 4).tolist() == [[0, 1, 2, 0], [3, 4, 5, 0]]


def start(classes):
    rng = torch.Generator().manual_seed(0)
    columns = torch.randn(classes, 4, generator=rng, dtype=torch.float64)
    reach, share = torch.rand(classes, generator=rng, dtype=torch.float64) + 0.1, torch.tensor(0.2, dtype=torch.float64)
    dual = 0.1 * torch.rand(classes, 5, generator=rng, dtype=torch.float64)
    return _dual_run(columns, dual, reach, share, OptimizerState(torch.zeros(()), {}, {}))


def batch(position, y, extra=0, real=1.0):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = torch.tensor([position] + [0] * extra)
    return Batch(x[rows], torch.tensor([y] * len(rows)), rows, torch.tensor([real] + [0.0] * extra))


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_a_step_moves_one_sample_to_its_best(loss):
    """A second step on the same sample finds nothing to do, and Δb is made of what has changed."""
    run = start(3)
    once = coordinate_step(loss, MULTICLASS, run, batch(2, 1))
    again = coordinate_step(loss, MULTICLASS, once, batch(2, 1))
    assert distance((once.dual, once.change), (again.dual, again.change)) < 1e-12
    moved = once.dual - run.dual
    assert (moved[:, 2].abs() > 1e-3).all()
    assert not moved[:, [0, 1, 3, 4]].any()
    x = torch.cat([batch(2, 1).x[0], torch.ones(1, dtype=torch.float64)])
    assert distance(once.change, 0.2 * (torch.tensor([-1.0, 1, -1]) * moved[:, 2])[:, None] * x) < 1e-14
    assert distance(once.local_columns, run.columns + run.reach[:, None] * once.change) < 1e-14
    assert float(once.steps) == 1
    assert float(once.loss) > 0


def test_padding_does_nothing():
    run = start(1)
    plain, padded = (coordinate_step("hinge", BINARY, run, batch(3, 1, extra)) for extra in (0, 4))
    assert distance(plain[:3], padded[:3]) == 0
    nothing = coordinate_step("hinge", BINARY, run, batch(3, 1, real=0.0))
    assert distance(nothing[:3], run[:3]) == 0
    assert float(nothing.steps) == float(nothing.loss) == 0
