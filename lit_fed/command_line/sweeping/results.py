"""What a sweep found: a table on the terminal, sweep.csv and sweep.md."""

from __future__ import annotations

import json
import math
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lit_fed.command_line.sweeping.sweep_file import Point, Sweep
from lit_fed.system.files import write_atomically
from lit_fed.training.output import write_table

__all__ = ["Result", "print_results", "result_of", "say", "short_names", "spread", "write_results"]


class Result(NamedTuple):
    """A finished point."""

    number: int
    point: Point
    values: tuple[float, ...]  # of the metric, one for each seed
    test_values: tuple[float, ...]  # of the same metric on the test split; () where that is the metric
    seconds: float  # of training, all seeds together


def result_of(sweep: Sweep, number: int, point: Point, folders: Sequence[Path]) -> Result | str:
    """The results of a point's runs, one folder for each seed; or what is wrong with them."""
    found = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    for summary in found:
        value = summary.get(sweep.metric)
        if not isinstance(value, int | float) or not math.isfinite(value):
            known = [key for key in summary if key.startswith(sweep.metric.partition("/")[0] + "/")]
            hint = f"; there are {', '.join(known[:4])}" if known else ""
            needed = "; it needs --data.val_fraction and --trainer.check_val_every_n_epoch up to --trainer.max_epochs"
            validation = needed if sweep.metric.startswith("val/") and not known else ""
            return f"{sweep.metric} is {value} in summary.json{hint}{validation}"
    split, _, rest = sweep.metric.partition("/")
    tested = [summary.get(f"test/{rest}") for summary in found] if split != "test" else []
    known_test = () if None in tested else tuple(tested)
    seconds = sum(summary["seconds"] for summary in found)
    return Result(number, point, tuple(summary[sweep.metric] for summary in found), known_test, seconds)


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation.

    Example:
        >>> spread([0.5]), spread([0.5, 0.7])
        ('0.5000', '0.6000 ± 0.1414')
    """
    middle = f"{statistics.mean(values):.4f}"
    return middle if len(values) == 1 else f"{middle} ± {statistics.stdev(values):.4f}"


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last parts of dotted names, as few as tell them apart.

    Example:
        >>> short_names(["model.solver.lr", "model.algorithm.lr", "data.batch_size"])
        {'model.solver.lr': 'solver.lr', 'model.algorithm.lr': 'algorithm.lr', 'data.batch_size': 'batch_size'}
    """
    names = {}
    for key in keys:
        parts = key.split(".")
        endings = [".".join(parts[first:]) for first in range(len(parts) - 1, -1, -1)]
        names[key] = next(one for one in endings if sum(f".{other}".endswith(f".{one}") for other in keys) == 1)
    return names


def in_order(sweep: Sweep, results: Sequence[Result]) -> list[Result]:
    """The best one first."""
    return sorted(results, key=lambda one: statistics.mean(one.values), reverse=sweep.goal == "maximize")


def print_results(sweep: Sweep, results: Sequence[Result]) -> None:
    """Print the table, the best point first."""
    from rich.console import Console
    from rich.table import Table

    head, rows = _table(sweep, results)
    table = Table(title=f"{sweep.path.name}: {len(rows)} points")
    for name in head:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def write_results(sweep: Sweep, results: Sequence[Result], failed: Mapping[int, str], folder: Path) -> None:
    """Write sweep.csv, with full names and numbers, and sweep.md with the command of the best point."""
    import pandas as pd

    rows = []
    for one in in_order(sweep, results):
        values = {sweep.metric: one.values, f"test/{sweep.metric.partition('/')[2]}": one.test_values}
        row: dict[str, Any] = {"point": one.number, **one.point, "seeds": len(one.values)}
        for name, some in values.items():
            if some:
                row[name] = statistics.mean(some)
                row[f"{name}_std"] = statistics.stdev(some) if len(some) > 1 else math.nan
        rows.append(row | {"seconds": round(one.seconds, 3)})
    write_table(pd.DataFrame(rows), folder / "sweep.csv")
    write_atomically(folder / "sweep.md", _page(sweep, results, failed))


def _table(sweep: Sweep, results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    names = short_names(list(sweep.parameters))
    tested = any(one.test_values for one in results)
    head = ["point", *names.values(), sweep.metric, *(["on the test split"] if tested else []), "seconds"]
    rows = []
    for one in in_order(sweep, results):
        shown = [_shown(one.point[key]) for key in names]
        test = [spread(one.test_values) if one.test_values else ""] if tested else []
        rows.append([f"{one.number:03d}", *shown, spread(one.values), *test, f"{one.seconds:.1f}"])
    return head, rows


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _page(sweep: Sweep, results: Sequence[Result], failed: Mapping[int, str]) -> str:
    head, rows = _table(sweep, results)
    lines = [f"# Sweep of {sweep.path.name}", "", f"{sweep.method}, {sweep.goal} {sweep.metric}", ""]
    lines += [f"| {' | '.join(row)} |" for row in [head, ["---:"] * len(head), *rows]]
    if rows:
        best = sweep.arguments(in_order(sweep, results)[0].point)
        lines += ["", "The best point again:", "", "```bash", f"python -m lit_fed {shlex.join(best)}", "```"]
    if failed:
        lines += ["", "Failed:", "", *(f"- point {number:03d}: {error}" for number, error in failed.items())]
    return "\n".join([*lines, ""])
