"""Arguments of Lightning's trainer without meaning in federated rounds: refused before training, with the fix."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    ModelSummary,
    OnExceptionCheckpoint,
    SpikeDetection,
    StochasticWeightAveraging,
    ThroughputMonitor,
    Timer,
    WeightAveraging,
)

from lit_fed.errors import ConfigError
from lit_fed.system.machine import require_cores

__all__ = ["refuse_arguments", "refuse_callbacks", "refuse_remote", "rounds_of"]

CUT = "a round is never cut; use --data.client_fraction or --data.clients_per_round"
MEASURED = "the clients left out would count as 0; --data.eval_clients measures fewer"

REFUSED_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "fast_dev_run": ((False,), "a round is never cut; use --trainer.max_epochs 1"),
    "limit_train_batches": ((1.0,), CUT),
    "overfit_batches": ((0.0, 0), CUT),
    "gradient_clip_val": ((), "clients clip for themselves; use --model.solver.clip_norm"),
    "accumulate_grad_batches": ((1,), "clients take whole batches; use --data.batch_size"),
    "limit_predict_batches": ((1.0,), "every client is served; choose a population and a split"),
    "limit_test_batches": ((1.0,), MEASURED),
    "limit_val_batches": ((1.0, 0, 0.0), f"{MEASURED}, and 0 turns validation off"),
    "val_check_interval": ((1.0,), "validation follows whole rounds; use --trainer.check_val_every_n_epoch"),
    "barebones": ((False,), "a run leaves a folder; use --trainer.logger false and the enable_ arguments"),
    "sync_batchnorm": ((False,), "statistics are a client's own; see --model.batch_norm"),
}
"""For each argument the values that change nothing, and what to do instead of giving another."""

TELL_OF_MACHINES = ("MASTER_ADDR", "SLURM_JOB_ID", "LSB_JOBID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "KUBERNETES_PORT")
"""Variables of the environment by which launchers say where the machines of a run are."""

REFUSED_CALLBACKS: dict[type[Callback], str] = {
    BatchSizeFinder: "the batch size is part of an experiment; choose --data.batch_size",
    LearningRateFinder: "local rates belong to clients; give --model.solver.lr auto, or try some by `lit-fed sweep`",
    GradientAccumulationScheduler: "clients take whole batches; use --data.batch_size",
    StochasticWeightAveraging: "it averages the models of one optimizer; here a server writes the models",
    WeightAveraging: "client states belong to the models of their round, not to an average over rounds",
    ModelPruning: "the server writes new models in every round, without the masks",
    SpikeDetection: "it watches the loss of one optimizer's batches; use EarlyStopping with divergence_threshold",
    BaseFinetuning: "it freezes layers for one optimizer; set requires_grad where the network is made",
    ThroughputMonitor: "it counts blocks of clients; the column time/round_seconds has the duration of each round",
    OnExceptionCheckpoint: "last.ckpt has the last finished round, and a new fit would go on from it unasked; use "
    "--ckpt_path last",
    ModelSummary: "it would list client states; use --trainer.enable_model_summary true, or NetworkSummary",
}
"""Lightning's callbacks that mean nothing to a round, with those derived from them."""


def refuse_arguments(arguments: dict[str, Any]) -> None:
    """Refuse arguments of Lightning that would end "successfully" without a round, or that mean nothing here.

    Raises:
        ConfigError: naming the argument, its value and what to give instead.
    """
    for name, (harmless, reason) in REFUSED_ARGUMENTS.items():
        value = arguments.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in harmless):
            raise ConfigError(f"--trainer.{name} is {value}, which federated rounds do not know: {reason}")
    _refuse_precision(arguments.get("precision"))
    _refuse_accelerator(arguments.get("accelerator"))
    _refuse_devices(arguments.get("devices"), arguments.get("accelerator"))
    _refuse_machines(arguments.get("num_nodes"))
    if arguments.get("profiler") == "xla":
        raise ConfigError("--trainer.profiler is xla, which measures TPUs; choose simple, advanced or pytorch")
    every = arguments.get("check_val_every_n_epoch")
    if every is not None and every < 1:
        raise ConfigError(
            f"--trainer.check_val_every_n_epoch is {every}; give a number of rounds >= 1, or leave validation out with "
            "--trainer.limit_val_batches 0"
        )


def rounds_of(arguments: dict[str, Any]) -> int:
    """The number of rounds of a fit, which schedules of the learning rate need to know.

    Raises:
        ConfigError: if there is no round, no end, or fewer rounds than the given minimum.
    """
    rounds, steps = arguments.get("max_epochs"), arguments.get("max_steps")
    if steps == 0:
        raise ConfigError("--trainer.max_steps is 0, and no round would run; give the number of rounds, or -1")
    if rounds == 0:
        raise ConfigError("--trainer.max_epochs is 0, and no round would run; give the number of rounds")
    if rounds in (None, -1) and steps not in (None, -1):
        rounds = steps
    if rounds == -1:
        raise ConfigError(
            "--trainer.max_epochs is -1, and schedules need to know the number of rounds; give the largest number, and "
            "--trainer.max_time or EarlyStopping to end before it"
        )
    rounds = 1000 if rounds is None else rounds  # as Lightning does
    most = rounds if steps in (None, -1) else min(rounds, steps)
    for name in ("min_epochs", "min_steps"):
        if (arguments.get(name) or 0) > most >= 0:
            raise ConfigError(
                f"--trainer.{name} is {arguments[name]}, and the run has {most} rounds; give at most {most}"
            )
    return int(rounds)


def _refuse_precision(precision: Any) -> None:
    known = {None, 32, "32", "32-true", "bf16-mixed"}
    if precision not in known:
        raise ConfigError(
            f"--trainer.precision is {precision}; choose 32-true or bf16-mixed: averages need models in float32, and "
            "float16 needs a gradient scaler, which skips steps that overflow, so clients would take fewer than planned"
        )


def _refuse_accelerator(accelerator: Any) -> None:
    if isinstance(accelerator, str) and accelerator not in ("auto", "cpu", "gpu", "cuda", "mps"):
        raise ConfigError(f"--trainer.accelerator is {accelerator}; choose cpu, gpu or auto")
    if accelerator in ("gpu", "cuda") and not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        raise ConfigError(
            f"--trainer.accelerator is {accelerator}, and PyTorch finds no GPU here; choose cpu or auto, or install "
            "a PyTorch that fits the machine's driver"
        )


def _refuse_devices(devices: Any, accelerator: Any) -> None:
    on_cpu = accelerator == "cpu" or not (torch.cuda.is_available() or torch.backends.mps.is_available())
    if on_cpu and str(devices).isdecimal():
        require_cores(int(devices), "--trainer.devices")


def _refuse_machines(num_nodes: Any) -> None:
    """Refuse a multi-node run without an address, which would hang."""
    if (num_nodes or 1) > 1 and not any(os.environ.get(name) for name in TELL_OF_MACHINES):
        raise ConfigError(
            f"--trainer.num_nodes is {num_nodes}, and nothing says where the other machines are; start the run on each "
            "of them by torchrun or srun, set MASTER_ADDR, or leave it out"
        )


def refuse_callbacks(callbacks: Iterable[Callback]) -> None:
    """Refuse callbacks that cannot work on rounds.

    Raises:
        ConfigError: naming the callback, why it cannot work and what to do instead.
    """
    for callback in callbacks:
        name = type(callback).__name__
        for kind, reason in REFUSED_CALLBACKS.items():
            if isinstance(callback, kind) and not type(callback).__module__.startswith("lit_fed."):
                raise ConfigError(f"--trainer.callbacks has {name}, which cannot work on rounds: {reason}")
        if isinstance(callback, ModelCheckpoint) and callback._train_time_interval is not None:
            raise ConfigError(
                f"--trainer.callbacks: {name}.train_time_interval is {callback._train_time_interval}, and Lightning "
                "counts batches there, not rounds; use every_n_epochs"
            )
        if isinstance(callback, LearningRateMonitor) and (callback.log_momentum or callback.log_weight_decay):
            raise ConfigError(
                f"--trainer.callbacks: {name} cannot log the momentum or weight decay of clients, which are constant; "
                "see --model.solver"
            )
        if isinstance(callback, Timer) and callback._duration is not None and callback._duration <= 0:
            raise ConfigError(
                f"--trainer.max_time, or Timer.duration, is {callback._duration:g} seconds, and no round would run; "
                "give more"
            )


def refuse_remote(data: Any, command: str) -> None:
    """Refuse a command that needs samples or states of clients which stay on their nodes.

    Args:
        data: the data module.
        command: name of the command.

    Raises:
        ConfigError: if the clients are on nodes, before waiting for them.
    """
    dataset = getattr(data, "dataset", None)
    if dataset is not None and dataset.is_remote:
        raise ConfigError(
            f"{command} needs samples and states of clients, and those of {type(dataset).__name__} stay on their "
            f"nodes; run `lit-fed client {command} --states DIR --data.root DIR` there, with what the training left"
        )
