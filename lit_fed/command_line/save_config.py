"""The arguments of a run, kept in its folder as a configuration."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from lit_fed.command_line.parser import written
from lit_fed.system.files import write_atomically
from lit_fed.training.hooks import federated
from lit_fed.training.module import FederatedModule

__all__ = ["SaveConfig"]


class SaveConfig(SaveConfigCallback):
    """Writes config.yaml into the run's folder: complete, without the checkpoint, so that it runs again as it is."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write nothing yet: a run that is refused at its start leaves no folder."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write, on rank zero, and tell other loggers."""
        config = copy.deepcopy(self.config)
        config["ckpt_path"], config["resume_with_changes"] = None, False
        module = federated(pl_module)
        config["init_from"] = module.history.warm_start.path if module.history.warm_start else None
        solver, horizon = module.settings.solver, module.federation.schedule_rounds
        if solver.has_horizon and horizon not in (None, module.num_rounds):
            config["model.solver.schedule_rounds"] = solver.schedule_rounds or horizon
        plain = json.loads(written(self.parser, config, format="json"))
        for logger in trainer.loggers:
            logger.log_hyperparams(plain)
        if trainer.is_global_zero and trainer.log_dir is not None:
            folder = Path(trainer.log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            text = _as_comments(module) + written(self.parser, config)
            write_atomically(folder / self.config_filename, text)


def _as_comments(module: FederatedModule) -> str:
    """What was changed on the way to these settings, as comments of a YAML file."""
    line = "# changed on resume, after {after_rounds} rounds: {setting} from {from} to {to}\n"
    return "".join(line.format(**change) for change in module.history.changes)
