"""Arguments of a checkpoint and of the run that goes on from it."""

import math

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_fed.algorithms import DFedEM, FedAvg, FedEM
from lit_fed.callbacks import LastCheckpoint
from lit_fed.core.graphs.topology import Complete, Ring
from lit_fed.core.local_solver import LocalSolver
from lit_fed.training.checkpoint import clients_folder
from lit_fed.training.history import compare_arguments, plain_settings
from lit_fed.wrappers.fedbn import LocalNorm


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


def differences(before, now):
    return [str(one) for one in compare_arguments(*({"algorithm": plain_settings(one)} for one in (before, now)))]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (FedEM(), FedEM(), []),
        (
            FedEM(num_components=2),
            FedEM(position_loss="sum"),
            ["num_components is 3, in the checkpoint 2", "position_loss is sum, in the checkpoint mean"],
        ),
        (LocalNorm(FedEM()), LocalNorm(FedEM(em_steps=2)), ["inner.em_steps is 2, in the checkpoint 1"]),
        (DFedEM(), DFedEM(), []),
        (DFedEM(topology=Ring()), DFedEM(topology=Complete()), ["topology is Complete, in the checkpoint Ring"]),
        (math.nan, math.nan, []),
        (LocalSolver(), LocalSolver(adapt_lr=0.5), ["adapt_lr is 0.5, in the checkpoint None"]),
    ],
)
def test_settings_are_compared_field_by_field(before, now, said):
    assert differences(before, now) == [f"algorithm.{one}" for one in said]


def test_of_another_algorithm_the_class_alone_is_named():
    assert differences(FedEM(), FedAvg()) == ["algorithm is FedAvg, in the checkpoint FedEM"]


def test_arguments_that_are_only_given_came_later():
    assert compare_arguments({"lr": 0.1}, {"lr": 0.1, "adapt_lr": None}) == []
    assert compare_arguments({"lr": 0.1, "clip_norm": 1.0}, {"lr": 0.1}) != []


def test_client_files_lie_beside_the_last_checkpoint_of_the_run(tmp_path):
    best, last = ModelCheckpoint(tmp_path / "best", filename="best"), LastCheckpoint()
    assert clients_folder([]) is None
    assert clients_folder([last]) is None  # it has no folder before the fit
    assert clients_folder([best, last]) == tmp_path / "best/clients"
    last.dirpath = str(tmp_path / "run/checkpoints")
    assert clients_folder([best, last]) == tmp_path / "run/clients"
