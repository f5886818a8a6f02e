"""Weights and verdicts of a node's clients, from what it kept of several trainings."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from in_process import InProcess, InProcessFederation, make_nodes, node_folders
from test_runs import fit

from lit_fed import FedAvg, FedAvgPlus, FederatedModule, Local
from lit_fed.command_line import client
from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import ConfigError
from lit_fed.metrics.verdict import EVIDENCE
from lit_fed.wrappers.compression.codecs import QSGD

ALGORITHMS = {"FedAvg": FedAvg(), "FedAvgPlus": FedAvgPlus(), "Local": Local()}
ALONE = "Local"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of nodes whose clients have validation samples, their states, and the runs by algorithm."""
    place = tmp_path_factory.mktemp("verdict")
    folders, runs, modules = node_folders(place / "nodes", least=70), {}, {}
    for path in (place / "nodes").glob("*/seen/*.npz"):
        found = dict(np.load(path))
        x, y = found["x_train"], found["y_train"]
        held = {"x_val": x[8:36], "y_val": y[8:36], "x_test": x[36:], "y_test": y[36:]}
        np.savez(path, **{"x_train": x[:8], "y_train": y[:8]} | held)
    for name, algorithm in ALGORITHMS.items():
        codec = {"compression": QSGD(), "compression_scope": "whole"} if name == "FedAvg" else {}  # acts on messages
        solver = LocalSolver(lr=0.3, local_epochs=2)
        modules[name] = FederatedModule(algorithm, solver, client_trainer="sequential", **codec)
        nodes = make_nodes(folders, place / "states", settings=modules[name].settings)
        before = {one.parent.name for one in (place / "states" / "ben").glob("*/serving.pt")}
        fit(place / name, InProcessFederation(InProcess(nodes)), modules[name], rounds=6)
        (runs[name],) = {one.parent.name for one in (place / "states" / "ben").glob("*/serving.pt")} - before
    return SimpleNamespace(folders=folders, states=place / "states", runs=runs, modules=modules)


def options(trained, names=tuple(ALGORITHMS), node="ben"):
    given = ["--data.root", str(trained.folders[node]), "--states", str(trained.states / node)]
    for name in names:
        given += ["--alone" if name == ALONE else "--training", trained.runs[name], f"{name}.yaml"]
    return given


@pytest.fixture
def settings(trained, monkeypatch):
    names = {f"{name}.yaml": module.settings for name, module in trained.modules.items()}
    monkeypatch.setattr(client, "settings_in", lambda configs, load: (names[configs[0]], None))


def test_clients_of_a_node_are_told_their_gains(trained, settings, tmp_path, capsys):
    """Served as the mixture of predictions of the trainings says, or alone without evidence."""
    written = ["--output", str(tmp_path / "v.csv"), "--predictions", str(tmp_path / "p.csv")]
    client.run_client(["verdict", *options(trained), *written], None)
    blend = pd.read_csv(tmp_path / "p.csv").set_index("client")
    said, table = capsys.readouterr().out, pd.read_csv(tmp_path / "v.csv").set_index("client")
    assert "joining: accuracy" in said
    assert table.index.tolist() == ["b1", "b2"]  # b9 took no part in training
    assert (tmp_path / "v.csv").stat().st_mode & 0o777 == 0o600
    assert ((table["served"] == "alone") == (table["chance"] <= EVIDENCE)).all()
    assert (table["num_val"] == 28).all()
    predicted = {}
    for name, run in trained.runs.items():
        own = ["--config", f"{name}.yaml", "--run", run, *options(trained, ())]
        client.run_client(["predict", *own, "--output", str(tmp_path / f"{name}.csv")], None)
        predicted[run] = pd.read_csv(tmp_path / f"{name}.csv").set_index("client")
    for name, row in table.iterrows():
        shares = sum(
            row[f"pi_{run}"] * each.loc[name, ["p_0", "p_1", "p_2"]].to_numpy() for run, each in predicted.items()
        )
        np.testing.assert_allclose(blend.loc[name, ["p_0", "p_1", "p_2"]], shares, atol=1e-6)
        labels, alone = each_label(predicted, name), predicted[trained.runs[ALONE]].loc[name]
        assert row["accuracy_served"] == pytest.approx((shares.argmax(1) == labels).mean())
        y_train = np.load(trained.folders["ben"] / "seen" / f"{name}.npz")["y_train"]
        assert row["accuracy_constant"] == pytest.approx((labels == np.bincount(y_train).argmax()).mean())
        assert row["accuracy_alone"] == pytest.approx((alone["prediction"] == alone["label"]).mean())
    assert (table["served"] != "alone").any()


def each_label(predicted, name):
    return next(iter(predicted.values())).loc[name, "label"].to_numpy()


def test_nothing_of_other_clients_enters_a_clients_row(trained, settings, tmp_path):
    """The row of a client is the same whatever the others' files hold."""
    root = tmp_path / "ben"
    client.run_client(["verdict", *options(trained), "--output", str(tmp_path / "all.csv")], None)
    (root / "seen").mkdir(parents=True)
    for path in trained.folders["ben"].glob("seen/*.npz"):
        found = dict(np.load(path))
        changed = {"y_val": found["y_val"][::-1], "x_test": found["x_test"] + 1} if path.stem == "b2" else {}
        np.savez(root / "seen" / path.name, **found | changed)
    own = options(trained)
    own[1] = str(root)
    client.run_client(["verdict", *own, "--output", str(tmp_path / "one.csv")], None)
    tables = [pd.read_csv(tmp_path / name).set_index("client") for name in ("all.csv", "one.csv")]
    pd.testing.assert_series_equal(tables[0].loc["b1"], tables[1].loc["b1"])
    assert not tables[0].loc["b2"].equals(tables[1].loc["b2"])


def test_what_gives_no_verdict_is_refused(trained, settings, tmp_path):
    root = tmp_path / "ben"
    (root / "seen").mkdir(parents=True)
    for path in trained.folders["ben"].glob("seen/*.npz"):
        found = {name: one for name, one in np.load(path).items() if not name.endswith("val")}
        np.savez(root / "seen" / path.name, **found)
    own = options(trained)
    own[1] = str(root)
    with pytest.raises(ConfigError, match="no client here has validation and test samples; put x_val and y_val into"):
        client.run_client(["verdict", *own], None)
    both = ["--output", str(tmp_path / "a" / ".." / "one.csv"), "--predictions", str(tmp_path / "one.csv")]
    with pytest.raises(ConfigError, match=r"--output and --predictions are both .*one.csv; give each table a file"):
        client.run_client(["verdict", *own, *both], None)
    with pytest.raises(ConfigError, match=r"--predictions p.txt: a table is written as .csv or .parquet"):
        client.run_client(["verdict", *own, "--predictions", "p.txt"], None)
    with pytest.raises(ConfigError, match=f"holds nothing of run fedem; it holds {', '.join(trained.runs.values())}"):
        client.run_client(["verdict", *own, "--training", "fedem", "FedAvg.yaml"], None)
    swapped = ["--training", trained.runs["Local"], "Local.yaml", "--alone", trained.runs["FedAvg"], "FedAvg.yaml"]
    with pytest.raises(ConfigError, match="is a training of FedAvg, which learns from other clients; give one of L"):
        client.run_client(["verdict", *options(trained, ()), *swapped], None)
    with pytest.raises(ConfigError, match="missing: --alone"):
        client.run_client(["verdict", *options(trained, ("FedAvg",))], None)
