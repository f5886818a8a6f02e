"""`python -m lit_fed compare`: finished runs side by side, as a table, comparison.csv, comparison.md and figures.

Runs that differ only in their seeds are one row, mean ± standard deviation. A row is named by the differences between
configurations, else by its run.
"""

from __future__ import annotations

import json
import statistics
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml

from lit_fed.command_line.paired import larger_is_better, mean_difference, paired
from lit_fed.command_line.parser import FederatedParser, command_parser
from lit_fed.errors import ConfigError
from lit_fed.pictures import style
from lit_fed.pictures.run import evaluated_split
from lit_fed.system.files import write_atomically
from lit_fed.system.packages import mpl, pd
from lit_fed.system.spreadsheets import unquoted_table
from lit_fed.training.output import check_new_folder, new_folder, print_rows, write_table
from lit_fed.training.round_logger import newest_version

__all__ = [
    "FinishedRun", "Group", "add_runs", "cells_of", "compare", "compare_parser", "compare_runs", "comparison_figures",
    "comparison_table", "find_run", "grouped", "markdown_table", "metric_of", "named", "read_run",
    "without_seeds",
]  # fmt: skip

FILES = ("metrics.csv", "clients.csv")

METRICS = ("accuracy", "mse", "loss")
"""Metrics of every run; the first one that all runs have is compared."""

WHERE_KEPT = {"name", "ckpt_path", "default_root_dir", "report"}
"""Arguments that say where a run is kept, and do not change its results."""

NAMELESS = (
    "model.client_trainer", "model.client_memory_gb", "model.memory_format", "model.metrics", "data.clients_per_block",
    "data.eval_clients", "resume_with_changes", "changes_on_resume",
)  # fmt: skip
"""Arguments that do not change the training, so they name no row."""

NAMING = ("trainer.max_epochs", "trainer.precision")
"""Arguments of the trainer that change the training; the others say how a run is carried out."""

MOST_DIFFERENCES = 3
"""Upper limit for a name made of differences."""

Flat = dict[str, str]
"""Arguments by their dotted names; values as text."""

LONGEST_NAME = 44
"""Letters of a name in a legend; a longer one is cut."""

PAIRED = "the same seen clients"
"""Title of the table of paired differences."""

WIDTH = 140
"""Letters in a line of the table in a file."""


def add_runs(parser: FederatedParser) -> None:
    """Add the finished runs, and names for their rows."""
    parser.add_argument(
        "runs", nargs="+", type=str, metavar="RUN",
        help="folder of a run, runs/<name>/version_<n>, or runs/<name> for its newest version.",
    )  # fmt: skip
    parser.add_argument(
        "--names", nargs="+", type=str, help="name of each row, after the runs; by default the differing settings."
    )


def compare_parser() -> FederatedParser:
    """The arguments of the command."""
    parser = command_parser(
        "compare", "[options] RUN [RUN …]",
        "Runs that differ only in their seeds are one row, mean and standard "
        "deviation. Names are the differences between the configurations.",
    )  # fmt: skip
    add_runs(parser)
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
    compare([Path(run) for run in given.runs], Path(given.output), given.metric, given.formats, given.names)


def compare(
    given: Sequence[Path], output: Path, metric: str | None, formats: Sequence[str], names: Sequence[str] | None = None
) -> None:
    """Read runs, write their comparison into a folder and print it.

    Args:
        given: folders of runs, or of their versions.
        output: folder of the comparison, new or empty.
        metric: the metric to compare; None: the first that all runs have.
        formats: formats of the figures.
        names: names of the rows, in the order of their first runs; None: their differences.

    Raises:
        ConfigError: naming a run and the fix.
    """
    folders = dict.fromkeys(find_run(folder) for folder in given)
    runs = [read_run(folder) for folder in folders]
    metric = metric_of(runs, metric)
    groups = named(grouped(runs), names)
    check_new_folder(output)
    table = comparison_table(groups, metric)
    headings, lines = cells_of(table, metric)
    against, caption = differences_from_first(groups, metric), varied(groups)
    with new_folder(output, owner=True) as partial:
        partial.mkdir()
        write_table(table, partial / "comparison.csv")
        write_atomically(
            partial / "comparison.md", markdown(headings, lines, metric, table["folders"].tolist(), against, caption)
        )
        draw_comparison(groups, metric, partial, formats)
    print_rows(f"test {metric}", headings, lines, width=WIDTH, overflow="fold", caption=caption or None)
    if against[1]:
        print_rows(PAIRED, *against, width=WIDTH, overflow="fold")
    sys.stdout.write(f"comparison: {output}\n")


# ---------------------------------------------------------------------- runs
class FinishedRun(NamedTuple):
    """The files of a finished run."""

    folder: Path
    config: dict[str, Any]  # {} of a run of a Python program, which leaves no config.yaml
    summary: dict[str, Any]
    history: pd.DataFrame  # a row for each round: metrics.csv and `sent`, bytes of all rounds so far
    clients: pd.DataFrame

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.parent.name if self.folder.name.startswith("version_") else self.folder.name


class Group(NamedTuple):
    """Runs of one configuration with different seeds."""

    name: str  # short, from what differs between the configurations
    runs: list[FinishedRun]


def find_run(folder: Path) -> Path:
    """The folder of a run: the given one, or its newest version.

    Raises:
        ConfigError: if there is no such folder or no run in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; give the folder of a run, such as runs/quickstart/version_0")
    if any((folder / name).is_file() for name in ("config.yaml", "metrics.csv", "summary.json")):
        return folder
    version = newest_version(folder)
    if version < 0:
        raise ConfigError(f"{folder} holds no run; give the folder of a run, such as runs/quickstart/version_0")
    return folder / f"version_{version}"


def read_run(folder: Path) -> FinishedRun:
    """Read the files of a finished run.

    Raises:
        ConfigError: if the run is not finished, or a file is missing.
    """
    from lit_fed.pictures.run import read_history

    if not (folder / "summary.json").is_file():
        raise ConfigError(f"{folder} is not finished, it has no summary.json; {_ending(folder)}")
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder} has no {missing[0]}; give a folder that a fit of lit_fed has written")
    config = yaml.safe_load((folder / "config.yaml").read_text()) if (folder / "config.yaml").is_file() else {}
    summary = json.loads((folder / "summary.json").read_text())
    if config and "changes_on_resume" in summary:
        config["changes_on_resume"] = summary["changes_on_resume"]
    clients = unquoted_table(pd.read_csv(folder / "clients.csv"))
    return FinishedRun(folder, config, summary, read_history(folder), clients)


def _ending(folder: Path) -> str:
    """Advice on how to finish an unfinished run."""
    if not (folder / "config.yaml").is_file():
        return "trainer.test(model, data) writes it"
    last = " --ckpt_path last" if (folder / "checkpoints/last.ckpt").is_file() else ""
    return f"finish it with: python -m lit_fed fit --config {folder}/config.yaml{last}"


def metric_of(runs: Sequence[FinishedRun], asked_for: str | None) -> str:
    """The metric that all runs have: the one asked for, else accuracy, the mean squared error or the loss.

    Raises:
        ConfigError: if a run does not have it, or one run has accuracies and another has squared errors.
    """
    known = {run.folder: _metrics_of(run) for run in runs}
    if asked_for is None:
        first, *others = runs
        for other in others:
            if known[first.folder][:1] != known[other.folder][:1]:
                raise ConfigError(
                    f"{first.folder} has {' and '.join(known[first.folder])}, {other.folder} has "
                    f"{' and '.join(known[other.folder])}; compare them apart, or with --metric loss"
                )
        return known[first.folder][0]
    for folder, names in known.items():
        if asked_for not in names:
            raise ConfigError(f"--metric {asked_for}: {folder} has {' and '.join(names)}; give one of these")
    return asked_for


def _metrics_of(run: FinishedRun) -> list[str]:
    """The metrics of a run's clients: the usual ones before the chosen ones."""
    return [name for name in dict.fromkeys((*METRICS, *run.clients)) if f"test/seen/{name}" in run.summary]


def without_seeds(config: Any) -> Any:
    """A configuration without its seeds and without the folder of the run."""
    if isinstance(config, dict):
        left = {key: value for key, value in config.items() if not _is_seed(key) and key not in WHERE_KEPT}
        return {key: without_seeds(value) for key, value in left.items()}
    return [without_seeds(one) for one in config] if isinstance(config, list) else config


def _is_seed(key: str) -> bool:
    return key in ("seed", "seed_everything", "init_seeds")


def grouped(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """Runs whose configurations differ in seeds alone, in the order of the first of each.

    Raises:
        ConfigError: if two of them have the same seeds too.
    """
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        config = without_seeds(run.config) or str(run.folder)
        groups.setdefault(json.dumps(config, sort_keys=True), []).append(run)
    for members in groups.values():
        seeds: dict[str, Path] = {}
        for run in members:
            with_seeds = {key: value for key, value in run.config.items() if key not in WHERE_KEPT}
            with_seeds["trainer"] = without_seeds(run.config.get("trainer", {}))
            text = json.dumps(with_seeds, sort_keys=True)
            if text in seeds:
                raise ConfigError(f"{seeds[text]} and {run.folder} have the same configuration and seeds; give one")
            seeds[text] = run.folder
    return list(groups.values())


# ---------------------------------------------------------------------- names
def named(
    groups: Sequence[list[FinishedRun]], given: Sequence[str] | None = None, hidden: Sequence[str] = ()
) -> list[Group]:
    """Groups with names: the given ones, else differences of their configurations, else their runs, else their folders.

    Args:
        groups: result of `grouped`.
        given: the names; None: chosen here.
        hidden: sections of the configurations that no name may quote.

    Raises:
        ConfigError: if there are not as many given names as groups, or one is given twice.
    """
    if given is not None:
        if len(given) != len(groups) or len(set(given)) < len(given):
            rows = ", ".join(name for name, _ in named(groups))
            raise ConfigError(
                f"--names is {', '.join(given)}; give a different name for each of {len(groups)} rows: {rows}"
            )
        return [Group(name, runs) for name, runs in zip(given, groups, strict=True)]
    first = [runs[0] for runs in groups]
    open_to_all = [{key: value for key, value in run.config.items() if key not in hidden} for run in first]
    for names in (
        differences([without_seeds(config) for config in open_to_all]),
        [run.name for run in first],
        [f"{run.name}/{run.folder.name}" for run in first],
    ):
        if all(names) and len(set(names)) == len(groups):
            return [Group(name, runs) for name, runs in zip(names, groups, strict=True)]
    return [Group(str(runs[0].folder), runs) for runs in groups]


def differences(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The differences of each configuration, such as `FedEM, lr=0.1`; empty if there are none or too many."""
    flats = [_flat(config) for config in configs]
    names = [[_part(key, flat[key]) for key in flat if _differs(key, flat, flats)] for flat in flats]
    if any(len(parts) > MOST_DIFFERENCES for parts in names):
        return [""] * len(configs)
    return [", ".join(parts) for parts in names]


def _flat(config: Any, path: str = "") -> Flat:
    """Arguments that change the training, by their dotted names."""
    if isinstance(config, dict):
        parts = [_flat(value, f"{path}.{key}" if path else str(key)) for key, value in config.items()]
        return {key: value for part in parts for key, value in part.items()}
    if path in NAMELESS or (path.startswith("trainer.") and path not in NAMING):
        return {}
    return {path: config if isinstance(config, str) else json.dumps(config)}


def _differs(key: str, flat: Flat, flats: Sequence[Flat]) -> bool:
    """Whether another configuration has another value; arguments of a class are compared within that class."""
    owner = key.rpartition(".init_args.")[0]
    kind = f"{owner}.class_path"
    others = [one for one in flats if not owner or one.get(kind) == flat.get(kind)]
    return any(one.get(key) != flat[key] for one in others)


def _part(key: str, value: str) -> str:
    """The class without its module, or the argument's own name with its value."""
    name = key.rpartition(".")[2]
    return value.rpartition(".")[2] if name == "class_path" else f"{name}={value}"


# ---------------------------------------------------------------------- table
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


def varied(groups: Sequence[Group]) -> str:
    """Differences between the runs of a row: seeds of the training, of the data, or both; empty for a single run."""
    kinds: dict[str, list[str]] = {}
    for name, runs in groups:
        data = len({json.dumps(run.config.get("data"), sort_keys=True) for run in runs}) > 1
        training = {json.dumps([run.config.get(key) for key in ("seed_everything", "model")]) for run in runs}
        what = " and ".join(["data"] * data + ["training"] * (len(training) > 1))
        if what:
            kinds.setdefault(what, []).append(name)
    texts = [what if len(kinds) == 1 else f"{what} ({', '.join(names)})" for what, names in kinds.items()]
    return f"±: one standard deviation over seeds of {'; of '.join(texts)}" if texts else ""


def differences_from_first(groups: Sequence[Group], metric: str) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: the seen clients of each group beside the same clients of the first one."""
    factor, unit = style.percent(metric)
    first, *others = groups
    larger = larger_is_better([run for group in groups for run in group.runs], metric)
    rows = []
    for name, runs in others:
        table = paired(runs, first.runs, metric)
        table = table[table["population"] == "seen"]
        if not len(table):
            continue
        mean, low, high = (f"{factor * value:+.{2 if unit else 4}f}" for value in mean_difference(table))
        difference = (table["value"] - table["other"]).round(9)
        worse = "" if larger is None else str(((difference < 0) if larger else (difference > 0)).sum())
        rows.append([name, mean, f"{low} to {high}", worse, str(len(table))])
    return ["run", f"difference from {first.name}{unit}", "95 % interval", "clients that lose", "of"], rows


def figures_of(run: FinishedRun) -> dict[str, Any]:
    """A run's figures: its summary, and the bytes that it sent either way."""
    sent = [run.summary.get(f"comm/total_bytes_{way}", float("nan")) for way in ("up", "down")]
    return {**run.summary, "bytes": sum(sent)}


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
                if key.startswith("test/") and len(values) > 1:
                    row[f"{key} (std)"] = statistics.stdev(values)
        rows.append({**row, "folders": " ".join(str(run.folder) for run in runs)})
    table = pd.DataFrame(rows)
    return table[[column for column in table if column != "folders"] + ["folders"]]


def cells_of(table: pd.DataFrame, metric: str) -> tuple[list[str], list[list[str]]]:
    """Headings and cells for people: accuracies in percent, bytes in a unit, ± over seeds."""
    factor, unit = style.percent(metric)
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
        return style.bytes_in_unit(value)
    if not key.startswith("test/"):
        return f"{value:.0f}"
    digits = 2 if factor > 1 else 4
    spread = "" if deviation is None or deviation != deviation else f" ± {factor * deviation:.{digits}f}"
    return f"{factor * value:.{digits}f}{spread}"


def markdown_table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; all columns but the first are aligned to the right."""
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    head, *rest = ["| " + " | ".join(line) + " |" for line in [headings, *cells]]
    return [head, "|---|" + "--:|" * (len(headings) - 1), *rest]


def markdown(
    headings: Sequence[str], lines: Sequence[Sequence[str]], metric: str, folders: Sequence[str],
    against: tuple[list[str], list[list[str]]], caption: str,
) -> str:  # fmt: skip
    """The tables as a Markdown page, with the folders of the runs below."""
    text = [f"# Comparison by test {metric}", "", *markdown_table(headings, lines)]
    text += ["", caption] if caption else []
    text += ["", f"Means over {PAIRED}, bootstrap over clients:", "", *markdown_table(*against)] if against[1] else []
    text += ["", *(f"- {line[0]}: `{folder}`" for line, folder in zip(lines, folders, strict=True))]
    return "\n".join(text) + "\n"


# ---------------------------------------------------------------------- figures
def draw_comparison(groups: Sequence[Group], metric: str, output: Path, formats: Sequence[str]) -> None:
    """Draw the figures of a comparison into a folder."""
    with mpl.rc_context(style.COLUMN):
        for name, figure in comparison_figures(groups, metric).items():
            for suffix in formats:
                style.save(figure, output / f"{name}.{suffix}")


def comparison_figures(groups: Sequence[Group], metric: str) -> dict[str, Any]:
    """The metric against rounds and against bytes, and the clients of every run; figures by their names."""
    return {
        f"{metric}_vs_rounds": _curves(groups, metric, bytes_sent=False),
        f"{metric}_vs_bytes": _curves(groups, metric, bytes_sent=True),
        f"client_{metric}": _clients(groups, metric),
    }


class _Curve(NamedTuple):
    """A metric at the rounds that all runs of a group evaluated."""

    name: str
    rounds: np.ndarray  # [n]
    sent: np.ndarray  # [n] bytes until then, mean over runs
    values: np.ndarray  # [runs, n], as drawn


def _curve(group: Group, metric: str) -> _Curve:

    key = f"{evaluated_split(group.runs[0].history)}/seen/{metric}"
    histories = [run.history.set_index("step") for run in group.runs]
    known = [one[key].dropna() if key in one else one["sent"][:0] for one in histories]
    table = pd.concat(known, axis=1, join="inner").sort_index()
    sent = pd.concat([one["sent"] for one in histories], axis=1).loc[table.index].mean(axis=1)
    values = style.percent(metric)[0] * table.to_numpy(dtype=float).T
    return _Curve(_cut(group.name), table.index.to_numpy() + 1, sent.to_numpy(), values)


def _curves(groups: Sequence[Group], metric: str, *, bytes_sent: bool) -> Any:
    curves = [_curve(group, metric) for group in groups]
    columns = 2 if max(len(curve.name) for curve in curves) <= 20 else 1
    figure = style.new_figure(style.COLUMN_WIDTH, 2.1 + 0.17 * -(-len(groups) // columns))
    axes = figure.subplots()
    size, unit = style.byte_unit(max(curve.sent.max(initial=0) for curve in curves))
    for position, curve in enumerate(curves):
        if len(curve.rounds):
            _draw(axes, position, curve, curve.sent / size if bytes_sent else curve.rounds)
    splits = "/".join(sorted({evaluated_split(run.history) for group in groups for run in group.runs}))
    axes.set_ylabel(f"{splits} {metric} of seen clients{style.percent(metric)[1]}")
    if metric != "accuracy":
        axes.set_yscale(style.scale_of(np.concatenate([curve.values.mean(0) for curve in curves])))
    _label_x(axes, curves, f"{unit} sent and received by all clients" if bytes_sent else "round")
    style.legend_above(figure, columns)
    return figure


def _draw(axes: Any, position: int, curve: _Curve, x: np.ndarray) -> None:
    """Mean and spread over seeds; of runs that send nothing a level line at their last value."""
    options = {"label": curve.name, "color": style.COLOURS[position % len(style.COLOURS)], **style.look(position)}
    middle = curve.values.mean(0)
    if x[-1] == 0:
        axes.axhline(middle[-1], **options | {"marker": "", "label": f"{curve.name} (sends nothing)"})
    else:
        deviation = curve.values.std(0, ddof=1) if len(curve.values) > 1 else None
        style.draw_curve(axes, x, middle, deviation, **options)


def _label_x(axes: Any, curves: Sequence[_Curve], label: str) -> None:
    """A logarithmic axis where one run sends far more than another."""
    totals = [curve.sent[-1] for curve in curves if curve.sent.any()]
    axes.set_xlabel(label)
    if label != "round" and totals and max(totals) > 10 * min(totals):
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(style.few_ticks(whole=label == "round"))


def _clients(groups: Sequence[Group], metric: str) -> Any:
    """Box plots of the seen and the unseen clients for each name; means and worst deciles are in the table."""
    figure = style.new_figure(style.COLUMN_WIDTH, 1.1 + 0.42 * len(groups))
    axes = figure.subplots()
    factor, unit = style.percent(metric)
    for level, (population, colour) in zip((0.18, -0.18), style.POPULATIONS.items(), strict=True):
        label: str | None = f"{population} clients"
        for height, group in enumerate(reversed(groups)):
            clients = np.concatenate([_of(population, run, metric) for run in group.runs])
            if len(clients):
                _box(axes, height + level, factor * clients, colour, label)
                label = None
    axes.set_yticks(range(len(groups)), [textwrap.fill(_cut(group.name), 18) for group in reversed(groups)])
    axes.set(xlabel=f"test {metric} of a client{unit}", ylim=(-0.6, len(groups) - 0.4))
    axes.grid(visible=False, axis="y")
    style.legend_above(figure)
    return figure


def _of(population: str, run: FinishedRun, metric: str) -> np.ndarray:
    return run.clients.loc[run.clients["population"] == population, metric].dropna().to_numpy()


def _box(axes: Any, height: float, values: np.ndarray, colour: str, label: str | None) -> None:
    """A line from the worst to the best, a box of the middle half, and a tick at the median."""
    low, first, middle, third, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    axes.hlines(height, low, high, color="0.4", linewidth=0.9)
    look = {"color": colour, "edgecolor": "0.4", "linewidth": 0.8, "zorder": 2}  # above the line
    axes.barh(height, third - first, left=first, height=0.26, label=label, **look)
    axes.vlines(middle, height - 0.13, height + 0.13, color="0.2", linewidth=1.4)


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
