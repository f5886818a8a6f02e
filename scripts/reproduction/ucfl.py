"""Tables of the user-centric paper: Mestoukirdi, Zecchin, Gesbert, Li, Gresset, https://arxiv.org/abs/2110.09869."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reproduction.markdown import Part, grid, order, section, wrap
from reproduction.pictures import Curve, bars, curves
from reproduction.runs import Record, Run
from reproduction.settings import LABELS, published, runs_of, settings_of
from reproduction.tables import ACCURACY, Method, Results, Scale, Setting, Table, accuracies, mean

WORST = "test/seen/accuracy_worst"
Y_LABEL = "average accuracy in percent"
BASELINES = ("local", "fedavg", "oracle", "clustered_fl", "fedfomo")
SYSTEMS = {"slow_uplink": (4, 1, 1), "fast_uplink": (2, 1, 0), "wired": (1, 1, 0)}
"""The systems of Figure 3: ρ, T_min and 1/μ, the last two in units of T_dl."""


class Scenario(NamedTuple):
    """One of the three kinds of differences between users."""

    kind: str
    setting: Setting

    @property
    def table1(self) -> dict[str, float]:
        """Methods of Table I, UCFL with as many streams as there, and the worst user's published accuracy."""
        theirs = published("ucfl")[self.kind]
        best = "ucfl_20" if self.kind == "label_shift" else "ucfl_4"
        return {name: theirs["ucfl" if name == best else name][0] for name in (*BASELINES, best) if self.has(name)}

    def has(self, method: str) -> bool:
        """Whether the method is run."""
        return self.setting.method(method) is not None

    def label(self, method: str) -> str:
        """A method as it is called in tables."""
        found = self.setting.method(method)
        return LABELS[method] if found is None else found.label


def scenarios(scale: Scale) -> list[Scenario]:
    """The three scenarios of the paper."""
    names = ("label_shift", "rotations", "concept_shift")
    return [Scenario(*one) for one in zip(names, settings_of("ucfl", scale).values(), strict=True)]


def _gains(setting: Setting, found: Results) -> dict[str, float]:
    """Mean of the average accuracy of each method that was run, in percent."""
    return {name: mean(some) for name, some in found.each(setting).items() if some}


def table1_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """Table I's methods in all scenarios."""
    return [run for one in scenarios(scale) for run in one.setting.runs(seeds, list(one.table1))]


def table1_body(found: Results) -> dict[str, Part]:
    """Worst and average accuracy in each scenario, both orders, and the means of the concept shift."""
    lines: list[str] = []
    for one in scenarios(found.scale):
        rows, ours = [], {}
        for name, theirs in one.table1.items():
            records = found.of(one.setting, name)
            rows.append([one.label(name), found.cell(records, WORST), found.cell(records), str(theirs)])
            ours |= {one.label(name): mean(records, WORST)} if records else {}
        compared = order(ours, {one.label(name): value for name, value in one.table1.items()})
        head = ["algorithm", "worst user", "average", "worst user, the paper"]
        said = wrap(compared and f"Order of the worst users: {compared}")
        lines += section(one.setting.label, grid(head, rows), said)
    means = _gains(scenarios(found.scale)[-1].setting, found)
    named = {name: f"{means[name]:.1f}" if name in means else None for name in ("ucfl_4", "oracle", "local", "fedavg")}
    return {"scenarios": lines[1:], **named}


def table1_picture(found: Results, path: Path) -> None:
    """Bars of the worst users, the paper's as marks."""
    panels = {}
    for one in scenarios(found.scale):
        each = found.each(one.setting, list(one.table1)).items()
        theirs = one.table1
        panels[one.setting.label] = [(one.label(name), accuracies(some, WORST), theirs[name]) for name, some in each]
    bars(panels, "accuracy of the worst user in percent", path)


def figure2_body(found: Results) -> dict[str, Part]:
    """The paper's words beside differences of final accuracies."""
    lines: list[str] = []
    for one in scenarios(found.scale):
        means, rows = _gains(one.setting, found), []
        for claim, first, second in found.words["claims"][one.kind]:
            gap = f"{means[first] - means[second]:+.1f}" if {first, second} <= means.keys() else "not run"
            rows.append([claim, f"{one.label(first)} − {one.label(second)}", gap])
        ends = [f"{one.label(name)} {value:.1f}" for name, value in means.items()]
        said = wrap(f"At the end: {', '.join(ends)}." if ends else "")
        lines += section(one.setting.label, grid(["the paper", "difference", "here"], rows), said)
    return {"scenarios": lines[1:]}


def figure2_picture(found: Results, path: Path) -> None:
    """A panel for each scenario."""
    settings = [one.setting for one in scenarios(found.scale)]
    panels = {one.label: [_curve(method, one, found, "rounds") for method in one.methods] for one in settings}
    curves(panels, "round", Y_LABEL, path)


def _curve(method: Method, setting: Setting, found: Results, x: str) -> Curve:
    """Accuracy at the evaluated rounds; of runs made before curves were kept there is nothing."""
    records = _with_curves(found.of(setting, method.name), x)
    values = [[100 * value for value in record["curve"][ACCURACY]] for record in records]
    return method.label, records[0]["curve"][x] if records else [], values


def _with_curves(records: Sequence[Record], key: str) -> list[Record]:
    return [one for one in records if key in one["curve"]]


TIMED = ("fedavg", "clustered_fl", "fedfomo", "ucfl_1", "ucfl_4", "ucfl_20")


def timed(scale: Scale) -> Scenario:
    """Label and covariate shift, whose rounds are timed in all three systems."""
    return scenarios(scale)[1]


def figure3_body(found: Results) -> dict[str, Part]:
    """The time until each method is as good as FedAvg in the end, and of a run in units of FedAvg's."""
    one = timed(found.scale)
    target = _gains(one.setting, found).get("fedavg")
    if target is None:
        return {"target": None, "times": None, "units": None}
    each = found.each(one.setting, TIMED)
    rows = [[one.label(name), *(_times(each[name], system, target) for system in SYSTEMS)] for name in TIMED]
    parts = []
    dear = ("ucfl_4", "ucfl_20", "fedfomo")
    for system in SYSTEMS if all(each[name] for name in dear) else ():
        totals = {name: _total(each[name], system) for name in ("fedavg", *dear)}
        rest = ", ".join(f"{one.label(name)} {totals[name] / totals['fedavg']:.2f}" for name in dear)
        parts.append(f"{system.replace('_', ' ')}: {rest}")
    times = grid(["algorithm", *map(_system, SYSTEMS)], rows)
    return {"target": f"{target:.1f}", "times": times, "units": "; ".join(parts) or None}


def _total(records: Sequence[Record], system: str) -> float:
    return sum(one["summary"][f"time/simulated/{system}"] for one in records) / len(records)


def _times(records: Sequence[Record], system: str, target: float) -> str:
    """Until the target is reached, and in all; over the seeds."""
    key = f"time/simulated/{system}"
    found = _with_curves(records, key)
    if not found:
        return "not run"
    known = [time for one in found if (time := _reached(one, key, target)) is not None]
    first = f"{sum(known) / len(known):.0f}" if len(known) == len(found) else "not reached"
    return f"{first} / {_total(found, system):.0f}"


def _reached(record: Record, key: str, target: float) -> float | None:
    """When the accuracy is first as large as the target, in percent; curves have six digits."""
    pairs = zip(record["curve"][key], record["curve"][ACCURACY], strict=True)
    return next((time for time, accuracy in pairs if 100 * accuracy >= target - 1e-3), None)


def _system(name: str) -> str:
    ratio, least, mean_added = SYSTEMS[name]
    return f"{name.replace('_', ' ')}: ρ = {ratio}, T_min = {least}, 1/μ = {mean_added}"


def figure3_picture(found: Results, path: Path) -> None:
    """A panel for each system."""
    setting = timed(found.scale).setting
    chosen = [method for method in setting.methods if method.name in TIMED]
    times = {_system(one): f"time/simulated/{one}" for one in SYSTEMS}
    panels = {name: [_curve(method, setting, found, time) for method in chosen] for name, time in times.items()}
    curves(panels, "simulated time in units of T_dl", Y_LABEL, path)


TABLES = [
    Table("ucfl-table1", table1_runs, table1_body, table1_picture),
    Table("ucfl-figure2", runs_of("ucfl"), figure2_body, figure2_picture),
    Table("ucfl-figure3", runs_of(lambda scale: [timed(scale).setting], TIMED), figure3_body, figure3_picture),
]
