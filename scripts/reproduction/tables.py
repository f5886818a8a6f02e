"""What a table or figure of a paper is, and how its page is written."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from reproduction.markdown import Part, fill, in_lines, wrap
from reproduction.runs import Kept, Record, Run, command_line

ACCURACY = "test/seen/accuracy"
PAGES = Path(__file__).parent / "pages"
Scale = Literal["smoke", "reduced", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "reduced", "paper")


class Results(NamedTuple):
    """The records of a scale for some training seeds."""

    kept: Kept
    scale: Scale
    seeds: Sequence[int]
    words: Mapping[str, Any] = {}  # the head of the page's file

    def of(self, setting: Setting, method: str) -> list[Record]:
        """The records of a method; none where the setting has no such method."""
        return self.kept.all(setting.runs(self.seeds, [method]))

    def each(self, setting: Setting, methods: Sequence[str] | None = None) -> dict[str, list[Record]]:
        """The records of some methods, by default of all."""
        return {name: self.of(setting, name) for name in methods or [one.name for one in setting.methods]}

    def cell(self, records: Sequence[Record], *keys: str) -> str:
        """Several results in one cell, by default the accuracy, with the number of runs where some are missing."""
        return cell(records, keys or (ACCURACY,), len(self.seeds))


Body = Callable[[Results], dict[str, Part]]
Picture = Callable[[Results, Path], None]


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper; its words are in `pages/NAME.md`: a head in YAML, what was found, and the text."""

    name: str
    runs: Callable[[Scale, Sequence[int]], list[Run]]  # of a scale with these training seeds
    body: Body  # the parts of the page that its text names in braces
    picture: Picture | None = None  # draws NAME.png

    @cached_property
    def head(self) -> dict[str, Any]:
        """`title`, `source` in the paper, data that it `needs`, CPU time as `cost`, what was `reduced`, and `seeds`."""
        head: dict[str, Any] = yaml.safe_load(self._words[0])
        return {"reduced": "", "seeds": [1, 2, 3]} | head

    @cached_property
    def found(self) -> str:
        """What the records of the reduced scale show."""
        return " ".join(self._words[1].partition("\n\n")[0].split())

    @property
    def text(self) -> str:
        """The page behind what was found; see `fill`."""
        return self._words[1].partition("\n\n")[2]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Training seeds where none are asked for."""
        return tuple(self.head["seeds"])

    @cached_property
    def _words(self) -> list[str]:
        return (PAGES / f"{self.name}.md").read_text().split("---\n")[1:]


class Method(NamedTuple):
    """An algorithm with its settings, a column or a row."""

    name: str  # in the kept files
    label: str
    arguments: tuple[str, ...]
    measures: tuple[str, ...] = ()

    def more(self, arguments: Sequence[str], measures: Sequence[str] = ()) -> Method:
        """This method with more arguments and measures."""
        return self._replace(arguments=(*self.arguments, *arguments), measures=(*self.measures, *measures))

    def option(self, name: str) -> str | None:
        """The value of an option, if it is given."""
        return dict(zip(self.arguments, self.arguments[1:], strict=False)).get(name)


class Setting(NamedTuple):
    """Data, network and budget, with the methods that are run there."""

    name: str  # in the kept files
    label: str
    config: str  # of configs/experiment
    methods: tuple[Method, ...]
    arguments: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    draws_data: bool = True  # a seed draws partition and split too
    draws_pool: bool = False  # and what is kept of the pool, or how a data set is generated
    choices: Mapping[str, Mapping[str, str]] = {}  # labels of what methods are products of

    def run(self, method: str, seed: int) -> Run | None:
        """The run of a method; None where the setting has no such method."""
        one = self.method(method)
        if one is None:
            return None
        noise = ("--model.privacy.noise_seed", str(seed)) if "--model.privacy" in one.arguments else ()
        arguments = (*self.arguments, *one.arguments, *noise, *self._seeds(seed))
        return Run(f"{self.name}/{method}-{seed}", self.config, arguments, (*self.measures, *one.measures))

    def varied(self, name: str, *arguments: str) -> Setting:
        """This setting with more arguments and a longer name."""
        return self._replace(name=f"{self.name}_{name}", arguments=(*self.arguments, *arguments))

    def without(self, *options: str) -> Setting:
        """This setting where nothing gives these options."""

        def kept(given: Sequence[str]) -> tuple[str, ...]:
            pairs = zip(("", *given), given, strict=False)
            return tuple(one for before, one in pairs if one not in options and before not in options)

        methods = tuple(one._replace(arguments=kept(one.arguments)) for one in self.methods)
        return self._replace(arguments=kept(self.arguments), methods=methods)

    def only(self, *names: str) -> Setting:
        """This setting with some of its methods, in this order."""
        known = {one.name: one for one in self.methods}
        return self._replace(methods=tuple(known[name] for name in names))

    def method(self, name: str) -> Method | None:
        """The method of this name."""
        return next((one for one in self.methods if one.name == name), None)

    def _seeds(self, seed: int) -> tuple[str, ...]:
        drawn = {"--data.seed": self.draws_data, "--data.dataset.seed": self.draws_pool}
        return ("--seed_everything", str(seed), *(part for key in drawn if drawn[key] for part in (key, str(seed))))

    def runs(self, seeds: Sequence[int], methods: Sequence[str] | None = None) -> list[Run]:
        """The runs of some methods, by default of all."""
        names = [one.name for one in self.methods] if methods is None else methods
        found = [self.run(name, seed) for seed in seeds for name in names]
        return [run for run in found if run is not None]


def accuracies(records: Sequence[Record], key: str = ACCURACY) -> list[float]:
    """A result of each record in percent."""
    return [100 * one["summary"][key] for one in records]


def mean(records: Sequence[Record], key: str = ACCURACY) -> float:
    """The mean over records in percent."""
    return statistics.mean(accuracies(records, key))


def plus_minus(values: Sequence[float]) -> str:
    """Mean ± standard deviation; of a single value itself."""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def cell(records: Sequence[Record], keys: Sequence[str], wanted: int) -> str:
    """Several results in one cell, with the number of runs where some are missing."""
    if not records:
        return "not run"
    short = "" if len(records) == wanted else f" ({len(records)} of {wanted} seeds)"
    return " / ".join(plus_minus(accuracies(records, key)) for key in keys) + short


def page(table: Table, kept: Kept, scale: Scale, seeds: Sequence[int]) -> str:
    """The page of a table from what is kept."""
    runs = list(dict.fromkeys(table.runs(scale, seeds)))
    made, missing = kept.all(runs), kept.missing(runs)
    diverged = [run for run in runs if kept.diverged(run) is not None]
    title, found = table.head["title"], {"smoke": NO_RESULT, "reduced": f"**{table.found}**", "paper": ""}[scale]
    only = {"only_reduced": "" if scale == "reduced" else None}
    body = fill(table.text, only | table.body(Results(kept, scale, seeds, table.head)))
    lines = [f"# {title}", "", *([*wrap(found), ""] if found else []), *body]
    if table.picture is not None and made:
        lines += ["", f"![{title}]({table.name}{'-paper' if scale == 'paper' else ''}.png)"]
    lines += ["", "## How this page was made", ""]
    lines += wrap(
        f"{table.head['source']}. Generated by `python scripts/reproduce.py {table.name} --scale {scale}` from the "
        f"records in `docs/results/runs/{scale}/`; do not edit. Seeds {', '.join(map(str, seeds))}. {len(made)} of "
        f"{len(runs)} runs were made."
        + "".join(f" `{run.name}` ended with NaN in round {kept.diverged(run)}." for run in diverged)
    )
    if scale == "reduced" and table.head["reduced"]:
        lines += ["", *wrap(f"**What is reduced.** {table.head['reduced']}")]
    lines += ["", *_not_made(missing), *_command(table, scale, [run for run in runs if run not in missing], kept)]
    return "\n".join(lines).rstrip() + "\n"


NO_RESULT = "**A run through on drawn samples.** No figure here means anything."


def _not_made(missing: Sequence[Run]) -> list[str]:
    return ["## Not run", "", *wrap(", ".join(f"`{run.name}`" for run in missing) + "."), ""] if missing else []


def _command(table: Table, scale: Scale, made: Sequence[Run], kept: Kept) -> list[str]:
    """The command of the first run, and the one that prints all."""
    if not made:
        return []
    summaries = [record["summary"] for record in kept.all(made) if record["summary"]]
    versions = sorted({f"torch {one['versions/torch']}, lightning {one['versions/lightning']}" for one in summaries})
    devices = sorted({one["device"] for one in summaries})
    made_with = f"Made with {'; '.join(versions)} on {', '.join(devices)}. " if summaries else ""
    at = "" if scale == "reduced" else f" --scale {scale}"
    others = f"`python scripts/reproduce.py --commands {table.name}{at}`"
    text = f"{made_with}{others} prints the command of every run. The first, with `--data.dataset.root DIR`:"
    return ["## Commands", "", *wrap(text), "", "```bash", in_lines(command_line(made[0])), "```"]
