"""What a node keeps of a finished training: its clients are served from it, and from nothing else."""

import json
import math
import pickle
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from in_process import InProcess, InProcessFederation, make_nodes, node_folders
from test_runs import fit

from lit_fed import MLP, CharLSTM, FedAvgPlus, FedEM, FederatedModule, FedPer
from lit_fed.command_line import client
from lit_fed.command_line.deployed import main
from lit_fed.core.fine_tuning import FineTuning
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Sequences
from lit_fed.data import ClientFolder
from lit_fed.deployment.kept import KeptTraining
from lit_fed.deployment.node_training import NodeData
from lit_fed.errors import ConfigError


def module_of(algorithm, **serving):
    solver, how = LocalSolver(lr=0.1, local_epochs=3), {"client_trainer": "sequential"} | serving
    return FederatedModule(algorithm, solver, network=MLP, **how)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return node_folders(tmp_path_factory.mktemp("nodes"), least=24)


@pytest.fixture(scope="module")
def trained(folders, tmp_path_factory):
    """A finished training of FedPer: its folder of states, its settings, its run's folder."""
    place, module = tmp_path_factory.mktemp("trained"), module_of(FedPer())
    transport = InProcess(make_nodes(folders, place / "states", settings=module.settings))
    run = fit(place / "run", InProcessFederation(transport), module, rounds=4)
    return SimpleNamespace(states=place / "states", settings=module.settings, run=run, transport=transport)


def kept_of(trained, folders, node="ben", **options):
    return KeptTraining(folders[node], trained.states / node, settings=trained.settings, **options)


@pytest.fixture
def copied(trained, tmp_path):
    """The states of that training, to be damaged."""
    shutil.copytree(trained.states, tmp_path / "states")
    return SimpleNamespace(states=tmp_path / "states", settings=trained.settings)


def test_a_fit_leaves_what_its_own_numbers_take(folders, trained):
    """And a client without its state would be served worse: personal layers are worth something."""
    table = pd.read_csv(trained.run / "clients.csv").set_index("client")
    for node in ("anna", "ben", "carl"):
        mine = kept_of(trained, folders, node)
        rows = mine.measure(clients := mine.find([]), "test")
        for one, row in zip(clients, rows.rows().tolist(), strict=True):
            found = table.loc[mine.names[one]]
            assert (row[2] / row[0], row[1] / row[0]) == (found["accuracy"], found["loss"])
    seen = [one for one in clients if one < mine.facts.num_clients]
    own = mine.measure(seen, "train").hits
    mine.training.states.versions = dict.fromkeys(seen, -1)
    assert own.sum() > mine.measure(seen, "train").hits.sum()


def test_a_training_that_is_over_can_send_it_again(folders, tmp_path):
    module = module_of(FedPer())
    nodes = make_nodes(folders, tmp_path / "states", settings=module.settings)
    run = fit(tmp_path / "run", InProcessFederation(InProcess(nodes)), module, rounds=2)
    trained = SimpleNamespace(states=tmp_path / "states", settings=module.settings)
    before = kept_of(trained, folders).measure([2, 3], "test").rows()
    for path in trained.states.glob("*/*/serving.pt"):
        path.unlink()
    again, last = module_of(FedPer()), str(run / "checkpoints/last.ckpt")
    fit(tmp_path / "run", InProcessFederation(InProcess(nodes)), again, rounds=2, ckpt_path=last)
    assert torch.equal(kept_of(trained, folders).measure([2, 3], "test").rows(), before)


@pytest.mark.parametrize(
    ("algorithm", "serving"),
    [(FedEM(), {}), (FedEM(), {"serving": FineTuning(2)}), (FedAvgPlus(), {}), (FedPer(), {})],
    ids=["FedEM", "FedEM tuned", "FedAvgPlus", "FedPer"],
)
def test_commands_of_a_node(algorithm, serving, folders, tmp_path, monkeypatch, capsys):
    """Measured, predicted and exported: three ways to the same numbers, also for an unseen client."""
    module = module_of(algorithm, **serving)
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
    fit(tmp_path / "run", InProcessFederation(transport), module, rounds=2)
    monkeypatch.setattr(client, "settings_in", lambda configs, load: (module.settings, None))
    own = ["--config", "run.yaml", "--data.root", str(folders["ben"]), "--states", str(tmp_path / "states/ben")]
    capsys.readouterr()
    client.run_client(["measure", *own, "--output", str(tmp_path / "m.csv")], None)
    assert "b9" in capsys.readouterr().out
    client.run_client(["predict", *own, "--output", str(tmp_path / "p.csv")], None)
    measured, said = pd.read_csv(tmp_path / "m.csv").set_index("client"), pd.read_csv(tmp_path / "p.csv")
    hits = (said["label"] == said["prediction"]).groupby(said["client"]).mean()
    assert measured["accuracy"].to_dict() == hits.to_dict()
    assert measured["population"].tolist() == ["seen", "seen", "unseen"]
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("m.csv", "p.csv")] == [0o600] * 2, "for their owner"
    for name in ("b2", "b9"):
        out = tmp_path / f"{name}.pt2"
        client.run_client(["export", *own, "--client", name, "--output", str(out)], None)
        x = np.load(next(folders["ben"].rglob(f"{name}.npz")))["x_test"]
        found = torch.export.load(out).module()(torch.from_numpy(x)).detach()
        wanted = said.loc[said["client"] == name, ["p_0", "p_1", "p_2"]]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_sets_of_a_node_are_by_its_own_samples(folders, tmp_path, monkeypatch, capsys):
    """Those of a simulation where a client has enough of them; else nothing is shared, and a line says so."""
    options = {"rounds": 2, "calibration_fraction": 0.4}
    alone = module_of(FedEM(), conformal=0.8)
    one = fit(tmp_path / "alone", ClientFolder(str(folders["all"])), alone, **options)
    clients = pd.read_csv(one / "clients.csv").set_index("client")
    module = module_of(FedEM(), conformal=0.8)
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
    two = fit(tmp_path / "run", InProcessFederation(transport), module, val_fraction=0.0, **options)
    assert "asked for; mean set size" in (said := capsys.readouterr().out)
    assert said.count("thresholds: kept on the nodes") == 2
    found = pd.read_csv(two / "clients.csv").set_index("client")
    pd.testing.assert_frame_equal(found[["coverage", "set_size"]], clients[["coverage", "set_size"]])
    assert not {"threshold", "own_threshold"} & {*found}, "they are quantiles of the clients' samples"
    assert math.isinf(module.thresholds.shared)
    assert module.thresholds.fraction == 0.4, "for clients that the server's checkpoint serves"
    monkeypatch.setattr(client, "settings_in", lambda configs, load: (module.settings, None))
    own = ["--config", "run.yaml", "--data.root", str(folders["ben"]), "--states", str(tmp_path / "states/ben")]
    client.run_client(["predict", *own, "--output", str(tmp_path / "p.csv")], None)
    table = pd.read_csv(tmp_path / "p.csv")
    for name, rows in table.groupby("client"):
        p, held = rows.filter(regex="^p_").to_numpy(), rows["set"].astype(str)
        wanted = 1 - p <= clients.loc[name, "threshold"]
        assert held.tolist() == ["|".join(map(str, np.flatnonzero(row))) for row in wanted]
    client.run_client(["export", *own, "--client", "b2", "--output", str(tmp_path / "b2.pt2")], None)
    notes = {"about.json": ""}
    torch.export.load(tmp_path / "b2.pt2", extra_files=notes)
    found = json.loads(notes["about.json"])["sets"]
    assert found["thresholds"] == {"b2": pytest.approx(clients.loc["b2", "threshold"], abs=1e-6)}
    assert found["own_threshold"] == {"b2": True}
    few = node_folders(tmp_path / "few", {"ben": ["b1"]}, least=9)
    module = module_of(FedEM(), conformal=0.9)
    fit(tmp_path / "run", InProcessFederation(InProcess(make_nodes(few, tmp_path / "s", settings=module.settings))),
        module, **options)  # fmt: skip
    own = ["--config", "run.yaml", "--data.root", str(few["ben"]), "--states", str(tmp_path / "s/ben")]
    monkeypatch.setattr(client, "settings_in", lambda configs, load: (module.settings, None))
    client.run_client(["predict", *own, "--output", str(tmp_path / "f.csv")], None)
    assert (pd.read_csv(tmp_path / "f.csv")["set"] == "0|1|2").all()
    assert (
        "1 of 1 clients have no threshold by 9 calibration samples of their own, and there is no shared one"
        in capsys.readouterr().out
    )


def test_files_are_named_after_clients(trained):
    names = {path.name.split(".")[0] for path in trained.states.glob("ben/*/*.*.pt")}
    assert names == {"b1", "b2"}


def test_a_later_training_does_not_take_away_what_serves(folders, tmp_path):
    """Rounds that are added are cut short: clients are served as the training left them that ended."""
    module = module_of(FedPer())
    nodes = make_nodes(folders, tmp_path / "states", settings=module.settings)
    run = fit(tmp_path / "run", InProcessFederation(InProcess(nodes)), module, rounds=2)
    trained = SimpleNamespace(states=tmp_path / "states", settings=module.settings)
    before = kept_of(trained, folders).measure([2, 3], "test").rows()

    def cut_short(node, facts):
        if facts["kind"] == "train" and facts["round"] == 5:
            raise KeyboardInterrupt

    last, again = str(run / "checkpoints/last.ckpt"), module_of(FedPer())
    nodes = make_nodes(folders, tmp_path / "states", settings=module.settings)  # processes that know nothing
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "run", InProcessFederation(InProcess(nodes, cut_short)), again, rounds=9, ckpt_path=last)
    assert torch.equal(kept_of(trained, folders).measure([2, 3], "test").rows(), before)


def test_clients_that_are_not_of_the_training(folders, trained, tmp_path):
    shutil.copytree(folders["ben"], tmp_path / "ben")
    shutil.copy(tmp_path / "ben/seen/b1.npz", tmp_path / "ben/seen/new.npz")
    mine = KeptTraining(tmp_path / "ben", trained.states / "ben", settings=trained.settings)
    assert mine.left_out == ["new"]
    assert list(mine.names.values()) == ["b1", "b2", "b9"]
    with pytest.raises(ConfigError, match=r"new took no part in the training; `lit-fed personalize` serves it"):
        mine.find(["new"])
    with pytest.raises(ConfigError, match=r"--client b7: no such client here; give one of b1, b2, b9"):
        mine.find(["b7"])
    shutil.move(tmp_path / "ben/unseen/b9.npz", tmp_path / "ben/seen/b9.npz")
    (tmp_path / "ben/unseen").rmdir()
    with pytest.raises(ConfigError, match="b9 was in the folder unseen in the training, and is in seen; move it back"):
        KeptTraining(tmp_path / "ben", trained.states / "ben", settings=trained.settings)
    other = node_folders(tmp_path / "other", {"ben": ["b1"]}, num_features=5)
    with pytest.raises(ConfigError, match=r"x are float32 of shape \[5\], those of the training were .*\[16\]"):
        KeptTraining(other["ben"], trained.states / "ben", settings=trained.settings)


def test_what_is_not_kept_is_said(folders, copied, tmp_path):
    with pytest.raises(ConfigError, match=r"holds nothing of a finished training; a node keeps .* when a fit ends"):
        KeptTraining(folders["ben"], tmp_path, settings=copied.settings)
    with pytest.raises(ConfigError, match="holds nothing of run abc"):
        kept_of(copied, folders, run="abc")
    with pytest.raises(ConfigError, match="the server is a program that sends no settings"):
        kept_of(copied, folders, written={"solver": {}})
    (path,) = copied.states.glob("ben/*/serving.pt")
    whole = path.read_bytes()
    for damaged in (b"", whole[:-9], whole[:400] + b"\xff" + whole[401:], pickle.dumps({"facts": "[]"})):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"serving.pt cannot be read: .*; put it back from a copy"):
            kept_of(copied, folders)


def test_a_state_that_is_lost_is_told_by_name(folders, copied, monkeypatch, capsys):
    for path in copied.states.glob("ben/*/b2.*.pt"):
        path.unlink()
    monkeypatch.setattr(client, "settings_in", lambda configs, load: (copied.settings, None))
    own = ["--config", "run.yaml", "--data.root", str(folders["ben"]), "--states", str(copied.states / "ben")]
    monkeypatch.setattr("sys.argv", ["lit-fed", "client", "measure", *own])
    with pytest.raises(SystemExit) as stopped:
        main(None)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("lit_fed: client 'b2' (3), its kept state: cannot be read from ")
    assert "b2." in said
    client.run_client(["measure", *own, "--client", "b1"], None)


class Evil:
    """Would write a file if it were unpickled."""

    def __reduce__(self):
        return (open, ("evil", "w"))


def test_nothing_in_the_file_is_executed(folders, copied, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (path,) = copied.states.glob("ben/*/serving.pt")
    with path.open("w+b") as file:
        torch.save({"facts": "[]", "trees": Evil()}, file)
    with pytest.raises(ConfigError, match="something else than tensors and plain types, which is never loaded"):
        kept_of(copied, folders)
    assert not (tmp_path / "evil").exists()


# ---------------------------------------------------------------------- texts
def text_node(root, **texts):
    """A node with three clients of texts, one of which never trains."""
    for name, line in (("seen/ann", "ahoy"), ("seen/bob", "bread"), ("unseen/cy", "ahoy")):
        path = root / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([line] * 5))
    (root / "texts.json").write_text(json.dumps(texts))
    return root


def test_texts_stay_on_the_node_and_predictions_are_words(tmp_path):
    folders = {"anna": text_node(tmp_path / "anna", next_token=True, max_length=6)}
    module = FederatedModule(
        FedEM(num_components=2),
        LocalSolver(lr=0.1),
        network=CharLSTM,
        target=Sequences(257, ignore_index=-100),
        client_trainer="sequential",
    )
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
    fit(tmp_path / "run", InProcessFederation(transport), module, rounds=1)
    kept = KeptTraining(folders["anna"], tmp_path / "states/anna", settings=module.settings)
    table = client._table("predict", kept, kept.find([]), "test")
    assert table.columns.tolist()[2:] == ["sample", "position", "label", "prediction", "p_label", "p_prediction"]
    said = table.groupby("client")["label"].agg("".join)
    assert said.to_dict() == {"ann": "hoy<end>", "bob": "read<end>", "cy": "hoy<end>"}
    assert not any(b"ahoy" in sent for _, _, sent in transport.log)


@pytest.mark.parametrize(
    ("texts", "part"),
    [
        ({"max_length": 0}, "max_length"),
        ({"words": 3}, "no other names than tokenizer"),
        ([], "give an object with some of"),
    ],
)
def test_other_settings_of_texts(tmp_path, texts, part):
    root = text_node(tmp_path)
    (root / "texts.json").write_text(json.dumps(texts))
    with pytest.raises(ConfigError, match=rf"texts\.json: .*{part}"):
        NodeData(root, tmp_path / "states")
