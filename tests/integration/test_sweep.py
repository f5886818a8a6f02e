"""Sweeps: killed and resumed, several kinds of search, failing points, W&B's argument form, and wrong files."""

import json
import os
import signal
import time
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import yaml
from optuna.distributions import FloatDistribution, IntDistribution
from running import forking, run, start

from lit_fed.cli import arguments_of, main
from lit_fed.command_line.sweep import SweepFolder, _Run, number_of_points
from lit_fed.command_line.sweep_file import Search, check_arguments, read_sweep
from lit_fed.command_line.sweep_results import Result, best_of_each, draw_sweep, write_results
from lit_fed.errors import ConfigError
from lit_fed.system.machine import cores

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "configs/sweep").glob("*.yaml"))
COMMAND = [
    "${env}", "python", "-m", "lit_fed", "fit", "--config", "configs/logger/wandb.yaml", "--config",
    "configs/experiment/quickstart.yaml", "--data.val_fraction=0.2", "--trainer.check_val_every_n_epoch=1",
    "--trainer.callbacks+=RunReport", "--trainer.callbacks.pictures=false", "${args}",
]  # fmt: skip
GRID = {
    "method": "grid",
    "metric": {"name": "val/seen/accuracy", "goal": "maximize"},
    "parameters": {
        "model.solver.lr": {"values": [0.01, 0.1, 1.0]},
        "model.algorithm.num_components": {"values": [1, 2, 3]},
        "trainer.max_epochs": {"value": 8},
    },
    "command": COMMAND,
}


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch):
    """Where the paths of the shipped files begin; the environment is the script's to change."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def written(path, content=GRID, **changes):
    """A sweep file."""
    path.write_text(yaml.safe_dump(content | changes))
    return path


def swept(path, out, *arguments):
    """Run the command here; its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(["sweep", str(path), "--output", str(out), *arguments])
    return ended.value.code


def summaries(out):
    return sorted(Path(out).glob("runs/*/version_0/summary.json"))


def identities(paths):
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


# ---------------------------------------------------------------------- whole sweeps
def test_a_killed_sweep_goes_on(tmp_path):
    """Its runs tell W&B nothing, which takes longer than they do; those of the tests below do."""
    parameters = GRID["parameters"] | {"model.solver.lr": {"values": [0.01, 0.1]}}
    plain = [*COMMAND[:5], *COMMAND[7:]]
    path, out = written(tmp_path / "grid.yaml", parameters=parameters, command=plain), tmp_path / "out"
    command = ["sweep", str(path), "--output", str(out), "--jobs", "2"]
    process, deadline = start(command), time.monotonic() + 120
    while time.monotonic() < deadline and not is_half_way(out):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)  # the children too
    process.communicate()
    before = identities(summaries(out))
    assert 3 <= len(before) < 6
    begun = [one for one in out.glob("runs/*/version_0/checkpoints/last.ckpt") if not is_done(one.parents[1])]
    rounds_before = {one.parents[1]: rows(one.parents[1]) for one in begun}
    assert begun

    second = run(command, timeout=300)
    said = second.stdout
    assert second.returncode == 0, second.stderr
    assert len(summaries(out)) == 6
    assert identities(before) == before
    for folder, some in rounds_before.items():
        assert rows(folder)[: len(some)] == some  # times included: these rounds were not run again
    assert f"{len(before)} of 6 points are done" in said
    assert "val/seen/accuracy" in said

    table = pd.read_csv(out / "sweep.csv")
    assert len(table) == 6
    assert table["val/seen/accuracy"].is_monotonic_decreasing
    points = table[["model.solver.lr", "model.algorithm.num_components"]]
    assert not points.duplicated().any()
    for _, row in table.iterrows():
        summary = json.loads((out / f"runs/{int(row['point']):03d}/version_0/summary.json").read_text())
        assert row["val/seen/accuracy"] == summary["val/seen/accuracy"]
        assert row["test/seen/accuracy"] == summary["test/seen/accuracy"]
        assert summary["rounds"] == 8
    assert (out / "sweep.png").is_file()
    assert f"--model.solver.lr={points.iloc[0, 0]}" in (out / "sweep.md").read_text()


def test_ctrl_c_stops_all_runs_in_order(tmp_path):
    long = GRID["parameters"] | {"trainer.max_epochs": {"value": 500}}
    path, out = written(tmp_path / "long.yaml", parameters=long), tmp_path / "out"
    process, deadline = start(["sweep", str(path), "--output", str(out), "--jobs", "2"]), time.monotonic() + 120
    while time.monotonic() < deadline and len(list(out.glob("runs/*/version_0/checkpoints/last.ckpt"))) < 2:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    err = process.communicate(timeout=150)[1]
    assert process.returncode == 130
    assert "interrupted; the same command goes on" in err
    assert "Traceback" not in err
    logged = list(out.glob("runs/*/version_0/metrics.csv"))
    before = identities(logged)
    time.sleep(2.0)
    assert logged
    assert identities(logged) == before  # nobody goes on in the background
    assert not summaries(out)


def is_half_way(out):
    """Three runs are over, and another one has finished a round."""
    begun = out.glob("runs/*/version_0/checkpoints/last.ckpt")
    return len(summaries(out)) >= 3 and any(not is_done(one.parents[1]) for one in begun)


def is_done(folder):
    return (folder / "summary.json").is_file()


def rows(folder):
    """Logged rounds that the checkpoint has."""
    table = pd.read_csv(folder / "metrics.csv")
    return table.loc[table["comm/bytes_up"].notna(), ["step", "time/round_seconds"]].to_numpy().tolist()[:-1]


@forking()
def test_a_sweep_runs_on_a_named_executor(tmp_path, capfd):
    parameters = {"model.solver.lr": {"values": [0.01, 0.1]}, "trainer.max_epochs": {"value": 1}}
    path = written(tmp_path / "two.yaml", parameters=parameters, command=[*COMMAND[:5], *COMMAND[7:]])
    out, named = tmp_path / "out", ["--executor", "lit_fed.system.trials.InProcess"]
    assert swept(path, out, *named) == 2
    assert "--executor lit_fed.system.trials.InProcess needs --jobs" in capfd.readouterr().err
    main(["sweep", str(path), "--output", str(out), "--jobs", "1", *named])
    assert len(summaries(out)) == 2
    assert "2/2  point 001" in capfd.readouterr().out


def test_seeds_failing_points_and_what_is_left(tmp_path, capfd):
    parameters = {
        "model.algorithm": {"values": ["FedAvg", "Oracle"]},  # digits by class know no groups that Oracle could take
        "data.partition": {"value": {"class_path": "Dirichlet", "init_args": {"alpha": 0.4, "min_samples": 20}}},
        "trainer.max_epochs": {"value": 1},
    }
    path, out = written(tmp_path / "one.yaml", parameters=parameters), tmp_path / "out"
    assert swept(path, out, "--seeds", "1", "2", "--jobs", "2") == 1
    said = capfd.readouterr().out
    assert "point 001 failed: seed" in said
    assert "groups" in said
    row = pd.read_csv(out / "sweep.csv").iloc[0]
    found = [json.loads(one.read_text())["val/seen/accuracy"] for one in summaries(out)]
    assert len(found) == 2
    assert row["val/seen/accuracy"] == pytest.approx(np.mean(found))
    assert row["val/seen/accuracy_std"] == pytest.approx(np.std(found, ddof=1))
    seeds = {yaml.safe_load((one.parent / "config.yaml").read_text())["seed_everything"] for one in summaries(out)}
    assert seeds == {1, 2}

    before = identities(summaries(out))
    assert swept(path, out, "--seeds", "1", "2", "--jobs", "1") == 1  # only what failed is tried again
    assert "1 of 2 points are done; 1 runs at a time" in capfd.readouterr().out
    assert identities(summaries(out)) == before
    assert swept(path, out, "--seeds", "1") == 2
    assert "seeds changed since" in capfd.readouterr().err
    assert swept(written(path, parameters=parameters | {"data.seed": {"value": 1}}), out, "--seeds", "1", "2") == 2
    assert "constants changed since" in capfd.readouterr().err


def test_each_algorithm_has_its_best_point(tmp_path):
    kinds = {"model.algorithm": {"values": ["FedEM", "FedAvg"]}, "model.solver.lr": {"values": [0.1, 1.0]}}
    sweep = read_sweep(written(tmp_path / "x.yaml", parameters=kinds))
    values = {("FedEM", 0.1): 0.7, ("FedEM", 1.0): 0.8, ("FedAvg", 0.1): 0.9, ("FedAvg", 1.0): 0.6}
    results = [
        Result(number, {"model.algorithm": name, "model.solver.lr": lr}, (value,), (), 1.0)
        for number, ((name, lr), value) in enumerate(values.items())
    ]
    assert [one.number for one in best_of_each(sweep, results)] == [0, 2]
    assert best_of_each(sweep, results[:2]) == []
    for goal, best in (("maximize", [2, 1]), ("minimize", [3, 0])):
        write_results(sweep._replace(goal=goal), results, {}, tmp_path)
        first = (tmp_path / "sweep.md").read_text().partition("All points:")[0]
        assert [int(line[2:5]) for line in first.splitlines() if line.startswith("| 0")] == best


@pytest.mark.parametrize(("key", "said"), [("data.num_clients", True), ("data.batch_size", False)])
def test_points_on_different_data_are_named(tmp_path, capsys, key, said):
    sweep = read_sweep(written(tmp_path / "x.yaml", parameters={key: {"values": [4, 8]}}))
    results = [Result(number, {key: value}, (0.5,), (), 1.0) for number, value in enumerate((4, 8))]
    write_results(sweep, results, {}, tmp_path)
    text = f"points differ in {key}: their results are of different data"
    assert (text in (tmp_path / "sweep.md").read_text()) == said
    assert (f"points differ in {key}" in capsys.readouterr().out) == said


def test_seeds_may_draw_the_division_too(tmp_path):
    run, folder = _Run(0, 3, ()), SweepFolder(tmp_path, ["training", "data"])
    assert {"--data.seed=3", "--seed_everything=3"} < set(folder.arguments(run))
    assert "--data.seed=3" not in SweepFolder(tmp_path).arguments(run)


# ---------------------------------------------------------------------- search
SPACE = {
    "model.solver.lr": {"distribution": "log_uniform_values", "min": 0.01, "max": 1.0},
    "model.algorithm.num_components": {"min": 1, "max": 4},
    "model.solver.clip_norm": {"values": [None, 1.0]},
    "model.solver.momentum": {"distribution": "q_uniform", "min": 0.0, "max": 0.9, "q": 0.3},
}


def test_distributions(tmp_path):
    sweep = read_sweep(written(tmp_path / "x.yaml", method="random", run_cap=3, parameters=SPACE))
    assert sweep.parameters == {
        "model.solver.lr": FloatDistribution(0.01, 1.0, log=True),
        "model.algorithm.num_components": IntDistribution(1, 4),
        "model.solver.clip_norm": [None, 1.0],
        "model.solver.momentum": FloatDistribution(0.0, 0.9, step=0.3),
    }
    assert number_of_points(sweep, None) == 3
    assert number_of_points(sweep, 7) == 7


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_a_search_is_the_same_wherever_it_is_cut(tmp_path, method):
    sweep = read_sweep(written(tmp_path / "x.yaml", method=method, parameters=SPACE))
    points = {}
    for name, cuts in (("whole", ()), ("cut", (3, 8, 12))):
        folder = tmp_path / name
        folder.mkdir()
        search, told = Search(sweep, folder), []
        for count in range(15):
            if count in cuts:
                search = Search(sweep, folder)
                for number, known in enumerate(told):
                    search.tell(number, known)
            point = search.ask()
            told.append(-((point["model.solver.lr"] - 0.3) ** 2))
            search.tell(count, told[-1])
        points[name] = Search(sweep, folder).points
    assert points["whole"] == points["cut"]
    assert len({point["model.solver.lr"] for point in points["whole"]}) == 15
    late = [abs(point["model.solver.lr"] - 0.3) for point in points["whole"][10:]]
    if method == "bayes":  # it knows by now where the best values are
        assert np.median(late) < 0.2


# ---------------------------------------------------------------------- pictures
@pytest.mark.parametrize("keys", [1, 2, 3, 4])
@pytest.mark.usefixtures("rendered")
def test_pictures(tmp_path, keys):
    kinds = {
        "model.solver.lr": {"values": [0.01, 0.1, 1.0]},
        "model.algorithm": {"values": ["FedEM", "FedAvg", "Local"]},
        "model.solver.momentum": {"distribution": "uniform", "min": 0.0, "max": 0.9},
        "model.solver.weight_decay": {"distribution": "log_uniform_values", "min": 1.0e-5, "max": 0.1},
    }
    chosen = dict(list(kinds.items())[:keys])
    sweep = read_sweep(written(tmp_path / "x.yaml", method="random", parameters=chosen))
    search, results = Search(sweep, tmp_path), []
    for seed in range(6):
        point = search.ask()
        values = np.random.default_rng(seed).uniform(0.4, 0.9, 3)
        results.append(Result(seed, point, tuple(values), (), 1.0))
    draw_sweep(sweep, results, tmp_path / "sweep.png")
    assert np.ptp(matplotlib.image.imread(tmp_path / "sweep.png")[..., :3]) > 0.9


# ---------------------------------------------------------------------- W&B's own form
def test_the_usual_command_of_wandb_is_read_and_runs(tmp_path):
    usual = ["${env}", "${interpreter}", "${program}", *COMMAND[4:]]
    path = written(tmp_path / "usual.yaml", command=usual, program="lit_fed/__main__.py")
    sweep = read_sweep(path)
    assert sweep.command == read_sweep(written(tmp_path / "module.yaml")).command
    ran = run([*sweep.arguments(sweep.grid()[0]), "--print_config"], script="lit_fed/__main__.py")
    assert ran.returncode == 0, ran.stderr
    assert yaml.safe_load(ran.stdout)["model"]["solver"]["lr"] == 0.01


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_files_are_what_wandb_passes(path):
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    content, sweep = yaml.safe_load(path.read_text()), read_sweep(path)
    assert {"program", "method", "metric", "parameters", "command"} <= content.keys()
    assert create_sweep_command(content["command"])[:5] == ["${env}", "python", "-m", "lit_fed", "fit"]
    point = {key: one["values"][0] for key, one in content["parameters"].items() if "values" in one}
    flags = create_sweep_command_args({"args": {key: {"value": point[key]} for key in sorted(point)}})["args"]
    ours = sweep._replace(constants={}).arguments(point)
    assert ours[-len(flags) :] == flags
    assert "configs/logger/wandb.yaml" in content["command"]
    assert "configs/logger/wandb.yaml" not in ours
    check_arguments(sweep, arguments_of)


def test_a_point_runs_offline_as_wandb_starts_it(tmp_path):
    import wandb
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    values = {
        "model.algorithm": "OfficialFedEM", "model.algorithm.num_components": 2, "model.algorithm.start": None,
        "model.algorithm.shuffle_per_component": True, "model.network.hidden_sizes": [4, 4],
        "model.solver.clip_norm": None, "model.solver.lr": 1e-3, "model.solver.weight_decay": "1e-4",
        "data.partition": {"class_path": "Dirichlet", "init_args": {"alpha": 0.5, "label_groups": 3}},
    }  # fmt: skip
    macros = create_sweep_command_args({"args": {key: {"value": value} for key, value in values.items()}})
    words = [part for word in create_sweep_command(list(COMMAND)) for part in macros.get(word[2:-1], [word])]
    place = f"--trainer.default_root_dir={tmp_path}"
    try:
        main([*words[4:], place, "--trainer.max_epochs=1", f"--trainer.logger.save_dir={tmp_path}"])
    finally:
        wandb.finish()
        wandb.teardown()
    config = yaml.safe_load((tmp_path / "quickstart/version_0/config.yaml").read_text())
    solver, algorithm = config["model"]["solver"], config["model"]["algorithm"]["init_args"]
    assert (solver["lr"], solver["clip_norm"], solver["weight_decay"]) == (0.001, None, 0.0001)
    assert algorithm["num_components"] == 2
    assert algorithm["start"] is None
    assert algorithm["shuffle_per_component"] is True
    assert config["model"]["network"]["init_args"]["hidden_sizes"] == [4, 4]
    assert list(tmp_path.glob("wandb/offline-run-*"))


# ---------------------------------------------------------------------- wrong input
LR = "model.solver.lr"
EVERY_FIVE = ["--trainer.max_epochs=2", "--trainer.check_val_every_n_epoch=5"]
OTHER_LOGGER = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=x"]


@pytest.mark.parametrize(
    ("changes", "arguments", "parts"),
    [
        ({"method": "sobol"}, (), ["--method", "'bayes'", "value: sobol"]),
        ({"parameters": {LR: {"value": 0.1}}}, (), ["do not vary", "values"]),
        ({"parameters": {LR: 0.1}}, (), [f"parameters.{LR} is 0.1", "constant (value)"]),
        ({"parameters": {LR: {"min": 0.1, "max": 1.0}}}, (), [f"parameters.{LR} has no values", "grid"]),
        ({"parameters": {LR: {"min": 1.0, "max": 0.1}}, "method": "random"}, (), [f"parameters.{LR}:", "low"]),
        ({"parameters": {LR: {"mu": 0, "distribution": "normal"}}}, (), [f"parameters.{LR} is", "constant (value)"]),
        ({"parameters": {LR: {"values": [0.1], "probabilities": [1]}}}, (), ["probabilities", "categorical (values)"]),
        ({"parameters": {"name": {"values": [1, 2]}}}, (), ["parameters.name", "sweep itself"]),
        ({"early_terminate": {"type": "hyperband"}}, (), ["early_terminate", "is not accepted"]),
        ({"command": ["python", "train.py", "${args}"]}, (), ["command needs fit", "lit_fed, fit"]),
        ({"method": "random"}, (), ["--trials", "run_cap"]),
        ({}, ("--trials", "3"), ["--trials 3", "grid"]),
        ({"parameters": {"seed_everything": {"values": [1, 2]}}}, ("--seeds", "1"), ["seed_everything", "--seeds"]),
        ({"parameters": {"model.solver.lrr": {"values": [1, 2]}}}, (), ["model.solver.lrr 1:", "did you mean"]),
        ({"parameters": {"model.algorithm": {"values": ["FedEM", "FedEmm"]}}}, (), ["FedEmm:", "takes AFL, "]),
        ({"command": [*COMMAND, *OTHER_LOGGER]}, (), ["trainer.logger", "folder logger"]),
        ({"command": [*COMMAND, *EVERY_FIVE]}, (), ["val/seen/accuracy", "max_epochs is 2", "in round 5"]),
        ({"parameters": {"trainer.max_epochs": {"values": [8, 2]}}, "command": [*COMMAND, EVERY_FIVE[1]]}, (),
         ["with trainer.max_epochs 2:", "round 5"]),
        ({"command": [*COMMAND, "--data.val_fraction=0"]}, (), ["no client", "--data.val_fraction"]),
        ({"metric": {"name": "val/seen/mse"}}, (), ["val/seen/mse is not measured", "val/seen/accuracy"]),
        ({"metric": {"name": "accuracy"}}, (), ["metric accuracy is not in summary.json", "val/seen/accuracy"]),
        ({"parameters": {"data.val_fraction": {"values": [0.2, 0.0]}}}, (), ["data.val_fraction 0.0:", "no client"]),
        ({"metric": {"name": "test/seen/loss"}}, (),
         ["metric.name is test/seen/loss, and test samples choose", "val/seen/loss", "--data.val_fraction=0.1"]),
        ({}, ("--seeds", "1", "1"), ["--seeds: 1, 1 has one twice"]),
        ({}, ("--seeds_of", "data"), ["--seeds_of data needs --seeds"]),
        ({"parameters": {LR: {"values": [1]}, "data.seed": {"value": 1}}}, ("--seeds", "1", "--seeds_of", "data"),
         ["parameters.data.seed is what --seeds gives"]),
    ],
)  # fmt: skip
def test_wrong_files_are_refused(tmp_path, capsys, changes, arguments, parts):
    path = written(tmp_path / "wrong.yaml", **changes)
    assert swept(path, tmp_path / "out", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line or "--seeds" in line
    assert all(part in line for part in parts), line
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(tmp_path, capsys):
    path = written(tmp_path / "grid.yaml")
    assert swept(tmp_path / "none.yaml", tmp_path / "out") == 2
    assert "none.yaml: No such file" in capsys.readouterr().err
    assert swept(path, tmp_path) == 2
    assert "holds something that is no sweep" in capsys.readouterr().err
    with SweepFolder(tmp_path / "out").opened(read_sweep(path), None), pytest.raises(ConfigError, match="at work"):
        SweepFolder(tmp_path / "out").opened(read_sweep(path), None).__enter__()


def test_cores_are_those_of_this_process():
    assert set(cores()) <= set(range(os.cpu_count()))
    assert cores()
