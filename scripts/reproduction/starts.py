"""How FedEM finds its mixture: remedies beside the paper's rule, from the same starts."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lit_fed.pictures.style import look, save
from reproduction.markdown import Part, grid
from reproduction.pictures import panels
from reproduction.runs import Record, Run
from reproduction.settings import some_settings
from reproduction.tables import Results, Scale, Setting, Table, accuracies, mean

FEW = 5
"""Number of starts of runs that are expensive or secondary."""

REMEDIES = ("cluster",)
"""What is tried on the digits alone, with as many components as rules."""

TRACED = {"the paper's, {}": ("samples_3", 2), "averages by Σq, {}": ("q_3", 1)}
"""What the picture shows: methods, and from how many of the starts."""


def runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """Every remedy on the digits with as many components as rules; elsewhere the promising ones."""
    settings = some_settings("starts_", scale).values()
    each = [(setting, one.name) for setting in settings for one in setting.methods]
    return [run for setting, method in each for run in setting.runs(starts(setting, method, seeds), [method])]


def starts(setting: Setting, method: str, seeds: Sequence[int]) -> Sequence[int]:
    """The seeds of a method."""
    start, _, number = method.rpartition("_")
    usual = number == "3" and not start.startswith("peers")
    if start in REMEDIES and not (usual and setting.name == "starts_digits"):
        return ()
    return seeds if usual and setting.name in ("starts_digits", "starts_dirichlet") else seeds[:FEW]


def body(found: Results) -> dict[str, Part]:
    """A table for each data set that there are records of."""
    settings = some_settings("starts_", found.scale)
    tables = {name.removeprefix("starts_"): _table(found, one) for name, one in settings.items()}
    parts: dict[str, Part] = {name: table or None for name, table in tables.items()}
    parts |= {f"if_{name}": "" if table else None for name, table in tables.items()}
    parts["if_images"] = "" if tables["mnist"] or tables["cifar10"] else None
    return parts | {"bytes": _bytes(found, settings["starts_digits"])}


def _records(found: Results, setting: Setting, method: str) -> list[Record]:
    return found._replace(seeds=starts(setting, method, found.seeds)).of(setting, method)


def _table(found: Results, setting: Setting) -> list[str]:
    rows = []
    for method in setting.methods:
        records = _records(found, setting, method.name)
        if not records:
            continue
        number = method.name.rpartition("_")[2]
        values = accuracies(records)
        rand = [one["groups_found"]["rand"] for one in records]
        right = "" if math.isnan(rand[0]) else f"{sum(one >= 0.95 for one in rand)} of {len(records)}"
        stepped = [one["unseen_by_e_steps"] for one in records if "unseen_by_e_steps" in one]
        unseen = [f"{100 * statistics.mean(one[step] for one in stepped):.1f}" for step in ("1", "10", "30") if stepped]
        likelihoods = [one["curve"]["train/seen/loss@served"][-1] for one in records]
        rows.append([
            method.label, number if number.isdigit() else "", right,
            f"{statistics.mean(values):.1f}", f"{min(values):.1f} to {max(values):.1f}",
            " / ".join(unseen) or f"{mean(records, 'test/unseen/accuracy'):.1f}",
            f"{statistics.mean(likelihoods):.3f}", f"{max(likelihoods):.3f}",
        ])  # fmt: skip
    if not rows:
        return []
    head = ["start", "M", "groups found", "seen: mean", "worst to best", "unseen", "training loss: mean", "worst"]
    return grid(head, rows)


def _bytes(found: Results, setting: Setting) -> list[str]:
    rows = []
    for method in (one for one in setting.methods if one.name.endswith("_3")):
        records = _records(found, setting, method.name)
        if records:
            each = [sum(one["curve"][f"comm/bytes_{way}"][-1] for one in records) for way in ("up", "down")]
            rows.append([method.label, *(f"{value / len(records) / 1e6:.1f}" for value in each)])
    return grid(["start", "MB up", "MB down"], rows)


def picture(found: Results, path: Path) -> None:
    """A column for each traced run: weights of each group, how far the components move, entropies, training loss."""
    setting = some_settings("starts_traced", found.scale)["starts_traced"]
    chosen: dict[str, Record] = {}
    for label, (method, number) in TRACED.items():
        records = sorted(_records(found, setting, method), key=lambda one: one["groups_found"]["rand"])
        ends = [("the worst start", 0), ("the best", -1)][-number:] if records else []
        chosen |= {label.format(said): records[place] for said, place in ends}
    if not chosen:
        return
    said = ("mean π of a group", "step / norm", "entropy in nats", "training loss")
    figure, axes = panels([f"{label}{' ' * row}" for row in range(4) for label in chosen], 3.4, 2.3, len(chosen))
    for label, record in chosen.items():
        for row, lines in enumerate(_lines(record)):
            axis = axes[f"{label}{' ' * row}"]
            for one in lines:
                shape = look(one.look) | {"marker": ""}
                axis.plot(one.rounds, one.values, label=one.label, color=f"C{one.colour}", **shape)
            axis.set(ylabel=said[row], xlim=(0, lines[0].rounds[-1]), yscale="log" if row == 3 else "linear")
            if label == next(iter(chosen)) and row < 3:
                axis.legend(fontsize=5, frameon=False)
    save(figure, path)


class Line(NamedTuple):
    """A measure over rounds."""

    label: str
    rounds: Sequence[int]
    values: Sequence[float]
    colour: int
    look: int = 0


def _lines(record: Record) -> list[list[Line]]:
    """What the four rows of the picture show of a run."""
    rows = record["mixture_curve"]
    rounds = [one["round"] for one in rows]
    groups, numbers = range(len(rows[0]["by_group"])), range(len(rows[0]["components"]))
    weights = [
        Line(f"group {g}, component {m}", rounds, [one["by_group"][g][m] for one in rows], m, g)
        for g in groups for m in numbers
    ]  # fmt: skip
    steps = [Line(f"component {m}", rounds[1:], [one["moved"][m] for one in rows[1:]], m) for m in numbers]
    entropies = [
        Line(f"of {name}", rounds, [one[f"entropy_of_{key}"] for one in rows], 7, place)
        for place, (name, key) in enumerate((("π", "clients"), ("q", "samples")))
    ]
    loss = Line("", record["curve"]["rounds"], record["curve"]["train/seen/loss@served"], 7)
    return [weights, steps, entropies, [loss]]


TABLES = [Table("fedem-starts", runs, body, picture)]
