"""The command that writes a training as an app of Flower; nothing of it needs flwr."""

import json
import tomllib

import pytest
import yaml

import lit_fed.cli
from lit_fed.cli import arguments_of
from lit_fed.command_line.deployed import main

SMALL = ["--model.algorithm", "FedAvg", "--data.dataset.num_nodes", "3", "--name", "Any run_1"]


def command(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["lit-fed", "flower-app", *arguments])
        main(lambda: lit_fed.cli)


def written(tmp_path, *arguments):
    command("--output", str(tmp_path / "app"), *arguments)
    assert {one.name for one in (tmp_path / "app").iterdir()} == {"pyproject.toml", "nodes.yaml"}
    return tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())


def test_the_app_holds_the_whole_configuration_and_no_code(tmp_path, capsys):
    config = tmp_path / "x.yaml"
    config.write_text(
        'model:\n  solver:\n    lr: 0.25\n  metrics: "AUROC"\ndata:\n  dataset:\n    class_path: ClientFolder\n'
        "    init_args:\n      root: data\n"
    )
    app = written(tmp_path, "--config", str(config), *SMALL)
    assert app["project"]["name"] == "lit-fed-any-run-1"
    assert app["project"]["dependencies"] == []
    components = app["tool"]["flwr"]["app"]["components"]
    assert components == {
        "serverapp": "lit_fed.deployment.flower_apps:server_app",
        "clientapp": "lit_fed.deployment.flower_apps:client_app",
    }
    settings = app["tool"]["flwr"]["app"]["config"]
    assert set(settings) == {"config", "ckpt-path"}
    assert settings["ckpt-path"] == ""
    stored = yaml.safe_load(settings["config"])
    assert stored["model"]["solver"]["lr"] == 0.25
    read = arguments_of(["fit", "--config", json.dumps(stored)]).fit
    assert read.data.dataset.class_path == "lit_fed.deployment.flower_apps.FlowerFederation"
    assert read.data.dataset.init_args.num_nodes == 3
    assert read.name == "Any run_1"
    of_nodes = yaml.safe_load((tmp_path / "app" / "nodes.yaml").read_text())
    assert of_nodes == {"model": stored["model"]}
    said = capsys.readouterr().out
    assert f"next: flwr run {tmp_path / 'app'} SUPERLINK" in said
    assert "results: runs/Any run_1 on the server, beneath the folder in which flower-superlink was started" in said


def test_texts_with_quotes_and_letters_of_other_languages_are_kept(tmp_path):
    name = 'naïve "Ω" run'
    app = written(tmp_path, *SMALL, "--name", name)
    assert yaml.safe_load(app["tool"]["flwr"]["app"]["config"]["config"])["name"] == name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.dataset", "Digits"], "--data.dataset is Digits, and the samples of this run are on the nodes"),
        (["--model.metrics", "Accuracy"], "--model.metrics has Accuracy, but accuracy is always measured"),
        (["--data.partition", "IID"], "--data.partition is IID, and every node brings its clients; add --data.part"),
        (["--data.num_clients", "3"], "--data.num_clients is 3, and every node brings its clients"),
        (["--data.unseen_fraction", "0.5"], "unseen clients are chosen on the nodes"),
        (["--trainer.devices", "2"], "--trainer.devices is 2; Flower starts one process, give 1"),
        (["--ckpt_path", "last"], "--ckpt_path is last; leave it out, and give it to Flower when a run is to go on"),
        (["--init_from", "x.ckpt"], "--init_from is x.ckpt; give the whole path of that file on the server"),
        (["--model.algorithm", "GADMM"], "GADMM has no server"),
        (["--data.dataset.num_nodes", "0"], "--data.dataset.num_nodes is 0; give a number > 0"),
        (["--model.solver.lr", "-1"], "--model.solver.lr is -1.0; give a number >= 0"),
        (["--model.solver.lrr", "1"], "--model.solver.lrr"),
    ],
)
def test_what_could_not_run_is_refused_before_anything_is_written(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        command("--output", str(tmp_path / "app"), *arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [[], ["--output"]])
def test_the_folder_has_to_be_given(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        command(*arguments)
    assert stopped.value.code == 2
    assert "output" in capsys.readouterr().err


def test_a_folder_that_holds_something_is_left_alone(tmp_path, capsys):
    written(tmp_path, *SMALL)
    before = (tmp_path / "app" / "pyproject.toml").read_bytes()
    with pytest.raises(SystemExit):
        command("--output", str(tmp_path / "app"), *SMALL)
    assert "exists and is not empty" in capsys.readouterr().err
    assert (tmp_path / "app" / "pyproject.toml").read_bytes() == before
