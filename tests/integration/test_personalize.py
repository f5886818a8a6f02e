"""Unseen clients served from a checkpoint alone: the states and numbers of the run's own unseen clients."""

import shutil
import stat
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from running import SMALL, folder, run
from test_predict import CPU, P, digits, refused

import lit_fed
from lit_fed import FederatedModule, FederatedTrainer
from lit_fed.algorithms import FedAvg
from lit_fed.cli import main
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Population
from lit_fed.data import ClientDataSet, Normalisation, PooledDataSet, Samples
from lit_fed.data.data_sets.base import make_split
from lit_fed.errors import ConfigError


def export(population, root, **changes):
    """One file for each client; `changes` replace arrays, None leaves them out."""
    root.mkdir(parents=True)
    for position in range(population.train.num_clients):
        client_id = population.train.first_id + position
        train, test = population.train.client(client_id), population.test.client(client_id)
        arrays = {"x_train": train.x, "y_train": train.y, "x_test": test.x, "y_test": test.y}
        arrays = {name: leaf.numpy() for name, leaf in arrays.items()}
        arrays |= {name: change(arrays) for name, change in changes.items()}
        np.savez(root / f"client_{position}.npz", **{name: one for name, one in arrays.items() if one is not None})
    return root


def fit(out, name, *arguments):
    main(["fit", *SMALL, "--trainer.max_epochs", "2", "--model.algorithm", name, "--trainer.default_root_dir", str(out),
          *arguments])  # fmt: skip
    return folder(out, name) / "checkpoints/last.ckpt"


OWN_CLASSES = ["--trust", "normalised", "--trust", "test_personalize"]


def personalize(last, clients, output, *arguments):
    main(["personalize", *CPU, *OWN_CLASSES, "--ckpt_path", str(last), "--clients", str(clients),
          "--output", str(output), *arguments])  # fmt: skip
    return pd.read_csv(output / "clients.csv")


@pytest.fixture(scope="module")
def last(tmp_path_factory):
    """A checkpoint of FedEM."""
    return fit(tmp_path_factory.mktemp("runs"), "FedEM", "--model.client_trainer", "sequential")


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    """The unseen clients of that run as files."""
    return export(digits().unseen, tmp_path_factory.mktemp("new") / "clients")


@pytest.mark.parametrize("client_trainer", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", ["FedEM", "FedAvgPlus", "Local", "FedAvg"])
def test_results_are_those_of_the_runs_unseen_clients(tmp_path, clients, name, client_trainer):
    checkpoint = fit(
        tmp_path / "runs", name, "--model.client_trainer", client_trainer, "--model.metrics", "AUROC,CalibrationError"
    )
    found = personalize(checkpoint, clients, tmp_path / "served")
    expected = pd.read_csv(folder(tmp_path / "runs", name) / "clients.csv").query("population == 'unseen'")
    expected = expected.drop(columns=["client", "population"]).reset_index(drop=True)
    if name != "FedEM":
        expected = expected.dropna(axis=1)  # seen clients have no mixture weights either
    assert found.pop("client").tolist() == ["client_0", "client_1"]
    pd.testing.assert_frame_equal(found, expected, rtol=1e-6)
    assert {"auroc", "calibration_error"} < set(found)
    assert sorted(path.name for path in (tmp_path / "served").iterdir()) == ["clients.csv", "predictions.csv", "states"]
    predictions = pd.read_csv(tmp_path / "served/predictions.csv")
    hits = (predictions["label"] == predictions["prediction"]).groupby(predictions["client_id"]).mean()
    assert hits.index.tolist() == [6, 7]
    np.testing.assert_allclose(hits, found["accuracy"], rtol=1e-12)


@pytest.mark.parametrize("name", ["FedEM", "FedAvgPlus", "Local"])
def test_seen_clients_are_served_by_their_states(tmp_path, name, capsys):
    """From the checkpoint and their own files alone, as in the test of the run."""
    checkpoint = fit(tmp_path / "runs", name)
    files, seen = tmp_path / "files", digits().seen
    export(seen, files)
    for position in range(len(seen.names)):
        (files / f"client_{position}.npz").rename(files / f"{seen.names[position]}.npz")
    (files / "2.npz").unlink()
    found = personalize(checkpoint, files, tmp_path / "served", "--use_states", "true")
    expected = pd.read_csv(folder(tmp_path / "runs", name) / "clients.csv").query(
        "population == 'seen' and client != 2"
    )
    expected = expected.drop(columns="population").reset_index(drop=True)
    pd.testing.assert_frame_equal(found, expected[list(found)], rtol=1e-6)
    assert set(expected) == set(found)
    assert "served by the shared state and their own, from the checkpoint" in capsys.readouterr().err
    (files / "0.npz").rename(files / "zoe.npz")
    command = ["personalize", *CPU, "--ckpt_path", str(checkpoint), "--clients", str(files), "--use_states", "true"]
    assert "zoe took no part in the training" in refused(capsys, [*command, "--output", str(tmp_path / "b")])


@pytest.mark.parametrize("name", ["FedEM", "FedAvgPlus", "FedAvgTuned"])
def test_seen_clients_that_adapt_whenever_they_are_served_need_their_samples(tmp_path, name, capsys):
    """Without them the shared model would stand in for theirs, under the threshold of theirs."""
    tuned = ["--model.serving.fine_tune_epochs", "1"] if name == "FedAvgTuned" else []
    checkpoint = fit(tmp_path / "runs", name.removesuffix("Tuned"), *tuned)
    place = tmp_path / "files"
    place.mkdir()
    np.savez(place / "0.npz", x_test=digits().seen.test.client(0).x)
    command = ["personalize", *CPU, "--ckpt_path", str(checkpoint), "--clients", str(place), "--use_states", "true",
               "--output", str(tmp_path / "served")]  # fmt: skip
    if name == "FedEM":
        main(command)
        return
    said = refused(capsys, command)
    assert f"0 has no training samples in --clients {place}: {name.removesuffix('Tuned')} computes" in said
    assert "take predict or export with the data of the run" in said


def test_local_batch_norm(tmp_path, clients):
    """A client from a file brings its own statistics, as an unseen client of the run does."""
    local = ["--model.batch_norm", "local", "--model.network", "normalised.NormalisedMLP"]
    checkpoint = fit(tmp_path / "runs", "FedEM", *local)
    found = personalize(checkpoint, clients, tmp_path / "served")
    expected = pd.read_csv(folder(tmp_path / "runs", "FedEM") / "clients.csv").query("population == 'unseen'")
    assert found.pop("client").tolist() == ["client_0", "client_1"]
    expected = expected.drop(columns=["client", "population"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-6)
    state = torch.load(tmp_path / "served/states/client_0.pt", weights_only=True)
    np.testing.assert_allclose(
        state["inner"]["mixture"], found.loc[0, ["pi_0", "pi_1", "pi_2"]].astype(float), rtol=1e-6
    )
    means = [
        torch.load(tmp_path / f"served/states/client_{one}.pt", weights_only=True)["personal"]["buffers"][
            "layers.2.running_mean"
        ]
        for one in (0, 1)
    ]
    assert not torch.equal(*means)


def test_kept_states_give_the_predictions(tmp_path, clients, last):
    """FedEM keeps mixture weights, FedAvg+ the tuned model, FedAvg nothing."""
    table = personalize(last, clients, tmp_path / "fedem", "--format", "parquet")
    assert stat.S_IMODE((tmp_path / "fedem/states/client_1.pt").stat().st_mode) == 0o600
    state = torch.load(tmp_path / "fedem/states/client_1.pt", weights_only=True)
    assert list(state) == ["mixture"]
    np.testing.assert_allclose(state["mixture"], table.loc[1, ["pi_0", "pi_1", "pi_2"]].astype(float), rtol=1e-6)
    assert (
        pd.read_parquet(tmp_path / "fedem/predictions.parquet")["client"].unique().tolist() == table["client"].tolist()
    )

    personalize(fit(tmp_path / "runs", "FedAvgPlus"), clients, tmp_path / "tuned")
    state = torch.load(tmp_path / "tuned/states/client_0.pt", weights_only=True)
    tuned = state["models"]["parameters"]
    weight, bias = (tuned[f"linear.{name}"][0].double().numpy() for name in ("weight", "bias"))
    assert state["models"]["buffers"] == {}
    x = np.load(clients / "client_0.npz")["x_test"]
    logits = x.reshape(len(x), -1) @ weight.T + bias
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    predictions = pd.read_csv(tmp_path / "tuned/predictions.csv").query("client == 'client_0'")
    np.testing.assert_allclose(predictions[P], shares, atol=2e-6)

    personalize(fit(tmp_path / "runs", "FedAvg"), clients, tmp_path / "plain")
    assert torch.load(tmp_path / "plain/states/client_0.pt", weights_only=True) == {}


def test_states_in_files_are_not_missed(tmp_path, clients):
    in_files = ["--model.client_trainer", "sequential", "--model.client_memory_gb", "0"]
    tables = []
    for name, arguments in (("memory", in_files[:2]), ("files", in_files)):
        checkpoint = fit(tmp_path / name, "Local", *arguments)
        shutil.rmtree(checkpoint.parents[1] / "clients", ignore_errors=True)
        tables.append(personalize(checkpoint, clients, tmp_path / f"served_{name}"))
    pd.testing.assert_frame_equal(*tables)


def test_without_the_data_of_the_training(tmp_path, capsys):
    data = digits()
    root = tmp_path / "data"
    export(data.seen, root / "seen")
    export(data.unseen, root / "unseen")
    main(["fit", *CPU, "--data.dataset", "ClientFolder", "--data.dataset.root", str(root), "--trainer.max_epochs", "1",
          "--trainer.default_root_dir", str(tmp_path / "runs")])  # fmt: skip
    moved = shutil.move(root / "unseen", tmp_path / "moved")
    shutil.rmtree(root)
    capsys.readouterr()
    main(["personalize", *CPU, "--trainer.default_root_dir", str(tmp_path / "runs"), "--ckpt_path", "last", "--clients",
          str(moved), "--output", str(tmp_path / "served")])  # fmt: skip
    said = capsys.readouterr().out
    expected = pd.read_csv(folder(tmp_path / "runs", "FedEM") / "clients.csv").query("population == 'unseen'")
    found = pd.read_csv(tmp_path / "served/clients.csv")
    np.testing.assert_allclose(found["accuracy"], expected["accuracy"], rtol=1e-12)
    mean = np.average(found["accuracy"], weights=found["num_test"])
    assert f"{mean:.4f}" in said
    assert str(tmp_path / "served") in said


def test_stored_states_of_clients_are_not_left_out_without_a_word(tmp_path, capsys):
    """A client of the training is served as a new one from its file, which is said; `export` by its name is not."""
    data = digits()
    export(data.seen, tmp_path / "data/seen")
    export(data.unseen, tmp_path / "new")
    shutil.copy(tmp_path / "data/seen/client_2.npz", tmp_path / "new/client_2.npz")
    (tmp_path / "new/client_0.npz").rename(tmp_path / "new/dora.npz")
    fit = ["--data.dataset", "ClientFolder", "--data.dataset.root", str(tmp_path / "data"),
           "--trainer.default_root_dir", str(tmp_path / "runs"), "--model.algorithm", "Local"]  # fmt: skip
    main(["fit", *CPU, *fit, "--trainer.max_epochs", "5"])
    last = ["--ckpt_path", str(folder(tmp_path / "runs", "Local") / "checkpoints/last.ckpt")]
    said = "took part in the training; --clients serves new clients, so the stored state is not used"
    capsys.readouterr()
    main(["personalize", *CPU, *last, "--clients", str(tmp_path / "new"), "--output", str(tmp_path / "served")])
    assert f"lit_fed: client_1, client_2 {said}" in capsys.readouterr().err
    for client, expected in (("client_2", 1), ("dora", 0)):
        out = ["--output", str(tmp_path / f"{client}.pt2")]
        main(["export", *CPU, *last, "--clients", str(tmp_path / "new"), "--client", client, *out])
        assert capsys.readouterr().err.count(said) == expected
    main(["export", *CPU, *fit, *last, "--client", "client_2", "--output", str(tmp_path / "own.pt2")])
    assert said not in capsys.readouterr().err
    x = torch.rand(4, 1, 8, 8)
    new, own = (torch.export.load(tmp_path / f"{name}.pt2").module()(x) for name in ("client_2", "own"))
    assert (new - own).abs().max() > 1e-3


def test_two_ranks_equal_one(tmp_path, clients, last):
    personalize(last, clients, tmp_path / "one")
    finished = run(
        ["personalize", *CPU, "--ckpt_path", str(last), "--clients", str(clients), "--output", str(tmp_path / "two"),
         "--trainer.devices", "2", "--trainer.strategy", "fed_ddp"], ranks=2,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 4
    for file in files:
        if file.suffix == ".csv":
            assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
        else:
            states = [torch.load(tmp_path / ranks / file, weights_only=True) for ranks in ("one", "two")]
            assert torch.equal(states[0]["mixture"], states[1]["mixture"])


def test_clients_without_labels(tmp_path, clients, last):
    whole = personalize(last, clients, tmp_path / "whole")
    partly = shutil.copytree(clients, tmp_path / "partly")
    arrays = dict(np.load(partly / "client_0.npz"))
    del arrays["y_test"]
    np.savez(partly / "client_0.npz", **arrays)
    arrays = dict(np.load(partly / "client_1.npz"))
    np.savez(partly / "client_2.npz", x_train=arrays["x_train"], y_train=arrays["y_train"])
    table = personalize(last, partly, tmp_path / "served")
    assert table["num_test"].tolist() == [*whole["num_test"], 0]
    assert table["accuracy"].isna().tolist() == table["loss"].isna().tolist() == [True, False, True]
    assert table.loc[1].equals(whole.loc[1])
    np.testing.assert_array_equal(table.loc[2, ["pi_0", "pi_1"]], table.loc[1, ["pi_0", "pi_1"]])
    labelled, found = (pd.read_csv(tmp_path / name / "predictions.csv") for name in ("whole", "served"))
    assert found["label"].isna().tolist() == (labelled["client"] == "client_0").tolist()
    pd.testing.assert_frame_equal(found.drop(columns="label"), labelled.drop(columns="label"))


@dataclass(frozen=True)
class Pixels(PooledDataSet):
    """Pictures of two channels, shifted and scaled by constants."""

    num_classes: ClassVar[int | None] = 3
    normalisation: ClassVar[Normalisation] = Normalisation((0.3, 0.6), (0.2, 0.4))

    def load(self):
        pixels, y = pictures()
        return Samples(self.normalisation.apply(pixels / np.float32(255)), y)


def pictures(size=90):
    rng = np.random.default_rng(5)
    y = np.arange(size) % 3
    return (rng.integers(0, 200, size=(size, 2, 3, 3)) + 25 * y[:, None, None, None]).astype(np.uint8), y


def test_a_checkpoint_is_served_with_other_e_steps(tmp_path, clients, last, capsys):
    """As a run is whose E-steps they were from the start; other settings of the algorithm are those of the training."""
    more = ("--model.algorithm.em_steps", "9")
    whole = fit(tmp_path / "whole", "FedEM", "--model.client_trainer", "sequential", *more)
    served = personalize(last, clients, tmp_path / "served", *more)
    assert served.equals(personalize(whole, clients, tmp_path / "another", *more))
    assert not served.equals(personalize(last, clients, tmp_path / "once"))
    given = [*SMALL, "--trainer.max_epochs", "2", "--model.algorithm", "FedEM", "--ckpt_path", str(last)]
    given += ["--trainer.default_root_dir", str(tmp_path / "tested"), *more]
    main(["test", *given])
    with pytest.raises(SystemExit):
        main(["fit", *given])
    with pytest.raises(SystemExit):
        main(["test", *given, "--model.algorithm.num_components", "2"])
    said = capsys.readouterr().err
    assert "model.algorithm.em_steps is 9, in the checkpoint 1" in said
    assert "model.algorithm.num_components is 2, in the checkpoint 3. Give the same" in said


def test_inputs_are_normalised_as_in_the_training(tmp_path):
    data = ["--data.dataset", "test_personalize.Pixels", "--data.num_clients", "3", "--trainer.max_epochs", "1"]
    main(["fit", *CPU, *data, "--trainer.default_root_dir", str(tmp_path / "runs"), "--model.algorithm", "Local"])
    last = folder(tmp_path / "runs", "Local") / "checkpoints/last.ckpt"
    pixels, y = pictures(20)
    for name, x in (("bytes", pixels), ("fractions", pixels / 255)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "anna.npz", x_train=x[:12], y_train=y[:12], x_test=x[12:], y_test=y[12:])
        personalize(last, tmp_path / name, tmp_path / f"served_{name}")
    found, other = (pd.read_csv(tmp_path / f"served_{name}/predictions.csv") for name in ("bytes", "fractions"))
    pd.testing.assert_frame_equal(found, other, rtol=1e-5)
    model = torch.load(tmp_path / "served_bytes/states/anna.pt", weights_only=True)["models"]["parameters"]
    weight, bias = (model[f"linear.{name}"][0].double().numpy() for name in ("weight", "bias"))
    mean, std = (np.array(one)[:, None, None] for one in ([0.3, 0.6], [0.2, 0.4]))
    logits = ((pixels[12:] / 255 - mean) / std).reshape(8, -1) @ weight.T + bias
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(found[["p_0", "p_1", "p_2"]], shares, atol=2e-6)


@dataclass(frozen=True)
class Lines(ClientDataSet):
    """Regression, three clients."""

    def load(self):
        x = np.linspace(-1, 1, 60, dtype=np.float32).reshape(30, 2)
        split = make_split(x, x.sum(1), np.array([10, 10, 10]))
        return Population(split, make_split(x[:0], x[:0, 0], np.zeros(3)), split, ["a", "b", "c"]), None


def test_regression(tmp_path):
    main(["fit", *CPU, "--data.dataset", "test_personalize.Lines", "--trainer.max_epochs", "2",
          "--trainer.default_root_dir", str(tmp_path / "runs")])  # fmt: skip
    last = folder(tmp_path / "runs", "FedEM") / "checkpoints/last.ckpt"
    seen = Lines().load()[0]
    clients = export(
        seen, tmp_path / "clients", y_test=lambda arrays: arrays["y_test"] if arrays["x_test"][0, 0] < -0.9 else None
    )
    table = personalize(last, clients, tmp_path / "served")
    predictions = pd.read_csv(tmp_path / "served/predictions.csv")
    assert predictions.columns.tolist() == ["client", "client_id", "sample", "label", "prediction"]
    first = predictions.query("client == 'client_0'")
    assert table["mse"][0] == pytest.approx(((first["label"] - first["prediction"]) ** 2).mean(), rel=1e-5)
    assert (
        table["mse"].isna().tolist()
        == predictions.groupby("client")["label"].count().eq(0).tolist()
        == [False, True, True]
    )


def test_in_python_a_used_module_is_refused(tmp_path, clients, last):
    trainer = FederatedTrainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    module = FederatedModule(solver=LocalSolver(momentum=0.9))
    table = lit_fed.personalize(trainer, module, str(last), str(clients), str(tmp_path / "served"))
    assert table["client"].tolist() == ["client_0", "client_1"]
    with pytest.raises(ConfigError, match="without a state"):
        lit_fed.personalize(trainer, module, str(last), str(clients), str(tmp_path / "again"))
    with pytest.raises(ConfigError, match="FedAvg"):
        lit_fed.personalize(trainer, FederatedModule(FedAvg()), str(last), str(clients), str(tmp_path / "again"))
    with pytest.raises(ConfigError, match="solver"):
        lit_fed.personalize(trainer, FederatedModule(), str(last), str(clients), str(tmp_path / "again"))
    with pytest.raises(ConfigError, match="ckpt_path"):
        lit_fed.personalize(trainer, FederatedModule(), None, str(clients), str(tmp_path / "again"))
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"x_train": lambda a: a["x_train"][..., :5]}, ["client_0", "x_train", "[1, 8, 8]", "[1, 8, 5]"]),
        ({"y_train": lambda a: a["y_train"] + 10}, ["client_0", "label", "0 … 9"]),
        ({"x_test": lambda a: None}, ["client_0", "x_test", "missing"]),
    ],
)
def test_files_that_do_not_fit(tmp_path, capsys, last, changes, parts):
    clients = export(digits().unseen, tmp_path / "clients", **changes)
    arguments = ["--clients", str(clients), "--output", str(tmp_path / "served")]
    said = refused(capsys, ["personalize", *CPU, "--ckpt_path", str(last), *arguments])
    for part in parts:
        assert any(one in said for one in part.split("|")), said
    assert [path.name for path in tmp_path.iterdir()] == ["clients"]


def test_wrong_arguments(tmp_path, capsys, clients, last):
    def said(*arguments):
        return refused(capsys, ["personalize", *CPU, *arguments])

    known = ["--ckpt_path", str(last), "--clients", str(clients)]
    new = ["--output", str(tmp_path / "served")]
    assert "--ckpt_path" in said(*known[2:], *new)
    assert "--output" in said(*known)
    assert "--clients is not set" in said(*known[:2], *new)
    assert "no such folder" in said(*known[:2], *new, "--clients", str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "no .npz file" in said(*known[:2], *new, "--clients", str(tmp_path / "empty"))
    assert "num_components" in said(*known, *new, "--model.algorithm.num_components", "2")
    assert "num_clients" in said(*known, *new, "--data.num_clients", "9")
    assert "format" in said(*known, *new, "--format", "xlsx")
    assert "cannot be read" in said("--ckpt_path", str(clients / "client_0.npz"), *known[2:], *new)
    torch.save({"state_dict": {}, "global_step": 0}, tmp_path / "other.ckpt")
    assert "other.ckpt" in said("--ckpt_path", str(tmp_path / "other.ckpt"), *known[2:], *new)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    assert "not empty" in said(*known, "--output", str(tmp_path / "full"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full", "other.ckpt"]
    personalize(last, clients, tmp_path / "empty")  # an empty folder will do
    assert (tmp_path / "empty/clients.csv").is_file()
