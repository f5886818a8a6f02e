"""Every private name of Lightning and torch that lit_fed uses exists and behaves as it relies on."""

import inspect
from datetime import timedelta

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, RichModelSummary, Timer
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.optimization.manual import _ManualOptimization
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from torch import nn

from lit_fed.trainer import ClientLoop, FederatedLoop, FederatedTrainer, RoundLoop
from lit_fed.training.stopping import StopRequests


def test_overridden_private_names_exist():
    assert {"advance", "run"} <= set(dir(_ManualOptimization))
    assert list(inspect.signature(_ManualOptimization.advance).parameters) == ["self", "kwargs"]
    names = {"done", "reset", "restarting", "_should_accumulate", "_should_check_val_fx", "_num_ready_batches_reached"}
    assert names | {"_is_training_done", "_is_validation_done"} <= set(dir(_TrainingEpochLoop))
    loop = Trainer(logger=False, enable_checkpointing=False, barebones=False, accelerator="cpu").fit_loop
    assert isinstance(loop, _FitLoop)
    assert {"min_epochs", "max_epochs", "epoch_loop"} <= set(dir(loop))
    assert {"min_steps", "max_steps", "batch_progress", "manual_optimization"} <= set(dir(loop.epoch_loop))
    assert callable(loop.epoch_loop.batch_progress.reset_on_run)
    assert "_broadcast_sigterm_tensor" in dir(_TrainingEpochLoop)
    assert {"_parse_ckpt_path", "_parser", "parse_arguments", "instantiate_trainer"} <= set(dir(LightningCLI))
    assert {"_run_subcommand", "_set_seed"} <= set(dir(LightningCLI))
    assert hasattr(nn.modules.batchnorm, "_BatchNorm")
    assert hasattr(nn.modules.dropout, "_DropoutNd")
    assert hasattr(nn.modules.conv, "_ConvNd")
    assert callable(torch._assert_async)


def test_private_names_of_callbacks_and_signals_exist():
    assert Timer(duration={"seconds": 3})._duration == 3
    assert ModelCheckpoint(train_time_interval=timedelta(1))._train_time_interval == timedelta(1)
    assert RichModelSummary(max_depth=3)._max_depth == 3
    assert list(inspect.signature(RichModelSummary._summary).parameters) == ["self", "trainer", "pl_module"]
    assert {"register_signal_handlers", "_sigterm_notifier_fn"} <= set(dir(_SignalConnector))
    trainer = Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    assert type(trainer._signal_connector) is _SignalConnector
    assert hasattr(trainer._accelerator_connector, "cluster_environment")
    assert "_signal_connector.register_signal_handlers()" in inspect.getsource(Trainer._run)
    assert list(inspect.signature(Trainer._run).parameters)[1:3] == ["model", "ckpt_path"]
    trainer._checkpoint_connector._ckpt_path = "x.ckpt"
    assert trainer.ckpt_path == "x.ckpt"


def test_private_names_of_launcher_exist():
    source = inspect.getsource(_SubprocessScriptLauncher.launch)
    order = ["validate_settings", "_call_children_scripts()", "_launch_process_observer", "_set_num_threads_if_needed"]
    places = [source.index(part) for part in order]
    assert places == sorted(places), "FederatedLauncher does the same without the observer"
    assert "self._launcher = _SubprocessScriptLauncher(" in inspect.getsource(DDPStrategy._configure_launcher)
    assert '"timeout": self._timeout' in inspect.getsource(DDPStrategy.setup_distributed)


def test_the_server_steps_inside_manual_optimisation():
    source = inspect.getsource(_ManualOptimization.run)
    order = [source.index(part) for part in ("on_run_start", "advance", "on_run_end")]
    assert order == sorted(order), "optimizer steps are counted between on_run_start and on_run_end"
    assert "_step_supports_amp_scaling" in inspect.getsource(torch.amp.grad_scaler.GradScaler.step)


def test_the_report_of_the_simple_profiler_has_rows():
    profiler = SimpleProfiler()
    with profiler.profile("action"):
        pass
    [(name, mean, calls, total, share)], _, seconds = profiler._make_report_extended()
    assert (name, calls, mean) == ("action", 1, total)
    assert share == 100 * total / seconds


def test_the_trainer_installs_the_loops():
    trainer = FederatedTrainer(accelerator="cpu", max_epochs=7, max_steps=5, logger=False, enable_checkpointing=False)
    assert isinstance(trainer.fit_loop, FederatedLoop)
    assert isinstance(trainer.fit_loop.epoch_loop, RoundLoop)
    assert isinstance(trainer.fit_loop.epoch_loop.manual_optimization, ClientLoop)
    assert isinstance(trainer._signal_connector, StopRequests)
    assert (trainer.max_epochs, trainer.max_steps) == (7, 5)
    assert trainer.reload_dataloaders_every_n_epochs == 1
    assert trainer.num_sanity_val_steps == 0
