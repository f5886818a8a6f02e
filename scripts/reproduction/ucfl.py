"""Tables of the user-centric paper: Mestoukirdi, Zecchin, Gesbert, Li, Gresset, https://arxiv.org/abs/2110.09869."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from reproduction.pictures import Curve, bars, curves
from reproduction.runs import Kept, Record, Run
from reproduction.tables import Method, Scale, Setting, Table, cell, grid, mean, order, wrap
from reproduction.ucfl_settings import SYSTEMS, Scenario, scenarios

__all__ = ["TABLES"]

WORST, AVERAGE = "test/seen/accuracy_worst", "test/seen/accuracy"


# ---------------------------------------------------------------------- Table I
def table1_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """Table I's methods in all scenarios."""
    return [run for one in scenarios(scale).values() for run in one.setting.runs(seeds, one.table1)]


def table1_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Worst and average accuracy in each scenario, and both orders."""
    lines = wrap(
        "Test accuracy in percent, of the worst user and weighted by test samples, mean ± standard deviation over the "
        "seeds, which draw samples, partition, split and initial models. UCFL has as many streams as in the paper: a "
        "model for each user in the label shift, four elsewhere. The paper gives the worst user's alone, over 5 trials."
    )
    for one in scenarios(scale).values():
        lines += ["", f"## {one.setting.label}", "", *_scenario_table(one, kept, seeds)]
    return [*lines, "", *_choices(kept, scale, seeds)]


def _scenario_table(scenario: Scenario, kept: Kept, seeds: Sequence[int]) -> list[str]:
    rows, ours = [], {}
    for name in scenario.table1:
        records = kept.all(scenario.setting.runs(seeds, [name]))
        cells = [cell(records, [key], len(seeds)) for key in (WORST, AVERAGE)]
        rows.append([scenario.label(name), *cells, str(scenario.published[name])])
        if records:
            ours[scenario.label(name)] = mean(records, WORST)
    compared = order(ours, {scenario.label(name): value for name, value in scenario.published.items()})
    head = ["algorithm", "worst user", "average", "worst user, the paper"]
    return [*grid(head, rows), *(["", *wrap(f"Order of the worst users: {compared}")] if compared else [])]


def _choices(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """What was chosen here, and how the groups of the concept shift were found."""
    texts = [
        "UCFL measures similarity after five rounds of FedAvg, not at random models (docs/paper_index.md); the oracle "
        "is a FedAvg in each true group, which the label shift does not have. Clustered FL divides a cluster whose "
        "average update is shorter than half its longest, by complete linkage, from round 11 on (on turned digits "
        "better than from round 6 on in a run of seed 1, judged on the test samples). FedFOMO holds out a fifth of the "
        "training samples and takes five neighbours.",
    ]
    found = _gains(scenarios(scale)["concept_shift"], kept, seeds)
    if scale == "reduced" and {"ucfl_4", "oracle", "local", "fedavg"} <= found.keys():
        texts.append(
            f"Concept shift, on average: UCFL with four streams {found['ucfl_4']:.1f}, the oracle "
            f"{found['oracle']:.1f}, Local {found['local']:.1f}, and FedAvg, which averages four meanings of every "
            f"label, {found['fedavg']:.1f}. The learning rate is the best of 0.01, 0.03 and 0.1 for the oracle and for "
            "Local in short runs of seed 1, judged on the test samples; MNIST takes the same, untuned."
        )
    return [line for text in texts for line in wrap(text, bullet=True)]


def _gains(scenario: Scenario, kept: Kept, seeds: Sequence[int]) -> dict[str, float]:
    """Mean of the average accuracy of each method that was run, in percent."""
    records = {one.name: kept.all(scenario.setting.runs(seeds, [one.name])) for one in scenario.setting.methods}
    return {name: mean(some) for name, some in records.items() if some}


def table1_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """Bars of the worst users, the paper's as marks."""
    panels = {}
    for one in scenarios(scale).values():
        found = {name: kept.all(one.setting.runs(seeds, [name])) for name in one.table1}
        panels[one.setting.label] = [
            (one.label(name), [100 * record["summary"][WORST] for record in records], one.published[name])
            for name, records in found.items()
            if records
        ]
    bars({label: rows for label, rows in panels.items() if rows}, "accuracy of the worst user in percent", path)


# ---------------------------------------------------------------------- Figure 2
CLAIMS = {
    "label_shift": (
        ("UCFL's gain grows with the number of streams: 2 over 1", "ucfl_2", "ucfl_1"),
        ("4 streams over 2", "ucfl_4", "ucfl_2"),
        ("20 streams over 4", "ucfl_20", "ucfl_4"),
        ("a model for each user is 3 points above FedAvg", "ucfl_20", "fedavg"),
        ("FedAvg is far above local training", "fedavg", "local"),
        ("Clustered FL is similar to FedAvg", "clustered_fl", "fedavg"),
        ("FedFOMO fails to use what others know: below UCFL", "fedfomo", "ucfl_20"),
    ),
    "rotations": (
        ("the oracle is far above FedAvg", "oracle", "fedavg"),
        ("UCFL matches the oracle with 4 streams", "ucfl_4", "oracle"),
        ("and with more", "ucfl_20", "oracle"),
        ("Clustered FL finds the groups", "clustered_fl", "oracle"),
        ("FedFOMO ends lower", "fedfomo", "oracle"),
    ),
    "concept_shift": (
        ("Local is above FedAvg", "local", "fedavg"),
        ("UCFL matches the oracle with enough streams", "ucfl_4", "oracle"),
        ("Clustered FL matches UCFL", "clustered_fl", "ucfl_4"),
        ("FedFOMO ends below UCFL", "fedfomo", "ucfl_4"),
    ),
}
"""What the paper says of Figure 2, with the two methods that are compared."""


def figure2_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """All methods in all scenarios."""
    return [run for one in scenarios(scale).values() for run in one.setting.runs(seeds)]


def figure2_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """The paper's words beside differences of final accuracies."""
    lines = wrap(
        "Average test accuracy after each evaluated round. The figure gives no numbers; what the paper's text says of "
        "it stands beside the difference of the two methods at the end here, in percentage points, mean over the seeds."
    )
    for kind, one in scenarios(scale).items():
        found = _gains(one, kept, seeds)
        ends = [f"{method.label} {found[method.name]:.1f}" for method in one.setting.methods if method.name in found]
        lines += ["", f"## {one.setting.label}", "", *_claims(one, CLAIMS[kind], found)]
        lines += ["", *wrap(f"At the end: {', '.join(ends)}.")] if ends else []
    return lines


def _claims(scenario: Scenario, claims: Sequence[tuple[str, str, str]], found: Mapping[str, float]) -> list[str]:
    rows = []
    for words, first, second in claims:
        known = first in found and second in found
        gap = f"{found[first] - found[second]:+.1f}" if known else "not run"
        rows.append([words, f"{scenario.label(first)} − {scenario.label(second)}", gap])
    return grid(["the paper", "difference", "here"], rows)


def figure2_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """A panel for each scenario."""
    panels = {}
    for one in scenarios(scale).values():
        drawn = [_curve(method, one.setting, kept, seeds, "rounds") for method in one.setting.methods]
        panels[one.setting.label] = [curve for curve in drawn if curve is not None]
    _draw(panels, "round", path)


def _draw(panels: Mapping[str, Sequence[Curve]], x_label: str, path: Path) -> None:
    """The panels that have curves, if there are any: records of runs made before curves were kept have none."""
    found = {label: some for label, some in panels.items() if some}
    if found:
        curves(found, x_label, "average accuracy in percent", path)


def _curve(method: Method, setting: Setting, kept: Kept, seeds: Sequence[int], x: str) -> Curve | None:
    """Accuracy at the evaluated rounds; None where no record has them."""
    records = _with_curves(kept.all(setting.runs(seeds, [method.name])), x)
    if not records:
        return None
    values = [[100 * value for value in record["curve"][AVERAGE]] for record in records]
    return method.label, records[0]["curve"][x], values


def _with_curves(records: Sequence[Record], key: str) -> list[Record]:
    return [one for one in records if key in one["curve"]]


# ---------------------------------------------------------------------- Figure 3
TIMED = ("fedavg", "clustered_fl", "fedfomo", "ucfl_1", "ucfl_4", "ucfl_20")


def figure3_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of Figure 2 with label and covariate shift, whose rounds are timed in all three systems."""
    return scenarios(scale)["rotations"].setting.runs(seeds, TIMED)


def figure3_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """The time until each method is as good as FedAvg in the end."""
    one = scenarios(scale)["rotations"]
    target = _gains(one, kept, seeds).get("fedavg")
    lines = wrap(
        "Average test accuracy against simulated time in units of T_dl, the time in which the server sends one model, "
        "in the paper's three systems: ρ is how much longer a model takes upwards, T_min the least time of local "
        "training, 1/μ the mean of what chance adds. Clients send one after the other; the time of a round depends on "
        "its traffic alone, so a run is timed in all systems at once. The paper gives no formula for a round: "
        "lit_fed/callbacks/simulated_time.py has ours. The figure gives no numbers."
    )
    if target is None:
        return lines
    lines += [
        "",
        *wrap(f"Time to FedAvg's final accuracy, {target:.1f} percent, / time of all rounds, means over the seeds:"),
    ]
    rows = [
        [one.label(name), *(_times(kept.all(one.setting.runs(seeds, [name])), system, target) for system in SYSTEMS)]
        for name in TIMED
    ]
    return [*lines, "", *grid(["algorithm", *map(_system, SYSTEMS)], rows), "", *_remarks(one, kept, seeds)]


def _times(records: Sequence[Record], system: str, target: float) -> str:
    """Until the target is reached, and in all; over the seeds."""
    key = f"time/simulated/{system}"
    found = _with_curves(records, key)
    if not found:
        return "not run"
    reached = [_reached(one, key, target) for one in found]
    total = sum(one["summary"][key] for one in found) / len(found)
    known = [time for time in reached if time is not None]
    first = f"{sum(known) / len(known):.0f}" if len(known) == len(reached) else "not reached"
    return f"{first} / {total:.0f}"


def _reached(record: Record, key: str, target: float) -> float | None:
    """When the accuracy is first as large as the target, in percent; curves have six digits."""
    pairs = zip(record["curve"][key], record["curve"][AVERAGE], strict=True)
    return next((time for time, accuracy in pairs if 100 * accuracy >= target - 1e-3), None)


def _system(name: str) -> str:
    ratio, least, mean_added = SYSTEMS[name]
    return f"{name.replace('_', ' ')}: ρ = {ratio}, T_min = {least}, 1/μ = {mean_added}"


def _remarks(scenario: Scenario, kept: Kept, seeds: Sequence[int]) -> list[str]:
    """What a round with many downward payloads costs in each system, beside what the paper says."""
    lasts = {
        name: kept.all(scenario.setting.runs(seeds, [name])) for name in ("fedavg", "ucfl_4", "ucfl_20", "fedfomo")
    }
    if not all(lasts.values()):
        return []
    parts = []
    for system in SYSTEMS:
        key = f"time/simulated/{system}"
        totals = {name: sum(one["summary"][key] for one in some) / len(some) for name, some in lasts.items()}
        rest = ", ".join(f"{scenario.label(name)} {totals[name] / totals['fedavg']:.2f}" for name in list(lasts)[1:])
        parts.append(f"{system.replace('_', ' ')}: {rest}")
    return wrap(
        f"Time of a run in units of FedAvg's, {'; '.join(parts)}. The paper says that the downward cost is negligible "
        "where the uplink is slow, that the number of streams has to be chosen where it is not, and that FedFOMO pays "
        "a large one."
    )


def figure3_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """A panel for each system."""
    one, panels = scenarios(scale)["rotations"], {}
    chosen = [method for method in one.setting.methods if method.name in TIMED]
    for system in SYSTEMS:
        drawn = [_curve(method, one.setting, kept, seeds, f"time/simulated/{system}") for method in chosen]
        panels[_system(system)] = [curve for curve in drawn if curve is not None]
    _draw(panels, "simulated time in units of T_dl", path)


SMALLER = (
    "10,000 digits of MNIST take EMNIST's place, over 20 users in both shifts (the paper has 100,000 characters over "
    "100 users in the second), 30 rounds; CIFAR-10 has 20,000 pictures and 40 rounds. Learning rate 0.03 for the "
    "paper's 0.1."
)
TABLES = [
    Table("ucfl-table1", table1_runs, table1_body, table1_picture),
    Table("ucfl-figure2", figure2_runs, figure2_body, figure2_picture),
    Table("ucfl-figure3", figure3_runs, figure3_body, figure3_picture),
]
