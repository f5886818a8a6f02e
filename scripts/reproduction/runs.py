"""Runs of the command line, made once, and what is kept of them."""

import fcntl
import gzip
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CURVE = ("accuracy", "accuracy_decile", "loss", "loss@served")
"""What is kept of every evaluated round, of each split and population."""

QUIET = (
    "--trainer.enable_progress_bar", "false",
    "--trainer.callbacks+=RunReport", "--trainer.callbacks.pictures", "false",
)  # fmt: skip

Record = dict[str, Any]


class Run(NamedTuple):
    """One run of `fit`, or of its data alone."""

    name: str  # setting/method-seed
    config: str  # of configs/experiment
    arguments: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()  # functions of measures.py, called when the run is done
    fit: bool = True  # False: the data are loaded and divided, nothing is trained


class Kept:
    """Records of runs: a JSON Lines file for each experiment, sorted by the names of its runs.

    A record counts only for a run with the same arguments.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, run: Run) -> Record | None:
        """The record of a finished run, if there is one."""
        record = self._of_these_settings(run)
        done = record is not None and "diverged" not in record and set(run.measures) <= record.keys()
        return record if done else None

    def diverged(self, run: Run) -> int | None:
        """The round, from 0, in which a run ended with NaN or infinity; None if it did not, or was not made."""
        record = self._of_these_settings(run)
        return None if record is None else record.get("diverged")

    def _of_these_settings(self, run: Run) -> Record | None:
        record = read_records(self._path(run)).get(run.name)
        return record if record is not None and record["arguments"] == list(run.arguments) else None

    def all(self, runs: Iterable[Run]) -> list[Record]:
        """The records of the finished runs."""
        return [record for record in map(self.find, runs) if record is not None]

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """The runs that neither finished nor diverged, each once."""
        return [run for run in dict.fromkeys(runs) if self.find(run) is None and self.diverged(run) is None]

    def write(self, run: Run, record: Record) -> None:
        """Keep a record."""
        write_record(self._path(run), run.name, record)

    def _path(self, run: Run) -> Path:
        return self.folder / f"{run.config}.jsonl.gz"


def read_records(path: Path) -> dict[str, Record]:
    """The records of a compressed JSON Lines file by the names of their runs; empty without a file."""
    state = path.stat() if path.is_file() else None
    return {} if state is None else _parsed(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=256)
def _parsed(path: Path, modified: int, size: int) -> dict[str, Record]:
    return {record["run"]: record for record in map(json.loads, gzip.decompress(path.read_bytes()).splitlines())}


def write_record(path: Path, name: str, record: Record) -> None:
    """Add a record to a compressed JSON Lines file or replace it there; other processes may do the same."""
    from lit_fed.system.files import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        records = read_records(path) | {name: {"run": name, **record}}
        lines = [json.dumps(records[one], sort_keys=True, separators=(",", ":")) for one in sorted(records)]
        write_atomically(path, gzip.compress("\n".join(lines).encode(), mtime=0))
    finally:
        os.close(folder)


def command_line(run: Run) -> str:
    """The command that makes a run."""
    quoted = " ".join(f'"{one}"' if set(one) & set(" [{") else one for one in run.arguments)
    command = "fit" if run.fit else "partition"
    found = "PYTHONPATH=scripts " if "reproduction." in quoted else ""  # classes of this package
    return f"{found}python -m lit_fed {command} --config configs/experiment/{run.config}.yaml {quoted}".strip()


def make_missing(
    runs: Sequence[Run], kept: Kept, extra: Callable[[Run], Sequence[str]], jobs: int, done: Callable[[Run], None],
    unfinished: Path | None = None,
) -> None:  # fmt: skip
    """Make what has no record, each run in one process with one thread.

    A run that is refused, say since its data are not there, leaves the others alone: it has no record. Of one that
    diverges the round is kept, and it is not made again.
    """
    from lit_fed.errors import ClientError, ConfigError
    from lit_fed.system.trials import Outcome, executor_of, independent, run_trials

    def keep(trial: tuple[Run, Sequence[str]], outcome: Outcome) -> None:
        run, (record, error) = trial[0], outcome
        if error is not None:
            print(f"{run.name} is not run: {error}", file=sys.stderr, flush=True)
            return
        kept.write(run, record)
        if "diverged" in record:
            print(f"{run.name} diverged: {record['reason']}", file=sys.stderr, flush=True)
        else:
            done(run)

    missing = [(run, extra(run)) for run in kept.missing(runs)]
    jobs, refused = min(jobs, len(missing)), (ClientError, ConfigError)
    with executor_of(jobs) as executor:
        run_trials([independent(missing)], partial(_make, unfinished), executor, jobs, keep=keep, failures=refused)


def _make(unfinished: Path | None, trial: tuple[Run, Sequence[str]]) -> Record:
    return make(*trial, unfinished)


def make(run: Run, extra: Sequence[str], unfinished: Path | None = None) -> Record:
    """Fit, test and measure; in the end the run's folder is thrown away.

    What a client returns may hold NaN or infinity, which ends the run: then the record holds the round under
    `diverged` and the message under `reason`, and no figures. `unfinished` holds the folder meanwhile: a run that was
    cut short goes on after its last checkpoint.
    """
    import torch

    from lit_fed.callbacks.defaults import keep_notices_out
    from lit_fed.cli import FederatedCLI
    from lit_fed.errors import NotFiniteError
    from reproduction.measures import MEASURES

    class DataCLI(FederatedCLI):
        """Loads and divides the data of a configuration; nothing is trained or written."""

        def _run_subcommand(self, subcommand: str) -> None:
            self.datamodule.prepare_data()
            self.datamodule.setup()

    torch.set_num_threads(1)
    keep_notices_out()
    with _folder(run, unfinished) as out, open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        config = str(ROOT / f"configs/experiment/{run.config}.yaml")
        given = ["fit", "--config", config, *run.arguments, *extra, *QUIET, "--trainer.default_root_dir", str(out)]
        if any(out.rglob("checkpoints/last.ckpt")):
            given += ["--ckpt_path", "last"]
        record: Record = {"arguments": list(run.arguments)}
        try:
            cli = (FederatedCLI if run.fit else DataCLI)(given)
        except NotFiniteError as error:
            if error.round_idx is None:
                raise
            return record | {"diverged": error.round_idx, "reason": str(error)}
        folder = Path(cli.trainer.log_dir or out)
        record |= {"summary": {}, "curve": {}}
        if run.fit:
            record["summary"] = json.loads((folder / "summary.json").read_text())
            history = folder / "metrics.csv", record["summary"]["rounds"]
            record["curve"] = _curve(*history)
            if cli.datamodule.evaluation_split == "val":
                record["validation_curve"] = _curve(*history, "val")
        return record | {name: MEASURES[name](cli, folder) for name in run.measures}


@contextmanager
def _folder(run: Run, unfinished: Path | None) -> Iterator[Path]:
    """A folder of a run, which stays if the run does not end."""
    if unfinished is None:
        with tempfile.TemporaryDirectory() as thrown_away:
            yield Path(thrown_away)
        return
    settings = zlib.crc32(repr((run.config, run.arguments)).encode())  # with others it is another run
    folder = unfinished.absolute() / f"{run.name}-{settings:08x}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):  # of a run that was refused nothing stays
            folder.rmdir()
            folder.parent.rmdir()
        raise
    shutil.rmtree(folder)


def _curve(path: Path, num_rounds: int, split: str = "test") -> dict[str, list[float]]:
    """The rounds of `metrics.csv` that measured a split, and the bytes and the simulated time up to each."""
    import pandas as pd

    table = pd.read_csv(path)
    total = table[[name for name in table if name.startswith("comm/")]].fillna(0).cumsum()
    total = total.join(table[[name for name in table if name.startswith("time/simulated")]].ffill())
    key = f"{split}/seen/accuracy"
    measured = table[key].notna() if key in table else table["step"] < 0
    rounds = (table["step"] + 1).clip(upper=num_rounds)  # the test, a step later, measures the last round again
    evaluated = measured & ~rounds.where(measured).duplicated()
    rows = table[evaluated]
    columns = [name for name in table if name.partition("/")[2].partition("/")[2] in CURVE]
    curve = {name: _rounded(rows[name]) for name in columns if rows[name].notna().all()}
    curve |= {name: _rounded(total[name][evaluated]) for name in total}
    return {"rounds": rounds[evaluated].tolist(), **curve}


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
