"""Checkpoint files: written atomically, read without executing anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.callbacks import Checkpoint

from lit_fed.clients.store_files import LAST, PREVIOUS, folder_beside
from lit_fed.errors import ConfigError, notice
from lit_fed.system.checked_archive import DamagedFileError, load_checked
from lit_fed.system.files import os_error_text, whole_file
from lit_fed.system.upgrade import upgraded

__all__ = [
    "CHECKPOINT_KEY", "AtomicCheckpointIO", "DamagedCheckpointError", "clients_folder", "load_checkpoint",
    "with_atomic_checkpoints",
]  # fmt: skip

CHECKPOINT_KEY = "lit_fed"
"""Key of the entries that lit_fed adds to a checkpoint."""

OWN_ENTRIES = (
    "identity", "arguments", "num_rounds", "results", "schedule_rounds", "changes", "client_files", "init_from",
    "spent", "noise", "serving", "frozen",
)  # fmt: skip
"""Entries of every checkpoint under `CHECKPOINT_KEY`."""

ENTRIES = ("pytorch-lightning_version", "epoch", "global_step", "state_dict")
"""Entries of every checkpoint of Lightning."""

TRAINING_ENTRIES = ("loops", "optimizer_states", "lr_schedulers")
"""Entries that `save_weights_only` leaves out."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file and moves it: a kill at any moment leaves the last good one intact.

    The preceding `last.ckpt` is kept as `previous.ckpt` if this process wrote it or resumed from it: any other one may
    be damaged, and must not replace a good one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._good: set[Path] = set()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        """Write and move; the file system's rename is atomic within a folder."""
        target = Path(path).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        keep = target.with_name(PREVIOUS) if target.name == LAST and target in self._good else None
        with whole_file(target, private=True, keep=keep) as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        self._good.add(target)

    def load_checkpoint(
        self, path: _PATH, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """A checkpoint of lit_fed; other content of the file is refused by name."""
        content = load_checkpoint(Path(path))
        self._good.add(Path(path).resolve())
        return content


def with_atomic_checkpoints(plugins: Any) -> list[Any]:
    """The plugins of a trainer, with one for atomic checkpoints if there is none."""
    chosen = [] if plugins is None else list(plugins) if isinstance(plugins, list | tuple) else [plugins]
    if any(isinstance(plugin, TorchCheckpointIO) for plugin in chosen):
        return chosen
    return [*chosen, AtomicCheckpointIO()]


def clients_folder(checkpoints: Sequence[Checkpoint]) -> Path | None:
    """Folder of a run's client files, beside that of its `last.ckpt`; None for a run without checkpoints.

    Args:
        checkpoints: the callbacks that write checkpoints.
    """
    last_first = sorted(checkpoints, key=lambda one: getattr(one, "filename", None) != "last")
    folders = [Path(folder) for one in last_first if (folder := getattr(one, "dirpath", None)) is not None]
    return folder_beside(folders[0]).absolute() if folders else None


class DamagedCheckpointError(ConfigError):
    """A damaged checkpoint.

    Attributes:
        path: the checkpoint.
        previous: the preceding one, if it is intact.
    """

    def __init__(self, path: Path, option: str, reason: str, fix: str) -> None:
        self.path, self.previous = path, _whole_previous(path)
        if self.previous is not None:
            fix = f"the checkpoint before it, {self.previous}, is whole"
        super().__init__(f"{option} {path} cannot be read: {reason}; {fix}")


def _whole_previous(path: Path) -> Path | None:
    previous = path.with_name(PREVIOUS)
    if path.name != LAST or not previous.is_file():
        return None
    try:
        load_checkpoint(previous, values=False)
    except ConfigError:
        return None
    return previous


def load_checkpoint(
    path: Path, *, resumable: bool = False, option: str = "--ckpt_path", values: bool = True
) -> dict[str, Any]:
    """A checkpoint's content, on the CPU; plain types only, so nothing in it is ever executed.

    Args:
        path: the file.
        resumable: training will resume from it, which needs more than serving.
        option: the argument that named it.
        values: read the values of tensors; otherwise only their shapes.

    Raises:
        DamagedCheckpointError: if it is damaged.
        ConfigError: if it cannot be read, was not written by lit_fed, or lacks something.
    """
    fix = "give a file from the folder checkpoints of a run"
    try:
        content = load_checked(path, values=values)
    except DamagedFileError as error:
        raise DamagedCheckpointError(path, option, str(error), fix) from error
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read ({os_error_text(error)}); {fix}") from error
    if not isinstance(content, dict) or not isinstance(content.get(CHECKPOINT_KEY), dict):
        found = "a checkpoint of another program" if isinstance(content, dict) else f"a {type(content).__name__}"
        raise ConfigError(f"{option} {path} holds {found}; {fix}")
    lacks = [f"{CHECKPOINT_KEY}.{key}" for key in OWN_ENTRIES if key not in content[CHECKPOINT_KEY]]
    lacks += [key for key in ENTRIES if key not in content]
    if lacks:
        raise ConfigError(f"{option} {path} lacks {', '.join(lacks)}; {fix}")
    if resumable and any(key not in content for key in TRAINING_ENTRIES):
        raise ConfigError(f"--ckpt_path {path} holds models alone, from which no run can go on; give its last.ckpt")
    today = upgraded(content[CHECKPOINT_KEY], f"{option} {path}")
    if values and today != content[CHECKPOINT_KEY]:
        notice(f"{option} {path} is of version 0.2: its settings are read in today's names, see docs/upgrade.md")
    return content | {CHECKPOINT_KEY: today}
