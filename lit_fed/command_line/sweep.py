"""`python -m lit_fed sweep`: many values of a command's arguments, from a sweep file, on this machine.

Each point of `parameters` is a run of `command`, in a process on its own core; `--config` of files in a folder `logger`
is left out. A sweep that is started again, also after a kill, repeats no finished point, continues unfinished runs from
their last round and repeats failed ones.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jsonargparse import Namespace

from lit_fed.callbacks.defaults import keep_notices_out
from lit_fed.callbacks.progress import time_left
from lit_fed.command_line.arguments import shipped
from lit_fed.command_line.parser import FederatedParser, command_parser
from lit_fed.command_line.runner import Job, Outcome, run_many
from lit_fed.errors import ConfigError
from lit_fed.system.files import write_atomically
from lit_fed.system.folder_lock import LOCK_NAME, FolderLock
from lit_fed.system.machine import cores, require_cores
from lit_fed.training.output import check_writable, print_line
from lit_fed.training.stopping import CutShort

if TYPE_CHECKING:
    from lit_fed.command_line.sweep_file import Point, Search, Sweep
    from lit_fed.command_line.sweep_results import Result

__all__ = ["SweepFolder", "number_of_points", "run_sweep", "sweep_parser"]

MISSING = 'points are searched by the package optuna; in a checkout pip install -e ".[sweep]", else pip install optuna'


SEEDS = {"data": "data.seed", "training": "seed_everything"}
"""Values of --seeds, and the argument that each sets."""


def sweep_parser() -> FederatedParser:
    """The arguments of the command."""
    parser = command_parser(
        "sweep", "[options] FILE",
        "The file has W&B's format. Ends with a table, sweep.csv, sweep.md and "
        "sweep.png; the status is 1 if a point failed. The same command continues an interrupted sweep.",
    )  # fmt: skip
    parser.add_argument("file", type=str, metavar="FILE", help="a sweep file, such as those of configs/sweep/.")
    parser.add_argument("--jobs", type=int | None, help="runs at a time; by default one for each core.")
    parser.add_argument("--seeds", type=int, nargs="+", help="run each point with each of these seeds.")
    parser.add_argument(
        "--seeds_of", type=str, default="training",
        help="what --seeds are of: training (--seed_everything), data (--data.seed, a new division) or data,training.",
    )  # fmt: skip
    parser.add_argument(
        "--trials", type=int | None, help="points of a random or bayes search; by default run_cap of the file."
    )
    parser.add_argument("--output", type=str | None, help="folder of runs and results; by default runs/sweep_<FILE>.")
    return parser


def run_sweep(arguments: list[str], parse: Callable[[list[str]], Namespace], run: Callable[[list[str]], Any]) -> None:
    """Run the command.

    Args:
        arguments: arguments of the command `sweep`.
        parse: parses the arguments of a run, without running it.
        run: runs a command line; other processes import it by its name.

    Raises:
        ConfigError: if the file, one of its values or the folder is refused; nothing has been run then.
        CutShort: after Ctrl-C.
        SystemExit: with status 1, if a point failed.
    """
    given = sweep_parser().parse_args(arguments)
    for name in ("jobs", "trials"):
        if given[name] is not None and given[name] < 1:
            raise ConfigError(f"--{name} is {given[name]}; give a whole number >= 1")
    require_cores(given.jobs or 1, "--jobs")
    try:
        from lit_fed.command_line.sweep_file import read_sweep
    except ImportError as error:
        if error.name != "optuna":
            raise
        raise ConfigError(f"sweep: {MISSING}") from error
    file = Path(given.file)
    output = Path(given.output) if given.output else Path("runs") / f"sweep_{file.stem}"
    sweep = read_sweep(Path(shipped(given.file)))
    check_seeds(sweep, given.seeds, given.seeds_of)
    try:
        failed = _sweep_points(sweep, output, given, parse, run)
    except KeyboardInterrupt as error:
        raise CutShort("interrupted; the same command goes on from the last finished rounds", 130) from error
    if failed:
        raise SystemExit(1)


def _sweep_points(sweep: Sweep, folder: Path, given: Namespace, parse: Any, run: Any) -> int:
    """Run the missing points and show all results; returns the number of points that failed."""
    from lit_fed.command_line.sweep_file import Search, check_arguments
    from lit_fed.command_line.sweep_results import print_results, write_results

    seeds: Sequence[int] | None = given.seeds
    total = number_of_points(sweep, given.trials)
    with redirect_stderr(StringIO()):  # each run says these notices itself
        check_arguments(sweep, parse)
    os.environ["OMP_NUM_THREADS"] = "1"  # one run, one core: for the processes that are started
    with SweepFolder(folder, given.seeds_of.split(",")).opened(sweep, seeds) as opened:
        points = _Points(sweep, Search(sweep, folder), opened, seeds, total, run)
        jobs = min(given.jobs or len(cores()), points.runs_total)
        print_line(f"{len(points.results)} of {total} points are done; {jobs} runs at a time")
        run_many(points.next_job, points.done, jobs)
        note = (
            f"±: one standard deviation over seeds of {' and '.join(opened.seeds_of)}" if len(points.seeds) > 1 else ""
        )
        write_results(sweep, points.results, points.errors, folder, note)
        if points.results:
            print_results(sweep, points.results, note)
    for number, error in points.errors.items():
        print_line(f"point {number:03d} failed: {error}")
    print_line(f"results: {folder}")
    return len(points.errors)


def check_seeds(sweep: Sweep, seeds: Sequence[int] | None, seeds_of: str) -> None:
    """Check the seeds before anything is run.

    Raises:
        ConfigError: if a seed is given twice or is none, or the sweep file gives the argument itself.
    """
    kinds = seeds_of.split(",")
    if not set(kinds) <= set(SEEDS) or len(set(kinds)) < len(kinds):
        raise ConfigError(f"--seeds_of is {seeds_of}; give training, data or data,training")
    if seeds is None and seeds_of != "training":
        raise ConfigError(f"--seeds_of {seeds_of} needs --seeds; give some, such as --seeds 1 2 3")
    for seed in seeds or ():
        if not 0 <= seed < 2**32 or list(seeds or ()).count(seed) > 1:
            wrong = "is given twice" if 0 <= seed < 2**32 else "is no seed"
            raise ConfigError(f"--seeds: {seed} {wrong}; give different numbers from 0 to {2**32 - 1}")
    for option in (SEEDS[kind] for kind in kinds if seeds is not None):
        if option in (*sweep.parameters, *sweep.constants):
            raise ConfigError(f"{sweep.path}: parameters.{option} is what --seeds gives; leave one of them out")


def number_of_points(sweep: Sweep, trials: int | None) -> int:
    """Number of points of a sweep.

    Raises:
        ConfigError: if a grid is cut, or a search has no end.
    """
    if sweep.method != "grid":
        if trials is None and sweep.run_cap is None:
            raise ConfigError(f"{sweep.path}: method {sweep.method} never ends; give --trials, or run_cap in it")
        return trials or sweep.run_cap or 0
    if trials is not None:
        raise ConfigError(f"--trials {trials}: {sweep.path} is a grid, of which every point is run; leave it out")
    return sweep.grid_size()


def _fit(run: Callable[[list[str]], Any], arguments: list[str]) -> None:
    """Run a command line with one thread, in a process of the runner."""
    import torch

    torch.set_num_threads(1)
    keep_notices_out()
    run(arguments)


class _Task(NamedTuple):
    """One seed of a point."""

    number: int
    seed: int | None


class _Points:
    """The points of a sweep: unfinished ones first, then new ones that the search proposes."""

    def __init__(
        self, sweep: Sweep, search: Search, folder: SweepFolder, seeds: Sequence[int] | None, total: int, run: Any
    ) -> None:
        self.sweep, self.search, self.folder, self.total, self.run = sweep, search, folder, total, run
        self.seeds: Sequence[int | None] = seeds or [None]
        self.points: dict[int, Point] = search.asked()
        self.results: list[Result] = []
        self.errors: dict[int, str] = {}
        self.waiting: deque[_Task] = deque()
        self.runs_done = self.runs_total = 0
        self.started = time.monotonic()
        for number in list(self.points):
            self._enter(number)
        self.runs_total = len(self.waiting) + len(self.seeds) * max(0, total - len(self.points))

    def _enter(self, number: int) -> None:
        """Queue the missing runs of a point; measure it if none is missing."""
        missing = [_Task(number, seed) for seed in self.seeds if not self.folder.is_done(number, seed)]
        self.waiting.extend(missing)
        if not missing:
            self._measure(number)

    def next_job(self) -> Job | None:
        """The next run; None if all have been started."""
        if not self.waiting and len(self.points) < self.total:
            number, self.points[number] = self.search.ask()
            self._enter(number)
        if not self.waiting:
            return None
        task = self.waiting.popleft()
        arguments = [*self.sweep.arguments(self.points[task.number]), *self.folder.arguments(*task)]
        return Job(task, partial(_fit, self.run, arguments), self.folder.log(*task))

    def done(self, outcome: Outcome) -> None:
        """Take in the end of a run."""
        task, error = outcome.task, outcome.error
        self.runs_done += 1
        if error is None and not self.folder.is_done(*task):
            error = f"it left no summary.json; see {self.folder.log(*task)}"
        if error is not None:
            self._fail(task.number, error if task.seed is None else f"seed {task.seed}: {error}")
        elif all(self.folder.is_done(task.number, seed) for seed in self.seeds):
            self._measure(task.number)

    def _fail(self, number: int, error: str) -> None:
        self.errors[number] = error
        self._report(number, f"failed: {error}")

    def _measure(self, number: int) -> None:
        from lit_fed.command_line.sweep_results import result_of, spread

        folders = [self.folder.run_folder(number, seed) for seed in self.seeds]
        result = result_of(self.sweep, number, self.points[number], folders)
        if isinstance(result, str):
            self._fail(number, result)
            return
        self.results.append(result)
        if number not in self.search.finished():
            self.search.tell(number, sum(result.values) / len(result.values))
            diverged = " (diverged, see its log.txt)" if result.diverged else ""
            self._report(number, f"{self.sweep.metric} {spread(result.values)}{diverged}")

    def _report(self, number: int, text: str) -> None:
        """Print a line for a point that is over."""
        shown = ", ".join(f"{name} {self.points[number][key]}" for key, name in self.sweep.short_names().items())
        over = len(self.results) + len(self.errors)
        left = time_left(self.runs_done, self.runs_total, time.monotonic() - self.started)
        print_line(f"{over}/{self.total}  point {number:03d}: {shown}: {text} ({left} left)")


class SweepFolder:
    """`sweep.json`, `runs/<point>_seed_<seed>/` and, from the search and at the end, the rest.

    Args:
        path: the folder, new or that of the same sweep.
        seeds_of: what a seed draws, keys of `SEEDS`.
    """

    def __init__(self, path: Path, seeds_of: Sequence[str] = ("training",)) -> None:
        self.path, self.seeds_of = path, sorted(seeds_of)

    @contextmanager
    def opened(self, sweep: Sweep, seeds: Sequence[int] | None) -> Iterator[SweepFolder]:
        """Lock the folder for this process, and for this sweep with these seeds.

        Raises:
            ConfigError: if it cannot be written, belongs to something else, or is in use by another process.
        """
        check_writable(self.path, "--output")
        others = [one for one in self.path.iterdir() if one.name not in (LOCK_NAME, "sweep.json")]
        with FolderLock(self.path, f"--output {self.path}", "wait until it ends, or choose a new folder"):
            self._claim({**sweep.meaning(), "seeds": seeds, "seeds_of": self.seeds_of}, empty=not others)
            yield self

    def _claim(self, meaning: dict[str, Any], *, empty: bool) -> None:
        file = self.path / "sweep.json"
        if not file.is_file():
            if not empty:
                raise ConfigError(f"--output {self.path} holds something that is no sweep; choose a new folder")
            write_atomically(file, json.dumps(meaning, indent=2) + "\n")
            return
        now = json.loads(json.dumps(meaning))
        stored = {"seeds_of": ["training"], **json.loads(file.read_text())}
        changed = [key for key in now if stored.get(key) != now[key]]
        if changed:
            raise ConfigError(
                f"--output {self.path} holds another sweep: {', '.join(changed)} changed since; choose a new "
                "folder, or take the change back"
            )

    def run_folder(self, number: int, seed: int | None) -> Path:
        """Folder of a run."""
        name = f"{number:03d}" if seed is None else f"{number:03d}_seed_{seed}"
        return self.path / "runs" / name / "version_0"

    def log(self, number: int, seed: int | None) -> Path:
        """Output of a run."""
        return self.run_folder(number, seed).parent / "log.txt"

    def is_done(self, number: int, seed: int | None) -> bool:
        """Whether a run is over: its summary is written last."""
        return (self.run_folder(number, seed) / "summary.json").is_file()

    def arguments(self, number: int, seed: int | None) -> list[str]:
        """Arguments that put a run into its folder, and continue it if it has begun."""
        folder = self.run_folder(number, seed)
        seeds = [] if seed is None else [f"--{SEEDS[kind]}={seed}" for kind in self.seeds_of]
        begun = (folder / "checkpoints" / "last.ckpt").is_file()
        if not begun:
            shutil.rmtree(folder, ignore_errors=True)  # cut off before its first round was over
        return [
            f"--trainer.default_root_dir={self.path / 'runs'}", f"--name={folder.parent.name}",
            "--trainer.enable_progress_bar=false", *seeds,
            *(["--ckpt_path=last"] if begun else []),
        ]  # fmt: skip
