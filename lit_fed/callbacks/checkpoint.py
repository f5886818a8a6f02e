"""The checkpoint for resume."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

__all__ = ["LastCheckpoint", "checkpoint_folder", "keep_apart", "last_checkpoint"]


def checkpoint_folder(trainer: Trainer) -> Path | None:
    """Folder of a run's `last.ckpt`; None without one."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, LastCheckpoint) and callback.dirpath is not None:
            return Path(callback.dirpath)
    return None


def last_checkpoint(trainer: Trainer) -> Path | None:
    """The run's `last.ckpt`; None before the first."""
    folder = checkpoint_folder(trainer)
    return folder / "last.ckpt" if folder is not None and (folder / "last.ckpt").is_file() else None


def keep_apart(trainer: Trainer, resumed: Path | None) -> None:
    """Give the checkpoints of a run without loggers, which number folders, one that holds none of another run.

    Args:
        trainer: before its fit.
        resumed: checkpoint of the run that goes on, in its own folder; None: a new run.
    """
    names = itertools.chain(["checkpoints"], (f"checkpoints_{number}" for number in itertools.count(1)))
    folders = (Path(trainer.default_root_dir, name) for name in names)
    own = None if resumed is None else resumed.resolve().parent
    folder = next(one for one in folders if not one.exists() or one.resolve() == own)
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
            callback.dirpath = str(folder)


class LastCheckpoint(ModelCheckpoint):
    """Writes `checkpoints/last.ckpt` after a round's evaluation and logging, always under that name.

    Lightning's `save_last` depends on other checkpoints and numbers its files; use `ModelCheckpoint` beside this
    one for the best models.

    Args:
        every_n_rounds: rounds between two checkpoints.
    """

    def __init__(self, every_n_rounds: int = 1) -> None:
        super().__init__(
            filename="last", monitor=None, save_top_k=1, every_n_epochs=every_n_rounds,
            save_on_train_epoch_end=True, enable_version_counter=False,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Empty: the file name never changes."""
        return {}
