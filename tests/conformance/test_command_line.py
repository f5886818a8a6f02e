"""Every class that can be named on the command line has its fields checked there."""

import inspect

import pytest
from jsonargparse import ArgumentParser

import lit_fed.algorithms
import lit_fed.core.mixtures.surrogate
import lit_fed.data
import lit_fed.models
from lit_fed.core.local_solver import LocalSolver

BASES = (
    lit_fed.algorithms.Algorithm,
    lit_fed.core.mixtures.surrogate.Surrogate,
    lit_fed.data.DataSet,
    lit_fed.data.Partition,
    lit_fed.models.Network,
)


def named_classes():
    yield LocalSolver
    for base in BASES:
        below = list(base.__subclasses__())
        while below:
            one = below.pop()
            below += one.__subclasses__()
            if one.__module__.startswith("lit_fed.") and not inspect.isabstract(one):
                yield one


@pytest.mark.parametrize("cls", dict.fromkeys(named_classes()), ids=lambda one: one.__name__)
def test_the_type_of_every_field_is_known(cls):
    # a type that cannot be resolved turns all fields of its class into unchecked ones, without a word
    parser = ArgumentParser()
    parser.add_class_arguments(cls, "one")
    assert "Unvalidated" not in parser.format_help()
