"""What the conformance tests share."""

import pytest

from lit_fed.core.solvers.newton import minimise


@pytest.fixture(autouse=True)
def _few_newton_steps(monkeypatch):
    """Two runs that have to be alike are so after a few steps as after many; that these arrive is checked elsewhere."""
    monkeypatch.setitem(minimise.__kwdefaults__, "iterations", 3)
