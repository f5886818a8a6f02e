"""Runs a sweep of W&B's file format on this machine, without an account.

    python scripts/sweep.py configs/sweep/synthetic_grid.yaml [--jobs 2] [--seeds 1 2 3] [--output DIR]
    python scripts/sweep.py configs/sweep/quickstart_search.yaml --trials 20

Every point of `parameters` is a run of `command`, in a process on a core of its own; `--config` of files in a folder
`logger` is left out. Runs, the search (Optuna's) and results go to runs/sweep_<file>/. Started again, also after a
kill, it repeats no finished point, continues unfinished runs from their last round and tries failed ones again. It
ends with a table, sweep.csv, sweep.md and sweep.png; the exit status is 1 if a point failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # one run, one core; before torch is imported

try:
    import optuna  # noqa: F401
except ImportError:
    raise SystemExit('sweep.py: points are searched by the package optuna; pip install -e ".[sweep]"') from None

from sweeping.execution import Execution, run_all
from sweeping.folder import SweepFolder
from sweeping.results import print_results, write_results
from sweeping.search import Search
from sweeping.sweep_file import Sweep, read_sweep
from sweeping.validation import check_arguments
from sweeping.workers import cores

from lit_fed.core.errors import ConfigError

__all__ = ["main"]


def sweep_points(sweep: Sweep, folder: Path, seeds: Sequence[int] | None, trials: int | None, jobs: int) -> int:
    """Run what is missing and show what there is; returns the number of points that failed."""
    total = number_of_points(sweep, trials)
    if seeds is not None and "seed_everything" in (*sweep.parameters, *sweep.constants):
        raise ConfigError(f"{sweep.path}: parameters.seed_everything is what --seeds gives; leave one of them out")
    check_arguments(sweep)
    with SweepFolder(folder).opened(sweep, seeds) as opened:
        execution = Execution(sweep, Search(sweep, folder), opened, seeds, total)
        failed = run_all(execution, jobs)
        results = execution.results
        write_results(sweep, results, failed, folder)
        if results:
            from sweeping.picture import draw

            draw(sweep, results, folder / "sweep.png")
            print_results(sweep, results)
    for number, error in failed.items():
        print(f"point {number:03d} failed: {error}", flush=True)
    print(f"results: {folder}", flush=True)
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, metavar="FILE", help="a sweep file, such as those of configs/sweep/")
    parser.add_argument("--jobs", type=_count, default=len(cores()), help="runs at a time; by default one a core")
    parser.add_argument("--seeds", type=int, nargs="+", help="run each point with each of these --seed_everything")
    parser.add_argument("--trials", type=_count, help="points of a random or bayes search; by default run_cap of FILE")
    parser.add_argument("--output", type=Path, help="folder of runs and results; by default runs/sweep_<FILE>")
    given = parser.parse_args(arguments)
    try:
        output = given.output or Path("runs") / f"sweep_{given.sweep.stem}"
        failed = sweep_points(read_sweep(given.sweep), output, given.seeds, given.trials, given.jobs)
    except ConfigError as error:
        sys.stderr.write(f"sweep.py: {error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("sweep.py: interrupted; the same command goes on from the last finished rounds\n")
        raise SystemExit(130) from None
    raise SystemExit(1 if failed else 0)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a whole number >= 1")
    return number


if __name__ == "__main__":
    main()
