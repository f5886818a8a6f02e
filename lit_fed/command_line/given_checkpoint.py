"""The checkpoint that a command is given: found by `last` and `previous`, and what to do where it is damaged."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from lit_fed.clients.store_files import LAST, PREVIOUS
from lit_fed.errors import ConfigError
from lit_fed.training.checkpoint import DamagedCheckpointError
from lit_fed.training.round_logger import newest_version

__all__ = ["KEYWORDS", "newest_checkpoint", "run_folder", "with_command"]

KEYWORDS = {"last": LAST, "previous": PREVIOUS}
"""Words for checkpoints of the newest run of a name, and their files."""


def newest_checkpoint(folder: Path, word: str) -> tuple[Path, int]:
    """A checkpoint of the newest run of a name that has any, and the run's version.

    Args:
        folder: of the runs of this name.
        word: one of `KEYWORDS`.

    Raises:
        ConfigError: if there is none.
    """
    for version in range(newest_version(folder), -1, -1):
        checkpoints = folder / f"version_{version}" / "checkpoints"
        path, other = checkpoints / KEYWORDS[word], checkpoints / PREVIOUS
        if path.is_file():
            return path, version
        if other.is_file():  # the last one was deleted, or lost between two renames
            raise ConfigError(f"--ckpt_path last: {path} is not there; --ckpt_path previous takes the one before it")
    raise ConfigError(
        f"--ckpt_path {word}: no checkpoint under {folder}/version_*/checkpoints; give its path, set "
        "--trainer.default_root_dir and --name as in the run to be continued, or start without --ckpt_path"
    )


def run_folder(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint is of: that around `checkpoints`, or else the checkpoint's own."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent


def with_command(error: DamagedCheckpointError, given: Sequence[str]) -> str:
    """What is said of a damaged checkpoint, with the command that takes the one before it, if there is one.

    Args:
        error: what is wrong.
        given: the arguments of the command that met it.
    """
    if error.previous is None:
        return str(error)
    instead = {"last": "previous", str(error.path): str(error.previous)}
    changed, behind = [], ""
    for one in given:
        option, equals, value = one.partition("=")
        if behind == "--ckpt_path":
            one = instead.get(one, one)
        elif equals and option == "--ckpt_path":
            one = f"{option}={instead.get(value, value)}"
        behind = one
        changed.append(one)
    return f"{error}; go on from that one with\n  python -m lit_fed {shlex.join(changed)}"
