"""Arguments of a checkpoint and of the run that goes on from it."""

import pytest

from lit_fed.training.checkpoint import compare_arguments


@pytest.mark.parametrize(
    ("before", "now", "differs"),
    [
        ("lit_fed.data.Digits", "lit_fed.Digits", False),
        ("lit_fed.Digits", "lit_fed.Digits", False),
        ("lit_fed.Digits", "lit_fed.MNIST", True),
        ("mine.Digits", "lit_fed.Digits", True),
        ("lit_federal.Digits", "lit_fed.Digits", True),
    ],
)
def test_a_class_is_the_same_wherever_the_package_has_it(before, now, differs):
    stored, given = ({"dataset": {"class_path": path, "init_args": {"n": 1}}} for path in (before, now))
    expected = [f"data.dataset is {now}, in the checkpoint {before}"] if differs else []
    assert [str(one) for one in compare_arguments(stored, given, "data.")] == expected
