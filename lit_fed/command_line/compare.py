"""`python -m lit_fed compare`: finished runs side by side, as a table, comparison.csv, comparison.md and pictures.

Runs that differ in their seeds alone are one row, mean ± standard deviation. Names are what differs between the
configurations, else those of the runs.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lit_fed.command_line.comparison.naming import named
from lit_fed.command_line.comparison.pictures import draw_comparison
from lit_fed.command_line.comparison.runs import FinishedRun, Group, find_run, grouped, metric_of, read_run
from lit_fed.command_line.parser import FederatedParser
from lit_fed.command_line.start_page import COMMANDS
from lit_fed.pictures.style import byte_unit, percent
from lit_fed.system.files import write_atomically
from lit_fed.training.output import check_new_folder, new_folder, write_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["compare", "compare_parser", "compare_runs"]


def compare_parser() -> FederatedParser:
    """The arguments of the command."""
    parser = FederatedParser(
        prog="python -m lit_fed compare",
        usage="python -m lit_fed compare [options] RUN [RUN …]",
        description=f"{COMMANDS['compare']} Runs that differ in their seeds alone are one row, mean and standard "
        "deviation. Names are what differs between the configurations.",
    )
    parser.add_argument(
        "runs", nargs="+", type=str, metavar="RUN",
        help="folder of a run, runs/<name>/version_<n>, or runs/<name> for its newest version.",
    )  # fmt: skip
    parser.add_argument("--output", type=str, default="comparison", help="folder to be written, new or empty.")
    parser.add_argument("--metric", type=str | None, help="what is compared, by default accuracy or, of numbers, mse.")
    parser.add_argument("--formats", nargs="+", type=Literal["png", "pdf", "svg"], default=["png"], help="of pictures.")
    return parser


def compare_runs(arguments: list[str]) -> None:
    """Run the command.

    Args:
        arguments: what stands behind `compare` on the command line.

    Raises:
        ConfigError: naming a run or argument that will not do; nothing has been written then.
    """
    given = compare_parser().parse_args(arguments)
    compare([Path(run) for run in given.runs], Path(given.output), given.metric, given.formats)


def columns_of(metric: str) -> dict[str, str]:
    """Keys of summary.json that are compared, and their headings."""
    return {
        f"test/seen/{metric}": "seen",
        f"test/seen/{metric}_decile": "worst decile",
        f"test/honest/{metric}": "honest",
        f"test/unseen/{metric}": "unseen",
        "rounds": "rounds",
        "bytes": "sent",
        "seconds": "seconds",
    }


def figures_of(run: FinishedRun) -> dict[str, Any]:
    """A run's figures: its summary, and the bytes that it sent either way."""
    sent = [run.summary.get(f"comm/total_bytes_{way}", float("nan")) for way in ("up", "down")]
    return {**run.summary, "bytes": sum(sent)}


def comparison_table(groups: Sequence[Group], metric: str) -> pd.DataFrame:
    """One row for each name: number of runs, and mean and sample standard deviation of each figure that a run has."""
    import pandas as pd

    rows = []
    for name, runs in groups:
        row: dict[str, Any] = {"name": name, "runs": len(runs)}
        figures = [figures_of(run) for run in runs]
        for key in columns_of(metric):
            values = [one[key] for one in figures if one.get(key) is not None]
            if len(values) == len(runs):
                row[key] = statistics.mean(values)
                if key.startswith("test/") and len(values) > 1:
                    row[f"{key} (std)"] = statistics.stdev(values)
        rows.append({**row, "folders": " ".join(str(run.folder) for run in runs)})
    table = pd.DataFrame(rows)
    return table[[column for column in table if column != "folders"] + ["folders"]]


def cells_of(table: pd.DataFrame, metric: str) -> tuple[list[str], list[list[str]]]:
    """Headings and cells for people: accuracies in percent, bytes in a unit, ± over seeds."""
    factor, unit = percent(metric)
    shown = {key: heading for key, heading in columns_of(metric).items() if key in table}
    headings = ["run", *(["seeds"] if table["runs"].max() > 1 else [])]
    headings += [heading + (unit if key.startswith("test/") else "") for key, heading in shown.items()]
    lines = []
    for _, row in table.iterrows():
        cells = [str(row["name"]), *([str(row["runs"])] if "seeds" in headings else [])]
        lines.append(cells + [_cell(key, row[key], row.get(f"{key} (std)"), factor) for key in shown])
    return headings, lines


def _cell(key: str, value: float, deviation: float | None, factor: float) -> str:
    if value != value:
        return ""
    if key == "bytes":
        size, name = byte_unit(value)
        return f"{value / size:.3g} {name}"
    if not key.startswith("test/"):
        return f"{value:.0f}"
    digits = 2 if factor > 1 else 4
    spread = "" if deviation is None or deviation != deviation else f" ± {factor * deviation:.{digits}f}"
    return f"{factor * value:.{digits}f}{spread}"


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]], metric: str, folders: Sequence[str]) -> str:
    """The table as a Markdown page, with the folders of the runs below."""
    text = [f"# Comparison by test {metric}", "", "| " + " | ".join(headings) + " |"]
    text.append("|---|" + "--:|" * (len(headings) - 1))
    text += ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    text += ["", *(f"- {line[0]}: `{folder}`" for line, folder in zip(lines, folders, strict=True))]
    return "\n".join(text) + "\n"


def print_comparison(headings: Sequence[str], lines: Sequence[Sequence[str]], metric: str) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"test {metric}")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if position else "left", overflow="fold")
    for line in lines:
        table.add_row(*line)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def compare(given: Sequence[Path], output: Path, metric: str | None, formats: Sequence[str]) -> None:
    """Read runs, write their comparison into a folder and print it.

    Args:
        given: folders of runs, or of their versions.
        output: folder of the comparison, new or empty.
        metric: what is compared; None: what all runs have.
        formats: of the pictures.

    Raises:
        ConfigError: naming a run and what to do about it.
    """
    folders = dict.fromkeys(find_run(folder) for folder in given)
    runs = [read_run(folder) for folder in folders]
    metric = metric_of(runs, metric)
    groups = named(grouped(runs))
    check_new_folder(output)
    table = comparison_table(groups, metric)
    headings, lines = cells_of(table, metric)
    with new_folder(output, owner=True) as partial:
        partial.mkdir()
        write_table(table, partial / "comparison.csv")
        write_atomically(partial / "comparison.md", markdown(headings, lines, metric, table["folders"].tolist()))
        draw_comparison(groups, metric, partial, formats)
    print_comparison(headings, lines, metric)
    sys.stdout.write(f"comparison: {output}\n")
