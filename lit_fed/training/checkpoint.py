"""Checkpoints: written whole or not at all, and refused where they belong to another run."""

from __future__ import annotations

import ast
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.callbacks import Checkpoint

from lit_fed.clients.store_files import LAST, PREVIOUS, folder_beside
from lit_fed.errors import ConfigError
from lit_fed.system.checked_archive import DamagedFileError, load_checked
from lit_fed.system.files import whole_file
from lit_fed.system.given_paths import reason

__all__ = [
    "CHECKPOINT_KEY",
    "WITHOUT_DATA",
    "AtomicCheckpointIO",
    "DamagedCheckpointError",
    "Difference",
    "clients_folder",
    "compare_arguments",
    "compare_identities",
    "load_checkpoint",
    "not_about_serving",
    "refuse_differences",
    "refuse_other_run",
    "refuse_other_terms",
    "schedule_rounds",
    "with_atomic_checkpoints",
]

CHECKPOINT_KEY = "lit_fed"
"""Where a checkpoint keeps what Lightning does not."""

WITHOUT_DATA = (
    "a checkpoint holds states, not data: pass it to a trainer with the data module, as in "
    "trainer.test(module, datamodule=..., ckpt_path=...)"
)
"""What is said where a module without data is given a checkpoint."""

CHANGEABLE = {f"solver.{name}" for name in ("lr", "adapt_lr", "schedule", "schedule_rounds", "clip_norm")}
"""Settings with which a run may be told to go on: how far clients step, not what they compute."""

COUNTED_ON = {
    "sampling_probability": "the share of clients in a round",
    "num_clients": "the number of clients",
    "total_samples": "the number of training samples",
    "weighting": "model.weighting",
    "batch_size": "data.batch_size",
}
"""Terms that the ε of all rounds counts on, and noise that is drawn again, with what messages call them."""

MEASURED = {"model.metrics"}
"""Settings that say what is measured of a run, not what is computed in it."""

OWN_ENTRIES = ("identity", "arguments", "num_rounds", "results")
"""What every checkpoint of lit_fed has under this key."""

ENTRIES = ("pytorch-lightning_version", "epoch", "global_step", "state_dict")
"""What Lightning writes into every checkpoint."""

TRAINING_ENTRIES = ("loops", "optimizer_states", "lr_schedulers")
"""What it leaves out of a checkpoint with `save_weights_only`."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and moves it there: a kill at any moment leaves the last good one intact.

    The `last.ckpt` before it is kept as `previous.ckpt`, if this process wrote it or went on from it: one that was
    there already, and that the run did not go on from, may be damaged, and must not take the place of a good one.
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
        """A checkpoint of lit_fed; whatever else the file holds is refused by name."""
        content = load_checkpoint(Path(path))
        self._good.add(Path(path).resolve())
        return content


def with_atomic_checkpoints(plugins: Any) -> list[Any]:
    """The plugins of a trainer, with one that writes checkpoints whole where none is among them."""
    chosen = [] if plugins is None else list(plugins) if isinstance(plugins, list | tuple) else [plugins]
    if any(isinstance(plugin, TorchCheckpointIO) for plugin in chosen):
        return chosen
    return [*chosen, AtomicCheckpointIO()]


def clients_folder(checkpoints: Sequence[Checkpoint]) -> Path | None:
    """Where a run keeps its client files: beside the folder of its `last.ckpt`; None for a run without checkpoints.

    Args:
        checkpoints: the callbacks that write checkpoints.
    """
    last_first = sorted(checkpoints, key=lambda one: getattr(one, "filename", None) != "last")
    folders = [Path(folder) for one in last_first if (folder := getattr(one, "dirpath", None)) is not None]
    return folder_beside(folders[0]).absolute() if folders else None


class DamagedCheckpointError(ConfigError):
    """A checkpoint is not what was written.

    Attributes:
        path: the checkpoint.
        previous: the one before it, if that is whole.
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
        resumable: training shall go on from it, which takes more than serving from it.
        option: the argument that named it.
        values: read the values of tensors; else their shapes alone.

    Raises:
        DamagedCheckpointError: if it is not what was written.
        ConfigError: if it cannot be read, was not written by lit_fed, or lacks something.
    """
    fix = "give a file from the folder checkpoints of a run"
    try:
        content = load_checked(path, values=values)
    except DamagedFileError as error:
        raise DamagedCheckpointError(path, option, str(error), fix) from error
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read ({reason(error)}); {fix}") from error
    if not isinstance(content, dict) or not isinstance(content.get(CHECKPOINT_KEY), dict):
        found = "a checkpoint of another program" if isinstance(content, dict) else f"a {type(content).__name__}"
        raise ConfigError(f"{option} {path} holds {found}; {fix}")
    lacks = [f"{CHECKPOINT_KEY}.{key}" for key in OWN_ENTRIES if key not in content[CHECKPOINT_KEY]]
    lacks += [key for key in ENTRIES if key not in content]
    if lacks:
        raise ConfigError(f"{option} {path} lacks {', '.join(lacks)}; {fix}")
    if resumable and any(key not in content for key in TRAINING_ENTRIES):
        raise ConfigError(f"--ckpt_path {path} holds models alone, from which no run can go on; give its last.ckpt")
    return content


class Difference(NamedTuple):
    """A setting whose value in a checkpoint is not that of the run that wants it."""

    setting: str  # its name on the command line, without the dashes
    before: Any
    now: Any

    @property
    def may_change(self) -> bool:
        """Whether a fit may be told to go on with the new value."""
        return self.setting.removeprefix("model.") in CHANGEABLE

    def decides_serving(self, algorithm: Any) -> bool:
        """Whether it decides how clients of this algorithm are served, and nothing else."""
        owner, _, name = self.setting.removeprefix("model.").replace(".inner", "").rpartition(".")
        return name in {"algorithm": algorithm.serving_settings, "solver": ("adapt_lr",)}.get(owner, ())

    def __str__(self) -> str:
        """A line for a message."""
        return f"{self.setting} is {self.now}, in the checkpoint {self.before}"


def refuse_other_run(
    stored: dict[str, Any] | None,
    arguments: dict[str, Any],
    identity: dict[str, Any],
    settings: dict[str, Any],
    *,
    goes_on: bool = False,
    with_changes: bool = False,
) -> list[Difference]:
    """Compare what a checkpoint says of its run with the run that wants it.

    Args:
        stored: what the checkpoint keeps under `CHECKPOINT_KEY`.
        arguments: this run's arguments, as the command line gave them; {} without one.
        identity: what this run must share with the checkpoint in any case.
        settings: algorithm and solver, whose `repr` the identity holds.
        goes_on: the run is a fit, which may be told to go on with changes.
        with_changes: it was told so.

    Returns:
        The changes with which it goes on; without being told so, none.

    Raises:
        ConfigError: naming what differs.
    """
    if stored is None:
        raise ConfigError("the checkpoint was not written by lit_fed; give one of a run's checkpoints folder")
    found = (
        compare_arguments(stored["arguments"], arguments),
        compare_identities(stored["identity"], identity, settings),
    )
    given, inside = ([one for one in each if not _is_the_same_end(one, stored)] for each in found)
    if not goes_on:
        given, inside = (not_about_serving(each, settings["algorithm"]) for each in (given, inside))
    refused = [one for one in given + inside if not one.may_change]
    if goes_on and with_changes:
        refuse_differences(refused)
    else:
        refuse_differences(given or inside, may_change=goes_on and not refused)
    return given or inside


def refuse_other_terms(before: dict[str, Any], now: Any) -> None:
    """Refuse to go on with a private run under other terms: one ε is reported, as if all rounds had had the same.

    Args:
        before: terms of the rounds so far, by their names; of those that are missing nothing is known.
        now: what holds the terms of the rounds to come.

    Raises:
        ConfigError: naming what differs.
    """
    for name, said in COUNTED_ON.items():
        found = before.get(name, getattr(now, name)), getattr(now, name)
        if found[0] != found[1]:
            raise ConfigError(
                f"--model.privacy counts on the same terms in all rounds, and {said} is {found[1]}, in the rounds so "
                f"far {found[0]}; give the same value, or start a new run"
            )


def not_about_serving(differences: list[Difference], algorithm: Any) -> list[Difference]:
    """Differences that a checkpoint may not have from a command which serves clients from it."""
    return [one for one in differences if not one.decides_serving(algorithm)]


def schedule_rounds(stored: dict[str, Any]) -> int:
    """The rounds that a checkpoint's schedule was laid out for; one that does not say it, for those of its run."""
    return int(stored.get("schedule_rounds", stored["num_rounds"]))


def _is_the_same_end(found: Difference, stored: dict[str, Any]) -> bool:
    """Whether a schedule ends where it did: there it is said, here it is left to the checkpoint, or the reverse."""
    return found.setting.endswith("solver.schedule_rounds") and found.now in (None, schedule_rounds(stored))


def refuse_differences(differences: list[Difference], *, may_change: bool = False) -> None:
    """Raise a `ConfigError` with the first of these differences between a checkpoint and a run, if there are any.

    Args:
        differences: what differs.
        may_change: say how to go on with all of them.
    """
    if differences:
        way_out = "add --resume_with_changes to go on with the new ones, " if may_change else ""
        raise ConfigError(
            f"the checkpoint is of another run: {'; '.join(map(str, differences[:4]))}. Give the same values, {way_out}"
            "or start a new run without --ckpt_path"
        )


def compare_arguments(stored: dict[str, Any], given: dict[str, Any], prefix: str = "") -> list[Difference]:
    """Arguments that differ between two nested dicts; nothing is compared with an empty dict.

    Example:
        >>> [str(one) for one in compare_arguments({"lr": 0.1}, {"lr": 0.2}, "model.solver.")]
        ['model.solver.lr is 0.2, in the checkpoint 0.1']
    """
    if not stored or not given:
        return []
    found = []
    for key, before in stored.items():  # what is only given came later; identities tell whether it matters
        now = given.get(key)
        if f"{prefix}{key}" in MEASURED:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            found += compare_arguments(before, now, f"{prefix}{key}.")
        elif before != now and not (key == "class_path" and _same_class(before, now)):
            found.append(Difference(f"{prefix}{key}", before, now))
    return [one._replace(setting=one.setting.replace(".init_args.", ".").replace(".class_path", "")) for one in found]


def compare_identities(stored: dict[str, Any], given: dict[str, Any], settings: dict[str, Any]) -> list[Difference]:
    """What differs between the identities of two runs, of algorithm and solver field by field.

    Args:
        stored: the identity in a checkpoint.
        given: that of the run which wants it.
        settings: the dataclasses of this run whose `repr` is in its identity, by their names there. A field that the
            stored one lacks came later, and counts with its default.
    """
    known = {name: one for name, one in settings.items() if dataclasses.is_dataclass(one)}
    before, now = (
        identity | {name: _value(ast.parse(identity[name], mode="eval").body, one) for name, one in known.items()}
        for identity in (stored, given)
    )
    return compare_arguments(before, now)


def _fields(call: Any, settings: Any) -> dict[str, Any]:
    """The fields in a dataclass's `repr`, with the defaults of those that it lacks."""
    fields: dict[str, Any] = {"class_path": ast.unparse(call.func)}
    if type(settings).__name__ != fields["class_path"]:
        return fields
    written = {one.arg: one.value for one in call.keywords}
    for field in dataclasses.fields(settings):
        shown = written.get(field.name)
        if shown is None and field.default is not dataclasses.MISSING:
            shown = ast.parse(repr(field.default), mode="eval").body
        fields[field.name] = None if shown is None else _value(shown, getattr(settings, field.name))
    return fields


def _value(shown: ast.expr, settings: Any) -> Any:
    if isinstance(shown, ast.Call) and dataclasses.is_dataclass(settings):
        return _fields(shown, settings)
    try:
        return ast.literal_eval(shown)
    except ValueError:  # infinity, which has no literal
        return ast.unparse(shown)


def _same_class(one: Any, other: Any) -> bool:
    """Whether two paths name the same class of this package: classes may move, and a path is as short as it can be."""
    paths = [str(path).rpartition(".") for path in (one, other)]
    return paths[0][2] == paths[1][2] and all(module.partition(".")[0] == "lit_fed" for module, _, _ in paths)
