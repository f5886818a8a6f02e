"""`python -m lit_fed sweep`: many values of a command's arguments, from a sweep file, on this machine.

Each point of `parameters` is a run of `command`, in a process on its own core; `--config` of files in a folder `logger`
is left out. A sweep that is started again, also after a kill, repeats no finished point, continues unfinished runs from
their last round and repeats failed ones.
"""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from lit_fed.callbacks.defaults import keep_notices_out
from lit_fed.callbacks.progress import time_left
from lit_fed.command_line.arguments import shipped
from lit_fed.command_line.parser import FederatedParser, command_parser
from lit_fed.errors import ConfigError
from lit_fed.metrics.summary import RunSummary
from lit_fed.system.folder_lock import claimed
from lit_fed.system.machine import cores, require_cores
from lit_fed.system.trials import EXECUTOR, CoreExecutor, Outcome, Plan, executor_of, run_trials
from lit_fed.training.output import check_writable, print_line
from lit_fed.training.stopping import CutShort

if TYPE_CHECKING:
    from lit_fed.command_line.sweep_file import Sweep
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
    parser.add_argument("--jobs", type=PositiveInt | None, help="runs at a time; by default one for each core.")
    parser.add_argument("--executor", type=str | None, metavar="PATH", help=EXECUTOR)
    parser.add_argument("--seeds", type=NonNegativeInt, nargs="+", help="run each point with each of these seeds.")
    parser.add_argument(
        "--seeds_of", type=Literal["training", "data", "data,training"], default="training",
        help="what --seeds are of: training (--seed_everything), data (--data.seed, a new division) or data,training.",
    )  # fmt: skip
    parser.add_argument(
        "--trials", type=PositiveInt | None, help="points of a random or bayes search; by default run_cap of the file."
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
    if given.executor is None:
        require_cores(given.jobs or 1, "--jobs")
    elif given.jobs is None:
        raise ConfigError(f"--executor {given.executor} needs --jobs, the number of runs at a time; give it")
    try:
        from lit_fed.command_line.sweep_file import check_arguments, read_sweep
    except ImportError as error:
        if error.name != "optuna":
            raise
        raise ConfigError(f"sweep: {MISSING}") from error
    file = Path(given.file)
    output = Path(given.output) if given.output else Path("runs") / f"sweep_{file.stem}"
    sweep = read_sweep(Path(shipped(given.file)))
    check_seeds(sweep, given.seeds, given.seeds_of)
    total = number_of_points(sweep, given.trials)
    with redirect_stderr(StringIO()):  # each run says these notices itself
        check_arguments(sweep, parse)
    os.environ["OMP_NUM_THREADS"] = "1"  # one run, one core: for the processes that are started
    try:
        with SweepFolder(output, given.seeds_of.split(",")).opened(sweep, given.seeds) as folder:
            failed = _sweep_points(sweep, folder, total, given, run)
    except KeyboardInterrupt as error:
        raise CutShort("interrupted; the same command goes on from the last finished rounds", 130) from error
    if failed:
        raise SystemExit(1)


def _sweep_points(sweep: Sweep, folder: SweepFolder, total: int, given: Namespace, run: Any) -> int:
    """Run the missing points and show all results; returns the number of points that failed."""
    from lit_fed.command_line.sweep_results import write_results

    points = _Points(sweep, folder, total, given.seeds or [None])
    jobs = min(given.jobs or len(cores()), max(1, points.runs_left))
    print_line(f"{points.done} of {total} points are done; {jobs} runs at a time")
    there = SweepFolder(folder.path.absolute(), folder.seeds_of)  # processes elsewhere have another working directory
    with CoreExecutor(jobs) if given.executor is None else executor_of(jobs, given.executor) as executor:
        run_trials(
            points.plans(), partial(_fit, run, there), executor, jobs, find=folder.summary, keep=points.count,
            failures=(Exception,),
        )  # fmt: skip
    note = f"±: one standard deviation over seeds of {' and '.join(folder.seeds_of)}" if len(points.seeds) > 1 else ""
    write_results(sweep, points.results, points.errors, folder.path, note)
    for number, error in points.errors.items():
        print_line(f"point {number:03d} failed: {error}")
    print_line(f"results: {folder.path}")
    return len(points.errors)


def check_seeds(sweep: Sweep, seeds: Sequence[int] | None, seeds_of: str) -> None:
    """Check the seeds before anything is run.

    Raises:
        ConfigError: if a seed is given twice, or the sweep file gives the argument itself.
    """
    if seeds is None and seeds_of != "training":
        raise ConfigError(f"--seeds_of {seeds_of} needs --seeds; give some, such as --seeds 1 2 3")
    if seeds is not None and len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds: {', '.join(map(str, seeds))} has one twice; give different numbers")
    for option in (SEEDS[kind] for kind in seeds_of.split(",") if seeds is not None):
        if option in (*sweep.parameters, *sweep.constants):
            raise ConfigError(f"{sweep.path}: parameters.{option} is what --seeds gives; leave one of them out")


def number_of_points(sweep: Sweep, trials: int | None) -> int:
    """Number of points of a sweep.

    Raises:
        ConfigError: if a grid is cut, or a search has no end.
    """
    if sweep.method == "grid":
        if trials is not None:
            raise ConfigError(f"--trials {trials}: {sweep.path} is a grid, of which every point is run; leave it out")
        return len(sweep.grid())
    if trials is None and sweep.run_cap is None:
        raise ConfigError(f"{sweep.path}: method {sweep.method} never ends; give --trials, or run_cap in it")
    return trials or sweep.run_cap or 0


class _Run(NamedTuple):
    """One seed of a point."""

    number: int
    seed: int | None
    arguments: tuple[str, ...]  # of the point


def _fit(run: Callable[[list[str]], Any], folder: SweepFolder, one: _Run) -> Any:
    """Make a run with one thread, in a process of its own; its summary."""
    import torch

    torch.set_num_threads(1)
    keep_notices_out()
    log = folder.log(one)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            run([*one.arguments, *folder.arguments(one)])
        except Exception:
            traceback.print_exc()
            raise
    summary = folder.summary(one)
    if summary is None:
        raise ConfigError(f"it left no summary.json; see {log}")
    return summary


class _Points:
    """The points of a sweep: those that are known first, then new ones that the search proposes."""

    def __init__(self, sweep: Sweep, folder: SweepFolder, total: int, seeds: Sequence[int | None]) -> None:
        from lit_fed.command_line.sweep_file import Search

        self.sweep, self.folder, self.total, self.seeds = sweep, folder, total, seeds
        self.search = Search(sweep, folder.path)
        self.results: list[Result] = []
        self.errors: dict[int, str] = {}
        missing = [sum(map(self._is_missing, self._runs(number))) for number in range(len(self.search.points))]
        self.done = missing.count(0)
        self.runs_left = sum(missing) + len(seeds) * max(0, total - len(missing))
        self.runs_made, self.started = 0, time.monotonic()

    def _runs(self, number: int) -> list[_Run]:
        arguments = tuple(self.sweep.arguments(self.search.points[number]))
        return [_Run(number, seed, arguments) for seed in self.seeds]

    def _is_missing(self, run: _Run) -> bool:
        return self.folder.summary(run) is None

    def plans(self) -> Iterator[Plan]:
        """The points one by one; a new one is drawn when a run may start."""
        yield from (self._plan(number) for number in range(len(self.search.points)))
        while len(self.search.points) < self.total:
            self.search.ask()
            yield self._plan(len(self.search.points) - 1)

    def _plan(self, number: int) -> Plan:
        """The runs of a point, and its result."""
        from lit_fed.command_line.sweep_results import result_of, spread

        runs, point = self._runs(number), self.search.points[number]
        is_news = any(map(self._is_missing, runs))
        ended = yield runs
        errors = [
            one.error if run.seed is None else f"seed {run.seed}: {one.error}"
            for run, one in zip(runs, ended, strict=True) if one.error is not None
        ]  # fmt: skip
        found = errors[0] if errors else result_of(self.sweep, number, point, [one.value for one in ended])
        if isinstance(found, str):
            self.errors[number], text = found, f"failed: {found}"
        else:
            self.results.append(found)
            self.search.tell(number, sum(found.values) / len(found.values))
            text = (
                f"{self.sweep.metric} {spread(found.values)}{' (diverged, see its log.txt)' if found.diverged else ''}"
            )
        if is_news:
            shown = ", ".join(f"{name} {point[key]}" for key, name in self.sweep.short_names().items())
            over = len(self.results) + len(self.errors)
            left = time_left(self.runs_made, self.runs_made + self.runs_left, time.monotonic() - self.started)
            print_line(f"{over}/{self.total}  point {number:03d}: {shown}: {text} ({left} left)")

    def count(self, run: _Run, outcome: Outcome) -> None:
        """Count a run that has ended, for the time that is left."""
        self.runs_made, self.runs_left = self.runs_made + 1, self.runs_left - 1


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
        with claimed(self.path, "sweep", {**sweep.meaning(), "seeds": seeds, "seeds_of": self.seeds_of}):
            yield self

    def run_folder(self, run: _Run) -> Path:
        """Folder of a run."""
        name = f"{run.number:03d}" if run.seed is None else f"{run.number:03d}_seed_{run.seed}"
        return self.path / "runs" / name / "version_0"

    def log(self, run: _Run) -> Path:
        """Output of a run."""
        return self.run_folder(run).parent / "log.txt"

    def summary(self, run: _Run) -> dict[str, Any] | None:
        """The summary of a run, which is written last; None if the run is not over."""
        folder = self.run_folder(run)
        return RunSummary.read(folder).entries if (folder / "summary.json").is_file() else None

    def arguments(self, run: _Run) -> list[str]:
        """Arguments that put a run into its folder, and continue it if it has begun."""
        folder = self.run_folder(run)
        seeds = [] if run.seed is None else [f"--{SEEDS[kind]}={run.seed}" for kind in self.seeds_of]
        begun = (folder / "checkpoints" / "last.ckpt").is_file()
        if not begun:
            shutil.rmtree(folder, ignore_errors=True)  # cut off before its first round was over
        return [
            f"--trainer.default_root_dir={self.path / 'runs'}", f"--name={folder.parent.name}",
            "--trainer.enable_progress_bar=false", *seeds,
            *(["--ckpt_path=last"] if begun else []),
        ]  # fmt: skip
