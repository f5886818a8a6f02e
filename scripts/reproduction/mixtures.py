"""When a mixture of models helps: what the records of several tables say together, and runs with one change each."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from lit_fed.pictures.style import look, save
from reproduction.markdown import Part, grid
from reproduction.measures import STEPS
from reproduction.pictures import panels
from reproduction.runs import Record, Run
from reproduction.settings import LABELS, runs_of, settings_of, some_settings
from reproduction.tables import ACCURACY, Results, Scale, Setting, Table, mean

COMPARED = ("local", "fedavg", "fedavg_plus", "fedem")
BOTH = (ACCURACY, "test/unseen/accuracy")
STEPPED, STEPPED_WITH = (3, 10), ("100", "1000")
"""Numbers of components, and samples of a client, in the table of E-steps."""

DIGITS_SEEDS = (0, 1, 2, 3, 4)
STARTS = (1, 2, 3, 4, 5)


def cells(study: str, scale: Scale) -> dict[tuple[str, str], Setting]:
    """The settings of a study by how much clients differ and how many samples each has; `smoke` has one."""
    settings = some_settings(f"when_{study}_", scale)
    found = {}
    for name, setting in settings.items():
        key, _, samples = name.removeprefix(f"when_{study}_").rpartition("_")
        found[key, samples] = setting
    wanted = ("mixed", "30") if study == "grid" else next(iter(found))
    return {wanted: found[wanted]} if scale == "smoke" else found


def digits() -> Setting:
    """Clients that do not contradict each other: each has classes of its own, and about 70 training samples."""
    return some_settings("when_steps_digits", "reduced")["when_steps_digits"]


def permuted(scale: Scale) -> Setting:
    """Three groups of clients that call the classes of CIFAR-10 by other names."""
    return some_settings("when_permuted", scale)["when_permuted_0.3"]


def runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of this page's own; the others are those of other pages."""
    found = permuted(scale).runs(seeds)
    for study in ("grid", "number"):
        found += [run for setting in cells(study, scale).values() for run in setting.runs(seeds)]
    found += [] if scale == "smoke" else digits().runs(DIGITS_SEEDS)
    starts = STARTS[:1] if scale == "smoke" else STARTS
    return found + [run for setting in cells("start", scale).values() for run in setting.runs(starts)]


def body(found: Results) -> dict[str, Part]:
    """A row for each situation, and the tables of one change at a time."""
    table, ahead = _grid(found)
    studies = {"numbers": _numbers(found), "steps": _steps(found), "starts": _starts(found)}
    grids = {"grid": table, "ahead": ahead, "if_ahead": "" if ahead else None}
    return {"situations": _situations(found), **grids, **studies}


def _situations(found: Results) -> list[str]:
    rows = []
    known = some_settings("", "reduced") | {"when_permuted_0.3": permuted(found.scale)}
    listed = found.words["situations"]
    if found.scale != "reduced":
        listed = [["labels permuted", "4", "few", "2, all", "when_permuted_0.3", [1]]]
    for *what, name, seeds in listed:
        own = found._replace(seeds=seeds)
        records = own.each(known[name], COMPARED)
        if records["fedem"] and records["fedavg"]:
            gain = mean(records["fedem"]) - mean(records["fedavg"])
            rows.append([*what, *(own.cell(some) for some in records.values()), f"{gain:+.1f}"])
    head = ["clients differ in", "clients", "training samples of each", "rounds, clients in each"]
    return grid([*head, *(LABELS[name] for name in COMPARED), "FedEM − FedAvg"], rows)


def best(found: Results, setting: Setting, name: str) -> list[Record]:
    """The records of a method at the better of its rates; none where it was not run."""
    rates = [one.name for one in setting.methods if one.name.rpartition("_")[0] == name]
    return max((some for rate in rates if (some := found.of(setting, rate))), key=mean, default=[])


def _ahead(fedem: Sequence[Record], others: Sequence[Sequence[Record]]) -> str:
    """The first evaluated round from which FedEM is ahead of what the others end with, on average over seeds."""
    curves = [one["curve"][ACCURACY] for one in fedem]
    level = max(mean(records) for records in others) / 100
    behind = [statistics.mean(values) <= level for values in zip(*curves, strict=True)]
    if behind[-1]:
        return "never"
    first = max((place + 1 for place, one in enumerate(behind) if one), default=0)
    return f"from round {fedem[0]['curve']['rounds'][first]}"


def _by_difference(study: str, scale: Scale) -> tuple[list[str], dict[str, dict[str, Setting]]]:
    """Numbers of samples, and for each difference between clients, by its label, the setting of each number."""
    found: dict[str, dict[str, Setting]] = {}
    for (_, samples), setting in cells(study, scale).items():
        found.setdefault(setting.label, {})[samples] = setting
    return sorted({samples for some in found.values() for samples in some}, key=int), found


def _bold(found: Results, row: Mapping[str, list[Record]], rows: Sequence[Mapping[str, list[Record]]]) -> list[str]:
    """A cell for each number of samples, in bold where the row is the best of its column."""
    shown = []
    for samples, records in row.items():
        most = max((mean(one[samples]) for one in rows if one[samples]), default=0.0)
        text = found.cell(records, *BOTH)
        shown.append(f"**{text}**" if records and mean(records) == most else text)
    return shown


def _grid(found: Results) -> tuple[list[str] | None, list[str] | None]:
    """A table of accuracies, and when FedEM gets ahead."""
    numbers, differences = _by_difference("grid", found.scale)
    rows, ahead = [], []
    for label, settings in differences.items():
        each = {name: {n: best(found, one, name) for n, one in settings.items()} for name in COMPARED}
        if not any(records for columns in each.values() for records in columns.values()):
            continue
        rows += [[label, LABELS[name], *_bold(found, columns, [*each.values()])] for name, columns in each.items()]
        if all(records for columns in each.values() for records in columns.values()):
            others = {n: [each[one][n] for one in COMPARED[:-1]] for n in settings}
            ahead.append([label, *(_ahead(each["fedem"][n], records) for n, records in others.items())])
    table = grid(["clients", "method", *numbers], rows) if rows else None
    return table, grid(["clients", *numbers], ahead) if ahead else None


def picture(found: Results, path: Path) -> None:
    """A panel for each difference between clients: accuracy against samples, a curve for each method."""
    labels = list(dict.fromkeys(one.label for one in some_settings("when_grid_", found.scale).values()))
    _, differences = _by_difference("grid", found.scale)
    figure, axes = panels(labels, width=3.2, height=2.8)
    for label in labels:
        axis = axes[label]
        for place, name in enumerate(COMPARED):
            each = {n: best(found, one, name) for n, one in differences.get(label, {}).items()}
            points = {int(n): mean(records) for n, records in each.items() if records}
            if points:
                axis.plot(list(points), list(points.values()), label=LABELS[name], **look(place))
        axis.set(xscale="log", xlabel="training samples of a client", ylabel="test accuracy (%)")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7, frameon=False)
    save(figure, path)


def _numbers(found: Results) -> list[str] | None:
    """A table of accuracies by number of components."""
    numbers, differences = _by_difference("number", found.scale)
    rows = []
    for label, settings in differences.items():
        methods = next(iter(settings.values())).methods
        each = {one.label: {n: found.of(setting, one.name) for n, setting in settings.items()} for one in methods}
        made = {name: columns for name, columns in each.items() if any(columns.values())}
        rows += [[label, name[4:], *_bold(found, columns, [*made.values()])] for name, columns in made.items()]
    return grid(["clients", "M", *numbers], rows) if rows else None


def _steps(found: Results) -> list[str] | None:
    """A table of unseen clients' accuracies by number of E-steps."""
    asked = []
    for (_, samples), setting in cells("number", found.scale).items():
        if found.scale == "smoke" or samples in STEPPED_WITH:
            asked += [(setting.label, samples, str(n), found.of(setting, f"fedem_{n}")) for n in STEPPED]
    asked.append((digits().label, "70", "3", found.kept.all(digits().runs(DIGITS_SEEDS))))
    rows = []
    for *what, records in asked:
        if records:
            steps = [statistics.mean(100 * one["unseen_by_e_steps"][str(step)] for one in records) for step in STEPS]
            rows.append([*what, *(f"{value:.2f}" for value in steps), f"{mean(records):.2f}"])
    return grid(["clients", "samples", "M", *map(str, STEPS), "seen clients"], rows) if rows else None


def _starts(found: Results) -> list[str] | None:
    """A table of the least, mean and largest accuracy over the starts."""
    rows = []
    for (_, samples), setting in cells("start", found.scale).items():
        for name, records in found._replace(seeds=STARTS).each(setting).items():
            values = [mean([one]) for one in records]
            if values:
                ends = f"{min(values):.2f} to {max(values):.2f}"
                rows.append([setting.label, samples, LABELS[name], f"{statistics.mean(values):.2f}", ends])
    return grid(["clients", "samples", "method", "mean", "worst to best"], rows) if rows else None


def _bodies(found: Results) -> dict[str, Part]:
    """A table for each data set: bodies that clients share under heads of their own, with a mixture and without."""
    parts: dict[str, Part] = {}
    for name, setting in settings_of("bodies", found.scale).items():
        records = found.each(setting)
        keys = BOTH if any(BOTH[1] in one["summary"] for some in records.values() for one in some) else (ACCURACY,)
        rows = [[LABELS[method], found.cell(some, *keys)] for method, some in records.items()]
        parts[name] = grid(["method", " / ".join(("seen", "unseen")[: len(keys)])], rows)
    return parts


TABLES = [
    Table("when-mixtures-help", runs, body, picture),
    Table("shared-bodies", runs_of("bodies"), _bodies),
]
