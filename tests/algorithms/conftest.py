"""What the tests of algorithms share."""

import pytest
from federated_round import Scale

from lit_fed.core.solvers import newton
from lit_fed.models import Linear


@pytest.fixture(autouse=True)
def _no_needless_newton_steps(monkeypatch):
    """Exact solves take the steps that they need: one where the loss is a quadratic, seven on these few samples.

    What more steps do is checked beside the solver; with fewer of them a wrong objective is as wrong.
    """
    solve = newton._minimise

    def minimise(task, models, batch, penalty, iterations):
        quadratic = task.target.kind == "regression" and isinstance(task.network, Linear | Scale)
        return solve(task, models, batch, penalty, 1 if quadratic else min(iterations, 7))

    monkeypatch.setattr(newton, "_minimise", minimise)
