"""Mixture weights of FedEM's clients: Figure 2, Appendices J.3 and J.4 of https://arxiv.org/abs/2108.10252."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reproduction.fedem import TABLE3, unseen
from reproduction.fedem_components import components, synthetic
from reproduction.pictures import Curve, curves
from reproduction.runs import Kept, Record, Run
from reproduction.settings import CIFAR10_PAPER, LABELS, fedem_settings
from reproduction.tables import Scale, Setting, Table, cell, grid, wrap

__all__ = ["TABLES"]

UNSEEN = ("test/unseen/accuracy",)


# ---------------------------------------------------------------------- Figure 2 and Appendix J.3
def figure2_setting(scale: Scale) -> Setting:
    """The setting of Table 3, in which a fifth of the clients is not seen in training."""
    return unseen(CIFAR10_PAPER if scale == "paper" else synthetic(scale))


def figure2_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of Table 3; FedEM's carry the measure."""
    return figure2_setting(scale).runs(seeds, TABLE3)


def figure2_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Accuracy at each share, and from where on it hardly grows."""
    setting = figure2_setting(scale)
    lines = wrap(
        f"{setting.label}: test accuracy in percent of clients that had no part in training, against the share of "
        "their training samples on which they take FedEM's E-step; 0: uniform weights. Samples are shuffled once, so "
        "each share holds the one before. FedAvg+ tunes on all of them, FedAvg's model takes none. The paper's figure "
        "gives no numbers; its text says that clients are well personalised by a small share."
    )
    records = kept.all(setting.runs(seeds, ["fedem"]))
    if records:
        shares, accuracy = _by_share(records)
        rows = [[f"{share:g}", _plus_minus(accuracy[:, column].tolist())] for column, share in enumerate(shares)]
        lines += ["", *grid(["share", "FedEM"], rows), "", *wrap(_half_way(shares, accuracy.mean(axis=0)))]
    others = [[LABELS[one], cell(kept.all(setting.runs(seeds, [one])), UNSEEN, len(seeds))] for one in TABLE3[:2]]
    return [*lines, "", *grid(["algorithm", "unseen clients"], others)]


def _by_share(records: Sequence[Record]) -> tuple[list[float], np.ndarray]:
    """Shares, and accuracies in percent [seeds, shares]."""
    measured = [one["accuracy_by_share"] for one in records]
    return measured[0]["shares"], 100 * np.array([one["accuracy"] for one in measured])


def _plus_minus(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def _half_way(shares: Sequence[float], accuracy: np.ndarray) -> str:
    """How much of the whole gain each share brings."""
    gain = accuracy[-1] - accuracy[0]
    if gain <= 0:
        return "All samples bring no more than uniform weights do."
    parts = ", ".join(
        f"{100 * (value - accuracy[0]) / gain:.0f} % at a share of {share:g}"
        for share, value in zip(shares[1:-1], accuracy[1:-1], strict=True)
    )
    return f"All samples bring {gain:.1f} points over uniform weights. Of these there are {parts}."


def figure2_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """The curve, with FedAvg's and FedAvg+'s levels."""
    setting = figure2_setting(scale)
    records = kept.all(setting.runs(seeds, ["fedem"]))
    if not records:
        return
    shares, accuracy = _by_share(records)
    percent = [100 * share for share in shares]
    drawn: list[Curve] = [("FedEM", percent, accuracy.tolist())]
    for name in TABLE3[:2]:
        levels = [100 * one["summary"][UNSEEN[0]] for one in kept.all(setting.runs(seeds, [name]))]
        drawn += [(LABELS[name], percent, [[level] * len(percent) for level in levels])] if levels else []
    curves({setting.label: drawn}, "training samples adapted on, in percent", "test accuracy in percent", path)


def entropy_settings(scale: Scale) -> list[Setting]:
    """Where FedEM's runs measure the entropy."""
    if scale == "paper":
        return [unseen(one) for one in fedem_settings(scale).values()]
    return [figure2_setting(scale)]


def entropy_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """FedEM's runs of Table 3 that measure it."""
    return [run for setting in entropy_settings(scale) for run in setting.runs(seeds, ["fedem"])]


def entropy_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Entropies of old and new clients, and which are smaller."""
    rows, words = [], []
    for setting in entropy_settings(scale):
        records = kept.all(setting.runs(seeds, ["fedem"]))
        old, new = ([one["mixture_entropy"][who] for one in records] for who in ("seen", "unseen"))
        rows.append([setting.label, *(_plus_minus(values) if records else "not run" for values in (old, new))])
        if records:
            lower = sum(one < other for one, other in zip(old, new, strict=True))
            words.append(f"{setting.label}: old clients have the lower entropy with {lower} of {len(records)} seeds.")
    return [
        *wrap(
            "Mean entropy in nats of the mixture weights that FedEM's clients are served with; three equal weights "
            f"have {np.log(3):.3f}. Old clients are those of the training, new ones came after it. The paper finds "
            "lower entropies for old clients and takes it for a sign of overfitting; our copy has lost the numbers."
        ),
        "", *grid(["data", "old clients", "new clients"], rows), "", *wrap(" ".join(words)),
    ]  # fmt: skip


# ---------------------------------------------------------------------- Appendix J.4
def cluster_settings(scale: Scale) -> list[Setting]:
    """Synthetic data whose clients have one component each, of two or of three."""
    settings = []
    for number in (2, 3):
        setting = synthetic(scale)
        drawn = ("--data.dataset.one_hot_mixtures", "true", "--data.dataset.num_components", str(number))
        fedem = components(setting, number)._replace(measures=("recovery",))
        settings.append(setting.varied(f"clusters_{number}", *drawn)._replace(methods=(fedem,)))
    return settings


def clusters_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """FedEM with as many components as there are clusters."""
    return [run for setting in cluster_settings(scale) for run in setting.runs(seeds)]


def clusters_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """What is found of the truth, seed by seed."""
    rows = [
        [str(number), str(seed), *_recovered(record)]
        for number, setting in zip((2, 3), cluster_settings(scale), strict=True)
        for seed in seeds
        for record in kept.all(setting.runs([seed]))
    ]
    head = ["clusters", "seed", "cosines of the components", "L1 error of the weights", "clients", "accuracy"]
    return [
        *wrap(
            "The synthetic data with a single component for each of the 300 clients, and FedEM with as many components "
            "as there are. Components are matched one to one. Shown are the cosine between the normal of each learned "
            "plane and that of the true one, whose length the labels do not tell; the mean over clients of the L1 "
            "distance of their mixture weights to the true ones; clients whose largest weight is their true "
            "component's, and test accuracy, in percent. The paper finds almost the true parameters and all clients in "
            "their clusters; our copy of it has lost the sizes of the errors."
        ),
        "", *grid(head, rows), "", *_all_in_place(rows),
    ]  # fmt: skip


def _recovered(record: Record) -> list[str]:
    found = record["recovery"]
    cosines = ", ".join(f"{value:.3f}" for value in found["cosines"])
    accuracy = 100 * record["summary"]["test/seen/accuracy"]
    return [cosines, f"{found['mixture_l1']:.4f}", f"{100 * found['clusters']:.1f}", f"{accuracy:.2f}"]


def _all_in_place(rows: Sequence[Sequence[str]]) -> list[str]:
    whole = sum(row[4] == "100.0" for row in rows)
    return wrap(f"All clients are in their clusters in {whole} of {len(rows)} runs.") if rows else ["Not run."]


# ---------------------------------------------------------------------- pages
TABLES = [
    Table("fedem-figure2", figure2_runs, figure2_body, figure2_picture),
    Table("fedem-entropy", entropy_runs, entropy_body),
    Table("fedem-clusters", clusters_runs, clusters_body),
]
