"""FedeRiCo's hyper-parameters: Figures 6 and 7 of https://arxiv.org/abs/2210.06597."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reproduction.federico_figures import KINDS, kinds, percent, weight_lines
from reproduction.federico_settings import CIFAR100, OFFICE_HOME, federico
from reproduction.pictures import Curve, curves, shares
from reproduction.runs import Kept, Record, Run
from reproduction.settings import brief
from reproduction.tables import Method, Scale, Setting, Table, grid, wrap

__all__ = ["TABLES"]

VALUES: dict[str, tuple[float, ...]] = {
    "explore_probability": (0, 0.1, 0.3, 0.6, 1),
    "num_neighbours": (0, 1, 3, 5, 7),
    "loss_momentum": (0.1, 0.3, 0.6, 0.9),
}
USUAL = {"explore_probability": 0.3, "num_neighbours": 3, "loss_momentum": 0.6}
SIGNS = {"explore_probability": "ε", "num_neighbours": "M", "loss_momentum": "β"}
WORDS = {
    "explore_probability": (
        "The share of rounds in which neighbours are drawn at random. The paper: much of it slows training down, too "
        "little may miss collaborators."
    ),
    "num_neighbours": (
        "Neighbours that are asked in a round. The paper: 0 is like Local, 1 is much better already, more are slower "
        "and end higher."
    ),
    "loss_momentum": (
        "The share of the new loss in the moving average; accuracy of client 0, as in the paper, which finds a small β "
        "slower."
    ),
}


def _name(option: str, value: float) -> str:
    """Name of the record of a run; all three hyper-parameters share the run with the usual values."""
    return "usual" if value == USUAL[option] else f"{option}_{value:g}"


methods = {
    _name(option, value): federico(**({} if value == USUAL[option] else {option: value}))
    for option, values in VALUES.items()
    for value in values
}
methods |= {
    f"mean_{value:g}": federico(loss="mean", loss_momentum=value) for value in VALUES["loss_momentum"]
}  # of Figure 7
watched = ("--trainer.callbacks+=reproduction.client_accuracies.ClientAccuracies",)
DIGITS = Setting(
    "digits_label_groups", "Digits", "digits_label_groups",
    tuple(Method(name, name, arguments) for name, arguments in methods.items()), watched,
    ("client_accuracies", "client_weights"),
)  # fmt: skip


def setting(scale: Scale, option: str) -> Setting:
    """Where a hyper-parameter is varied."""
    if scale != "paper":
        return DIGITS if scale == "reduced" else DIGITS._replace(arguments=(*watched, *brief))
    base = CIFAR100 if option == "num_neighbours" else OFFICE_HOME
    name = base.name.replace("label_groups", "hyper_parameters")
    every = (*watched, "--trainer.check_val_every_n_epoch", "5")
    return base._replace(name=name, methods=DIGITS.methods, arguments=every, measures=DIGITS.measures)


def values(scale: Scale, option: str) -> tuple[float, ...]:
    """The values of a hyper-parameter that are tried."""
    return VALUES[option] if scale != "smoke" else (VALUES[option][0], USUAL[option])


def found(kept: Kept, scale: Scale, seeds: Sequence[int], option: str) -> dict[float, list[Record]]:
    """The records of each value."""
    chosen = setting(scale, option)
    return {value: kept.all(chosen.runs(seeds, [_name(option, value)])) for value in values(scale, option)}


def option_runs(scale: Scale, seeds: Sequence[int], option: str) -> list[Run]:
    """The runs with all values of a hyper-parameter."""
    return setting(scale, option).runs(seeds, [_name(option, value) for value in values(scale, option)])


# ---------------------------------------------------------------------- Figure 6
def figure6_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs with all values of the three hyper-parameters."""
    return [run for option in VALUES for run in option_runs(scale, seeds, option)]


def accuracy_curve(record: Record, option: str) -> tuple[list[int], list[float]]:
    """Rounds, and the accuracy in percent of all clients, or of client 0 where β varies."""
    kept = record["client_accuracies"]
    if option == "loss_momentum":
        return kept["rounds"], [100 * row[0] for row in kept["accuracies"]]
    curve = dict(zip(record["curve"]["rounds"], record["curve"]["test/seen/accuracy"], strict=True))
    return kept["rounds"], [100 * curve[one] for one in kept["rounds"]]


def figure6_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """For each hyper-parameter the accuracy in the end, and on the way there."""
    lines = wrap(
        "Test accuracy over the rounds in percent, mean ± standard deviation over the seeds; its mean over all "
        "evaluated rounds tells how fast it rises. Where one hyper-parameter varies, the others are "
        f"{', '.join(f'{SIGNS[name]} = {value:g}' for name, value in USUAL.items())}. The paper's figure gives no "
        "numbers."
    )
    for option in VALUES:
        rows, speed, end = [], {}, {}
        for value, records in found(kept, scale, seeds, option).items():
            accuracies = [accuracy_curve(one, option)[1] for one in records]
            rows.append([f"{value:g}", *_cells(accuracies)])
            if records:
                speed[f"{value:g}"] = float(np.mean(accuracies))
                end[f"{value:g}"] = float(np.mean([one[-1] for one in accuracies]))
        title = f"{SIGNS[option]} (`{option}`), {setting(scale, option).label}"
        lines += ["", f"## {title}", "", *wrap(WORDS[option]), ""]
        lines += grid([SIGNS[option], "in the end", "mean over the rounds"], rows)
        if len(speed) > 1:
            lines += ["", *wrap(f"In the end: {_ranked(end)}. Mean over the rounds: {_ranked(speed)}.")]
    return lines


def _cells(accuracies: Sequence[Sequence[float]]) -> list[str]:
    """Last value and mean over the rounds, each with its spread over seeds."""
    if not accuracies:
        return ["not run", "not run"]
    both = np.array([[one[-1], np.mean(one)] for one in accuracies])
    if len(both) == 1:
        return [f"{value:.2f}" for value in both[0]]
    return [f"{m:.2f} ± {s:.2f}" for m, s in zip(both.mean(0), both.std(0, ddof=1), strict=True)]


def _ranked(means: dict[str, float]) -> str:
    return " > ".join(sorted(means, key=lambda name: -means[name]))


def figure6_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """A panel for each hyper-parameter."""
    panels: dict[str, list[Curve]] = {}
    for option in VALUES:
        title = f"{SIGNS[option]}, {setting(scale, option).label}" + (", client 0" * (option == "loss_momentum"))
        for value, records in found(kept, scale, seeds, option).items():
            if records:
                pairs = [accuracy_curve(one, option) for one in records]
                line = (f"{SIGNS[option]} = {value:g}", pairs[0][0], [one for _, one in pairs])
                panels.setdefault(title, []).append(line)
    curves(panels, "round", "test accuracy in percent", path)


# ---------------------------------------------------------------------- Figure 7
def figure7_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs with all values of β."""
    chosen = setting(scale, "loss_momentum")
    return chosen.runs(seeds, [f"mean_{value:g}" for value in values(scale, "loss_momentum")])


def weighed(kept: Kept, scale: Scale, seeds: Sequence[int]) -> dict[float, list[Record]]:
    """The records of each β."""
    chosen = setting(scale, "loss_momentum")
    return {value: kept.all(chosen.runs(seeds, [f"mean_{value:g}"])) for value in values(scale, "loss_momentum")}


def figure7_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """How much the weights of client 0 move, and where they end."""
    text = (
        f"{setting(scale, 'loss_momentum').label}, four groups: the weights of client 0 with different β; its own "
        "model has a thick line. Weights come from a client's mean loss: from the sum over its samples, as in Figure "
        "6 and as printed, they are one-hot after a few rounds (federico-figure5). Movement is half the absolute "
        "change of all weights, summed over the kept rounds; means over the seeds. The paper's figure gives no "
        "numbers; its text: a small β makes the weights smoother, a large one changes them more in the first rounds, "
        "and all end alike."
    )
    rows = []
    for value, records in weighed(kept, scale, seeds).items():
        if records:
            moved = np.mean([_movement(one) for one in records], axis=0)
            last = np.mean([kinds(one)[-1, 0] for one in records], axis=0)
            rows.append([f"{value:g}", f"{moved[0]:.2f}", f"{moved[1]:.2f}", *percent(last)])
    head = ["β", "movement", "in the first half", *(f"{kind} in the end, percent" for kind in KINDS)]
    return [*wrap(text), "", *(grid(head, rows) if rows else ["not run"])]


def _movement(record: Record) -> tuple[float, float]:
    """Movement of the weights of client 0 over all kept rounds, and over the first half of them."""
    weights = np.array(record["client_weights"]["collaboration"])[:, 0]
    steps = 0.5 * np.abs(np.diff(weights, axis=0)).sum(1)
    return float(steps.sum()), float(steps[: len(steps) // 2].sum())


def figure7_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """A panel for each β, of the first seed that was run."""
    records = weighed(kept, scale, seeds)
    shares({f"β = {value:g}": weight_lines(some[0], 0) for value, some in records.items() if some}, "weight", path)


REPLACED = (
    "scikit-learn's digits instead of Office-Home and CIFAR-100: 8 clients in four groups, 20 to 25 training samples "
    "each, one hidden layer of 32 units, Adam at 0.003, 60 rounds."
)
TABLES = [
    Table("federico-figure6", figure6_runs, figure6_body, figure6_picture),
    Table("federico-figure7", figure7_runs, figure7_body, figure7_picture),
]
