"""`python -m lit_fed report`: finished runs as one HTML page that loads nothing from elsewhere.

What was run, results, figures, clients that lose against Local or FedAvg+, costs, settings.
"""

from __future__ import annotations

import base64
import io
import itertools
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lit_fed.command_line import compare
from lit_fed.command_line.parser import FederatedParser, command_parser
from lit_fed.command_line.report_predictions import Predictions, calibration_figure
from lit_fed.data.data_sets.base import names_of
from lit_fed.errors import ConfigError
from lit_fed.metrics.paired import Difference, mean_difference
from lit_fed.metrics.verdict import COLUMNS, in_words, metric_in
from lit_fed.pictures import style
from lit_fed.pictures.comparison import comparison_figures
from lit_fed.system.files import given_path, owner_only, write_atomically
from lit_fed.system.foreign_files import read_table
from lit_fed.system.packages import mpl, pd
from lit_fed.training import finished_runs
from lit_fed.training.finished_runs import FinishedRun, Group, class_name
from lit_fed.training.output import check_writable

__all__ = ["report_parser", "report_runs", "write_report"]

BASELINES = ("Local", "FedAvgPlus")
"""Algorithms that a personalised one has to beat for every client; the first one is not judged itself."""

MOST_LOSERS = 20
"""Upper limit of rows in a table of clients; the page says how many there are."""

MOST_ALIKE = 10
"""Upper limit of clients that are shown as like one."""

MOST_CLASSES = 20
"""Upper limit of classes in a table."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --page: #fff; --head: #f3f5f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e7ed; --soft: #9aa5b4; --line: #343c47; --page: #14181e; --head: #1d232b; }
  figure:not(.samples) img { filter: invert(1) hue-rotate(180deg); }
}
body { margin: 2rem auto; padding: 0 1.2rem; max-width: 64rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; } h3 { font-size: 1rem; }
.note, figcaption { color: var(--soft); font-size: .9rem; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { background: var(--head); } .words { text-align: left; white-space: normal; min-width: 6rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1.2rem; }
figure { margin: 0; } figure img { width: 100%; height: auto; } pre { overflow-x: auto; font-size: .8rem; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content policy of the page: a browser may load nothing from outside it."""

PRIVATE = "The ε of private runs does not cover what this page says about single clients: pass it on with care."


def report_parser() -> FederatedParser:
    """The arguments of the command."""
    parser = command_parser(
        "report", "[options] RUN [RUN …]",
        "The page needs no network. Clients are compared with those of Local "
        "and FedAvgPlus where these are among the runs.",
    )  # fmt: skip
    compare.add_runs(parser)
    parser.add_argument("--output", type=str, default="report.html", help="file to be written, .html.")
    parser.add_argument("--metric", type=str | None, help="metric to report; by default accuracy or, for numbers, mse.")
    parser.add_argument(
        "--by", type=str | None, metavar="COLUMN",
        help="results of groups of samples, by a column of predictions.csv that `predict --keep` copied; several, as "
        "in sex,age, have a table each.",
    )  # fmt: skip
    parser.add_argument(
        "--like",
        type=str | None,
        metavar="CLIENT",
        help="the clients whose mixture weights are closest to those of this one: who shares its components.",
    )
    parser.add_argument("--anonymous", action="store_true", help="leave out names of clients, and settings.")
    return parser


def report_runs(arguments: list[str]) -> None:
    """Run the command.

    Raises:
        ConfigError: naming a refused run or argument; nothing has been written then.
    """
    given = report_parser().parse_args(arguments)
    output = given_path(given.output, "--output")
    if output.suffix != ".html" or output.is_dir():
        raise ConfigError(f"--output {output}: a report is one file; end its name in .html")
    runs = [Path(run) for run in given.runs]
    write_report(
        runs, output, given.metric, given.names, by=names_of(given.by or ""), like=given.like,
        anonymous=given.anonymous, different_data=given.different_data,
    )  # fmt: skip
    sys.stdout.write(f"report: {output}\n")


def write_report(
    folders: Sequence[Path],
    output: Path,
    metric: str | None = None,
    names: Sequence[str] | None = None,
    *,
    by: Sequence[str] = (),
    like: str | None = None,
    anonymous: bool = False,
    different_data: bool = False,
) -> None:
    """Read finished runs and write their page.

    Args:
        folders: folders of runs, or of their versions.
        output: the page; readable by its owner only if a run was private, since ε does not cover results of clients.
        metric: the metric to report; None: the first that all runs have.
        names: names of the rows; None: the differences between the runs.
        by: columns of `predictions.csv` by each of which samples are grouped.
        like: name of a client whose nearest clients by mixture weights are shown; None: none are.
        anonymous: leave out the names of clients, and the settings, which may name them.
        different_data: accept runs on different data.

    Raises:
        ConfigError: naming a run, or what differs between the data of two, and the fix.
    """
    runs = list(map(finished_runs.read_run, finished_runs.find_runs(folders)))
    metric = finished_runs.metric_of(runs, metric)
    hidden = ("data",) if anonymous else ()  # its paths, and the names of unseen clients
    groups = finished_runs.named(finished_runs.grouped(runs), names, hidden)
    if not different_data:
        finished_runs.refuse_other_data(groups)
    if anonymous and "client" in by:
        raise ConfigError("--by client names the clients, and --anonymous leaves their names out; give one of both")
    if anonymous and like is not None:
        raise ConfigError(f"--like {like} names clients, and --anonymous leaves their names out; give one of both")
    page = _Page(groups, metric, anonymous, by, like)
    if by and not any(True for _ in page.predictions()):
        given = ",".join(by)
        raise ConfigError(
            f"--by {given}: no run has a predictions.csv with labels; make it by `predict --keep {given}`"
        )
    if like is not None and not page.alike():
        raise ConfigError(
            f"--like {like}: no run has mixture weights of a client of this name in clients.csv; give a run of FedEM "
            "or ResponsibilityFedEM (on nodes, whose operators reveal weights or keep them)"
        )
    check_writable(output.absolute().parent, "--output")
    with owner_only(page.is_private):
        write_atomically(output, page.html())


class _Loss(NamedTuple):
    """The clients of a group beside those of a baseline."""

    name: str
    baseline: str
    table: pd.DataFrame  # of `compared`, the worst first
    mean: Difference  # of the differences of seen clients

    def __str__(self) -> str:
        populations = self.table.groupby("population")["gain"]
        counts = [f"{(gain < 0).sum():,} of {len(gain):,} {name} clients" for name, gain in populations]
        return f"{self.name} is worse than {self.baseline} for {' and '.join(counts)}, clearly or by chance."


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A table; its first columns hold words, the others numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="words"' if position < words else "" for position in range(len(cells))]
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    body = "\n".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{line(headings, "th")}</tr>\n{body}\n</table></div>'


def _figure(figure: Any, caption: str) -> str:
    """A figure inside the page."""
    held, said = io.BytesIO(), escape(caption)
    figure.savefig(held, format="svg", transparent=True, metadata=style.UNDATED[".svg"])
    return f"<figure>{_image(held.getvalue(), 'svg+xml', said)}<figcaption>{said}</figcaption></figure>"


def _image(content: bytes, kind: str, said: str) -> str:
    return f'<img src="data:image/{kind};base64,{base64.b64encode(content).decode()}" alt="{said}">'


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _rate(run: FinishedRun) -> str:
    """The learning rate of the first round, which a search may have found; "" of a blend, which trains nothing."""
    if run.algorithm == finished_runs.BLEND:
        return ""
    given = run.config.get("model", {}).get("solver", {}).get("lr", "")
    used = run.history["lr"].dropna().tolist() if "lr" in run.history else []
    return f"{used[0]:g}" if used else "default" if given is None else str(given)


def _covered(hits: int, held: int, number: int) -> str:
    """Covered test samples of a class, and whether a client's threshold says nothing about it."""
    return " ".join([*([f"{hits} of {number}"] if number else []), *(["unknown"] if not held else [])])


def _held_out(run: FinishedRun) -> str:
    """The command that predicts samples which trained nothing and are no test samples."""
    if run.config.get("data", {}).get("val_fraction") or any(f"{key}".startswith("val/") for key in run.history):
        return "predict --split val"
    if "test/seen/coverage" in run.summary.entries:
        return "predict --split calibration"
    return "this run has none; train with --data.val_fraction 0.2, then predict --split val"


class _Page(NamedTuple):
    """The page, part by part."""

    groups: Sequence[Group]
    metric: str
    anonymous: bool
    by: Sequence[str] = ()
    like: str | None = None

    @property
    def is_private(self) -> bool:
        return any(run.is_private for group in self.groups for run in group.runs)

    def html(self) -> str:
        title = escape(f"Report: {', '.join(group.name for group in self.groups)}")
        results = compare.cells_of(compare.comparison_table(self.groups, self.metric), self.metric)
        losses = self.losses()
        about = "weighted by their test samples; worst decile: their 10th percentile"
        parts = [
            f"<h1>{title}</h1>", *self.verdicts(), *(f"<p>{escape(str(loss))}</p>" for loss in losses),
            f"<p><strong>{PRIVATE}</strong></p>" if self.is_private else "",
            *(f"<p><strong>{escape(line)}</strong></p>" for line in self.warnings()),
            "<h2>What was run</h2>", _table(*self.facts(), words=4),
            "<h2>Results</h2>", _table(*results),
            _note(f"Test {self.metric}, mean over clients, {about}. Unseen clients took no part in the training."),
            _note(compare.varied(self.groups)),
            *self.other_metrics(), "<h2>Figures</h2>", self.figures(), *self.pictures(),
            "<h2>Clients that lose</h2>", self.losers(losses),
            *self.coverage(), *self.samples(), *self.alike(), "<h2>All clients</h2>", *self.clients(),
            "<h2>Costs</h2>", _table(*self.costs()), _note("All clients and rounds; means over seeds."),
            "" if self.anonymous else "<h2>Settings</h2>" + "".join(map(self.settings, self.groups)),
        ]  # fmt: skip
        head = [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">', f"<title>{title}</title>",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">', f"<style>{STYLE}</style>\n</head>",
        ]  # fmt: skip
        return "\n".join([*head, "<body>", *filter(None, parts), "</body>\n</html>\n"])

    def runs(self) -> Iterator[tuple[str, FinishedRun]]:
        """Every run, with a name of its own."""
        for name, runs in self.groups:
            for run in runs:
                yield name if len(runs) == 1 else f"{name} ({run.name}/{run.folder.name})", run

    def gains(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """The table of gains over training alone of each run of `choose`, with the run's name."""
        for name, run in self.runs():
            path = run.folder / "verdict.csv"
            if path.is_file():
                yield name, read_table(path, finished_runs.FIX, ("client", "served", "verdict"), ("num_test",))

    def verdicts(self) -> list[str]:
        """Whether joining pays, for each run of `choose`: a line for all clients and a table."""
        parts, called = [], self.called()
        for name, table in self.gains():
            table["client"] = [called.get(("seen", one), "?") for one in table["client"]]
            rows = (
                [f"{one:.4g}" if isinstance(one, float) else str(one) for one in row]
                for row in table.itertuples(index=False)
            )
            said, metric = escape(f"{name}: {in_words(table)}.").splitlines(), metric_in(table)
            parts += [
                "<h2>Does it pay to join?</h2>",
                *(f"<p><strong>{line}</strong></p>" for line in said),
                _table(list(table.columns), rows, words=2),
            ]
            named = ((f"{metric}{one}" if one[0] == "_" else one, meaning) for one, meaning in COLUMNS.items())
            parts += [_note(f"{one}: {meaning.replace('`', '')}.") for one, meaning in named]
        return parts

    def warnings(self) -> list[str]:
        """Lines for each run that diverged, or whose prediction sets miss a class."""
        keys = ("diverged", "undercovered/seen", "undercovered/unseen")
        return [
            f"{name}: {run.summary.entries[key]}."
            for name, run in self.runs()
            for key in keys
            if key in run.summary.entries
        ]

    def facts(self) -> tuple[list[str], list[list[str]]]:
        rows = []
        for name, runs in self.groups:
            config, summary = runs[0].config, runs[0].summary.entries
            data, model = config.get("data", {}), config.get("model", {})
            sizes = runs[0].clients["population"].value_counts()
            facts = {
                "run": name, "algorithm": runs[0].algorithm,
                "data": f"{class_name(data.get('dataset'))} {class_name(data.get('partition'))}",
                "network": class_name(model.get("network")),
                "clients": ", ".join(f"{sizes[one]:,} {one}" for one in ("seen", "unseen") if one in sizes),
                "rounds": summary.get("rounds", ""), "lr": ", ".join(dict.fromkeys(map(_rate, runs))),
                "seeds": ", ".join(str(run.config.get("seed_everything", "?")) for run in runs),
                **({"ε": summary.get("privacy/epsilon", "")} if self.is_private else {}),
                "lit_fed": summary.get("versions/lit_fed", ""),
            }  # fmt: skip
            rows.append(list(map(str, facts.values())))
        return list(facts), rows

    def figures(self) -> str:
        parts = []
        with mpl.rc_context(style.COLUMN):
            for name, figure in comparison_figures(self.groups, self.metric).items():
                parts.append(_figure(figure, name.replace("_vs_", " against ").replace("_", " ")))
        return f'<div class="figures">{"".join(parts)}</div>'

    def pictures(self) -> list[str]:
        """Test samples of the first run of each group that has drawn some; they would identify clients."""
        parts = []
        for name, runs in () if self.anonymous else self.groups:
            drawn = [path for run in runs if (path := run.folder / "plots" / style.SAMPLES).is_file()]
            for path in drawn[:1]:
                said = escape(f"{name}: the first test samples of the first clients, with their predictions")
                image = _image(path.read_bytes(), "png", said)
                parts.append(f'<figure class="samples">{image}<figcaption>{said}</figcaption></figure>')
        return parts

    def losses(self) -> list[_Loss]:
        """Every group beside every baseline with the same clients; none if the metric has no known direction."""
        baselines = [group for group in self.groups if group.runs[0].algorithm in BASELINES]
        judged = [group for group in self.groups if group.runs[0].algorithm != BASELINES[0]]
        found = []
        for group, baseline in itertools.product(judged, baselines):
            table = finished_runs.compared(group.runs, baseline.runs, self.metric)
            seen = table.query("population == 'seen'")
            if group is not baseline and seen["gain"].notna().any():
                table = table.sort_values("gain", kind="stable")
                found.append(_Loss(group.name, baseline.name, table, mean_difference(seen)))
        for name, gains in self.gains() if BASELINES[0] not in {one.runs[0].algorithm for one in baselines} else ():
            if metric_in(gains) == self.metric:
                columns = {"num_test": "samples", f"{self.metric}_served": "value", f"{self.metric}_alone": "other"}
                table = gains.rename(columns=columns).assign(population="seen", division="")
                table = table.sort_values("gain", kind="stable")
                found.append(_Loss(name, "training alone", table, mean_difference(table)))
        return found

    def losers(self, losses: Sequence[_Loss]) -> str:
        if not losses:
            return f"<p>Not known: give runs of {' or '.join(BASELINES)} on the same clients, too.</p>"
        factor, unit = style.percent(self.metric)
        digits = ".1f" if unit else ".4g"
        parts, called = [], self.called()
        for loss in losses:
            mean, low, high = (
                f"{factor * value:+{digits}}" for value in (loss.mean.mean, loss.mean.low, loss.mean.high)
            )
            parts.append(f"<h3>{escape(f'{loss.name} against {loss.baseline}')}</h3>")
            parts.append(f"<p>Mean difference of seen clients{unit}: {mean}, 95 % interval {low} to {high}.</p>")
            rows = loss.table[loss.table["gain"] < 0]
            row: Any
            cells = []
            for row in rows.head(MOST_LOSERS).itertuples():
                values = [f"{factor * one:{digits}}" for one in (row.value - row.other, row.value, row.other)]
                cells.append([f"{called[row.population, row.client]} ({row.population})", *values, str(row.samples)])
            headings = ["client", *(name + unit for name in ("difference", loss.name, loss.baseline)), "test samples"]
            more = f", the {MOST_LOSERS} that lose most of {len(rows):,}" if len(rows) > MOST_LOSERS else ""
            parts.append(_table(headings, cells) + _note(f"Clients that are worse{more}.") if cells else "")
        about = "Clients are weighted by their test samples. The interval leaves out the chance of another training."
        return "\n".join([*parts, _note(f"{about} Clients with few test samples are uncertain.")])

    def other_metrics(self) -> list[str]:
        """Results by every other metric that all runs have."""
        each = [finished_runs.metrics_of(run) for group in self.groups for run in group.runs]
        common = [one for one in each[0] if one != self.metric and all(one in names for names in each)]
        parts = []
        for metric in common:
            table = compare.cells_of(compare.comparison_table(self.groups, metric), metric)
            parts += [f"<h3>{escape(metric)}</h3>", _table(*table)]
        return parts

    def predictions(self) -> Iterator[tuple[str, FinishedRun, Predictions]]:
        """The predictions of each run that has them, with its name."""
        for name, run in self.runs():
            found = Predictions.of(run.folder, with_sets="test/seen/coverage" in run.summary.entries)
            if found is not None:
                yield name, run, found

    def samples(self) -> list[str]:
        """Groups of samples, calibration and thresholds of each run with predictions; else how to get them."""
        parts = []
        for name, run, found in self.predictions():
            for column in self.by:
                parts += [f"<h2>{escape(f'{name}: by {column}')}</h2>", _table(*found.groups(column))]
            if found.positive is not None:
                figure = _figure(calibration_figure(found), "calibration")
                parts += [
                    f"<h2>{escape(name)}: probabilities and thresholds</h2>", f'<div class="figures">{figure}</div>',
                    _table(*found.calibration_table(), words=0), _table(*found.thresholds()),
                    _note(
                        f"From this probability on, {found.classes[1]!r} is said. PPV, NPV: share of right ones among "
                        f"those said and not said. Choose a threshold on other samples: {_held_out(run)}."
                    ),
                ]  # fmt: skip
        return parts or [
            _note("The command lit-fed predict writes predictions, by which calibration and thresholds are shown here.")
        ]

    def coverage(self) -> list[str]:
        """Each class under the prediction sets of each run, of all clients and of each."""
        parts, called = [], self.called()
        for name, run in self.runs():
            path = run.folder / "coverage.csv"
            if not path.is_file():
                continue
            texts, wholes = ("population", "client", "class"), ("num_calibration", "num_test")
            table = read_table(path, finished_runs.FIX, texts, wholes)
            table["hits"] = (table["coverage"].clip(0, 1) * table["num_test"]).round().fillna(0).astype(int)
            rows: list[list[str]] = []
            for key, own in table.groupby(["population", "class"], sort=False):
                number, unknown = own["num_test"].sum(), (own["num_calibration"] == 0).sum()
                covered = f"{100 * own['hits'].sum() / number:.1f}" if number else ""
                rows.append([*map(str, key), f"{number:,}", covered, f"{unknown:,} of {len(own):,}"])
            rows.sort(key=lambda row: float(row[3] or "inf"))
            more = f" The {MOST_CLASSES} of {len(rows):,} that are covered least." if len(rows) > MOST_CLASSES else ""
            headings = ["clients", "class", "test samples", "covered (%)", "unknown to"]
            parts += [
                f"<h2>{escape(name)}: prediction sets by class</h2>", _table(headings, rows[:MOST_CLASSES], words=2),
                _note(
                    "The coverage that was asked for is an average over classes: sets may miss most of a rare one. "
                    "Unknown: no calibration sample behind a client's threshold is of this class, so that it says "
                    f"nothing about it.{more}"
                ),
            ]  # fmt: skip
            classes = list(dict.fromkeys(table["class"]))
            if len(classes) <= MOST_CLASSES:
                cells = [
                    [called.get(key, "?"), *(_covered(*one) for one in own[["hits", *wholes]].itertuples(index=False))]
                    for key, own in table.groupby(["population", "client"], sort=False)
                ]
                body = _table(["client", *classes], cells)
                parts.append(f"<details><summary>covered test samples of each client</summary>{body}</details>")
        return parts

    def called(self) -> dict[Any, str]:
        """Names of the clients in all tables, by population and name: numbers where names are left out."""
        each = (run.clients[["client", "population"]].itertuples(index=False, name=None) for _, run in self.runs())
        keys = enumerate(sorted({key for one in each for key in one}))
        return {(of, one): f"client {place + 1}" if self.anonymous else one for place, (one, of) in keys}

    def alike(self) -> list[str]:
        """The clients whose mixture weights are closest to those of `like`, of each run that has some."""
        parts = []
        for name, run in ((name, run) for name, runs in self.groups for run in runs):
            weights = run.clients.set_index("client").filter(regex="^pi_").dropna()
            if self.like in weights.index:
                gaps = (weights - weights.loc[self.like]).abs().sum(axis=1).drop(self.like).nsmallest(MOST_ALIKE) / 2
                order = [self.like, *gaps.index]
                rows = [
                    [one, "" if one == self.like else f"{gaps[one]:.3f}", *(f"{w:.3f}" for w in weights.loc[one])]
                    for one in order
                ]
                parts += [
                    f"<h2>{escape(f'{name}, {run.name}/{run.folder.name}: clients like {self.like}')}</h2>",
                    _table(["client", "apart", *(f"component {one[3:]}" for one in weights.columns)], rows),
                    _note("apart: half the sum of the differences of the mixture weights, 0 to 1."),
                ]
        return parts

    def clients(self) -> list[str]:
        """Every client with every metric, a table for each run, closed at first."""
        parts, called = [], self.called()
        for name, runs in self.groups:
            for run in runs:
                table = run.clients.drop(columns="client_id", errors="ignore").sort_values("client", kind="stable")
                table["client"] = [called[key] for key in zip(table["population"], table["client"], strict=True)]
                rows = [
                    ["" if one != one else f"{one:.4g}" if isinstance(one, float) else str(one) for one in row]
                    for row in table.itertuples(index=False)
                ]
                said = escape(f"{name}, {run.name}/{run.folder.name}: {len(rows):,} clients")
                parts.append(
                    f"<details><summary>{said}</summary>{_table(list(table.columns), rows, words=2)}</details>"
                )
        return parts

    def costs(self) -> tuple[list[str], list[list[str]]]:
        rows = []
        for name, runs in self.groups:
            keys = ("rounds", "comm/total_bytes_up", "comm/total_bytes_down", "seconds")
            values = [statistics.mean(run.summary.entries.get(key, float("nan")) for run in runs) for key in keys]
            sizes = map(style.bytes_in_unit, values[1:3])
            rows.append([name, f"{values[0]:.10g}", *sizes, f"{values[3]:.1f}", f"{values[3] / max(values[0], 1):.3f}"])
        return ["run", "rounds", "sent up", "sent down", "seconds", "seconds per round"], rows

    @staticmethod
    def settings(group: Group) -> str:
        folders = escape(", ".join(f"{run.name}/{run.folder.name}" for run in group.runs))
        config = finished_runs.without_seeds(group.runs[0].config)
        text = escape(yaml.safe_dump(config, sort_keys=False)) if config else "a run of a Python program"
        return f"<details><summary>{escape(group.name)} ({folders})</summary><pre>{text}</pre></details>"
