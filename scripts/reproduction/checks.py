"""Checks of our own: accuracy under client-level privacy and under codecs."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lit_fed.pictures.style import COLOURS, draw_curve, draw_mean, look, save
from reproduction.markdown import Part, grid, section
from reproduction.pictures import panels
from reproduction.runs import Record
from reproduction.settings import LABELS, runs_of, settings_of
from reproduction.tables import ACCURACY, Results, Scale, Setting, Table, accuracies, mean

PRIVATE = ("fedavg", "fedavg_plus", "fedem")


def degrees(setting: Setting) -> list[str]:
    """The ε of a setting, ∞ last."""
    return list(dict.fromkeys(one.name.rpartition("_")[2] for one in setting.methods))


def written(epsilon: str) -> str:
    """ε as it stands on the page."""
    return "∞" if epsilon == "inf" else epsilon


def privacy_body(found: Results) -> dict[str, Part]:
    """Accuracy of each algorithm at each ε, what noise meets what signal, and the mixture's gain."""
    lines: list[str] = []
    for setting in settings_of("privacy", found.scale).values():
        places = degrees(setting)
        each = {name: [found.of(setting, f"{name}_epsilon_{at}") for at in places] for name in PRIVATE}
        rows = [[LABELS[name], *map(found.cell, records)] for name, records in each.items()]
        mixtures = [some if at != "inf" else [] for at, some in zip(places, each["fedem"], strict=True)]
        noise = [f"{some[0]['summary']['privacy/noise_multiplier']:.3f}" if some else "" for some in mixtures]
        gains = [[f"FedEM − {LABELS[one]}", *(_gain(setting, found, one, at) for at in places)] for one in PRIVATE[:2]]
        head = [f"ε = {written(at)}" for at in places]
        table = grid(["algorithm", *head], [*rows, ["noise multiplier z", *noise]])
        lines += section(setting.label, table, grid(["points", *head], gains))
    return {"settings": lines[1:]}


def _gain(setting: Setting, found: Results, other: str, epsilon: str) -> str:
    """What three components bring over one model, seed by seed."""
    gains = []
    for seed in found.seeds:
        one = found._replace(seeds=[seed])
        ours, theirs = (one.of(setting, f"{name}_epsilon_{epsilon}") for name in ("fedem", other))
        gains += [mean(ours) - mean(theirs)] if ours and theirs else []
    if not gains:
        return "not run"
    spread = f" ± {statistics.stdev(gains):.1f}" if len(gains) > 1 else ""
    return f"{statistics.mean(gains):+.1f}{spread}"


def privacy_picture(found: Results, path: Path) -> None:
    """A panel for each setting: accuracy against ε, with ∞ at the right."""
    shown = settings_of("privacy", found.scale).values()
    figure, axes = panels([one.label for one in shown], width=3.6, height=3.0)
    for setting in shown:
        axis, places = axes[setting.label], degrees(setting)
        for position, name in enumerate(PRIVATE):
            values = [accuracies(found.of(setting, f"{name}_epsilon_{epsilon}")) for epsilon in places]
            there = [number for number, some in enumerate(values) if some]
            middle = np.array([statistics.mean(values[number]) for number in there])
            deviation = np.array([statistics.stdev(some) if len(some := values[number]) > 1 else 0 for number in there])
            looks = {"color": COLOURS[position], "markersize": 4, **look(position)}
            draw_curve(axis, there, middle, deviation, label=LABELS[name], **looks)
        axis.set_xticks(range(len(places)), [written(epsilon) for epsilon in places])
        axis.set(xlabel="ε", ylabel="test accuracy (%)")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False)
    save(figure, path)


CLOSE = 1.0  # points below the final accuracy without a codec that count as having got there


def sections(scale: Scale) -> list[tuple[str, Setting, dict[str, str]]]:
    """For each data set and algorithm a title, the setting, and its methods by their codecs."""
    found = []
    for setting in settings_of("compression", scale).values():
        for algorithm in setting.choices["algorithm"]:
            codecs = {one.name.partition("_")[2]: one.name for one in setting.methods if one.name.startswith(algorithm)}
            found.append((f"{setting.label}, {LABELS[algorithm]}", setting, codecs))
    return found


def compression_body(found: Results) -> dict[str, Part]:
    """For each data set and algorithm a row for each codec."""
    lines: list[str] = []
    for title, setting, methods in sections(found.scale):
        rows, plain = [], found.of(setting, methods["none"])
        for codec, name in methods.items():
            records = found.of(setting, name)
            cells = ["not run", "", "", ""]
            if records and plain:
                fewer = f"{_total_up(plain) / _total_up(records):.1f}"
                cells = [found.cell(records), _short(_per_round(records)), fewer, _reached(records, plain)]
            rows.append([setting.choices["codec"][codec], *cells])
        lines += section(title, grid(["codec", "accuracy", "kB a round", "times fewer", "kB to get there"], rows))
    return {"settings": lines[1:]}


def _total_up(records: Sequence[Record]) -> float:
    """Bytes that all clients send, mean over records."""
    return statistics.mean(one["summary"]["comm/total_bytes_up"] for one in records)


def _per_round(records: Sequence[Record]) -> float:
    """Kilobytes of one client's message."""
    messages = [one["participation"]["per_round"] * one["summary"]["rounds"] for one in records]
    return _total_up(records) / statistics.mean(messages) / 1e3


def _reached(records: Sequence[Record], plain: Sequence[Record]) -> str:
    """Kilobytes of a client up to the first evaluation close to the end without a codec, mean over the seeds."""
    if len(records) < len(plain):
        return "not all run"
    firsts = []
    for one, base in zip(records, plain, strict=True):
        target = (mean([base]) - CLOSE) / 100
        firsts += [sent for sent, accuracy in zip(*_curve(one), strict=True) if accuracy >= target][:1]
    return _short(statistics.mean(firsts)) if len(firsts) == len(plain) else "never"


def _short(value: float) -> str:
    """Three digits, and of thousands all."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _curve(record: Record) -> tuple[list[float], list[float]]:
    """Kilobytes that a client has sent on average, and the accuracy then."""
    share = 1e3 * record["participation"]["clients"]
    return [one / share for one in record["curve"]["comm/bytes_up"]], record["curve"][ACCURACY]


def compression_picture(found: Results, path: Path) -> None:
    """A panel for each data set and algorithm: accuracy against megabytes that a client has sent."""
    shown, handles, codecs = sections(found.scale), dict[str, object](), dict[str, str]()
    for _, setting, _ in shown:
        codecs |= setting.choices["codec"]
    figure, axes = panels([title for title, _, _ in shown], width=4.4, height=3.3)
    for title, setting, methods in shown:
        axis = axes[title]
        for position, (codec, label) in enumerate(codecs.items()):
            records = found.of(setting, methods.get(codec, ""))
            if records:
                both = np.array([_curve(one) for one in records])  # [seeds, 2, rounds]
                sent, accuracy = both[:, 0].mean(axis=0) / 1e3, 100 * both[:, 1]
                looks = {"label": label, "color": f"C{position}", "markersize": 4, **look(position)}
                draw_mean(axis, sent, accuracy, **looks)
        axis.set(xscale="log", xlabel="megabytes sent up per client", ylabel="test accuracy (%)")
        axis.grid(alpha=0.3)
    for axis in axes.values():
        lines, labels = axis.get_legend_handles_labels()
        handles = {**dict(zip(labels, lines, strict=True)), **handles}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8, frameon=False)
    save(figure, path)


TABLES = [
    Table("privacy", runs_of("privacy"), privacy_body, privacy_picture),
    Table("compression", runs_of("compression"), compression_body, compression_picture),
]
