"""How many components FedEM takes: Figure 1 and Appendix J.5 of https://arxiv.org/abs/2108.10252."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from reproduction.pictures import Curve, curves
from reproduction.runs import Kept, Record, Run
from reproduction.settings import CIFAR10_PAPER, LABELS, fedem_settings
from reproduction.tables import Method, Scale, Setting, Table, cell, grid, mean, wrap

__all__ = ["TABLES", "at_rate", "components", "synthetic"]

ACCURACY = ("test/seen/accuracy",)


# ---------------------------------------------------------------------- Figure 1
RATES: Mapping[Scale, tuple[float, ...]] = {
    "smoke": (0.2, 1.0),
    "reduced": (0.1, 0.2, 0.5, 1.0),
    "paper": (0.1, 0.2, 0.5, 1.0),
}
NUMBERS: Mapping[Scale, tuple[int, ...]] = {"smoke": (1, 3), "reduced": (1, 2, 3, 4, 6, 8), "paper": (1, 2, 3, 4, 6)}
SAMPLED = ("fedavg_plus", "fedem")


def synthetic(scale: Scale) -> Setting:
    """The synthetic data of a scale."""
    return fedem_settings(scale)["synthetic"]


def figure1_setting(scale: Scale) -> Setting:
    """The paper's CIFAR-10, or what stands for it."""
    return CIFAR10_PAPER if scale == "paper" else synthetic(scale)


def at_rate(setting: Setting, rate: float) -> Setting:
    """A share of the clients takes part in each round."""
    return setting if rate == 1 else setting.varied(f"rate_{rate:g}", "--data.client_fraction", f"{rate:g}")


def components(setting: Setting, number: int) -> Method:
    """FedEM with other components than the setting's three."""
    (fedem,) = (one for one in setting.methods if one.name == "fedem")
    if number == 3:
        return fedem
    return Method(
        f"fedem_{number}", f"FedEM, {number}", (*fedem.arguments, "--model.algorithm.num_components", str(number))
    )


def with_components(setting: Setting, numbers: Sequence[int]) -> Setting:
    """FedEM with each of these numbers of components in place of the methods."""
    return setting._replace(methods=tuple(components(setting, number) for number in numbers))


def figure1_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of both panels."""
    setting = figure1_setting(scale)
    sampled = [run for rate in RATES[scale] for run in at_rate(setting, rate).runs(seeds, SAMPLED)]
    return sampled + with_components(setting, NUMBERS[scale]).runs(seeds)


def by_rate(kept: Kept, scale: Scale, seeds: Sequence[int], name: str) -> dict[float, list[Record]]:
    """The records of a method at each client sampling rate."""
    return {rate: kept.all(at_rate(figure1_setting(scale), rate).runs(seeds, [name])) for rate in RATES[scale]}


def by_number(kept: Kept, scale: Scale, seeds: Sequence[int]) -> dict[float, list[Record]]:
    """FedEM's records with each number of components."""
    setting = with_components(figure1_setting(scale), NUMBERS[scale])
    return {
        number: kept.all(setting.runs(seeds, [one.name]))
        for number, one in zip(NUMBERS[scale], setting.methods, strict=True)
    }


def figure1_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Both panels as tables, and what the paper reads from them."""
    found = {name: by_rate(kept, scale, seeds, name) for name in SAMPLED}
    numbers = by_number(kept, scale, seeds)
    rate_rows = [
        [f"{rate:g}", *(cell(found[name][rate], ACCURACY, len(seeds)) for name in SAMPLED)] for rate in RATES[scale]
    ]
    number_rows = [[str(number), cell(records, ACCURACY, len(seeds))] for number, records in numbers.items()]
    return [
        *wrap(
            f"{figure1_setting(scale).label}: test accuracy of seen clients in percent, mean ± standard deviation over "
            "the seeds. The paper's figure gives no numbers; it says of CIFAR-10 that FedEM is more robust to few "
            "clients in a round, that two components bring most of the gain, and that more than three bring little."
        ),
        "", "## Share of the clients in each round", "",
        *grid(["share", *(LABELS[name] for name in SAMPLED)], rate_rows), "", *_robustness(found),
        "## Number of components", "",
        *grid(["components", "FedEM"], number_rows), "", *_gains(numbers, scale),
    ]  # fmt: skip


def _robustness(found: Mapping[str, Mapping[float, list[Record]]]) -> list[str]:
    """What the smallest share costs each method."""
    costs = []
    for name, at in found.items():
        least, most = min(at), max(at)
        if at[least] and at[most]:
            costs.append(f"{LABELS[name]} {mean(at[least]) - mean(at[most]):+.1f} points")
    return [*wrap(f"The smallest share beside all clients: {', '.join(costs)}."), ""] if costs else []


def _gains(numbers: Mapping[float, list[Record]], scale: Scale) -> list[str]:
    """What each step in the number of components brings."""
    made = [number for number, records in numbers.items() if records]
    gains = [
        f"{before} to {after} {mean(numbers[after]) - mean(numbers[before]):+.1f}" for before, after in pairwise(made)
    ]
    truth = (
        ""
        if scale == "paper"
        else " The synthetic data were drawn from three components, and in the paper's variant a part of every "
        "client's samples has label 0 whatever the input (lit_fed/data/data_sets/synthetic.py), which a fourth can "
        "learn."
    )
    return wrap(f"Gain in points from {', '.join(gains)}.{truth}") if gains else []


def figure1_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """The picture of both panels."""
    rates = [line(LABELS[name], by_rate(kept, scale, seeds, name), ACCURACY[0]) for name in SAMPLED]
    numbers = [line("FedEM", by_number(kept, scale, seeds), ACCURACY[0])]
    panels = {"Clients in each round": rates, "Components": numbers}
    labels = {"Clients in each round": "share of all clients", "Components": "number of components"}
    shown = {name: [one for one in lines if one[1]] for name, lines in panels.items()}
    curves({name: lines for name, lines in shown.items() if lines}, labels, "test accuracy in percent", path)


def line(label: str, records: Mapping[float, list[Record]], key: str) -> Curve:
    """A curve over the settings that have records, with as many seeds as all of these have."""
    settings = [one for one, found in records.items() if found]
    common = min((len(records[one]) for one in settings), default=0)
    return label, settings, [[100 * records[one][row]["summary"][key] for one in settings] for row in range(common)]


# ---------------------------------------------------------------------- Appendix J.5
def _leaf(units: int) -> tuple[str, ...]:
    return ("LeafCNN", "--model.network.hidden_size", str(units), "--model.network.dropout", "0.0")


NETWORKS: Mapping[Scale, dict[str, tuple[str, ...]]] = {
    "smoke": {"LeafCNN-32": _leaf(32)},
    "reduced": {"LeafCNN-32": _leaf(32), "LeafCNN-128": _leaf(128)},
    "paper": {f"ResNet-{one}": (f"ResNet{one}", "--model.network.weights", "IMAGENET1K_V1") for one in (18, 34)},
}
"""Larger networks: what chooses them, and their options."""


def larger_setting(scale: Scale) -> Setting:
    """FedAvg with the setting's network and with larger ones, and FedEM."""
    setting = fedem_settings(scale)["cifar10_dirichlet" if scale == "reduced" else "cifar10"]
    known = {one.name: one for one in setting.methods}
    larger = [
        Method(f"fedavg_{name.lower()}", f"FedAvg, {name}", (*known["fedavg"].arguments, "--model.network", *network))
        for name, network in NETWORKS[scale].items()
    ]
    return setting._replace(methods=(known["fedavg"], *larger, known["fedem"]))


def larger_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs with larger networks, those of FedAvg and those of FedEM."""
    return larger_setting(scale).runs(seeds)


def larger_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Accuracy beside the number of parameters, relative to FedAvg's."""
    setting, found, rows = larger_setting(scale), {}, []
    for one in setting.methods:
        records = kept.all(setting.runs(seeds, [one.name]))
        found[one.name] = records
        rows.append([one.label, _size(records, found["fedavg"]), cell(records, ACCURACY, len(seeds))])
    return [
        *wrap(
            f"{setting.label}: is FedEM better since three networks have more parameters than one? FedAvg trains a "
            "single larger network, with its own learning rate unchanged. Test accuracy of seen clients in percent, "
            "and parameters that a client is sent, beside those of FedAvg's usual network. The paper says that "
            "ResNet-18, with about as many parameters as FedEM's three MobileNetV2, and ResNet-34 do worse than "
            "one MobileNetV2."
        ),
        "", *grid(["algorithm", "parameters", "accuracy"], rows), "", *_reached(setting, found),
    ]  # fmt: skip


def _size(records: Sequence[Record], plain: Sequence[Record]) -> str:
    """Parameters beside FedAvg's, from what the server sent in each round to the same clients."""
    if not (records and plain):
        return ""
    sent, usual = (one[0]["summary"]["comm/total_bytes_down"] / one[0]["summary"]["rounds"] for one in (records, plain))
    return f"{sent / usual:.2f}×"


def _reached(setting: Setting, found: Mapping[str, list[Record]]) -> list[str]:
    """Where each larger network stands between FedAvg and FedEM."""
    if not (found["fedavg"] and found["fedem"]):
        return []
    plain, fedem = mean(found["fedavg"]), mean(found["fedem"])
    words = [
        f"{one.label}: {mean(found[one.name]) - plain:+.1f} points to FedAvg's usual network, "
        f"{mean(found[one.name]) - fedem:+.1f} to FedEM."
        for one in setting.methods[1:-1]
        if found[one.name]
    ]
    return wrap(" ".join(words))


# ---------------------------------------------------------------------- pages
TABLES = [
    Table("fedem-figure1", figure1_runs, figure1_body, figure1_picture),
    Table("fedem-resnet", larger_runs, larger_body),
]
