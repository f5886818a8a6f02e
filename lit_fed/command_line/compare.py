"""`python -m lit_fed compare`: finished runs side by side, as a table, comparison.csv, comparison.md and figures.

Runs that differ only in their seeds are one row, mean ± standard deviation. A row is named by the differences between
configurations, else by its run.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lit_fed.command_line.parser import FederatedParser, command_parser
from lit_fed.command_line.table_formats import ResultTable, TableFormat, escaped, markdown_table, print_tables
from lit_fed.metrics.paired import holm, mean_difference
from lit_fed.metrics.scores import STATISTICS
from lit_fed.pictures import style
from lit_fed.pictures.comparison import draw_comparison
from lit_fed.system.files import owner_only, write_atomically
from lit_fed.system.names import few
from lit_fed.system.packages import pd
from lit_fed.training.finished_runs import (
    FinishedRun,
    Group,
    compared,
    find_runs,
    further_differences,
    grouped,
    metric_of,
    named,
    read_run,
    refuse_other_data,
)
from lit_fed.training.output import check_new_folder, new_folder, write_table

__all__ = ["add_runs", "cells_of", "compare", "compare_parser", "compare_runs", "comparison_table"]

PAIRED = "the same seen clients"
"""Title of the table of paired differences."""

INTERVALS = (
    "95 % intervals of each difference over clients, and over divisions of the data where there are some; seeds of the "
    "training and tuning are not covered. p: corrected for all pairs (Holm)."
)


def add_runs(parser: FederatedParser) -> None:
    """Add the finished runs, and names for their rows."""
    parser.add_argument(
        "runs", nargs="+", type=str, metavar="RUN",
        help="folder of a run, runs/<name>/version_<n>, or runs/<name> for its newest version.",
    )  # fmt: skip
    parser.add_argument(
        "--names",
        nargs="+",
        type=str,
        help="name of each row, after the runs; by default its algorithm, or else the differing settings.",
    )
    parser.add_argument("--different_data", action="store_true", help="put runs on different data side by side.")


def compare_parser() -> FederatedParser:
    """The arguments of the command."""
    parser = command_parser(
        "compare", "[options] RUN [RUN …]",
        "Runs that differ only in their seeds are one row, mean and standard "
        "deviation. Names are the algorithms where these tell rows apart, else the differences between configurations.",
    )  # fmt: skip
    add_runs(parser)
    parser.add_argument(
        "--format", type=TableFormat, default="text", help="format of the tables that are printed, for papers."
    )
    parser.add_argument("--output", type=str, default="comparison", help="folder to be written, new or empty.")
    parser.add_argument(
        "--metric", type=str | None, help="metric to compare; by default accuracy or, for numbers, mse."
    )
    parser.add_argument(
        "--formats", nargs="+", type=Literal["png", "pdf", "svg"], default=["png"], help="formats of the figures."
    )
    return parser


def compare_runs(arguments: list[str]) -> None:
    """Run the command.

    Raises:
        ConfigError: naming a refused run or argument; nothing has been written then.
    """
    given = compare_parser().parse_args(arguments)
    compare(
        [Path(run) for run in given.runs],
        Path(given.output),
        given.metric,
        given.formats,
        given.names,
        different_data=given.different_data,
        form=given.format,
    )


def compare(
    given: Sequence[Path], output: Path, metric: str | None, formats: Sequence[str], names: Sequence[str] | None = None,
    *, different_data: bool = False, form: TableFormat = "text",
) -> None:  # fmt: skip
    """Read runs, write their comparison into a folder and print it.

    Args:
        given: folders of runs, or of their versions.
        output: folder of the comparison, new or empty.
        metric: the metric to compare; None: the first that all runs have.
        formats: formats of the figures.
        names: names of the rows, in the order of their first runs; None: their differences.
        different_data: accept runs on different data.
        form: format of the printed tables.

    Raises:
        ConfigError: naming a run, or what differs between the data of two, and the fix.
    """
    runs = [read_run(folder) for folder in find_runs(given)]
    metric = metric_of(runs, metric)
    groups = named(grouped(runs), names)
    if not different_data:
        refuse_other_data(groups)
    check_new_folder(output)
    table = comparison_table(groups, metric)
    headings, lines = cells_of(table, metric)
    tables = [ResultTable(f"test {metric}", headings, lines, varied(groups)), pairs_table(groups, metric)]
    private = any(run.is_private for run in runs)
    with owner_only(private), new_folder(output, owner=True) as partial:
        partial.mkdir()
        write_table(table, partial / "comparison.csv")
        write_atomically(partial / "comparison.md", markdown(tables, metric, table["folders"].tolist()))
        draw_comparison(groups, metric, partial, formats)
    print_tables(tables, form)
    if form == "text":
        sys.stdout.write(f"comparison: {output}\n")


# ---------------------------------------------------------------------- table
def columns_of(metric: str) -> dict[str, str]:
    """Keys of summary.json that are compared, and their headings."""
    compared = {suffix: one.heading for suffix, one in STATISTICS.items() if one.compared}
    return {
        **{f"test/seen/{metric}{suffix}": heading if suffix else "seen" for suffix, heading in compared.items()},
        f"test/honest/{metric}": "honest",
        f"test/honest/{metric}_undefined": "undefined of honest",
        f"test/unseen/{metric}": "unseen",
        f"test/unseen/{metric}_undefined": "undefined of unseen",
        "rounds": "rounds",
        "bytes": "sent",
        "seconds": "seconds",
    }


def varied(groups: Sequence[Group]) -> str:
    """What runs of a row differ in, seeds of training or data; the seeds; and what else rows differ in."""
    kinds: dict[str, list[str]] = {}
    for name, runs in groups:
        data = len({json.dumps(run.config.get("data"), sort_keys=True) for run in runs}) > 1
        training = {json.dumps([run.config.get(key) for key in ("seed_everything", "model")]) for run in runs}
        what = " and ".join(["data"] * data + ["training"] * (len(training) > 1))
        if what:
            kinds.setdefault(what, []).append(name)
    configs = [run.config for _, runs in groups for run in runs]
    seeds = ([str(one.get("seed_everything", "?")) for one in configs], [str(_data_seed(one)) for one in configs])
    of_training, of_data = (", ".join(dict.fromkeys(one)) for one in seeds)
    texts = [what if len(kinds) == 1 else f"{what} ({', '.join(names)})" for what, names in kinds.items()]
    said = f"±: one standard deviation over seeds of {'; of '.join(texts)}. " if texts else ""
    further = further_differences(groups)
    more = f" Rows also differ in {few(further, 5)}." if further else ""
    return f"{said}Seeds: {of_training} (training), {of_data} (data).{more}"


def _data_seed(config: dict[str, Any]) -> Any:
    return config.get("data", {}).get("seed", "?")


def pairs_table(groups: Sequence[Group], metric: str) -> ResultTable:
    """The seen clients of each group beside the same clients of each later one."""
    factor, unit = style.percent(metric)
    rows, p = [], []
    for first, second in itertools.combinations(groups, 2):
        table = compared(second.runs, first.runs, metric).query("population == 'seen'")
        if table.empty:
            continue
        gap = mean_difference(table)
        numbers = (f"{factor * value:+.{2 if unit else 4}f}" for value in (gap.mean, gap.low, gap.high))
        worse = "" if table["gain"].isna().all() else str((table["gain"] < 0).sum())
        rows.append([second.name, first.name, *numbers, worse, str(len(table))])
        p.append(gap.p)
    headings = ["run", "other", f"difference{unit}", "from", "to", "worse clients", "of", "p"]
    rows = [[*row, f"{one:.3f}"] for row, one in zip(rows, holm(p), strict=True)]
    return ResultTable(PAIRED, headings, rows, INTERVALS, words=2)


def figures_of(run: FinishedRun) -> dict[str, Any]:
    """A run's figures: its summary, and the bytes that it sent either way."""
    sent = [run.summary.entries.get(f"comm/total_bytes_{way}", float("nan")) for way in ("up", "down")]
    return {**run.summary.entries, "bytes": sum(sent)}


def comparison_table(groups: Sequence[Group], metric: str) -> pd.DataFrame:
    """One row for each name: number of runs, and mean and sample standard deviation of each figure that a run has."""
    rows = []
    for name, runs in groups:
        row: dict[str, Any] = {"name": name, "runs": len(runs)}
        figures = [figures_of(run) for run in runs]
        for key in columns_of(metric):
            values = [one[key] for one in figures if one.get(key) is not None]
            if len(values) == len(runs):
                row[key] = statistics.mean(values)
                if key.startswith("test/") and len(values) > 1:  # `stdev` fails where a run diverged
                    row[f"{key} (std)"] = statistics.stdev(values) if math.isfinite(row[key]) else math.nan
        rows.append({**row, "folders": " ".join(str(run.folder) for run in runs)})
    table = pd.DataFrame(rows)
    defined = [key for key in table if f"{key}".endswith("_undefined") and not table[key].fillna(0).any()]
    return table[[column for column in table if column not in ("folders", *defined)] + ["folders"]]


def cells_of(table: pd.DataFrame, metric: str) -> tuple[list[str], list[list[str]]]:
    """Headings and cells for people: accuracies in percent, bytes in a unit, ± over seeds."""
    shown = {key: heading for key, heading in columns_of(metric).items() if key in table}
    headings = ["run", *(["seeds"] if table["runs"].max() > 1 else [])]
    headings += [f"{heading}{_unit_of(key)[1]}" for key, heading in shown.items()]
    lines = []
    for _, row in table.iterrows():
        cells = [str(row["name"]), *([str(row["runs"])] if "seeds" in headings else [])]
        lines.append(cells + [_cell(key, row[key], row.get(f"{key} (std)")) for key in shown])
    return headings, lines


def _unit_of(key: str) -> tuple[float, str]:
    """Factor and unit of a column, as of `style.percent`."""
    return style.percent(key.rpartition("/")[2]) if key.startswith("test/") else (1.0, "")


def _cell(key: str, value: float, deviation: float | None) -> str:
    if value != value:
        return ""
    if key == "bytes":
        return style.bytes_in_unit(value)
    if not key.startswith("test/"):
        return f"{value:.0f}"
    if key.endswith("_undefined"):
        return f"{value:g}"
    factor, _ = _unit_of(key)
    digits = 2 if factor > 1 else 4
    spread = "" if deviation is None or deviation != deviation else f" ± {factor * deviation:.{digits}f}"
    return f"{factor * value:.{digits}f}{spread}"


def markdown(tables: Sequence[ResultTable], metric: str, folders: Sequence[str]) -> str:
    """The tables as a Markdown page, with the folders of the runs below."""
    (_, headings, lines, caption, _), pairs = tables
    text = [f"# Comparison by test {metric}", "", *markdown_table(headings, lines)]
    text += ["", escaped(caption)] if caption else []
    if pairs.rows:
        table = markdown_table(pairs.headings, pairs.rows, pairs.words)
        text += ["", f"Means over {PAIRED}. {INTERVALS}", "", *table]
    shown = (f"`{one}`" if one == " ".join(one.replace("`", " ").split()) else escaped(one) for one in folders)
    text += ["", *(f"- {escaped(line[0])}: {folder}" for line, folder in zip(lines, shown, strict=True))]
    return "\n".join(text) + "\n"
