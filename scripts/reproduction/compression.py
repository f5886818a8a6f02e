"""Accuracy against what clients send, for each codec: a check of our own, no paper has it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lit_fed.pictures.style import draw_curve, look
from reproduction.pictures import panels, save
from reproduction.privacy import tiny
from reproduction.runs import Kept, Record, Run
from reproduction.settings import algorithm, brief, few, method, solver, stand_in
from reproduction.tables import Method, Scale, Setting, Table, cell, grid, mean, wrap

__all__ = ["TABLES"]

ACCURACY = ("test/seen/accuracy",)
CLOSE = 1.0
"""Points below the final accuracy without a codec that count as having got there."""


def codec(name: str, **options: object) -> tuple[str, ...]:
    """Arguments of a codec of what clients send."""
    given = tuple(part for key, value in options.items() for part in (f"--model.compression.{key}", str(value)))
    return ("--model.compression", name, *given)


CODECS: dict[str, tuple[str, tuple[str, ...]]] = {
    "none": ("none", ()),
    "float16": ("FloatCast, float16", codec("FloatCast")),
    "uniform": ("Uniform, 8 bits", codec("Uniform")),
    "qsgd": ("QSGD, 7 levels", codec("QSGD", levels=7)),
    "terngrad": ("TernGrad", codec("TernGrad")),
    "sign": ("ScaledSign, EF14", codec("ScaledSign")),
    "topk": ("TopK 5 %, EF14", codec("TopK", fraction=0.05)),
    "randomk": ("RandomK 5 %, EF14", (*codec("RandomK", fraction=0.05), "--model.compression_feedback", "ef14")),
    "drive": ("Drive", codec("Drive")),
    "lowrank": ("LowRank 1, EF14", codec("LowRank", rank=1)),
}
"""Each codec's label and arguments."""
OF_ROWS = tuple(name for name in CODECS if name != "lowrank")
OF_MATRICES = tuple(name for name in CODECS if name != "randomk")
"""Eight codecs each, and none: the synthetic data's model is a single row, for which there is no low rank."""


def _methods(base: Method, names: Sequence[str]) -> tuple[Method, ...]:
    return tuple(Method(f"{base.name}_{name}", CODECS[name][0], (*base.arguments, *CODECS[name][1])) for name in names)


def _setting(name: str, label: str, config: str, base: Method, arguments: tuple[str, ...]) -> Setting:
    names = OF_MATRICES if config.startswith("cifar10") else OF_ROWS
    methods, drawn = _methods(base, names), config.startswith("cifar10")
    return Setting(name, label, config, methods, arguments, ("participation",), draws_data=drawn)


fedem = {"num_components": 3, "refresh_mixture_at_eval": True}
pictures = (
    "--model.network", "Linear", "--data.dataset.fraction", "0.1", "--trainer.max_epochs", "30",
    "--trainer.check_val_every_n_epoch", "5", "--model.solver.schedule", "constant", "--model.solver.momentum", "0.0",
)  # fmt: skip
thousand = ("--trainer.max_epochs", "60", "--trainer.check_val_every_n_epoch", "10")
SETTINGS = tuple(
    _setting(name, label, config, base, arguments)
    for name, kind, config, arguments, rates in (
        ("compressed_synthetic", "Synthetic", "synthetic_thousand_clients", thousand, (1.0, 5.0)),
        ("compressed_cifar10", "CIFAR-10", "cifar10_dirichlet", pictures, (0.003, 0.03)),
    )
    for label, base in (
        (f"{kind}, FedAvg", method("fedavg", algorithm("FedAvg"), solver(lr=rates[0]))),
        (f"{kind}, FedEM", method("fedem", algorithm("FedEM", **fedem), solver(lr=rates[1]))),
    )
)


def settings(scale: Scale) -> tuple[Setting, ...]:
    """The settings of a scale, one for each data set and algorithm; `paper` is `reduced`, since there is no paper."""
    if scale != "smoke":
        return SETTINGS
    small = {
        "compressed_synthetic": (*tiny, "--data.dataset.dimension", "64", *brief),
        "compressed_cifar10": (*stand_in("[3,32,32]", 10), *brief, *few),
    }
    return tuple(
        one._replace(
            arguments=(*(_without_fraction(one.arguments)), *small[one.name]),
            methods=tuple(few_of for few_of in one.methods if few_of.name.rpartition("_")[2] in ("none", "sign")),
        )
        for one in SETTINGS
    )


def _without_fraction(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Drawn samples have no `fraction`."""
    return tuple(one for one in arguments if one not in ("--data.dataset.fraction", "0.1"))


def runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """All runs, seed after seed."""
    return [run for seed in seeds for setting in settings(scale) for run in setting.runs([seed])]


# ---------------------------------------------------------------------- the page
def body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """For each data set and algorithm a row for each codec."""
    lines = wrap(
        "Test accuracy of seen clients in percent, mean ± standard deviation over the seeds, after all rounds; "
        "kilobytes that a client sends in a round in which it takes part; how many times fewer that is than without "
        f"a codec; and kilobytes in all until the accuracy is within {CLOSE:g} point of the same seed's end without "
        "a codec, per client and on average over the seeds. Bits are those of a real encoding, scales, signs and "
        "positions counted in; nothing is packed. Only what clients send is encoded: what they hear has full size. "
        "EF14: what a codec loses is kept by the client and told later."
    )
    for setting in settings(scale):
        lines += ["", f"## {setting.label}", "", *_table(setting, kept, seeds)]
    return lines


def _table(setting: Setting, kept: Kept, seeds: Sequence[int]) -> list[str]:
    found = {one.name: kept.all(setting.runs(seeds, [one.name])) for one in setting.methods}
    plain = found[setting.methods[0].name]
    rows = [[one.label, *_row(found[one.name], plain, len(seeds))] for one in setting.methods]
    return grid(["codec", "accuracy", "kB a round", "times fewer", "kB to get there"], rows)


def _row(records: Sequence[Record], plain: Sequence[Record], wanted: int) -> list[str]:
    if not records or not plain:
        return ["not run", "", "", ""]
    fewer = total_up(plain) / total_up(records)
    return [
        cell(records, ACCURACY, wanted), _short(_per_round(records)), f"{fewer:.1f}",
        _reached(records, plain),
    ]  # fmt: skip


def total_up(records: Sequence[Record]) -> float:
    """Bytes that all clients send, mean over records."""
    return statistics.mean(one["summary"]["comm/total_bytes_up"] for one in records)


def _per_round(records: Sequence[Record]) -> float:
    """Kilobytes of one client's message."""
    messages = [one["participation"]["per_round"] * one["summary"]["rounds"] for one in records]
    return total_up(records) / statistics.mean(messages) / 1e3


def _reached(records: Sequence[Record], plain: Sequence[Record]) -> str:
    """Kilobytes of a client up to the first evaluation close to the end without a codec, mean over the seeds."""
    if len(records) < len(plain):
        return "not all run"
    sent = [_first(one, (mean([base]) - CLOSE) / 100) for one, base in zip(records, plain, strict=True)]
    if any(one is None for one in sent):
        return "never"
    return _short(statistics.mean(one for one in sent if one is not None))


def _short(value: float) -> str:
    """Three digits, and of thousands all."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _first(record: Record, target: float) -> float | None:
    curve = curve_of(record)
    return next((sent for sent, accuracy in zip(*curve, strict=True) if accuracy >= target), None)


def curve_of(record: Record) -> tuple[list[float], list[float]]:
    """Kilobytes that a client has sent on average, and the accuracy then."""
    share = 1e3 * record["participation"]["clients"]
    return [one / share for one in record["curve"]["comm/bytes_up"]], record["curve"]["test/seen/accuracy"]


def picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """A panel for each data set and algorithm: accuracy against megabytes that a client has sent."""
    shown = settings(scale)
    figure, axes = panels([one.label for one in shown], width=4.4, height=3.3)
    for setting in shown:
        axis = axes[setting.label]
        for position, name in enumerate(CODECS):
            _draw(axis, setting, name, position, kept, seeds)
        axis.set(xscale="log", xlabel="megabytes sent up per client", ylabel="test accuracy (%)")
        axis.grid(alpha=0.3)
    handles: Mapping[str, object] = {}
    for axis in axes.values():
        lines, labels = axis.get_legend_handles_labels()
        handles = {**dict(zip(labels, lines, strict=True)), **handles}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8, frameon=False)
    save(figure, path)


def _draw(axis: object, setting: Setting, name: str, position: int, kept: Kept, seeds: Sequence[int]) -> None:
    base = setting.methods[0].name.removesuffix("_none")
    records = kept.all(setting.runs(seeds, [f"{base}_{name}"]))
    if not records:
        return
    curves = np.array([curve_of(one) for one in records])  # [seeds, 2, rounds]
    sent, accuracy = curves[:, 0].mean(axis=0) / 1e3, 100 * curves[:, 1]
    draw_curve(
        axis, sent, accuracy.mean(axis=0), accuracy.std(axis=0), label=CODECS[name][0], color=f"C{position}",
        markersize=4, **look(position),
    )  # fmt: skip


REDUCED = (
    "Linear models throughout. Synthetic: 1,000 clients of 100 samples, about 100 in a round, 60 rounds. CIFAR-10: a "
    "tenth of the pictures over 20 clients, of which 16 train in each of 30 rounds. Learning rates were chosen by the "
    "test accuracy of seed 1 without a codec and stand for every codec; each codec has one setting."
)
TABLES = [
    Table("compression", runs, body, picture),
]
