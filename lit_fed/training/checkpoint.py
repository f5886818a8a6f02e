"""Checkpoints: written whole or not at all, and refused where they belong to another run."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.types import _PATH

from lit_fed.core.errors import ConfigError
from lit_fed.core.files import whole_file

__all__ = [
    "CHECKPOINT_KEY",
    "AtomicCheckpointIO",
    "compare_arguments",
    "load_checkpoint",
    "refuse_differences",
    "refuse_other_run",
]

CHECKPOINT_KEY = "lit_fed"
"""Where a checkpoint keeps what Lightning does not."""


OWN_ENTRIES = ("identity", "arguments", "num_rounds", "results")
"""What every checkpoint of lit_fed has under this key."""

ENTRIES = ("pytorch-lightning_version", "epoch", "global_step", "state_dict")
"""What Lightning writes into every checkpoint."""

TRAINING_ENTRIES = ("loops", "optimizer_states", "lr_schedulers")
"""What it leaves out of a checkpoint with `save_weights_only`."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there: a kill at any moment leaves the last good one intact."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        """Write and move; the file system's rename is atomic within a folder."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target, private=True) as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())

    def load_checkpoint(
        self, path: _PATH, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """A checkpoint of lit_fed; whatever else the file holds is refused by name."""
        return load_checkpoint(Path(path))


def load_checkpoint(path: Path, *, resumable: bool = False) -> dict[str, Any]:
    """A checkpoint's content, on the CPU; plain types only, so nothing in it is ever executed.

    Args:
        path: the file.
        resumable: training shall go on from it, which takes more than serving from it.

    Raises:
        ConfigError: if it cannot be read, was not written by lit_fed, or lacks something.
    """
    fix = "give a file from the folder checkpoints of a run"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's about a file that is none of its own
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ConfigError(f"--ckpt_path {path} cannot be read ({type(error).__name__}); {fix}") from error
    if not isinstance(content, dict) or not isinstance(content.get(CHECKPOINT_KEY), dict):
        found = "a checkpoint of another program" if isinstance(content, dict) else f"a {type(content).__name__}"
        raise ConfigError(f"--ckpt_path {path} holds {found}; {fix}")
    lacks = [f"{CHECKPOINT_KEY}.{key}" for key in OWN_ENTRIES if key not in content[CHECKPOINT_KEY]]
    lacks += [key for key in ENTRIES if key not in content]
    if lacks:
        raise ConfigError(f"--ckpt_path {path} lacks {', '.join(lacks)}; {fix}")
    if resumable and any(key not in content for key in TRAINING_ENTRIES):
        raise ConfigError(f"--ckpt_path {path} holds models alone, from which no run can go on; give its last.ckpt")
    return content


def refuse_other_run(stored: dict[str, Any] | None, arguments: dict[str, Any], identity: dict[str, Any]) -> None:
    """Compare what a checkpoint says of its run with the run that wants it.

    Args:
        stored: what the checkpoint keeps under `CHECKPOINT_KEY`.
        arguments: this run's arguments, as the command line gave them; {} without one.
        identity: what this run must share with the checkpoint in any case.

    Raises:
        ConfigError: naming what differs.
    """
    if stored is None:
        raise ConfigError("the checkpoint was not written by lit_fed; give one of a run's checkpoints folder")
    refuse_differences(
        compare_arguments(stored["arguments"], arguments) or compare_arguments(stored["identity"], identity)
    )


def refuse_differences(differences: list[str]) -> None:
    """Raise a `ConfigError` with the first of these differences between a checkpoint and a run, if there are any."""
    if differences:
        raise ConfigError(
            f"the checkpoint is of another run: {'; '.join(differences[:4])}. Give the same values, or start a new "
            "run without --ckpt_path"
        )


def compare_arguments(stored: dict[str, Any], given: dict[str, Any], place: str = "") -> list[str]:
    """Arguments that differ between two nested dicts, as readable lines; nothing is compared with an empty dict.

    Example:
        >>> compare_arguments({"lr": 0.1}, {"lr": 0.2}, "model.solver.")
        ['model.solver.lr is 0.2, in the checkpoint 0.1']
    """
    if not stored or not given:
        return []
    lines = []
    for key in dict.fromkeys([*stored, *given]):
        before, now = stored.get(key), given.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            lines += compare_arguments(before, now, f"{place}{key}.")
        elif before != now and not (key == "class_path" and _same_class(before, now)):
            lines.append(f"{place}{key} is {now}, in the checkpoint {before}")
    return [line.replace(".init_args.", ".").replace(".class_path", "") for line in lines]


def _same_class(one: Any, other: Any) -> bool:
    """Whether two paths name the same class of this package: classes may move, and a path is as short as it can be."""
    paths = [str(path).rpartition(".") for path in (one, other)]
    return paths[0][2] == paths[1][2] and all(module.partition(".")[0] == "lit_fed" for module, _, _ in paths)
