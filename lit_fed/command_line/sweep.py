"""`python -m lit_fed sweep`: many values of a command's arguments, from a sweep file, on this machine.

Every point of `parameters` is a run of `command`, in a process on a core of its own; `--config` of files in a folder
`logger` is left out. Started again, also after a kill, a sweep repeats no finished point, continues unfinished runs
from their last round and tries failed ones again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from lit_fed.command_line.parser import FederatedParser
from lit_fed.command_line.shipped_configs import shipped
from lit_fed.command_line.start_page import COMMANDS
from lit_fed.errors import ConfigError
from lit_fed.system.machine import cores, require_cores
from lit_fed.training.stopping import CutShort

if TYPE_CHECKING:
    from lit_fed.command_line.sweeping.sweep_file import Sweep

__all__ = ["number_of_points", "run_sweep", "sweep_parser"]

MISSING = 'points are searched by the package optuna; in a checkout pip install -e ".[sweep]", else pip install optuna'


def sweep_parser() -> FederatedParser:
    """The arguments of the command."""
    parser = FederatedParser(
        prog="python -m lit_fed sweep",
        usage="python -m lit_fed sweep [options] FILE",
        description=f"{COMMANDS['sweep']} The file has W&B's format. Ends with a table, sweep.csv, sweep.md and "
        "sweep.png; the status is 1 if a point failed. The same command goes on with a sweep that was cut off.",
    )
    parser.add_argument("file", type=str, metavar="FILE", help="a sweep file, such as those of configs/sweep/.")
    parser.add_argument("--jobs", type=int | None, help="runs at a time; by default one for each core.")
    parser.add_argument("--seeds", type=int, nargs="+", help="run each point with each of these --seed_everything.")
    parser.add_argument(
        "--trials", type=int | None, help="points of a random or bayes search; by default run_cap of the file."
    )
    parser.add_argument("--output", type=str | None, help="folder of runs and results; by default runs/sweep_<FILE>.")
    return parser


def run_sweep(arguments: list[str], parse: Callable[[list[str]], Namespace], run: Callable[[list[str]], Any]) -> None:
    """Run the command.

    Args:
        arguments: what stands behind `sweep` on the command line.
        parse: what the command line makes of the arguments of a run, without running it.
        run: runs a command line; other processes import it by its name.

    Raises:
        ConfigError: if the file, one of its values or the folder will not do; nothing has been run then.
        CutShort: after Ctrl-C.
        SystemExit: with status 1, if a point failed.
    """
    given = sweep_parser().parse_args(arguments)
    for name in ("jobs", "trials"):
        if given[name] is not None and given[name] < 1:
            raise ConfigError(f"--{name} is {given[name]}; give a whole number >= 1")
    require_cores(given.jobs or 1, "--jobs")
    try:
        from lit_fed.command_line.sweeping.sweep_file import read_sweep
    except ImportError as error:
        if error.name != "optuna":
            raise
        raise ConfigError(f"sweep: {MISSING}") from error
    file = Path(given.file)
    output = Path(given.output) if given.output else Path("runs") / f"sweep_{file.stem}"
    sweep = read_sweep(Path(shipped(given.file)))
    try:
        failed = _sweep_points(sweep, output, given, parse, run)
    except KeyboardInterrupt as error:
        raise CutShort("interrupted; the same command goes on from the last finished rounds", 130) from error
    if failed:
        raise SystemExit(1)


def _sweep_points(sweep: Sweep, folder: Path, given: Namespace, parse: Any, run: Any) -> int:
    """Run what is missing and show what there is; returns the number of points that failed."""
    from lit_fed.command_line.sweeping.execution import Execution, run_all
    from lit_fed.command_line.sweeping.folder import SweepFolder
    from lit_fed.command_line.sweeping.results import print_results, say, write_results
    from lit_fed.command_line.sweeping.search import Search
    from lit_fed.command_line.sweeping.validation import check_arguments

    seeds: Sequence[int] | None = given.seeds
    total = number_of_points(sweep, given.trials)
    if seeds is not None and "seed_everything" in (*sweep.parameters, *sweep.constants):
        raise ConfigError(f"{sweep.path}: parameters.seed_everything is what --seeds gives; leave one of them out")
    check_arguments(sweep, parse)
    os.environ["OMP_NUM_THREADS"] = "1"  # one run, one core: for the processes that are started
    with SweepFolder(folder).opened(sweep, seeds) as opened:
        execution = Execution(sweep, Search(sweep, folder), opened, seeds, total)
        failed = run_all(execution, given.jobs or len(cores()), run)
        results = execution.results
        write_results(sweep, results, failed, folder)
        if results:
            from lit_fed.command_line.sweeping.picture import draw_sweep

            draw_sweep(sweep, results, folder / "sweep.png")
            print_results(sweep, results)
    for number, error in failed.items():
        say(f"point {number:03d} failed: {error}")
    say(f"results: {folder}")
    return len(failed)


def number_of_points(sweep: Sweep, trials: int | None) -> int:
    """How many points there will be.

    Raises:
        ConfigError: if a grid is cut, or a search has no end.
    """
    if sweep.method != "grid":
        if trials is None and sweep.run_cap is None:
            raise ConfigError(f"{sweep.path}: method {sweep.method} goes on for ever; give --trials, or run_cap in it")
        return trials or sweep.run_cap or 0
    if trials is not None:
        raise ConfigError(f"--trials {trials}: {sweep.path} is a grid, of which every point is run; leave it out")
    return sweep.grid_size()
