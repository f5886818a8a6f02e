"""What Flower calls on both sides, without Flower."""

import json
import sys
from types import SimpleNamespace

import pytest
from in_process import InProcess, make_nodes

import lit_fed.cli
from lit_fed.command_line.client import settings_in
from lit_fed.deployment import flower_apps
from lit_fed.deployment.flower_apps import GRID, FlowerFederation, answer_of, run_fit
from lit_fed.deployment.wire import Packet, from_bytes, to_bytes
from lit_fed.errors import ConfigError

CONFIG = {"model": {"algorithm": "FedAvg", "solver": {"lr": 0.1}}}

FACTS = to_bytes(Packet({"kind": "facts", "version": "any"}))


def test_a_node_answers_from_the_folders_of_its_supernode(folders, tmp_path):
    settings = {"config": in_a_file(tmp_path), "data-root": str(folders["anna"]), "state-root": str(tmp_path / "s")}
    assert set(from_bytes(answer_of(FACTS, settings)).facts["facts"]["clients"]) == {"a1", "a2"}


def in_a_file(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(CONFIG))
    return str(tmp_path / "run.json")


@pytest.mark.parametrize("missing", ["config", "data-root", "state-root"])
def test_a_node_without_folders_says_what_to_give_it(missing, folders, tmp_path, capsys):
    settings = {"config": in_a_file(tmp_path), "data-root": str(folders["anna"]), "state-root": str(tmp_path / "s")}
    settings[missing] = ""
    assert from_bytes(answer_of(FACTS, settings)).facts == {"refused": "folders"}
    assert f"without {missing}; give it --node-config" in capsys.readouterr().err


def test_a_node_without_clients_says_so_and_does_not_crash(tmp_path, capsys):
    settings = {"config": in_a_file(tmp_path), "data-root": str(tmp_path), "state-root": str(tmp_path / "states")}
    assert from_bytes(answer_of(FACTS, settings)).facts == {"refused": "folders"}
    assert "no folder `seen`" in capsys.readouterr().err


def app_of(tmp_path, **settings):
    """What Flower hands to the app of a server."""
    config = {
        **CONFIG,
        "data": {
            "batch_size": 4,
            "dataset": {"class_path": "lit_fed.deployment.flower_apps.FlowerFederation", "init_args": {"num_nodes": 3}},
        },
        "trainer": {"max_epochs": 1, "default_root_dir": str(tmp_path / "runs"), "enable_progress_bar": False},
        "name": "flower",
    }
    config["trainer"].update(settings)
    return SimpleNamespace(run_config={"config": json.dumps(config), "ckpt-path": ""})


@pytest.fixture
def _nodes(folders, tmp_path, monkeypatch):
    nodes = make_nodes(folders, tmp_path / "states", *settings_in([in_a_file(tmp_path)], lambda: lit_fed.cli))
    monkeypatch.setattr(FlowerFederation, "connect", lambda self: InProcess(nodes) if GRID.get() == "grid" else None)


@pytest.mark.usefixtures("_nodes")
def test_the_server_runs_fit_and_goes_on_from_a_checkpoint(tmp_path):
    before = list(sys.argv)
    run_fit("grid", app_of(tmp_path))
    summary = tmp_path / "runs" / "flower" / "version_0" / "summary.json"
    assert json.loads(summary.read_text())["rounds"] == 1
    more = app_of(tmp_path, max_epochs=2)
    more.run_config["ckpt-path"] = "last"
    run_fit("grid", more)
    assert json.loads(summary.read_text())["rounds"] == 2
    assert sys.argv == before
    assert GRID.get(None) is None


def test_a_fit_that_fails_is_a_run_that_has_failed(tmp_path, capsys):
    with pytest.raises(RuntimeError, match="lit-fed fit ended with status 2"):
        run_fit("grid", app_of(tmp_path, max_epochs=-7))
    assert "max_epochs" in capsys.readouterr().err


def test_the_data_set_is_for_runs_of_flower():
    with pytest.raises(ConfigError, match="is for runs that Flower starts; write their app with `lit-fed flower-app`"):
        FlowerFederation().connect()


@pytest.mark.parametrize("app", ["server_app", "client_app"])
def test_without_flower_the_apps_say_what_to_install(app, monkeypatch):
    for name in ("flwr", "flwr.app", "flwr.serverapp", "flwr.clientapp"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r'pip install "flwr>=1.41,<1.43" \(the extra flower\)'):
        getattr(flower_apps, app)


@pytest.mark.parametrize("setting", [{"num_nodes": 0}, {"seconds": -1.0}, {"pause": 0.0}, {"missing": "hope"}])
def test_settings_out_of_range_are_refused(setting):
    name, value = next(iter(setting.items()))
    with pytest.raises(ConfigError, match=f"--data.dataset.{name} is {value}; give"):
        FlowerFederation(**setting)
