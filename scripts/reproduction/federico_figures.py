"""Whom the clients of FedeRiCo work with: Figures 3, 4, 5, 8 and 9 of https://arxiv.org/abs/2210.06597."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from reproduction.federico_settings import CIFAR10, PAPER, REDUCED, SMOKE, federico
from reproduction.pictures import Share, Shares, shares
from reproduction.runs import Kept, Record, Run
from reproduction.settings import brief
from reproduction.tables import Method, Scale, Setting, Table, grid, wrap

__all__ = ["TABLES", "kinds", "weight_lines"]

FOUR_GROUPS: dict[Scale, Setting] = {
    "smoke": SMOKE["cifar100"][4], "reduced": REDUCED["cifar10"][4], "paper": PAPER["cifar100"][4]
}  # fmt: skip
often = (
    "--data.partition.num_groups", "2", "--trainer.max_epochs", "60", "--trainer.check_val_every_n_epoch", "1",
    "--trainer.callbacks+=ClientWeights", "--trainer.callbacks.most_records", "30",
)  # fmt: skip
summed: dict[str, object] = {"tracking": "accumulated", "explore_probability": 1.0}
TRACKED = Setting(
    "digits_tracking", "Digits", "digits_label_groups",
    (
        Method("accumulated_mean", "sum of means", federico(loss="mean", **summed)),
        Method("ema_mean", "average of means", federico(loss="mean")),
        Method("accumulated", "sum of sums", federico(**summed)),
        Method("ema", "average of sums", federico()),
    ),
    often, ("client_weights",),
)  # fmt: skip
long = (*often, "--trainer.max_epochs", "150")
TRACKING: dict[Scale, Setting] = {
    "smoke": TRACKED._replace(arguments=(*often, *brief)),
    "reduced": TRACKED,
    "paper": CIFAR10._replace(
        name="cifar10_tracking_paper", methods=TRACKED.methods, arguments=long, measures=TRACKED.measures
    ),
}
KINDS = ("its own model", "the others of its group", "other groups")
COMMON = ("in common, one group, percent", "different groups, percent")


def kinds(record: Record) -> np.ndarray:
    """Weights of each client for its own model, for the others of its group and for other groups, [R, T, 3]."""
    kept = record["client_weights"]
    weights, groups = np.array(kept["collaboration"]), np.array(kept["groups"])
    own = np.eye(len(groups), dtype=bool)
    fellows = (groups[:, None] == groups) & ~own
    return np.stack([(weights * mask).sum(-1) for mask in (own, fellows, ~own & ~fellows)], axis=-1)


def in_common(record: Record) -> np.ndarray:
    """The mean weight that two clients have in common, of one group and of different ones, [R, 2]: who works together.

    It tells groups apart even where clients of one group take the model of a client of another, as may happen, since
    all models start at random and belong to nobody's data.
    """
    kept = record["client_weights"]
    weights, groups = np.array(kept["collaboration"]), np.array(kept["groups"])
    overlap = np.minimum(weights[:, :, None], weights[:, None]).sum(-1)
    same = groups[:, None] == groups
    pairs = (same & ~np.eye(len(groups), dtype=bool), ~same)
    return np.stack([(overlap * mask).sum((1, 2)) / max(1, mask.sum()) for mask in pairs], axis=-1)


def weight_lines(record: Record, client: int) -> Shares:
    """The weights of a client over the rounds; its own model has a thick line."""
    kept = record["client_weights"]
    weights, groups = np.array(kept["collaboration"])[:, client], map(int, kept["groups"])
    lines = [
        Share(f"a client of group {group}", weights[:, other].tolist(), group, group, other == client)
        for other, group in enumerate(groups)
    ]
    return kept["rounds"], lines


def percent(values: Sequence[float]) -> list[str]:
    """Weights as they are shown in tables."""
    return [f"{100 * value:.1f}" for value in values]


# ---------------------------------------------------------------------- Figures 3, 4, 8 and 9
def figure_runs(scale: Scale, seeds: Sequence[int], *, method: str) -> list[Run]:
    """The method's runs in Table 1's column of four groups."""
    return FOUR_GROUPS[scale].runs(seeds, [method])


def clients_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """How each client divides its weight in the end."""
    lines = wrap(
        f"{FOUR_GROUPS[scale].label}, four groups. The weights that each client gives to the models of all clients; "
        "its own has a thick line. In the paper clients draw their group at random and one can be alone; here groups "
        "are of equal size. Weights come from the sum of losses over a client's samples, as printed; "
        "federico-figure5 has their mean too. The paper's figure gives no numbers; its text: clients of one group "
        "share their weights."
    )
    for record in kept.all(figure_runs(scale, seeds, method="federico")):
        found, rounds = kinds(record), record["client_weights"]["rounds"]
        groups = record["client_weights"]["groups"]
        rows = [[f"{i}", f"{int(groups[i])}", *percent(row)] for i, row in enumerate(found[-1])]
        first, last = (percent(found[when].mean(0)) for when in (0, -1))
        within, across = percent(in_common(record)[-1])
        lines += ["", *grid(["client", "its group", *(f"{kind}, percent" for kind in KINDS)], rows), ""]
        lines += wrap(
            f"After {rounds[-1]:.0f} rounds clients give on average {last[0]} percent of the weight to their own "
            f"model, {last[1]} to the others of their group and {last[2]} to other groups; after {rounds[0]:.0f} "
            f"rounds it was {first[0]}, {first[1]} and {first[2]}. Two clients of one group have {within} percent of "
            f"their weight in common, two of different groups {across}."
        )
    return lines


def clients_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """A panel for each client of the first seed that was run."""
    record = kept.all(figure_runs(scale, seeds, method="federico"))[0]
    groups = record["client_weights"]["groups"]
    shown = {f"client {i}, group {int(group)}": weight_lines(record, i) for i, group in enumerate(groups)}
    shares(shown, "weight", path)


def components_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Which components the clients use in the end."""
    lines = wrap(
        f"{FOUR_GROUPS[scale].label}, four groups. The weights of FedEM's components for each client, in the colour "
        "of its group. The paper shows clients of two groups that use the same component alone, and one component "
        "that nobody uses."
    )
    for record in kept.all(figure_runs(scale, seeds, method="fedem")):
        weights, groups = np.array(record["client_weights"]["mixture"])[-1], record["client_weights"]["groups"]
        rows = [[f"{i}", f"{int(groups[i])}", *percent(row)] for i, row in enumerate(weights)]
        count = weights.shape[1]
        lines += ["", *grid(["client", "its group", *(f"component {m}, percent" for m in range(count))], rows), ""]
        lines += wrap(_use(weights, np.array(groups)))
    return lines


def _use(weights: np.ndarray, groups: np.ndarray) -> str:
    """How many components are used, and whether by groups."""
    favourite = weights.argmax(1)
    by_group = [set(favourite[groups == group].tolist()) for group in np.unique(groups)]
    alone = sum(len(one) == 1 and all(not one & other for other in by_group if other is not one) for one in by_group)
    return (
        f"{len(set(favourite.tolist()))} of {weights.shape[1]} components have the largest weight of some client, and "
        f"{sum(weights.max(0) >= 0.1)} a weight of at least 0.1. {sum(len(one) == 1 for one in by_group)} of "
        f"{len(by_group)} groups agree on the component of largest weight, and {alone} have it to themselves."
    )


def components_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """A panel for each client of the first seed that was run."""
    record = kept.all(figure_runs(scale, seeds, method="fedem"))[0]["client_weights"]
    weights, shown = np.array(record["mixture"]), {}
    for client, group in enumerate(map(int, record["groups"])):
        values = weights[:, client].T
        lines = [Share(f"component {m}", one.tolist(), m, group) for m, one in enumerate(values)]
        shown[f"client {client}, group {group}"] = (record["rounds"], lines)
    shares(shown, "weight", path)


# ---------------------------------------------------------------------- Figure 5
def tracking_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """Losses summed over the rounds, and their moving average."""
    return TRACKING[scale].runs(seeds)


def tracking_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """How the weights are spread, early and late."""
    rows = []
    for one in TRACKING[scale].methods:
        records = kept.all(TRACKING[scale].runs(seeds, [one.name]))
        rows += [[one.label, *cells] for cells in _spread(records)] if records else [[one.label, "not run"]]
    head = ["weights from", "rounds", *(f"{kind}, percent" for kind in KINDS), *COMMON, "models", "accuracy in the end"]
    text = (
        f"{TRACKING[scale].label}, two groups. Weights are the softmax of minus the losses, summed over the rounds or "
        "in a moving average, of a client's mean loss or of the sum over its samples, which is what the paper "
        "prints. Means over clients and seeds; the number of models is the exponential of a client's entropy; in "
        "common is what two clients of one group share of their weights, and two of different groups. As in the "
        "paper, neighbours are drawn at random (ε = 1) for sums over rounds, and the clients shown are 0 and 1. What "
        "the paper shows: with the sum over rounds the weights are soon one-hot, with the average they are spread "
        "over similar clients."
    )
    return [*wrap(text), "", *grid(head, [[*row, *[""] * (len(head) - len(row))] for row in rows])]


def _spread(records: Sequence[Record]) -> list[list[str]]:
    """A row for the first kept round, for one soon after, and for the last."""
    rounds = records[0]["client_weights"]["rounds"]
    weights = np.array([one["client_weights"]["collaboration"] for one in records])
    effective = np.exp(-(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)).mean((0, 2))
    divided = np.mean([kinds(one) for one in records], axis=(0, 2))
    common = np.mean([in_common(one) for one in records], axis=0)
    accuracy = np.mean([100 * one["summary"]["test/seen/accuracy"] for one in records])
    return [
        [
            f"{rounds[when]:.0f}",
            *percent([*divided[when], *common[when]]),
            f"{effective[when]:.2f}",
            f"{accuracy:.2f}",
        ]
        for when in sorted({0, min(4, len(rounds) - 1), len(rounds) - 1})
    ]


def tracking_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """A client of each group, of the first seed that was run, for both."""
    shown: dict[str, Shares] = {}
    for one in TRACKING[scale].methods:
        for record in kept.all(TRACKING[scale].runs(seeds, [one.name]))[:1]:
            shown |= {f"{one.label}, client {client}": weight_lines(record, client) for client in (0, 1)}
    shares(shown, "weight", path)


SAME = "CIFAR-10 in CIFAR-100's place, as in federico-table1, whose runs these are."
COST = {"reduced": "none beside federico-table1", "paper": "none beside federico-table1"}


def clients_figure(number: int) -> Table:
    """One of the paper's three figures of client weights; they differ in the seed."""
    return Table(f"federico-figure{number}", partial(figure_runs, method="federico"), clients_body, clients_picture)


TABLES = [
    clients_figure(3),
    Table("federico-figure4", partial(figure_runs, method="fedem"), components_body, components_picture),
    Table("federico-figure5", tracking_runs, tracking_body, tracking_picture),
    clients_figure(8),
    clients_figure(9),
]
