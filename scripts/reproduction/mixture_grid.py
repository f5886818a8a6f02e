"""When a mixture helps, one thing changed at a time: samples of a client, and how much clients differ."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lit_fed.pictures.style import look
from reproduction.pictures import panels, save
from reproduction.runs import Kept, Record, Run
from reproduction.settings import LABELS, algorithm, brief, solver
from reproduction.tables import Method, Scale, Setting, cell, grid, wrap

__all__ = ["COMMON", "DIFFERENCES", "SAMPLES", "TINY", "grid_lines", "grid_picture", "grid_runs"]

SAMPLES = (30, 100, 300, 1000)


class Difference(NamedTuple):
    """How much clients differ."""

    label: str
    arguments: tuple[str, ...]


DIFFERENCES = {
    "one_rule": Difference("one rule each", ("--data.dataset.one_hot_mixtures", "true")),
    "mixed": Difference("mixed, α = 0.4", ("--data.dataset.alpha", "0.4")),
    "alike": Difference("much alike, α = 3", ("--data.dataset.alpha", "3")),
    "same": Difference("all the same, α = 1000", ("--data.dataset.alpha", "1000")),
}
"""From clients of which each has one of the three rules to clients that all mix them in the same way."""

CHOSEN = {
    "local": algorithm("Local", unseen_epochs=1),
    "fedavg": algorithm("FedAvg"),
    "fedavg_plus": algorithm("FedAvgPlus"),
    "fedem": algorithm("FedEM", num_components=3),
}
RATES = {
    "local": ("0.003162", "0.031623"), "fedavg": ("0.1",), "fedavg_plus": ("0.316228",), "fedem": ("0.316228",),
}  # fmt: skip
"""The rates of Table 2's page; for local training, whose best depends on the number of samples, one more."""

COMMON = (
    "--data.dataset.num_clients", "100", "--data.dataset.test_size", "500", "--data.dataset.variant", "corrected",
    "--data.unseen_fraction", "0.2", "--model.init_seeds", "null", "--trainer.max_epochs", "150",
    "--trainer.check_val_every_n_epoch", "10",
)  # fmt: skip
TINY = ("--data.dataset.num_clients", "6", "--data.dataset.test_size", "10", *brief)


def grid_settings(scale: Scale) -> dict[tuple[str, int], Setting]:
    """A setting for each cell."""
    methods = tuple(
        Method(f"{name}_{rate}", LABELS[name], (*chosen, *solver(lr=rate)))
        for name, chosen in CHOSEN.items()
        for rate in RATES[name]
    )
    found = {}
    for key, difference in DIFFERENCES.items():
        for number in SAMPLES:
            arguments = (*COMMON, *difference.arguments, "--data.dataset.samples_per_client", str(number))
            small = TINY if scale == "smoke" else ()
            found[key, number] = Setting(
                f"when_grid_{key}_{number}", difference.label, "synthetic_fedavg", methods, (*arguments, *small),
                draws_data=True, draws_pool=True,
            )  # fmt: skip
    if scale != "smoke":
        return found
    place = ("mixed", SAMPLES[0])
    return {place: found[place]._replace(methods=methods[-2:])}


def grid_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of all cells."""
    return [run for setting in grid_settings(scale).values() for run in setting.runs(seeds)]


def best(setting: Setting, name: str, kept: Kept, seeds: Sequence[int]) -> list[Record]:
    """The records of a method at the better of its rates; none where one was not run."""
    each = [kept.all(setting.runs(seeds, [f"{name}_{rate}"])) for rate in RATES[name]]
    each = [records for records in each if records]
    return max(each, key=_accuracy, default=[])


def _accuracy(records: Sequence[Record]) -> float:
    return statistics.mean(100 * one["summary"]["test/seen/accuracy"] for one in records)


def _ahead(fedem: Sequence[Record], others: Sequence[Sequence[Record]]) -> str:
    """The first evaluated round from which FedEM is ahead of what the others end with, on average over seeds."""
    curves = [one["curve"]["test/seen/accuracy"] for one in fedem]
    level = max(_accuracy(records) for records in others) / 100
    behind = [statistics.mean(values) <= level for values in zip(*curves, strict=True)]
    rounds = fedem[0]["curve"]["rounds"]
    if behind[-1]:
        return "never"
    first = max((place + 1 for place, one in enumerate(behind) if one), default=0)
    return f"from round {rounds[first]}"


def grid_lines(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """A table of accuracies, and when FedEM gets ahead."""
    cells = grid_settings(scale)
    numbers = [number for number in SAMPLES if any(place[1] == number for place in cells)]
    rows, ahead = [], []
    for key, difference in DIFFERENCES.items():
        there = [number for number in numbers if (key, number) in cells]
        found = {n: {name: best(cells[key, n], name, kept, seeds) for name in CHOSEN} for n in there}
        if not any(any(methods.values()) for methods in found.values()):
            continue
        for name in CHOSEN:
            texts = []
            for methods in found.values():
                text = cell(methods[name], ["test/seen/accuracy", "test/unseen/accuracy"], len(seeds))
                most = max(_accuracy(one) for one in methods.values() if one)
                texts.append(f"**{text}**" if methods[name] and _accuracy(methods[name]) == most else text)
            rows.append([difference.label, LABELS[name], *texts])
        whole = [methods for methods in found.values() if all(methods.values())]
        if len(whole) == len(found):
            when = [_ahead(one["fedem"], [one[name] for name in CHOSEN if name != "fedem"]) for one in whole]
            ahead.append([difference.label, *when])
    if not rows:
        return []
    text = (
        "The synthetic data of the FedEM paper, whose clients mix three rules that contradict each other: 80 clients "
        "train for 150 rounds, all in each, and 20 come afterwards; linear models in 150 dimensions. Test accuracy in "
        "percent of seen / unseen clients, the best of seen clients in bold. Learning rates are those of "
        "[Table 2](fedem-table2.md); for Local the better of two. Columns: training samples of a client."
    )
    head = [str(n) for n in numbers]
    lines = ["## One thing at a time", "", *wrap(text), "", *grid(["clients", "method", *head], rows)]
    if ahead:
        more = "From which round on FedEM is ahead of what the best of the others ends with:"
        lines += ["", *wrap(more), "", *grid(["clients", *head], ahead)]
    return lines


def grid_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """A panel for each difference between clients: accuracy against samples, a curve for each method."""
    cells = grid_settings(scale)
    figure, axes = panels([one.label for one in DIFFERENCES.values()], width=3.2, height=2.8)
    for key, difference in DIFFERENCES.items():
        axis = axes[difference.label]
        for place, name in enumerate(CHOSEN):
            points = [(n, best(cells[key, n], name, kept, seeds)) for n in SAMPLES if (key, n) in cells]
            points = [(n, records) for n, records in points if records]
            if points:
                heights = [_accuracy(records) for _, records in points]
                axis.plot([n for n, _ in points], heights, label=LABELS[name], **look(place))
        axis.set(xscale="log", xlabel="training samples of a client", ylabel="test accuracy (%)")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7, frameon=False)
    save(figure, path)
