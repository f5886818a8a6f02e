"""Every callback, profiler and limit of Lightning works on rounds or is refused, with the reason, before training."""

import csv
import json
import logging
import re
import warnings
from datetime import timedelta
from pathlib import Path

import lightning.pytorch.callbacks as stock
import lightning.pytorch.profilers as profilers
import pytest
import wandb
from lightning.pytorch.tuner import Tuner

from lit_fed import FederatedModule, FederatedTrainer, RoundLogger
from lit_fed.callbacks import NetworkSummary, TrainingSplitEvaluation
from lit_fed.callbacks.defaults import keep_notices_out
from lit_fed.callbacks.report import RunReport
from lit_fed.cli import main
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

ROUNDS = 3
GUIDE = Path(__file__).parents[2] / "docs/guides/lightning.md"


class Run:
    """A small fit, with what it left and said."""

    def __init__(self, folder, capsys, caplog, *callbacks, rounds=ROUNDS, val_fraction=0.2, **arguments):
        keep_notices_out()
        self.folder, self._capsys, self._caplog = folder, capsys, caplog
        arguments = {"enable_progress_bar": False, "accelerator": "cpu", **arguments}
        chosen = [*callbacks, RunReport(pictures=False)]
        logger = RoundLogger(str(folder), "run")
        self.trainer = FederatedTrainer(max_epochs=rounds, logger=logger, callbacks=chosen, **arguments)
        self.module = FederatedModule()
        self.data = FederatedDataModule(Digits(), num_clients=4, clients_per_block=2, val_fraction=val_fraction)

    def fit(self):
        self.trainer.fit(self.module, datamodule=self.data)
        return self

    @property
    def rows(self):
        with (self.folder / "run/version_0/metrics.csv").open() as file:
            return list(csv.DictReader(file))

    @property
    def said(self):
        logged = "\n".join(record.getMessage() for record in self._caplog.records)
        captured = self._capsys.readouterr()
        return captured.out + captured.err + logged


@pytest.fixture
def new_run(tmp_path, capsys, caplog):
    for name in ("callbacks", "profilers"):
        caplog.set_level(logging.INFO, f"lightning.pytorch.{name}")

    def make(*callbacks, **arguments):
        return Run(tmp_path, capsys, caplog, *callbacks, **arguments)

    return make


def columns(run):
    return set().union(*run.rows)


# ------------------------------------------------------------------ what works
def test_a_plain_run_is_silent_about_lightning(new_run):
    run = new_run().fit()
    assert run.trainer.global_step == ROUNDS
    assert run.said == f"lit_fed: the run is written to {run.folder}/run/version_0\n"


@pytest.mark.parametrize("monitor", ["val/seen/loss", "train/seen/loss", "train/seen/accuracy"])
def test_early_stopping_says_why(new_run, monitor):
    stop = stock.EarlyStopping(monitor, patience=1, min_delta=10.0)
    run = new_run(stop, TrainingSplitEvaluation(), rounds=9).fit()
    assert run.module.num_rounds_done == 2
    assert f"ended after round 2 of 9: Monitored metric {monitor} did not improve" in run.said


@pytest.mark.parametrize("how", ["Timer", "max_time"])
def test_a_time_limit_ends_behind_a_round_and_says_so(new_run, how):
    limit = timedelta(milliseconds=1)
    run = new_run(stock.Timer(limit), rounds=9) if how == "Timer" else new_run(max_time=limit, rounds=9)
    run.fit()
    assert run.module.num_rounds_done == 1
    assert "ended after round 1 of 9: the time limit was reached after 0:00:00\n" in run.said


def test_a_stop_of_a_callback_of_ones_own_is_said(new_run):
    class Stop(stock.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.should_stop = True

    assert "ended after round 1 of 3: a callback asked for it" in new_run(Stop()).fit().said


def test_checkpoints_count_rounds(new_run, tmp_path):
    best = stock.ModelCheckpoint(tmp_path / "best", monitor="val/seen/accuracy", mode="max", filename="best")
    every = stock.ModelCheckpoint(tmp_path / "every", every_n_train_steps=2, save_top_k=-1, filename="{step}")
    assert len(new_run(best, every).fit().said.splitlines()) == 1  # the folder
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["best.ckpt"]
    assert [path.name for path in (tmp_path / "every").iterdir()] == ["step=2.ckpt"]


def test_the_local_learning_rate_is_a_column(new_run):
    run = new_run(stock.LearningRateMonitor()).fit()
    assert [row["lr"] for row in run.rows] == ["0.1"] * ROUNDS
    assert [name for name in columns(run) if name.startswith("lr")] == ["lr"]


def test_device_stats_are_columns_of_rounds(new_run):
    run = new_run(stock.DeviceStatsMonitor(cpu_stats=True)).fit()
    assert [row["step"] for row in run.rows] == ["0", "1", "2"]
    assert all(row["DeviceStatsMonitor.on_train_batch_end/cpu_percent"] for row in run.rows)


@pytest.mark.parametrize("bar", [stock.RichProgressBar, stock.TQDMProgressBar])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_lightnings_progress_bars(new_run, bar):
    assert new_run(bar(), enable_progress_bar=True).fit().module.num_rounds_done == ROUNDS


def test_a_lambda_is_called_in_every_round(new_run):
    rounds = []
    new_run(stock.LambdaCallback(on_train_epoch_end=lambda _, module: rounds.append(module.num_rounds_done))).fit()
    assert rounds == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:Couldn't infer the batch indices")
def test_a_prediction_writer_gets_the_blocks(new_run, tmp_path):
    class Writer(stock.BasePredictionWriter):
        served = 0

        def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
            self.served += len(prediction.client_ids)

    writer = Writer("batch")
    run = new_run(writer).fit()
    run.trainer.predict(run.module, datamodule=run.data, output=str(tmp_path / "predictions.csv"))
    assert writer.served == 4


@pytest.mark.parametrize("callbacks", [[], [NetworkSummary(max_depth=-1)]])
def test_the_summary_shows_the_layers(new_run, callbacks):
    said = new_run(*callbacks, enable_model_summary=True, rounds=1).fit().said
    assert "network.linear" in said
    assert "650" in said  # 64 · 10 + 10 parameters of one component
    assert "store" not in said
    assert "FLOPs" not in said  # nothing counts them


@pytest.mark.parametrize(
    ("profiler", "parts"),
    [
        ("advanced", ["FIT Profiler Report", "Profile stats for: run_training_epoch", "cumtime"]),
        ("pytorch", ["FIT Profiler Report", "Self CPU"]),
        (profilers.PassThroughProfiler(), []),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch Profiler default schedule")
def test_profilers_print_what_took_how_long(new_run, profiler, parts):
    said = new_run(profiler=profiler, rounds=1).fit().said
    assert all(part in said for part in parts), said


def test_the_simple_profiler_names_the_parts_of_a_round_in_a_table_for_each_command(new_run, caplog):
    run = new_run(profiler="simple").fit()
    run.trainer.test(run.module, datamodule=run.data)
    fit, test = (record.getMessage() for record in caplog.records)
    title, head, total, *lines, fewer, end = fit.split("\n")
    assert (title, " ".join(head.split()), end) == ("FIT Profiler Report", "Action Calls Mean (s) Total (s) %", "")
    assert re.fullmatch(r"\d+ actions below 0.1 % are left out", fewer)
    assert {len(line) for line in (head, total, *lines)} == {len(head)}
    assert len(head) <= 100, head
    rows = {
        name: (int(calls), float(mean), float(sum_), float(share))
        for name, calls, mean, sum_, share in map(str.split, lines)
    }
    parts = [f"[Federation]{name}" for name in ("local_steps", "communication", "server_step", "evaluation")]
    assert [rows[name][0] for name in parts] == [2 * ROUNDS, ROUNDS, ROUNDS, 2 * ROUNDS]  # two blocks of two clients
    assert "[Callback]LastCheckpoint.on_train_epoch_end" in rows
    seconds = float(total.split()[1])
    for name, (calls, mean, in_all, share) in rows.items():
        assert in_all == pytest.approx(calls * mean, abs=1e-3), name
        assert share == pytest.approx(100 * in_all / seconds, abs=0.1 + 0.1 / seconds), name
        assert share >= 0.1 or name in parts
    assert [row[3] for row in rows.values()] == sorted((row[3] for row in rows.values()), reverse=True)
    assert test.startswith("TEST Profiler Report\n")
    assert "local_steps" not in test  # the fit has its own table
    assert "[Federation]evaluation" in test


def test_statistics_that_every_rank_has_are_not_to_be_reduced():
    """Lightning recommends it for each key of a run by its own strategy `ddp`."""
    keep_notices_out()
    advice = "It is recommended to use `self.log('{}', ..., sync_dist=True)` when logging on epoch level"
    for key in ("test/unseen/accuracy_std", "val/honest/loss", "train/seen/loss@served"):
        warnings.warn(advice.format(key), stacklevel=1)
    with pytest.raises(UserWarning, match="own"):
        warnings.warn(advice.format("own"), stacklevel=1)


# ------------------------------------------------------------------ what is refused
CANNOT = {
    stock.BatchSizeFinder: (stock.BatchSizeFinder, "--data.batch_size"),
    stock.LearningRateFinder: (stock.LearningRateFinder, "--model.solver.lr"),
    stock.GradientAccumulationScheduler: (lambda: stock.GradientAccumulationScheduler({0: 2}), "--data.batch_size"),
    stock.StochasticWeightAveraging: (lambda: stock.StochasticWeightAveraging(0.1), "a server writes the models"),
    stock.WeightAveraging: (stock.WeightAveraging, "models of their round"),
    stock.EMAWeightAveraging: (stock.EMAWeightAveraging, "models of their round"),
    stock.ModelPruning: (lambda: stock.ModelPruning("l1_unstructured"), "without the masks"),
    stock.SpikeDetection: (stock.SpikeDetection, "EarlyStopping with divergence_threshold"),
    stock.BackboneFinetuning: (stock.BackboneFinetuning, "requires_grad"),
    stock.BaseFinetuning: (stock.BackboneFinetuning, "requires_grad"),
    stock.ThroughputMonitor: (lambda: stock.ThroughputMonitor(len), "time/round_seconds"),
    stock.OnExceptionCheckpoint: (lambda: stock.OnExceptionCheckpoint("."), "--ckpt_path last"),
    stock.ModelSummary: (stock.ModelSummary, "--trainer.enable_model_summary true"),
    stock.RichModelSummary: (stock.RichModelSummary, "NetworkSummary"),
}
WORK = {
    "EarlyStopping", "Timer", "ModelCheckpoint", "LearningRateMonitor", "DeviceStatsMonitor", "RichProgressBar",
    "TQDMProgressBar", "LambdaCallback", "BasePredictionWriter",
}  # fmt: skip
ABSTRACT = {"Callback", "Checkpoint", "ProgressBar"}


def test_no_callback_and_no_profiler_is_forgotten():
    assert {kind.__name__ for kind in CANNOT} | WORK | ABSTRACT == set(stock.__all__)
    known = {"SimpleProfiler", "AdvancedProfiler", "PyTorchProfiler", "PassThroughProfiler", "XLAProfiler", "Profiler"}
    assert known == set(profilers.__all__)


def test_the_guide_says_of_each_whether_it_works():
    rows = GUIDE.read_text().partition("## Callbacks\n")[2].partition("## Profilers")[0].splitlines()
    cells = [row.split("|") for row in rows if row.startswith("| `")]
    said = {name: cell[2].strip() for cell in cells for name in re.findall(r"`(\w+)`", cell[1])}
    assert said == dict.fromkeys(WORK, "yes") | {kind.__name__: "no" for kind in CANNOT}


BY_PYTHON_ALONE = {"LambdaCallback", "BasePredictionWriter"}  # they take functions, and a class
FIT = [
    "fit", "--data.dataset", "Digits", "--data.num_clients", "3", "--trainer.max_epochs", "1", "--name", "run",
    "--trainer.callbacks+=RunReport", "--trainer.callbacks.pictures", "false",
]  # fmt: skip


@pytest.mark.parametrize("names", [WORK - BY_PYTHON_ALONE - {"RichProgressBar"}, {"RichProgressBar"}])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_callback_of_the_guide_runs_with_its_defaults(tmp_path, monkeypatch, names):
    """By the command line, which writes them into config.yaml, and from that file."""
    monkeypatch.chdir(tmp_path)
    given = list(FIT)
    for name in sorted(names):
        given.append(f"--trainer.callbacks+={name}")
        given += ["--trainer.callbacks.monitor", "train/seen/loss"] if name == "EarlyStopping" else []
    main(given)
    main(["fit", "--config", "runs/run/version_0/config.yaml"])
    assert (tmp_path / "runs/run/version_1/summary.json").is_file()
    for command in ("test", "validate", "predict"):
        main([command, "--config", "runs/run/version_0/config.yaml", "--ckpt_path", "last"])


@pytest.mark.filterwarnings("default")
def test_every_logger_of_the_guide_runs_with_its_defaults(tmp_path, monkeypatch):
    rows = GUIDE.read_text().partition("## Loggers\n")[2].partition("\n## ")[0].splitlines()
    names = [found[1] for row in rows if (found := re.match(r"\| `(\w+)` \| yes", row))]
    needs = {"CSVLogger": {"save_dir": "csv"}, "TensorBoardLogger": {"save_dir": "tensorboard"}}
    needs["MLFlowLogger"] = {"tracking_uri": "mlflow"}
    assert needs.keys() < set(names)
    monkeypatch.chdir(tmp_path)
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}.items():
        monkeypatch.setenv(name, value)
    try:
        loggers = [{"class_path": name, "init_args": needs.get(name, {})} for name in names]
        main([*FIT, "--trainer.logger", json.dumps(loggers)])
    finally:
        wandb.finish()
        wandb.teardown()
    assert all(any(tmp_path.glob(f"{folder}/*")) for folder in ("csv", "tensorboard", "mlflow", "wandb"))


@pytest.mark.parametrize("kind", CANNOT)
def test_callbacks_that_cannot_work_on_rounds(new_run, tmp_path, kind):
    make, reason = CANNOT[kind]
    with pytest.raises(ConfigError, match="cannot work on rounds") as refused:
        new_run(make())
    assert type(make()).__name__ in str(refused.value)
    assert reason in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_callbacks_that_are_added_later_are_refused_too(new_run):
    run = new_run()
    with pytest.raises(ConfigError, match=r"has BatchSizeFinder, .*; choose --data.batch_size"):
        Tuner(run.trainer).scale_batch_size(run.module, datamodule=run.data)
    run = new_run()
    run.trainer.callbacks.append(stock.StochasticWeightAveraging(0.1))
    for command in (run.trainer.fit, run.trainer.test, run.trainer.predict):
        with pytest.raises(ConfigError, match="has StochasticWeightAveraging"):
            command(run.module, run.data)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: stock.Timer("00:00:00:00"), ["Timer.duration", "0 seconds"]),
        (lambda: stock.ModelCheckpoint(train_time_interval=timedelta(1)), ["train_time_interval", "every_n_epochs"]),
        (lambda: stock.LearningRateMonitor(log_momentum=True), ["LearningRateMonitor", "--model.solver"]),
    ],
)
def test_settings_of_callbacks_that_cannot_work_on_rounds(new_run, make, parts):
    with pytest.raises(ConfigError) as refused:
        new_run(make())
    assert all(part in str(refused.value) for part in parts), refused.value


@pytest.mark.parametrize(
    "make", [lambda: stock.EarlyStopping("val/loss"), lambda: stock.ModelCheckpoint(monitor="val/loss")]
)
def test_an_unknown_monitor_is_refused_before_training(new_run, tmp_path, make):
    with pytest.raises(ConfigError, match="monitor is val/loss, which this run does not log; give one of") as refused:
        new_run(make()).fit()
    for key in ("val/seen/loss", "val/seen/accuracy_decile", "train/seen/loss"):
        assert key in str(refused.value)
    assert "unseen" not in str(refused.value)
    assert not list(tmp_path.iterdir())


class Plateau(stock.Callback):
    """A user-defined callback that chooses by a metric."""

    monitor = "test/seen/loss"


@pytest.mark.parametrize("val_fraction", [0.0, 0.2])
@pytest.mark.parametrize(
    "make", [Plateau, lambda: stock.EarlyStopping("test/seen/loss"), lambda: stock.ModelCheckpoint(monitor="test/x")]
)
def test_test_samples_choose_nothing(new_run, tmp_path, make, val_fraction):
    with pytest.raises(ConfigError, match=r"\.monitor is test/.*, and test samples choose nothing; give ") as refused:
        new_run(make(), val_fraction=val_fraction).fit()
    said = str(refused.value)
    assert ("--data.val_fraction 0.1 and one of" in said) == (val_fraction == 0)
    assert "val/seen/loss" in said
    assert f": {type(make()).__name__}.monitor" in said
    assert not list(tmp_path.iterdir())


def test_an_unknown_monitor_without_validation_samples_hears_how_to_get_some(new_run):
    with pytest.raises(ConfigError, match=r"give one of train/seen/loss \(or --data.val_fraction 0.1 and one of val/"):
        new_run(stock.EarlyStopping("val/seen/loss"), val_fraction=0.0).fit()


@pytest.mark.parametrize("val_fraction", [0.0, 0.2])
def test_an_agent_of_wandb_sees_no_test_samples_before_the_final_test(new_run, monkeypatch, val_fraction):
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    run = new_run(val_fraction=val_fraction).fit()
    keys = {name.partition("/")[0] for name in columns(run)} & {"val", "test"}
    assert keys == ({"val"} if val_fraction else set())
    assert "test/seen/loss" in run.module.results or val_fraction
    run.trainer.test(run.module, datamodule=run.data)
    assert run.rows[-1]["test/seen/accuracy"]
    assert run.said.count("WANDB_SWEEP_ID is set, and test samples choose nothing") == (val_fraction == 0)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"check_val_every_n_epoch": 5}, "max_epochs is 3, and the first evaluation is in round 5"),
        ({"limit_val_batches": 0}, "limit_val_batches is 0"),
    ],
)
def test_a_monitor_that_is_never_measured_is_refused_before_training(new_run, tmp_path, arguments, parts):
    with pytest.raises(ConfigError, match="monitor is val/seen/loss, which this run does not log") as refused:
        new_run(stock.ModelCheckpoint(monitor="val/seen/loss"), **arguments).fit()
    assert parts in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_an_unknown_metric_of_the_algorithm_is_refused_behind_the_first_round(new_run):
    run = new_run(stock.EarlyStopping("train/seen/gradient", check_on_train_epoch_end=True))
    with pytest.raises(ConfigError, match="monitor is train/seen/gradient"):
        run.fit()
    assert run.module.num_rounds_done == 1


def test_a_callback_of_ones_own_may_log_what_it_likes(new_run):
    class Own(stock.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            pl_module.log("own", float(pl_module.num_rounds_done), batch_size=1)

    stop = stock.EarlyStopping("own", stopping_threshold=1.5, mode="max", check_on_train_epoch_end=True)
    assert new_run(Own(), stop).fit().module.num_rounds_done == 2


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"limit_test_batches": 0.5}, ["limit_test_batches is 0.5", "--data.eval_clients"]),
        ({"limit_test_batches": 1}, ["limit_test_batches is 1,", "--data.eval_clients"]),
        ({"limit_val_batches": 1}, ["limit_val_batches is 1,", "--data.eval_clients"]),
        ({"max_steps": 0}, ["--trainer.max_steps is 0", "no round"]),
        ({"rounds": 0}, ["--trainer.max_epochs is 0", "no round"]),
        ({"max_time": "00:00:00:00"}, ["--trainer.max_time", "no round"]),
        ({"max_time": timedelta(0)}, ["--trainer.max_time", "no round"]),
        ({"rounds": -1}, ["--trainer.max_epochs is -1", "schedules", "--trainer.max_time"]),
        ({"min_epochs": 4}, ["--trainer.min_epochs is 4", "3 rounds"]),
        ({"min_steps": 4}, ["--trainer.min_steps is 4", "3 rounds"]),
        ({"min_epochs": 3, "max_steps": 2}, ["--trainer.min_epochs is 3", "2 rounds"]),
        ({"check_val_every_n_epoch": 0}, ["check_val_every_n_epoch is 0", "limit_val_batches 0"]),
        ({"check_val_every_n_epoch": -2}, ["check_val_every_n_epoch is -2", ">= 1"]),
        ({"profiler": "xla"}, ["--trainer.profiler is xla", "simple"]),
        ({"barebones": True}, ["--trainer.barebones is True", "logger false"]),
        ({"sync_batchnorm": True}, ["--trainer.sync_batchnorm is True", "--model.batch_norm"]),
        ({"devices": 1_000_000}, ["--trainer.devices is 1000000", "CPU cores"]),
        ({"devices": "1000000", "accelerator": "auto"}, ["--trainer.devices is 1000000", "CPU cores"]),
    ],
)
def test_limits_that_mean_nothing_to_rounds(new_run, monkeypatch, arguments, parts):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("lightning.pytorch.trainer.trainer.Trainer.fit", lambda *_, **__: pytest.fail("it started"))
    with pytest.raises(ConfigError) as refused:
        new_run(**arguments)
    assert all(part in str(refused.value) for part in parts), refused.value


def test_two_processes_are_granted_on_one_core_and_not_three(new_run, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert new_run(devices=2, strategy="fed_ddp").trainer.num_devices == 2
    with pytest.raises(ConfigError, match="grants 1 CPU cores; give at most 2"):
        new_run(devices=3, strategy="fed_ddp")


@pytest.mark.parametrize(("rounds", "steps"), [(None, 2), (-1, 2), (9, 2), (2, -1)])
def test_the_number_of_rounds_is_always_known(new_run, rounds, steps):
    run = new_run(rounds=rounds, max_steps=steps).fit()
    assert run.module.num_rounds == run.module.num_rounds_done == 2


def test_validation_can_be_left_out(new_run):
    run = new_run(limit_val_batches=0, rounds=1).fit()
    assert "test/seen/loss" not in columns(run)
    assert "train/seen/loss" in columns(run)
