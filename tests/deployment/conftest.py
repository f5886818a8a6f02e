"""What all tests of real federations have in common."""

import signal

import pytest


@pytest.fixture(autouse=True)
def signals():
    """Commands that run in the process of a test end it at once on a signal: their handlers go when the test does."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)
