"""Arguments of a checkpoint and of the run that goes on from it."""

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_fed.algorithms import DFedEM, FedAvg, FedEM
from lit_fed.callbacks import LastCheckpoint
from lit_fed.core.local_solver import LocalSolver
from lit_fed.training.checkpoint import clients_folder, compare_arguments, compare_identities
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


def differences(stored, algorithm, solver=LocalSolver()):  # noqa: B008 - frozen
    settings = {"algorithm": algorithm, "solver": solver}
    found = compare_identities(stored, {name: repr(one) for name, one in settings.items()}, settings)
    return [str(one) for one in found]


def older(settings, *options):
    """How a version without these options, all at their defaults, wrote the settings."""
    shown = repr(settings)
    for option in options:
        assert option in shown
        shown = shown.replace(f", {option}", "")
    return shown


def test_an_option_that_came_later_counts_with_its_default():
    stored = {
        "algorithm": older(FedEM(num_components=2), "position_loss='mean'"),
        "solver": older(LocalSolver(), "schedule_rounds=None", "adapt_lr=None"),
    }
    assert differences(stored, FedEM(num_components=2)) == []
    assert differences(stored, FedEM(num_components=2, position_loss="sum")) == [
        "algorithm.position_loss is sum, in the checkpoint mean"
    ]
    assert differences(stored, FedEM(), LocalSolver(adapt_lr=0.5)) == [
        "algorithm.num_components is 3, in the checkpoint 2", "solver.adapt_lr is 0.5, in the checkpoint None",
    ]  # fmt: skip


def test_of_another_algorithm_the_class_alone_is_named():
    stored = {"algorithm": repr(FedEM()), "solver": repr(LocalSolver())}
    assert differences(stored, FedAvg()) == ["algorithm is FedAvg, in the checkpoint FedEM"]


def test_settings_inside_settings():
    inner = {"algorithm": older(LocalNorm(FedEM()), "position_loss='mean'"), "solver": repr(LocalSolver())}
    assert differences(inner, LocalNorm(FedEM())) == []
    assert differences(inner, LocalNorm(FedEM(em_steps=2)))
    graph = {"algorithm": repr(DFedEM()), "solver": repr(LocalSolver())}
    assert differences(graph, DFedEM()) == []


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
