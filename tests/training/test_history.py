"""The history of a run: settings compared with a checkpoint's, changes on resume, rates of added rounds."""

import json
import math
import re

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from local_norm import local_norm
from quiet import assert_same_state, quiet_trainer
from running import folder, history, numbers

from lit_fed import FederatedModule
from lit_fed.algorithms import DFedEM, FedAvg, FedEM, Local
from lit_fed.callbacks import FederatedCallback, LastCheckpoint
from lit_fed.cli import main
from lit_fed.core.graphs.topology import Complete, Ring
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data import Synthetic
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.training.checkpoint import clients_folder
from lit_fed.training.finished_runs import read_run
from lit_fed.training.history import compare_arguments, plain_settings

HORIZON, MORE = 8, 12
SCHEDULES = ["multi_step", "cosine"]


class Rates(FederatedCallback):
    """Notes the learning rate of every round; ends the run early if asked for."""

    def __init__(self, stop_after):
        self.found, self.stop_after = [], stop_after

    def on_train_epoch_start(self, trainer, module):
        self.found.append(float(module.federation.context("train").lr))
        trainer.should_stop = len(self.found) == self.stop_after


def fit(
    out, rounds, *, algorithm=None, ckpt_path=None, resume_with_changes=False, unseen=0.0, test=True, stop_after=None,
    **solver,
):  # fmt: skip
    """A fit on small synthetic data; its module and the rates of its rounds."""
    module = FederatedModule(algorithm or FedAvg(), LocalSolver(lr=0.5, **solver))
    data = FederatedDataModule(Synthetic(num_clients=5, dimension=3, test_size=8), unseen_fraction=unseen)
    rates = Rates(stop_after)
    version, keep = (None, 0) if ckpt_path is None else (0, torch.load(ckpt_path, weights_only=True)["global_step"])
    trainer = quiet_trainer(rounds, out, version=version, keep_rounds=keep, callbacks=[rates])
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path, resume_with_changes=resume_with_changes)
    if test:
        trainer.test(module, datamodule=data)
    return module, rates.found


def last(out):
    return str(folder(out, "run") / "checkpoints/last.ckpt")


CPU = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
DIGITS = [*CPU, "--data.dataset", "Digits", "--data.num_clients", "5", "--data.unseen_fraction", "0.2"]


def command(capsys, *arguments):
    """Status and what was said on standard error."""
    try:
        main(list(arguments))
    except SystemExit as stopped:
        return stopped.code, capsys.readouterr().err
    return 0, capsys.readouterr().err


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_clients_are_served_at_the_rate_of_adaptation(tmp_path, schedule):
    options = {"algorithm": Local(), "unseen": 0.4, "schedule": schedule}
    module, rates = fit(tmp_path, 6, **options)
    assert rates[-1] < 0.1
    assert float(module.federation.context("adapt").lr) == 0.5
    assert float(module.federation.context("train").lr) == rates[-1]
    constant, _ = fit(tmp_path / "constant", 6, **options | {"schedule": "constant"})
    for split in ("loss", "accuracy"):
        key = f"test/unseen/{split}"
        assert module.results[key] == constant.results[key]
    assert module.results["test/seen/loss"] != constant.results["test/seen/loss"]


# ---------------------------------------------------------------------- rounds that are added
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_added_rounds_keep_the_last_rate(tmp_path, capsys, schedule):
    fit(tmp_path / "parts", HORIZON, schedule=schedule)
    assert "the schedule" not in capsys.readouterr().err
    added, rates = fit(tmp_path / "parts", MORE, ckpt_path=last(tmp_path / "parts"), schedule=schedule)
    said = [line for line in capsys.readouterr().err.splitlines() if "schedule" in line]
    assert len(said) == 1
    assert f"the schedule {schedule} ends with round 8; rounds 9 to 12 keep its last learning rate" in said[0]
    whole, whole_rates = fit(tmp_path / "whole", MORE, schedule=schedule, schedule_rounds=HORIZON)
    assert rates == whole_rates[HORIZON:] == [whole_rates[HORIZON - 1]] * (MORE - HORIZON)
    assert whole_rates == sorted(whole_rates, reverse=True)
    assert numbers(folder(tmp_path / "parts", "run")) == numbers(folder(tmp_path / "whole", "run"))
    assert history(folder(tmp_path / "parts", "run")) == history(folder(tmp_path / "whole", "run"))
    assert_same_state(whole, added)


@pytest.mark.parametrize("schedule", ["constant", "sqrt", "linear"])
def test_schedules_without_an_end_do_not_notice(tmp_path, capsys, schedule):
    fit(tmp_path / "parts", 3, schedule=schedule, test=False)
    added, _ = fit(tmp_path / "parts", 5, ckpt_path=last(tmp_path / "parts"), schedule=schedule, test=False)
    whole, _ = fit(tmp_path / "whole", 5, schedule=schedule, test=False)
    assert_same_state(whole, added)
    assert "the schedule" not in capsys.readouterr().err


def test_the_end_of_the_schedule_outlives_several_resumes(tmp_path):
    _, first = fit(tmp_path, 8, schedule="cosine", test=False)
    for rounds, more in ((12, 4), (16, 4)):
        _, rates = fit(tmp_path, rounds, ckpt_path=last(tmp_path), schedule="cosine", test=False)
        assert rates == first[-1:] * more


def test_fewer_rounds_are_the_beginning_of_the_same_schedule(tmp_path):
    _, whole = fit(tmp_path / "whole", 8, schedule="cosine", test=False)
    fit(tmp_path / "cut", 8, schedule="cosine", test=False, stop_after=3)
    _, rest = fit(tmp_path / "cut", 5, ckpt_path=last(tmp_path / "cut"), schedule="cosine", test=False)
    assert rest == whole[3:5]


def test_the_configuration_of_a_continued_run_runs_again_as_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = ["fit", *DIGITS, "--name", "run", "--model.algorithm", "FedAvg", "--model.solver.schedule", "cosine"]
    assert command(capsys, *plain, "--trainer.max_epochs", "2")[0] == 0
    assert command(capsys, *plain, "--trainer.max_epochs", "3", "--ckpt_path", "last")[0] == 0
    config = folder("runs", "run") / "config.yaml"
    assert yaml.safe_load(config.read_text())["model"]["solver"]["schedule_rounds"] == 2
    status, said = command(capsys, "fit", "--config", str(config), "--ckpt_path", "last", "--trainer.max_epochs", "4")
    assert (status, len(said.splitlines())) == (0, 1)
    assert command(capsys, "fit", "--config", str(config), "--trainer.max_epochs", "4", "--name", "again") == (0, "")
    assert numbers(folder("runs", "run")) == numbers(folder("runs", "again"))
    assert command(capsys, *plain, "--ckpt_path", "last", "--model.solver.schedule_rounds", "9")[0] == 2


# ---------------------------------------------------------------------- settings that are changed
def test_changes_are_refused_unless_they_are_meant(tmp_path):
    fit(tmp_path, 2, test=False)
    offered = r"solver\.clip_norm is 1\.0, in the checkpoint None\. .*add --resume_with_changes to go on"
    with pytest.raises(ConfigError, match=offered):
        fit(tmp_path, 3, ckpt_path=last(tmp_path), clip_norm=1.0)
    for others in ({"momentum": 0.9}, {"momentum": 0.9, "clip_norm": 1.0}):
        with pytest.raises(ConfigError, match=r"solver\.momentum is 0\.9") as refused:
            fit(tmp_path, 3, ckpt_path=last(tmp_path), **others)
        assert "--resume_with_changes" not in str(refused.value)
        with pytest.raises(ConfigError, match=r"solver\.momentum is 0\.9"):
            fit(tmp_path, 3, ckpt_path=last(tmp_path), resume_with_changes=True, **others)
    with pytest.raises(ConfigError, match="algorithm is"):
        fit(tmp_path, 3, ckpt_path=last(tmp_path), resume_with_changes=True, algorithm=Local(), clip_norm=1.0)
    with pytest.raises(ConfigError, match="all 2 rounds are done"):
        fit(tmp_path, 2, ckpt_path=last(tmp_path), resume_with_changes=True, clip_norm=1.0)
    with pytest.raises(ConfigError, match=r"--resume_with_changes is of a run that goes on; give .* --ckpt_path"):
        fit(tmp_path / "new", 2, resume_with_changes=True)
    assert not (tmp_path / "new").exists()


def test_a_changed_schedule_goes_on_from_the_round(tmp_path):
    fit(tmp_path, 4, schedule="constant", test=False)
    changes = {"ckpt_path": last(tmp_path), "resume_with_changes": True, "schedule": "cosine", "schedule_rounds": 8}
    _, rates = fit(tmp_path, 6, test=False, **changes)
    assert rates == pytest.approx([0.25 * (1 + math.cos(math.pi * t / 8)) for t in (4, 5)])


def test_a_run_with_changes_says_so_and_serves(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = ["fit", *DIGITS, "--name", "run", "--model.algorithm", "FedAvg"]
    go_on = [*plain, "--ckpt_path", "last", "--resume_with_changes"]
    assert command(capsys, *plain, "--trainer.max_epochs", "2")[0] == 0
    assert command(capsys, *go_on, "--model.solver.lr", "0.02", "--trainer.max_epochs", "3") == (0, "")
    changed = ["--model.solver.lr", "0.02", "--model.solver.schedule", "linear", "--trainer.max_epochs", "4"]
    assert command(capsys, *go_on, *changed) == (0, "")
    run = folder("runs", "run")
    found = json.loads((run / "summary.json").read_text())["changes_on_resume"]
    assert [tuple(one[key] for key in ("after_rounds", "setting", "from", "to")) for one in found] == [
        (2, "model.solver.lr", 0.1, 0.02), (2, "trainer.max_epochs", 2, 3),
        (3, "model.solver.schedule", "constant", "linear"), (3, "trainer.max_epochs", 3, 4),
    ]  # fmt: skip
    assert read_run(run).config["changes_on_resume"] == found  # so it is not compared with a run that had none
    text = (run / "config.yaml").read_text()
    assert "# changed on resume, after 2 rounds: model.solver.lr from 0.1 to 0.02\n" in text
    config = yaml.safe_load(text)
    assert "resume_with_changes" not in config
    assert config["model"]["solver"]["lr"] == 0.02
    checkpoint = str(run / "checkpoints/last.ckpt")
    for name in ("test", "predict"):
        assert command(capsys, name, "--ckpt_path", checkpoint) == (0, "")
    said = command(capsys, "test", "--ckpt_path", checkpoint, "--model.solver.lr", "0.1")
    assert said[0] == 2
    assert "resume_with_changes" not in said[1]
    assert command(capsys, *plain, "--ckpt_path", "last", *changed, "--trainer.max_epochs", "5") == (0, "")
    assert json.loads((run / "summary.json").read_text())["changes_on_resume"] == found


def test_the_advice_of_a_diverged_run_works(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = ["fit", *CPU, "--data.dataset", "Sine", "--model.algorithm", "FedAvg", "--model.network", "MLP"]
    plain += ["--trainer.max_epochs", "8"]
    anew = [*plain, "--name", "anew", "--model.solver.lr", "1"]
    status, said = command(capsys, *anew)
    assert status == 2
    assert "or start again with --model.solver.clip_norm 1 or a lower --model.solver.lr" in said
    status, said = command(capsys, *anew, "--model.solver.clip_norm", "1")
    assert status == 0
    assert re.fullmatch(r"lit_fed: .* above guessing .*; start again with a lower --model.solver.lr, or .*\n", said)
    # a run that went well until its rate was raised
    good = ["--name", "on", "--model.solver.lr", "0.01", "--model.solver.local_steps", "4"]
    assert command(capsys, *plain, *good, "--trainer.max_epochs", "2") == (0, "")
    go_on = [*plain, *good, "--ckpt_path", "last", "--resume_with_changes"]
    status, said = command(capsys, *go_on, "--model.solver.lr", "1e30")
    assert status == 2
    assert "if the rounds before went well, add --ckpt_path last --resume_with_changes" in said
    assert command(capsys, *go_on, "--model.solver.clip_norm", "1") == (0, "")


# ---------------------------------------------------------------------- settings that are compared
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
        (local_norm(FedEM()), local_norm(FedEM(em_steps=2)), ["inner.em_steps is 2, in the checkpoint 1"]),
        (DFedEM(), DFedEM(), []),
        (DFedEM(topology=Ring()), DFedEM(topology=Complete()), ["topology is Complete, in the checkpoint Ring"]),
        (math.nan, math.nan, []),
        (LocalSolver(), LocalSolver(adapt_lr=0.5), ["adapt_lr is 0.5, in the checkpoint None"]),
        (LocalSolver(), LocalSolver(client_lr={"a": 0.5}), ["client_lr is {'a': 0.5}, in the checkpoint {}"]),
        (LocalSolver(client_work={"a": 0.5}), LocalSolver(), ["client_work is {}, in the checkpoint {'a': 0.5}"]),
        (
            LocalSolver(client_lr={"a": 0.5}),
            LocalSolver(client_lr={"a": 0.5, "b": 2.0}),
            ["client_lr is {'a': 0.5, 'b': 2.0}, in the checkpoint {'a': 0.5}"],
        ),
    ],
)
def test_settings_are_compared_field_by_field(before, now, said):
    assert differences(before, now) == [f"algorithm.{one}" for one in said]


def test_of_another_algorithm_the_class_alone_is_named():
    assert differences(FedEM(), FedAvg()) == ["algorithm is FedAvg, in the checkpoint FedEM"]


def test_arguments_that_are_only_given_came_later():
    assert compare_arguments({"lr": 0.1}, {"lr": 0.1, "adapt_lr": None}) == []
    assert compare_arguments({"lr": 0.1, "clip_norm": 1.0}, {"lr": 0.1}) != []
    network = {"class_path": "lit_fed.Linear", "init_args": {}}
    assert compare_arguments({"network": network}, {"network": network | {"init_args": {"bias": True}}}) == []


def test_how_nodes_are_reached_is_not_compared():
    names = ("listen", "tls", "nodes", "num_nodes", "seconds", "patience", "missing")
    options = (dict.fromkeys(names, 1), dict.fromkeys(names, 2))
    stored, given = ({"data": {"dataset": {"class_path": "lit_fed.Federation", "init_args": one}}} for one in options)
    assert [one.setting for one in compare_arguments(stored, given)] == ["data.dataset.missing"]


@pytest.mark.parametrize(("before", "now"), [({}, {"eps": 0.1}), ({"eps": 0.1}, {})])
def test_options_that_were_or_are_empty_are_compared(before, now):
    """As arguments of the command line have them."""
    stored, given = ({"model": {"algorithm": {"init_args": {"options": one}}}} for one in (before, now))
    said = f"model.algorithm.options is {now}, in the checkpoint {before}"
    assert [str(one) for one in compare_arguments(stored, given)] == [said]


def test_client_files_lie_beside_the_last_checkpoint_of_the_run(tmp_path):
    best, last = ModelCheckpoint(tmp_path / "best", filename="best"), LastCheckpoint()
    assert clients_folder([]) is None
    assert clients_folder([last]) is None  # it has no folder before the fit
    assert clients_folder([best, last]) == tmp_path / "best/clients"
    last.dirpath = str(tmp_path / "run/checkpoints")
    assert clients_folder([best, last]) == tmp_path / "run/clients"


# ---------------------------------------------------------------------- a fit that was interrupted in a round
class Breaks(FederatedCallback):
    """Fails in the midst of the third round."""

    def on_clients_end(self, trainer, module, num_clients):
        if module.num_rounds_done == 2:
            raise RuntimeError("broken")


def test_the_next_fit_of_a_module_begins_the_interrupted_round_anew(tmp_path):
    def data():
        return FederatedDataModule(Synthetic(num_clients=5, dimension=3, test_size=8), clients_per_block=2)

    whole = FederatedModule(FedEM(), LocalSolver(lr=0.5))
    quiet_trainer(3).fit(whole, datamodule=data())
    broken = FederatedModule(FedEM(), LocalSolver(lr=0.5))
    with pytest.raises(RuntimeError, match="broken"):
        quiet_trainer(3, callbacks=[Breaks()]).fit(broken, datamodule=data())
    quiet_trainer(1).fit(broken, datamodule=data())
    assert_same_state(whole.shared.models.parameters, broken.shared.models.parameters)
    assert torch.equal(whole.mixture_weights, broken.mixture_weights)
