"""A Lightning trainer whose epochs are federated rounds."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

from lit_fed.core.errors import ConfigError
from lit_fed.training.checkpoint import AtomicCheckpointIO
from lit_fed.training.loop import FederatedLoop
from lit_fed.training.round_logger import RoundLogger

__all__ = ["FederatedStrategy", "FederatedTrainer"]


class FederatedStrategy(DDPStrategy):
    """Process group and launcher of DDP without its wrapper: clients train whole models of their own, rank by rank."""

    def configure_ddp(self) -> None:
        """Start all ranks from rank 0's shared state and client table."""
        assert self.model is not None
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            dist.broadcast(tensor.data, 0)


StrategyRegistry.register(
    "fed_ddp", FederatedStrategy, description="cohort sharded over ranks, no gradient hooks", start_method="popen"
)


class FederatedTrainer(Trainer):
    """Lightning's trainer with federated loops: `max_epochs` counts rounds, `global_step` is the rounds done.

    The arguments are those of `lightning.pytorch.Trainer`; those that cut batches or touch gradients are refused.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_arguments(kwargs)
        _refuse_precision(kwargs.get("precision"))
        # Every rank takes its slice of the same cohort itself; the cohort of each round needs a data loader of its own.
        kwargs["use_distributed_sampler"] = False
        kwargs["reload_dataloaders_every_n_epochs"] = 1
        kwargs["inference_mode"] = False  # adaptation trains inside validation
        kwargs["num_sanity_val_steps"] = 0
        if kwargs.get("log_every_n_steps") is None:
            kwargs["log_every_n_steps"] = 1
        kwargs["plugins"] = _with_atomic_checkpoints(kwargs.get("plugins"))
        super().__init__(*args, **kwargs)
        self.fit_loop = FederatedLoop(self, self.fit_loop)

    def fit(self, *args: Any, **kwargs: Any) -> None:
        """Run federated rounds, `max_epochs` of them; an interrupt by Ctrl-C is passed on, not turned into an exit."""
        try:
            super().fit(*args, **kwargs)
        except SystemExit:
            if self.interrupted:
                raise KeyboardInterrupt from None
            raise

    @property
    def log_dir(self) -> str | None:
        """The run's folder, for rank zero to write in; None where nothing is logged."""
        own = [logger.log_dir for logger in self.loggers if isinstance(logger, RoundLogger)]
        return own[0] if own else super().log_dir if self.loggers else None


def _refuse_arguments(arguments: dict[str, Any]) -> None:
    """Arguments of Lightning that would end "successfully" with no round run, or that mean nothing here."""
    cut = "a round is never cut; use --data.client_fraction or --data.clients_per_round"
    refused: dict[str, tuple[tuple[Any, ...], str]] = {
        "fast_dev_run": ((False,), "a round is never cut; use --trainer.max_epochs 1"),
        "limit_train_batches": ((1.0,), cut),
        "overfit_batches": ((0.0, 0), cut),
        "gradient_clip_val": ((), "clients clip for themselves; use --model.solver.clip_norm"),
        "accumulate_grad_batches": ((1,), "clients take whole batches; use --data.batch_size"),
        "val_check_interval": ((1.0,), "validation follows whole rounds; use --trainer.check_val_every_n_epoch"),
    }
    for name, (harmless, reason) in refused.items():
        value = arguments.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in harmless):
            raise ConfigError(f"--trainer.{name} is {value}, which federated rounds do not know: {reason}")


def _refuse_precision(precision: Any) -> None:
    known = {None, 32, "32", "32-true", "bf16-mixed"}
    if precision not in known:
        raise ConfigError(
            f"--trainer.precision is {precision}; choose 32-true or bf16-mixed: local steps are taken without a "
            "gradient scaler, and averages need models in float32"
        )


def _with_atomic_checkpoints(plugins: Any) -> list[Any]:
    chosen = [] if plugins is None else list(plugins) if isinstance(plugins, list | tuple) else [plugins]
    if any(isinstance(plugin, TorchCheckpointIO) for plugin in chosen):
        return chosen
    return [*chosen, AtomicCheckpointIO()]
