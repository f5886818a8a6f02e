"""metrics.csv: one row per logged round; a resumed run continues after the rows of its checkpoint."""

from __future__ import annotations

import csv
import io
import math
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from lit_fed.clients.store_files import LAST, PREVIOUS
from lit_fed.errors import ConfigError, WriteError, notice
from lit_fed.system.files import write_atomically
from lit_fed.system.folder_lock import FolderLock
from lit_fed.system.foreign_files import read_table
from lit_fed.system.packages import pd

__all__ = [
    "KEYWORDS", "RoundLogger", "evaluated_split", "newest_checkpoint", "newest_version", "read_history", "writer_of",
    "writing",
]  # fmt: skip

KEYWORDS = {"last": LAST, "previous": PREVIOUS}
"""Words for checkpoints of the newest run of a name, and their files."""


def newest_version(folder: Path) -> int:
    """Number of the newest `version_<n>` of a run's folder; -1 without any."""
    numbers = [path.name.removeprefix("version_") for path in folder.glob("version_*") if path.is_dir()]
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def newest_checkpoint(folder: Path, word: str) -> tuple[Path, int]:
    """A checkpoint of the newest run of a name that has any, and the run's version.

    Args:
        folder: folder of the runs of this name.
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


def writer_of(folder: Path, fix: str = "wait until it ends, or start a new run without --ckpt_path") -> FolderLock:
    """The lock of a run's folder, for one process at a time.

    Args:
        folder: the run's.
        fix: advice if another process holds it.
    """
    return FolderLock(folder, f"the run {folder}", fix)


class RoundLogger(Logger):
    """Writes `OUT/<name>/version_<n>/metrics.csv`, a row for each round.

    A row is appended and rewritten in place during its round, so the cost of a round does not grow with the run.

    Args:
        save_dir: OUT.
        name: name of the run; None takes that of the algorithm's class when the run begins.
        version: n; None takes the next free one.
        keep_rounds: rounds of an existing file that a resumed run keeps.
        writer: lock of the folder, if the caller holds it.
    """

    def __init__(
        self, save_dir: str, name: str | None = None, version: int | None = None, keep_rounds: int = 0,
        writer: FolderLock | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._save_dir, self._name, self._version = Path(save_dir), name, version
        self._given = version
        self._made: list[Path] = []
        self._writer = writer
        self._keep_rounds = keep_rounds
        self._columns: list[str] | None = None
        self._row: dict[str, Any] = {}
        self._row_start = 0

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Choose the run's folder and lock it; rank zero holds the lock for all ranks.

        Raises:
            ConfigError: if another process holds it.
        """
        self.begin(name)
        if self._writer is not None or rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            yield
            return
        folder = Path(self.log_dir)
        self._made = self._made or [one for one in (folder, *folder.parents) if not one.exists()]
        try:
            with writer_of(folder) as self._writer:
                yield
        finally:
            self._writer = None
            self.release()

    def find(self, word: str, name: str) -> Path:
        """A checkpoint of this run, or before it began of the newest run of its name.

        Args:
            word: one of `KEYWORDS`.
            name: name of the run, if the logger was given none.

        Raises:
            ConfigError: if there is none.
        """
        own = None if self._version is None else Path(self.log_dir) / "checkpoints" / KEYWORDS[word]
        if own is not None and own.is_file():
            return own
        return newest_checkpoint(self._save_dir / (self._name or name), word)[0]

    def holds(self, checkpoint: str | Path) -> bool:
        """Whether a checkpoint lies in the run's folder."""
        return self._version is not None and Path(self.log_dir).resolve() in Path(checkpoint).resolve().parents

    def go_on(self, folder: Path, num_rounds: int) -> None:
        """Go on in the folder `OUT/NAME/version_N` of a run with some rounds, unless this logger has begun.

        Raises:
            ConfigError: if its rows are not what was written.
        """
        if self._columns is None:
            self._name, self._keep_rounds = self._name or folder.parent.name, num_rounds
            self._version = self._given = int(folder.name.removeprefix("version_"))
            self._kept()

    def refuse_other_run(self) -> None:
        """Refuse a new run in the folder of a run.

        Raises:
            ConfigError: naming the folder.
        """
        if self._columns is None and Path(self.log_dir, "metrics.csv").is_file():
            raise ConfigError(
                f"{self.log_dir} holds a run; leave its version out for a new one, or go on with it by ckpt_path='last'"
            )

    def begin(self, name: str) -> None:
        """Choose the run's folder, unless name and version are set; rank zero creates it, so that no runs share it."""
        self._name = self._name or name
        if self._version is None and rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            self._claim()

    def _claim(self) -> None:
        """Create the folder of the next free version."""
        runs = Path(self.log_dir).parent
        self._made = [one for one in (runs, *runs.parents) if not one.exists()]
        version = newest_version(runs) + 1
        while self._version is None:
            try:
                (runs / f"version_{version}").mkdir(parents=True)
                self._version = version
            except FileExistsError:
                version += 1
        self._made.insert(0, Path(self.log_dir))

    def release(self) -> None:
        """Delete the claimed folders that are empty: a run that is refused at its start leaves none."""
        for folder in self._made:
            try:
                folder.rmdir()
            except OSError:  # not empty
                break
            self._version = self._given
        self._made = []

    def agree(self, broadcast: Callable[[int | None], int | None]) -> None:
        """Broadcast the version from rank zero; a collective call."""
        self._version = broadcast(self._version)

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def version(self) -> str:
        free = newest_version(self._save_dir / (self._name or "")) + 1 if self._version is None else self._version
        return f"version_{free}"

    @property
    def save_dir(self) -> str:
        return str(self._save_dir)

    @property
    def log_dir(self) -> str:
        return str(self._save_dir / (self._name or "") / self.version)

    @property
    @rank_zero_experiment
    def experiment(self) -> Path:
        """The file; its folder is created with the first row."""
        return Path(self.log_dir) / "metrics.csv"

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing: config.yaml holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        columns = self._columns or self._open()
        try:
            if step != self._row.get("step"):
                self._row_start, self._row = self._file.stat().st_size, {"step": step}
            self._row |= {key: float(value) for key, value in metrics.items() if key != "epoch"}
            if not self._row.keys() <= set(columns):
                columns = self._widen(columns)
            with self._file.open("r+") as file:
                file.seek(self._row_start)
                file.write(_to_csv([self._row], columns))
                file.truncate()
        except OSError as error:  # a resumed run drops the row
            raise WriteError(self._file, error) from error

    def _open(self) -> list[str]:
        """Keep the rows of the rounds before the resume, for a test all; a row cut off by a kill is dropped."""
        self.begin("run")
        self._file = file = self.experiment  # the same for all rows
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() and self._keep_rounds:
            notice(f"{file} is gone; it begins again with round {self._keep_rounds}, counted from 0")
        return self._write(*self._kept())

    def _kept(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Rows and columns of the file, if there is one.

        Raises:
            ConfigError: if the file is not what was written.
        """
        file = Path(self.log_dir) / "metrics.csv"
        if not file.is_file():
            return [], ["step"]
        try:
            text = file.read_text()
            reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]), restkey="")
            rows = [row for row in reader if int(row["step"]) < (self._keep_rounds or math.inf)]
            if any("" in row for row in rows):
                raise ValueError("a row is longer than the header")
        except (ValueError, LookupError, TypeError, csv.Error) as error:
            raise ConfigError(
                f"{file} is not what was written ({error}); restore it, or move it away to begin a new one"
            ) from error
        return rows, list(reader.fieldnames or ["step"])

    def _widen(self, before: list[str]) -> list[str]:
        """Add columns, which rewrites the whole file."""
        text = self._file.read_text()
        whole = list(csv.DictReader(io.StringIO(text[: self._row_start])))
        columns = self._write(whole, ["step", *sorted({*before, *self._row} - {"step"})])
        self._row_start = self._file.stat().st_size
        return columns

    def _write(self, rows: list[dict[str, Any]], columns: list[str]) -> list[str]:
        """Write the whole file; returns its columns."""
        write_atomically(self._file, ",".join(columns) + "\n" + _to_csv(rows, columns))
        self._columns = columns
        return columns


@contextmanager
def writing(loggers: Iterable[Any], name: str | None = None) -> Iterator[None]:
    """Lock the folders of these loggers against other processes.

    Args:
        loggers: loggers of a trainer; other kinds are ignored.
        name: name of a new run; None locks existing folders only.

    Raises:
        ConfigError: naming the process that holds one of them.
    """
    with ExitStack() as held:
        for logger in loggers:
            if isinstance(logger, RoundLogger) and (name is not None or Path(logger.log_dir).is_dir()):
                held.enter_context(logger.held(name or "run"))
        yield


def _to_csv(rows: list[dict[str, Any]], columns: list[str]) -> str:
    out = io.StringIO()
    csv.DictWriter(out, columns, restval="", lineterminator="\n").writerows(rows)
    return out.getvalue()


# ---------------------------------------------------------------------- reading
def read_history(folder: Path) -> pd.DataFrame:
    """The rounds of a run's metrics.csv, with `sent`: bytes that clients sent and received in all rounds so far.

    Args:
        folder: the run's folder; a run without that file has no rounds.

    Raises:
        ConfigError: naming the file, and the column that no run has written.
    """
    path, fix = folder / "metrics.csv", "give the folder of a run of lit_fed"
    history = read_table(path, fix, wholes=("step",)) if path.is_file() else pd.DataFrame()
    if not {"comm/bytes_up", "comm/bytes_down"} <= set(history):
        return pd.DataFrame({"step": [], "sent": []})
    history = history[history["comm/bytes_up"].notna()]  # without the row of the final test
    if (twice := history["step"].duplicated()).any():
        raise ConfigError(f"{path}: step {history['step'][twice].iloc[0]} is there twice; {fix}")
    sent = (history["comm/bytes_up"] + history["comm/bytes_down"]).cumsum()
    return pd.concat([history, sent.rename("sent")], axis=1)  # avoids a warning of pandas about fragmented frames


def evaluated_split(history: pd.DataFrame) -> str:
    """The split that the periodic evaluation measured."""
    return "val" if any(str(column).startswith("val/") for column in history) else "test"
