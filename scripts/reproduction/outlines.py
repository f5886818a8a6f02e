"""Segmentation with annotators who outline differently: Dice of mixtures and of single models."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from lit_fed.pictures.style import look, save
from reproduction.markdown import Part, grid
from reproduction.pictures import panels
from reproduction.runs import Record
from reproduction.settings import runs_of, some_settings
from reproduction.tables import Results, Setting, Table, plus_minus

OUTLINES = ("tight", "exact", "wide")
"""Names of the groups."""


def _setting(found: Results) -> Setting:
    return some_settings("outlines", found.scale)["outlines"]


def body(found: Results) -> dict[str, Part]:
    """A row for each method: Dice of seen and unseen clients, and of each group of them."""
    rows, setting = [], _setting(found)
    for method in setting.methods:
        records = found.of(setting, method.name)
        if not records:
            continue
        seen, unseen = (_cell(records, [key]) for key in ("seen", "unseen"))
        worst = plus_minus([100 * min(dice(one)) for one in records])
        groups = [_cell(records, ["seen", "unseen"], group) for group in range(len(OUTLINES))]
        rows.append([method.label, seen, unseen, worst, *groups])
    rand = {name: found.of(setting, name) for name in ("fedem", "fedem_clustering")}
    values = [
        f"{statistics.mean(one['groups_found']['rand'] for one in some):.2f}" if some else None
        for some in rand.values()
    ]
    parts: dict[str, Part] = dict(zip(("rand", "rand_clustering"), values, strict=True))
    return parts | {"table": grid(["method", "seen", "unseen", "worst client", *OUTLINES], rows)}


def dice(record: Record, populations: Sequence[str] = ("seen", "unseen"), group: int | None = None) -> list[float]:
    """Dice of the clients of some populations, and of one group of them."""
    return [
        one["dice"]
        for one in record["client_dice"]
        if one["population"] in populations and group in (None, one["group"])
    ]


def _cell(records: Sequence[Record], populations: Sequence[str], group: int | None = None) -> str:
    means = [statistics.mean(values) for one in records if (values := dice(one, populations, group))]
    return plus_minus([100 * value for value in means]) if means else ""


def picture(found: Results, path: Path) -> None:
    """A panel for seen and unseen clients: the Dice of each client, a row for each method."""
    setting = _setting(found)
    figure, axes = panels(["seen clients", "unseen clients"], width=4.6, height=2.8)
    for population, axis in zip(("seen", "unseen"), axes.values(), strict=True):
        for group, name in enumerate(OUTLINES):
            points = [
                (100 * value, row + 0.2 * (group - 1))
                for row, method in enumerate(setting.methods)
                for record in found.of(setting, method.name)
                for value in dice(record, [population], group)
            ]
            if points:
                shown = {**look(group), "linestyle": "none", "color": f"C{group}", "markersize": 4}
                axis.plot(*zip(*points, strict=True), label=name, **shown)
        axis.set_yticks(range(len(setting.methods)), [one.label.replace(", ", ",\n") for one in setting.methods])
        axis.set_ylim(len(setting.methods) - 0.5, -0.5)
        axis.set_xlabel("Dice (%)")
    axes["seen clients"].legend(fontsize=8, frameon=False)
    save(figure, path)


TABLES = [Table("outlines", runs_of(lambda scale: some_settings("outlines", scale).values()), body, picture)]
