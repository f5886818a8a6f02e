"""Checkpoint files: written atomically; read by type, so that nothing in them is executed, written to or deleted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint, Timer
from torch import Tensor

from lit_fed.clients.store_files import LAST, PREVIOUS, folder_beside
from lit_fed.data.facts import FACTS, FLAG, SHARE, TrainingFacts, vector
from lit_fed.errors import ConfigError, notice
from lit_fed.system.checked_archive import DamagedFileError, is_dense, load_checked, tensor
from lit_fed.system.files import os_error_text, whole_file
from lit_fed.system.names import LONGEST_SHOWN
from lit_fed.system.readers import (
    MOST,
    FormError,
    Reader,
    instance,
    keyed,
    list_of,
    number,
    one_of,
    optional,
    plain,
    record,
    text,
    whole,
)
from lit_fed.system.upgrade import facts_of_today, upgraded

__all__ = [
    "CHECKPOINT_KEY", "WORD", "AtomicCheckpointIO", "DamagedCheckpointError", "clients_folder", "keep_harmless",
    "load_checkpoint", "with_atomic_checkpoints",
]  # fmt: skip

DEEPEST = 40
"""Nesting of the entries of a checkpoint; those of a run have a dozen levels."""

PARTS = (dict, list, tuple)

LOOPS = ("fit_loop", "validate_loop", "test_loop", "predict_loop")

FIX = "give a file from the folder checkpoints of a run"

CHECKPOINT_KEY = "lit_fed"
"""Key of the entries that lit_fed adds to a checkpoint."""

WORD = re.compile(r"[\w-]*")
"""A text that is no path outside of the working folder, and no address."""


# ---------------------------------------------------------------------- types of entries
def _texts(value: Any, *, keys: bool) -> Iterator[str]:
    """The texts in a plain value, with or without the keys of dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in (*(value if keys else ()), *value.values()):
            yield from _texts(one, keys=keys)
    elif isinstance(value, list | tuple | set):
        for one in value:
            yield from _texts(one, keys=keys)


def _counts(value: Any, place: str) -> Any:
    """Read the progress of a loop: counts and flags, by name."""
    if isinstance(value, dict):
        return keyed(TEXT, _counts, MOST)(value, place)
    return value if isinstance(value, bool) else STEP(value, place)


def _one_number(value: Any, place: str) -> Any:
    """Read a real number, or a tensor of one."""
    is_one = is_dense(value) and value.numel() == 1 and not value.is_complex()
    return value if is_one else instance(int, float)(value, place)


def _one_tensor(value: Any, place: str) -> Tensor:
    """Read a tensor of one real number."""
    return cast(Tensor, _one_number(tensor(value, place), place))


def _rate(value: Any, place: str) -> Any:
    """Read a learning rate."""
    return one_of("auto", None)(value, place) if value is None or isinstance(value, str) else number(0)(value, place)


def _at_least(fields: Mapping[str, Reader]) -> Reader:
    """Read an object with these names and any others."""

    def read(value: Any, place: str) -> Any:
        others = dict.fromkeys(value, instance(object)) if isinstance(value, dict) else {}
        return record(others | dict(fields))(value, place)

    return read


def _identity(value: Any, place: str) -> Any:
    """Read the identity of a run."""
    return _at_least({"solver": _at_least({"lr": _rate}), "algorithm": ANY_PLAIN})(ANY_PLAIN(value, place), place)


def _folder(value: Any, place: str) -> str:
    """Read a path that a file system takes; what is in it is read, and nothing is written there."""
    path = str(TEXT(value, place))
    if len(path) > LONGEST_PATH or "\0" in path or any(len(part) > LONGEST_PART for part in Path(path).parts):
        raise FormError(f"{place} is not the path of a folder")
    return path


LONGEST_PATH, LONGEST_PART = 4096, 255
"""Letters of a path, and of a name in it."""

TEXT, STEP, ANY_PLAIN = instance(str), whole(0), plain(MOST, DEEPEST)
PLAIN, TENSORS = keyed(TEXT, ANY_PLAIN, MOST), keyed(TEXT, tensor, MOST)

SPENT = record(
    {"epsilon": instance(int, float), "delta": number(0, 1), "unit": TEXT, "adjacency": TEXT, "public_start": FLAG},
    may_miss=("public_start",),
)
"""A privacy guarantee in short."""

THRESHOLDS = record(
    {"coverage": SHARE, "fraction": SHARE, "served": TEXT, "shared": instance(float), "ids": vector, "own": vector}
)
"""Thresholds of prediction sets, see `lit_fed.training.thresholds`."""

SECTIONS: dict[str, Reader] = dict.fromkeys(("model", "data", "trainer"), PLAIN) | {"seed_everything": ANY_PLAIN}
"""Sections of the arguments of a run."""

OWN_ENTRIES: Mapping[str, Reader] = {
    "identity": _identity, "arguments": record(SECTIONS, may_miss=tuple(SECTIONS)), "num_rounds": STEP,
    "schedule_rounds": STEP,
    "results": keyed(TEXT, _one_number, MOST),
    "changes": list_of(record({"after_rounds": STEP, "setting": TEXT, "from": ANY_PLAIN, "to": ANY_PLAIN}), MOST),
    "client_files": optional(_folder),
    "init_from": optional(
        record(
            {
                "path": TEXT, "algorithm": TEXT, "rounds": STEP, "parameters": TENSORS, "buffers": TENSORS,
                "digest": TEXT, "spent": optional(SPENT), "clients": optional(tensor),
            },
            may_miss=("clients",),
        )
    ),
    "spent": optional(SPENT), "noise": TEXT,
    "serving": record(FACTS, may_miss=tuple(one.name for one in fields(TrainingFacts) if one.default is not MISSING)),
    "frozen": optional(record({"digest": TEXT, "source": TEXT, "tensors": STEP, "numbers": STEP})),
    "thresholds": optional(THRESHOLDS),
}  # fmt: skip
"""Entries of every checkpoint under `CHECKPOINT_KEY`; those up to version 0.3 have no thresholds."""

ENTRIES: Mapping[str, Reader] = {
    "pytorch-lightning_version": text(40, r"[2-9]\.\d+(\.\w+)*"), "epoch": STEP, "global_step": STEP,
    "state_dict": TENSORS,
}  # fmt: skip
"""Entries of every checkpoint of Lightning."""

GROUP = record({"lr": instance(float), "params": list_of(STEP, MOST)})

TRAINING_ENTRIES: Mapping[str, Reader] = {
    "loops": _counts, "lr_schedulers": list_of(ANY_PLAIN, 0),
    "optimizer_states": list_of(record({"state": record({}), "param_groups": list_of(GROUP, 1)}), 1),
}  # fmt: skip
"""Entries that `save_weights_only` leaves out."""

OTHER_ENTRIES: Mapping[str, Reader] = {"callbacks": keyed(TEXT, keyed(TEXT, instance(object), MOST), MOST)}

OF_LIGHTNING: dict[type[Callback], dict[str, Reader]] = {
    EarlyStopping: dict.fromkeys(("wait_count", "stopped_epoch", "patience"), STEP) | {"best_score": _one_tensor},
    ModelCheckpoint: {
        "best_model_score": optional(_one_number),
        "best_k_models": keyed(TEXT, _one_number, MOST),
        "kth_value": _one_number,
    },
    Timer: {"time_elapsed": keyed(TEXT, number(0), MOST)},
}
"""Entries that states of Lightning's callbacks hold; `_is_like` says nothing of those that begin empty."""


# ---------------------------------------------------------------------- files
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


def _is_shallow(content: Any) -> bool:
    """Whether a value is nested at most `DEEPEST` times; one that holds itself is not."""
    layer = [content]
    for _ in range(DEEPEST):
        parts = [one.values() if isinstance(one, dict) else one for one in layer if isinstance(one, PARTS)]
        layer = list(
            {id(inner): inner for part in parts for inner in part}.values()
        )  # each once, as it may hold itself
        if not layer:
            return True
    return False


def _whole_previous(path: Path) -> Path | None:
    previous = path.with_name(PREVIOUS)
    if path.name != LAST or not previous.is_file():
        return None
    try:
        load_checkpoint(previous, values=False)
    except ConfigError:
        return None
    return previous


def _check_types(content: dict[str, Any], place: str, fix: str) -> None:
    """Refuse entries of another type than those of a run, by name."""
    own = {f"{CHECKPOINT_KEY}.{name}": reader for name, reader in OWN_ENTRIES.items()}
    try:
        for name, reader in {**ENTRIES, **TRAINING_ENTRIES, **OTHER_ENTRIES, **own}.items():
            entries, key = (content[CHECKPOINT_KEY], name.partition(".")[2]) if name in own else (content, name)
            if key in entries:
                reader(entries[key], name)
    except FormError as error:
        raise ConfigError(f"{place}: its entry {error}; {fix}") from error


def load_checkpoint(
    path: Path, *, resumable: bool = False, option: str = "--ckpt_path", values: bool = True
) -> dict[str, Any]:
    """A checkpoint's content, on the CPU, each entry of its type; plain types only, so nothing in it is ever executed.

    Args:
        path: the file.
        resumable: training will resume from it, which needs more than serving.
        option: the argument that named it.
        values: read the values of tensors; otherwise each is read from the file when it is used.

    Raises:
        DamagedCheckpointError: if it is damaged.
        ConfigError: if it cannot be read, was not written by lit_fed, or lacks something or holds something else.
    """
    fix = FIX
    try:
        content = load_checked(path, values=values)
        if not _is_shallow(content):
            raise DamagedFileError("its entries are nested deeper than those of any run")
    except DamagedFileError as error:
        raise DamagedCheckpointError(path, option, str(error), fix) from error
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read ({os_error_text(error)}); {fix}") from error
    if not isinstance(content, dict) or not isinstance(content.get(CHECKPOINT_KEY), dict):
        found = "a checkpoint of another program" if isinstance(content, dict) else f"a {type(content).__name__}"
        raise ConfigError(f"{option} {path} holds {found}; {fix}")
    content[CHECKPOINT_KEY].setdefault("thresholds", None)
    lacks = [f"{CHECKPOINT_KEY}.{key}" for key in OWN_ENTRIES if key not in content[CHECKPOINT_KEY]]
    lacks += [key for key in ENTRIES if key not in content]
    if lacks:
        raise ConfigError(f"{option} {path} lacks {', '.join(lacks)}; {fix}")
    if resumable and any(key not in content for key in TRAINING_ENTRIES):
        raise ConfigError(f"--ckpt_path {path} holds models alone, from which no run can go on; give its last.ckpt")
    content[CHECKPOINT_KEY]["serving"] = facts_of_today(content[CHECKPOINT_KEY]["serving"])
    _check_types(content, f"{option} {path}", fix)
    today = upgraded(content[CHECKPOINT_KEY], f"{option} {path}")
    if values and today != content[CHECKPOINT_KEY]:
        notice(f"{option} {path} is of version 0.2: its settings are read in today's names, see docs/upgrade.md")
    return content | {CHECKPOINT_KEY: today}


# ---------------------------------------------------------------------- states of callbacks
def keep_harmless(checkpoint: dict[str, Any], trainer: Trainer, place: str) -> None:
    """Leave in a checkpoint, before Lightning restores it, what the run can take, and no path to write to or delete.

    A state of a callback stays if it is like the callback's own and its texts are the callback's own, words, or, where
    the callback has a folder, files of checkpoints in it. What is removed is named on stderr.

    Args:
        checkpoint: its content, changed in place.
        trainer: trainer with the callbacks, after their `setup`.
        place: the checkpoint, for messages.

    Raises:
        ConfigError: if its loops are not those of the trainer.
    """
    if "loops" in checkpoint:
        own = {name: getattr(trainer, name).state_dict() for name in LOOPS}
        if not _is_like(checkpoint["loops"], own, exactly=True):
            raise ConfigError(f"{place}: its entry loops is not of the form of this version of Lightning; {FIX}")
        _check_counts(checkpoint, place)
    for name in checkpoint.keys() & {"optimizer_states", "lr_schedulers"}:
        checkpoint[name] = []  # the one optimizer has no state, and there is no scheduler
    found, said = checkpoint.get("callbacks", {}), []
    states: dict[str, Any] = {}
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        state = found.get(callback.state_key)
        reason = _misfit(callback, state) if state else ""
        if isinstance(callback, EarlyStopping) and state and not reason:  # Lightning would keep the old one silently
            state = state | {"patience": callback.patience}
        states |= {} if reason or not state else {callback.state_key: state}
        said += [f"the state of {type(callback).__name__} in the checkpoint {reason}; it starts anew"] if reason else []
    if "callbacks" in checkpoint:  # the keys stay, since Lightning names callbacks that are missing
        checkpoint["callbacks"] = {key: states.get(key, {}) for key in found}
    known = {*ENTRIES, *TRAINING_ENTRIES, *OTHER_ENTRIES, CHECKPOINT_KEY, "legacy_pytorch-lightning_version"}
    for name in [name for name in checkpoint if name not in known]:
        if any(not WORD.fullmatch(one) for one in _texts(checkpoint[name], keys=False)):
            del checkpoint[name]
            said.append(f"the entry {str(name)[:LONGEST_SHOWN]} of the checkpoint may name a file; it is not used")
    for one in said if trainer.is_global_zero else ():
        notice(one)


def _check_counts(checkpoint: dict[str, Any], place: str) -> None:
    """Refuse rounds that are counted differently in a checkpoint's entries: one epoch and one step are one round."""
    steps, fit = checkpoint.get("global_step", 0), checkpoint["loops"]["fit_loop"]
    done = fit["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"]
    begun = fit["epoch_progress"]["total"]["ready"]  # batches are blocks of clients, as many as a round has
    counted = steps  # a program may fit a module twice
    if checkpoint.get(CHECKPOINT_KEY, {}).get("arguments") and "rounds" in checkpoint["state_dict"]:
        counted = checkpoint["state_dict"]["rounds"].tolist()
    if not done == steps == counted or begun not in (steps, steps + 1):  # one may be interrupted
        raise ConfigError(f"{place}: its rounds are {steps}, {done}, {counted} and {begun} in different entries; {FIX}")


def _misfit(callback: Callback, state: dict[str, Any]) -> str:
    """Why a callback does not take a state; "" if it does."""
    own, folder = callback.state_dict(), getattr(callback, "dirpath", None)
    kept = getattr(callback, "kept", None)  # of a `FederatedCallback`
    forms = [record(kept)] if kept else [_at_least(f) for kind, f in OF_LIGHTNING.items() if isinstance(callback, kind)]
    try:
        for form in forms:
            form(state, "it")
    except FormError as error:
        return f"is of another form ({error})"
    if isinstance(callback, EarlyStopping):  # it has no folder, and keeps why it stopped
        return "" if _is_like(state, own) else "is not of the form of its own"
    known = {*_texts(own, keys=True)}
    for one in _texts(state, keys=folder is not None):
        if one not in known and not (WORD.fullmatch(one) if folder is None else _is_checkpoint_in(folder, one)):
            place = (
                "is no word, and might name a file" if folder is None else f"is no checkpoint in its folder {folder}"
            )
            return f"holds {one[:LONGEST_SHOWN]!r}, which {place}"
    return "" if _is_like(state, own) else "is not of the form of its own"


def _is_checkpoint_in(folder: str | Path, text: str) -> bool:
    """Whether a text is the path of a checkpoint's file in a folder; addresses, `local://` among them, are none."""
    path = Path(text)
    is_address = "::" in text or "://" in text or "\0" in text
    return not is_address and path.suffix == ".ckpt" and Path(folder).resolve() in path.resolve().parents


def _is_like(state: Any, own: Any, *, exactly: bool = False) -> bool:
    """Whether a value has the form of another: numbers alike, and at least, or `exactly`, the names of a dict."""
    if exactly and isinstance(own, bool) != isinstance(state, bool):
        return False
    if own is None or state is None:
        return not exactly or own is state
    if isinstance(own, dict):
        like = isinstance(state, dict) and own.keys() <= state.keys() and not (exactly and own.keys() < state.keys())
        return like and all(_is_like(state[name], one, exactly=exactly) for name, one in own.items())
    kind = next((one for one in ((int, float, Tensor), (str,), (list, tuple)) if isinstance(own, one)), (object,))
    return isinstance(state, kind)
