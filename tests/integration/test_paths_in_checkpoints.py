"""No path in a checkpoint is written to or deleted, and states of callbacks come back all the same."""

import copy
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, Timer
from quiet import quiet_trainer
from running import SMALL, folder
from watched import touched

from lit_fed import FederatedDataModule, FederatedModule
from lit_fed.algorithms import FedEM, Local
from lit_fed.callbacks import ClientFaults, ClientWeights, CommunicationCost, Divergence, RunReport, SpectralGap
from lit_fed.callbacks.checkpoint import LastCheckpoint
from lit_fed.cli import main
from lit_fed.command_line.classes import trusted_arguments
from lit_fed.data import Digits
from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.training.checkpoint import LOOPS, keep_harmless, load_checkpoint

ARGUMENTS = [
    *SMALL, "--model.algorithm", "Local", "--data.num_clients", "4", "--trainer.enable_progress_bar", "false",
    "--model.client_memory_gb", "0", "--trainer.callbacks+=EarlyStopping",
    "--trainer.callbacks.monitor=train/seen/loss", "--trainer.callbacks+=ModelCheckpoint",
    "--trainer.callbacks.monitor=train/seen/loss", "--trainer.callbacks.filename=best",
]  # fmt: skip

FORMS = ("{}", "local://{}", "file://{}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The checkpoint of a run with client files, EarlyStopping and ModelCheckpoint."""
    out = tmp_path_factory.mktemp("paths")
    main(["fit", *ARGUMENTS, "--trainer.max_epochs", "1", "--trainer.default_root_dir", str(out)])
    return folder(out, "Local") / "checkpoints/last.ckpt"


@pytest.fixture
def victim(tmp_path):
    """A folder with a file, outside of every run."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/precious.txt").write_text("precious")
    yield tmp_path / "victim"
    assert (tmp_path / "victim/precious.txt").read_text() == "precious"


def checkpoints_state(text, dirpath):
    """The state of a ModelCheckpoint that would delete what a text names."""
    return {
        "monitor": None, "best_model_score": torch.tensor(1.0), "best_model_path": text,
        "current_score": torch.tensor(1.0), "dirpath": dirpath, "best_k_models": {text: torch.tensor(1e9)},
        "kth_best_model_path": text, "kth_value": torch.tensor(1e9), "last_model_path": text,
    }  # fmt: skip


def texts(value, path=()):
    """The places of all texts in plain values, and of the keys that name files."""
    if isinstance(value, str):
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, one in pairs:
        yield from texts(one, (*path, key))


def replaced(value, path, text):
    if not path:
        return text
    key, *rest = path
    if isinstance(value, dict):
        return value | {key: replaced(value[key], rest, text)}
    changed = [replaced(one, rest, text) if at == key else one for at, one in enumerate(value)]
    return type(value)(changed)


def ran(command, content, place):
    """Run a command from a changed checkpoint; True if it was not refused."""
    torch.save(content, place / "theirs.ckpt")
    try:
        main([*command, "--ckpt_path", str(place / "theirs.ckpt")])
    except SystemExit as refused:
        status = refused.code
    else:
        return True
    assert status == 2
    return False


def goes_on(place):
    return ["fit", *ARGUMENTS, "--trainer.max_epochs", "2", "--trainer.default_root_dir", str(place / "runs")]


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_deletes_no_folder(form, whole, victim, tmp_path, capsys):
    content, own = load_checkpoint(whole), LastCheckpoint().state_key
    content["callbacks"][own] = checkpoints_state(form.format(victim), None)
    with touched(str(victim)) as found:
        assert ran(goes_on(tmp_path), content, tmp_path)
    assert not found
    assert "the state of LastCheckpoint in the checkpoint holds" in capsys.readouterr().err


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_that_knows_the_folder_of_the_run_deletes_nothing_elsewhere(form, whole, victim, tmp_path, capsys):
    content = load_checkpoint(whole)
    key = next(one for one in content["callbacks"] if one.startswith("ModelCheckpoint"))
    own = tmp_path / "runs/Local/version_0/checkpoints"
    content["callbacks"][key] = checkpoints_state(form.format(victim), str(own)) | {"monitor": "train/seen/loss"}
    with touched(str(victim)) as found:
        assert ran(goes_on(tmp_path), content, tmp_path)
    assert not found
    assert f"which is no checkpoint in its folder {own}; it starts anew" in capsys.readouterr().err


def test_no_text_of_a_checkpoint_is_a_place_to_write_or_delete(whole, victim, tmp_path, capsys):
    """Each text in turn, by a fit, which reads all of it; those of the arguments also by a test, which takes them."""
    content = load_checkpoint(whole)
    places = list(texts({name: one for name, one in content.items() if name != "state_dict"}))
    assert {place[0] for place in places} >= {"callbacks", "lit_fed", "pytorch-lightning_version"}
    assert ("lit_fed", "client_files") in places
    went_on = 0
    for number, place in enumerate(places):
        is_argument = place[:2] == ("lit_fed", "arguments")
        command = ["test"] if is_argument else goes_on(tmp_path)
        forms = FORMS if place[0] == "callbacks" else [FORMS[number % len(FORMS)]]
        for form in forms:
            with touched(str(victim)) as found:
                went_on += ran(command, replaced(content, place, form.format(victim)), tmp_path)
            assert not found, place
        capsys.readouterr()
    assert went_on > len(places) // 10, "most of them are refused, and some are not"


def test_entries_of_other_types_are_refused_by_name(whole, tmp_path, capsys):
    content = load_checkpoint(whole)
    for place, value in [
        (("global_step",), "1"), (("loops", "fit_loop", "epoch_progress"), "x"), (("callbacks",), [1]),
        (("lit_fed", "num_rounds"), 1.5), (("lit_fed", "serving", "seed"), "0"), (("lit_fed", "client_files"), 1),
        (("pytorch-lightning_version",), "1.0.0"), (("optimizer_states",), ["x"]), (("lit_fed", "changes"), {}),
    ]:  # fmt: skip
        assert not ran(goes_on(tmp_path), replaced(content, place, value), tmp_path)
        named = ".".join(place[:2] if place[0] == "lit_fed" else place[:1])
        assert f"theirs.ckpt: its entry {named}" in capsys.readouterr().err, place


def test_facts_with_a_default_may_be_missing(whole):
    facts = load_checkpoint(whole)["lit_fed"]["serving"]
    for one in fields(TrainingFacts):
        if one.default is not MISSING:
            less = TrainingFacts.from_plain({name: value for name, value in facts.items() if name != one.name})
            assert getattr(less, one.name) == one.default, one.name


@pytest.mark.parametrize(
    "place",
    [
        ("global_step",), ("state_dict", "rounds"), ("loops", "fit_loop", "epoch_progress", "total", "ready"),
        ("loops", "fit_loop", "epoch_loop.manual_optimization.optim_step_progress", "total", "completed"),
    ],
    ids=lambda place: place[-2] if len(place) > 1 else place[0],
)  # fmt: skip
@pytest.mark.parametrize("value", [0, 3])
def test_one_forged_count_of_rounds_is_refused(whole, tmp_path, capsys, place, value):
    content = load_checkpoint(whole)
    assert content["global_step"] == 1
    forged = torch.tensor(value) if place[0] == "state_dict" else value
    assert not ran(goes_on(tmp_path), replaced(content, place, forged), tmp_path)
    assert "theirs.ckpt: its rounds are" in capsys.readouterr().err


def test_a_folder_of_client_files_that_a_checkpoint_names_gets_no_file(tmp_path):
    data = FederatedDataModule(Digits(), num_clients=4)
    quiet_trainer(1, tmp_path / "one").fit(FederatedModule(Local(), client_memory_gb=0), datamodule=data)
    last = next((tmp_path / "one").rglob("last.ckpt"))
    elsewhere = last.rename(tmp_path / "elsewhere.ckpt")
    trainer = quiet_trainer(1, tmp_path / "two")
    trainer.test(FederatedModule(Local(), client_memory_gb=0), datamodule=data, ckpt_path=elsewhere)
    with (
        touched(str(tmp_path / "one")) as found,
        pytest.raises(ConfigError, match=r"new\.ckpt cannot be written: its cl"),
    ):
        trainer.save_checkpoint(tmp_path / "new.ckpt")
    assert not found


def test_a_checkpoint_does_not_choose_a_folder_to_download_or_cache_to(tmp_path, capsys):
    inner = {"class_path": "torchvision.datasets.MNIST", "init_args": {"root": "/x", "download": True}}
    sets = {
        "MNIST": {"class_path": "lit_fed.MNIST", "init_args": {"root": "/x", "download": True}},
        "source": {"class_path": "lit_fed.TorchDataset", "init_args": {"source": inner}},
        "ImageFolder": {"class_path": "lit_fed.ImageFolder", "init_args": {"root": "/x", "cache_dir": "/y"}},
    }
    for dataset in sets.values():
        given = trusted_arguments({"data": {"dataset": copy.deepcopy(dataset)}}, tmp_path / "its.ckpt", set(), [])
        assert "True" not in str(given)
        assert "/y" not in str(given)
        assert "writes to a folder and is ignored; give --data.dataset." in capsys.readouterr().err
    for name in ("Caltech101", "Caltech256", "INaturalist", "ImageNet"):  # they write to their folder unasked
        source = {"class_path": f"torchvision.datasets.{name}"}
        stored = {"data": {"dataset": {"class_path": "lit_fed.TorchDataset", "init_args": {"source": source}}}}
        with pytest.raises(ConfigError, match=f"names torchvision.datasets.{name} "):
            trusted_arguments(stored, tmp_path / "its.ckpt", set(), [])


# ---------------------------------------------------------------------- states that come back
class Own(Callback):
    """Counts rounds, and is in a phase; also keeps a path, if it is given one."""

    def __init__(self, path=None):
        self.count, self.phase, self.path = 0, "cold", path

    def on_train_epoch_end(self, trainer, pl_module):
        self.count, self.phase = self.count + 1, "warm"

    def state_dict(self):
        return {"count": self.count, "phase": self.phase, "path": self.path}

    def load_state_dict(self, state):
        self.count, self.phase, self.path = state["count"], state["phase"], state["path"]


def fitted(out, rounds, own, ckpt_path=None):
    callbacks = [
        own, EarlyStopping("train/seen/loss", patience=9),
        ModelCheckpoint(out / "best", monitor="train/seen/loss", save_top_k=2, filename="{step}"),
    ]  # fmt: skip
    trainer = quiet_trainer(rounds, out, callbacks=callbacks)
    trainer.fit(FederatedModule(FedEM(2)), datamodule=FederatedDataModule(Digits(), num_clients=4), ckpt_path=ckpt_path)
    states = [str(one.state_dict()).replace(str(out), "OUT") for one in callbacks]
    return states, next((out / "run").rglob("last.ckpt")), sorted(one.name for one in (out / "best").iterdir())


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@pytest.mark.parametrize("relative", [False, True])
def test_states_of_callbacks_come_back(relative, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = Path() if relative else tmp_path
    states, _, files = fitted(out / "whole", 3, Own())
    _, last, _ = fitted(out / "cut", 1, Own())
    again = fitted(out / "cut", 3, Own(), ckpt_path=last)
    assert (again[0], again[2]) == (states, files)
    assert "'count': 3, 'phase': 'warm'" in states[0]
    assert "starts anew" not in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_state_that_may_name_a_file_is_named(tmp_path, capsys):
    _, last, _ = fitted(tmp_path, 1, Own("/some/where"))
    states, *_ = fitted(tmp_path, 2, Own(), ckpt_path=last)
    assert "'count': 1" in states[0]
    said = capsys.readouterr().err
    assert "the state of Own in the checkpoint holds '/some/where', which is no word, and might name a file" in said
    capsys.readouterr()
    fitted(tmp_path, 2, Own("/some/where"), ckpt_path=last)  # its own
    assert "starts anew" not in capsys.readouterr().err


def test_what_early_stopping_keeps_comes_back(tmp_path, capsys):
    """Also why it stopped, which is a sentence."""

    def stopped(rounds, ckpt_path=None):
        early = EarlyStopping("train/seen/loss", patience=1, min_delta=5)
        trainer = quiet_trainer(rounds, tmp_path, callbacks=[early])
        data = FederatedDataModule(Digits(), num_clients=4)
        trainer.fit(FederatedModule(FedEM(2)), datamodule=data, ckpt_path=ckpt_path)
        return early.state_dict(), next((tmp_path / "run").rglob("last.ckpt"))

    before, last = stopped(4)
    assert "did not improve" in str(before)
    stopped(6, ckpt_path=last)
    assert "starts anew" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("callback", "state"),
    [
        (EarlyStopping("loss"), {"wait_count": 0, "stopped_epoch": 0, "best_score": torch.zeros(2), "patience": 3}),
        (
            EarlyStopping("loss"),
            {"wait_count": 0, "stopped_epoch": 0, "best_score": torch.zeros((), device="meta"), "patience": 3},
        ),
        (EarlyStopping("loss"), {"wait_count": -1, "stopped_epoch": 0, "best_score": torch.tensor(1.0), "patience": 3}),
        (ModelCheckpoint(), checkpoints_state("", None) | {"best_k_models": {"": "x"}}),
        (Timer("00:00:01:00"), {"time_elapsed": {"train": float("nan")}}),
        (CommunicationCost(), {"totals": {"comm/total_bytes_up": 0.0, "comm/total_bytes_down": torch.zeros(3)}}),
        (ClientFaults(), {"totals": dict.fromkeys(ClientFaults().totals, 0), "failed": {"ben": [-1]}}),
        (ClientWeights(), {"records": {"rounds": [1]}, "spacing": 1, "seen": 1}),
        (ClientWeights(), {"records": {}, "spacing": 0, "seen": 1}),
        (ClientWeights(), {"records": {"rounds": [torch.zeros(3, 2)]}, "spacing": 1, "seen": 1}),
        (ClientWeights(), {"records": {"mixture": [torch.zeros(1), torch.zeros(2)]}, "spacing": 1, "seen": 1}),
        (Divergence(), {"first": "x"}), (RunReport(), {"seconds": -1.0}),
        (SpectralGap(), {"squares": 1, "num_rounds": 0}),
        (SpectralGap(), {"squares": torch.zeros(1).expand(2**20, 2**20), "num_rounds": 1}),
    ],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_states_of_the_run_s_callbacks_have_a_form(callback, state, capsys):
    trainer = quiet_trainer(1, "nowhere")
    trainer.callbacks = [callback]
    own = callback.state_dict()
    content = {"callbacks": {callback.state_key: state}}
    keep_harmless(content, trainer, "its.ckpt")
    assert content["callbacks"] == {callback.state_key: {}}
    assert f"the state of {type(callback).__name__} in the checkpoint is of another form (" in capsys.readouterr().err
    keep_harmless(content := {"callbacks": {callback.state_key: own}}, trainer, "its.ckpt")
    assert content["callbacks"] == {callback.state_key: own}
    assert not capsys.readouterr().err


def test_loops_of_another_form_are_refused():
    trainer = quiet_trainer(1, "nowhere")
    loops = {name: getattr(trainer, name).state_dict() for name in LOOPS}
    keep_harmless({"loops": copy.deepcopy(loops)}, trainer, "its.ckpt")
    for place, value in [
        (("fit_loop", "epoch_progress", "current"), {}), (("fit_loop", "epoch_progress", "total"), {"reset": 1}),
        (("test_loop", "batch_progress", "is_last_batch"), 1), (("fit_loop",), {}),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=r"^its\.ckpt: its entry loops is not of the form"):
            keep_harmless({"loops": replaced(loops, place, value)}, trainer, "its.ckpt")


def test_an_entry_that_holds_itself_is_refused(whole, tmp_path, capsys):
    content, ring = load_checkpoint(whole), {}
    ring |= {"a": ring, "b": ring}
    content["lit_fed"]["identity"]["algorithm"] = ring
    torch.save(content, tmp_path / "ring.ckpt")
    with pytest.raises(ConfigError, match="nested deeper than those of any run"):
        load_checkpoint(tmp_path / "ring.ckpt")
