"""Checks of our own: the trainer, precision, privacy, codecs, and rates of convergence on a convex problem."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lit_fed.pictures.style import COLOURS, DASHES, MARKERS, draw_curve, look, save
from reproduction.markdown import Part, grid, section
from reproduction.pictures import panels
from reproduction.runs import Record, Run
from reproduction.settings import LABELS, runs_of, settings_of
from reproduction.tables import ACCURACY, Results, Scale, Setting, Table, accuracies, mean, plus_minus

DECILE = "test/seen/accuracy_decile"


class Row(NamedTuple):
    """A run of the table, with the seed of its configuration."""

    run: Run
    label: str
    expected: str = ""
    paper: str = ""  # accuracy / worst decile, in percent


def trainer_rows(scale: Scale) -> list[Row]:
    """Everything that the page reports."""
    tiny = ("--data.dataset.num_clients", "10", "--data.dataset.test_size", "20", "--trainer.max_epochs", "2")
    small = (*tiny, "--trainer.check_val_every_n_epoch", "1") if scale == "smoke" else ()

    def run(name: str, config: str, *arguments: str) -> Run:
        return Run(f"trainer/{name}-1234", f"synthetic_{config}", (*arguments, *small))

    fresh = run("fedem_fresh", "fedem", "--model.solver.persist_optimizer", "false")
    starts = [[100 * number + m for m in range(1, 4)] for number in range(2 if scale == "smoke" else 10)]
    rows = [
        Row(run("fedem", "fedem"), "FedEM, official initial values", "76.0 ± 0.4 / 70.4 ± 1.0", "74.7 / 66.7"),
        Row(fresh, "FedEM, fresh optimizer per round", "about 72.8"),
        Row(run("fedavg", "fedavg"), "FedAvg", "68.1 ± 0.5", "68.2 / 58.9"),
        Row(run("fedavg_plus", "fedavg_plus"), "FedAvg+", "68.9 ± 0.7", "68.9 / 60.2"),
        Row(run("local", "local"), "Local", "66.7 ± 0.7", "65.7 / 58.4"),
    ]
    for number, seeds in enumerate(starts):
        others = run(f"fedem_init_{number}", "fedem", "--model.init_seeds", str(seeds))
        rows.append(Row(others, f"FedEM, init seeds {seeds}"))
    return rows


def trainer_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of the page, whose seeds are those of the configurations."""
    return [one.run for one in trainer_rows(scale)]


def trainer_body(found: Results) -> dict[str, Part]:
    """The table of accuracies, and the spread over initial values."""
    rows, others = [], []
    for row in trainer_rows(found.scale):
        for record in found.kept.all([row.run]):
            both = " / ".join(f"{accuracies([record], key)[0]:.2f}" for key in (ACCURACY, DECILE))
            rows.append([row.label, both, row.expected, row.paper, f"{record['summary']['seconds']:.0f}"])
            others += [record] if "fedem_init_" in row.run.name else []
    parts: dict[str, Part] = dict.fromkeys(("others", "mean", "deviation", "accuracies", "decile", "deciles"))
    if len(others) > 1:
        means, deciles = accuracies(others), accuracies(others, DECILE)
        parts |= {"others": str(len(others)), "deviation": f"{statistics.stdev(means):.2f}"}
        for one, each, values in (("mean", "accuracies", means), ("decile", "deciles", deciles)):
            parts |= {one: f"{statistics.mean(values):.2f}", each: f"{min(values):.2f} to {max(values):.2f}"}
    return parts | {"table": grid(["run", "measured", "expected", "paper", "seconds"], rows)}


def precision_body(found: Results) -> dict[str, Part]:
    """A row for each seed."""
    rows, (setting,) = [], settings_of("precision", found.scale).values()
    for seed in found.seeds:
        both = found.kept.all(setting.runs([seed]))
        if len(both) == 2:
            exact, rounded = accuracies(both)
            seconds = [f"{one['summary']['seconds']:.0f}" for one in both]
            rows.append([str(seed), f"{exact:.2f}", f"{rounded:.2f}", f"{rounded - exact:+.2f}", *seconds])
    head = ["seed", "float32", "bf16-mixed", "difference in points", "seconds, float32", "seconds, bf16-mixed"]
    return {"table": grid(head, rows)}


PERPLEXITIES = {
    "seen, mean": "test/seen/perplexity_unweighted", "seen, worst client": "test/seen/perplexity_worst",
    "unseen, mean": "test/unseen/perplexity_unweighted",
}  # fmt: skip


def perplexity_body(found: Results) -> dict[str, Part]:
    """A row for each algorithm."""
    (setting,) = settings_of("perplexity", found.scale).values()
    rows = []
    for method in setting.methods:
        records = found.of(setting, method.name)
        each = [[one["summary"][key] for one in records] for key in PERPLEXITIES.values()]
        rows.append([method.label, *(plus_minus(values) if values else "not run" for values in each)])
    return {"table": grid(["algorithm", *PERPLEXITIES], rows)}


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
            middle, deviation = (np.array([of(values[number]) for number in there]) for of in (np.mean, np.std))
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
                draw_curve(axis, sent, accuracy.mean(axis=0), accuracy.std(axis=0), **looks)
        axis.set(xscale="log", xlabel="megabytes sent up per client", ylabel="test accuracy (%)")
        axis.grid(alpha=0.3)
    for axis in axes.values():
        lines, labels = axis.get_legend_handles_labels()
        handles = {**dict(zip(labels, lines, strict=True)), **handles}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8, frameon=False)
    save(figure, path)


TARGETS = (1e-2, 1e-4, 1e-6)
STALLED = 1e-7  # a gap above this, and hardly smaller than some rounds before, is a bias: rounding alone ends far below
BIASED = ("fedavg", "fedavg_small", "fedavgm", "fedadam", "fedprox")
"""Those whose local steps pull each client to its own minimiser, so that they stop beside the common one."""


def _convex(found: Results) -> tuple[dict[str, str], dict[str, Record]]:
    """Labels, and the measure of each run with the first seed; the others differ in the initial model alone."""
    (setting,) = settings_of("convex", found.scale).values()
    each = found._replace(seeds=found.seeds[:1]).each(setting)
    labels = {one.name: one.label for one in setting.methods}
    return labels, {name: some[0]["objective"] for name, some in each.items() if some}


def convex_body(found: Results) -> dict[str, Part]:
    """Rounds and megabits to each gap, and who stops short of the minimum."""
    labels, measured = _convex(found)
    head = ["algorithm", *(f"{target:.0e}: rounds / megabits" for target in TARGETS), "gap in the end", "disagreement"]
    table = grid(head, [[label, *_convex_cells(measured.get(name))] for name, label in labels.items()])
    parts: dict[str, Part] = dict.fromkeys(("biased", "exact", "stalled", "ratio", "saving", "plain"))
    parts |= {"table": table, "minimum": _minimum(measured)}
    if not measured or len(next(iter(measured.values()))["gap"]) < 100:
        return parts

    def named(wanted: Sequence[str]) -> str:
        return "; ".join(label for name, label in labels.items() if name in wanted and name in measured)

    stalled = named([name for name, one in measured.items() if _stalls(one["gap"])])
    parts |= {"biased": named(BIASED), "exact": named([one for one in measured if one not in BIASED])}
    parts |= {"stalled": stalled or "none"}
    if {"fedavg", "fedavg_small"} <= measured.keys():
        parts["ratio"] = f"{measured['fedavg']['gap'][-1] / measured['fedavg_small']['gap'][-1]:.0f}"
    if {"ggadmm", "cqggadmm"} <= measured.keys():
        parts["plain"], parts["saving"] = (_gap_reached(measured[one], TARGETS[-1]) for one in ("ggadmm", "cqggadmm"))
    return parts


def _minimum(measured: Mapping[str, Record]) -> str:
    for one in measured.values():
        low, high = one["curvature"]
        return (
            f" min f = {one['minimum']:.6f}, where the gradient is {one['slope']:.0e} and the Hessian's eigenvalues "
            f"lie between {low:.3f} and {high:.3f}."
        )
    return ""


def _convex_cells(record: Record | None) -> list[str]:
    if record is None:
        return ["not run"] * (len(TARGETS) + 2)
    apart = record["disagreement"][-1]
    cells = [_gap_reached(record, target) for target in TARGETS]
    return [*cells, f"{record['gap'][-1]:.1e}", f"{apart:.1e}" if apart else ""]


def _gap_reached(record: Record, target: float) -> str:
    """The first round after which the gap stays that small, and the megabits up to then."""
    above = [number for number, gap in enumerate(record["gap"]) if gap > target]
    first = above[-1] + 1 if above else 0
    return "never" if first == len(record["gap"]) else f"{first + 1} / {record['megabits'][first]:.2f}"


def _stalls(gaps: Sequence[float]) -> bool:
    """Whether the last tenth of the rounds brings less than a tenth."""
    earlier = gaps[-max(1, len(gaps) // 10) - 1]
    return gaps[-1] > STALLED and gaps[-1] > 0.9 * earlier


def convex_picture(found: Results, path: Path) -> None:
    """The gap by rounds and by megabits."""
    labels, measured = _convex(found)
    figure, axes = panels(["by rounds", "by megabits"], width=5.0, height=4.4)
    for number, (name, label) in enumerate(labels.items()):
        if name not in measured:
            continue
        looks = {
            "linestyle": DASHES[number % len(DASHES)], "marker": (MARKERS + "h")[number], "markersize": 4,
            "markevery": (number, 15), "label": label, "color": f"C{number}" if number < 10 else "black",
        }  # fmt: skip
        gaps = [max(gap, 1e-16) for gap in measured[name]["gap"]]
        axes["by rounds"].plot(range(1, len(gaps) + 1), gaps, **looks)
        axes["by megabits"].plot(measured[name]["megabits"], gaps, **looks)
    axes["by rounds"].set(xlabel="round", ylabel="f(θ) − min f", yscale="log")
    axes["by megabits"].set(xlabel="megabits sent and received by all clients", yscale="log", xscale="log")
    figure.legend(*axes["by rounds"].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    save(figure, path)


TABLES = [
    Table("trainer", trainer_runs, trainer_body),
    Table("precision", runs_of("precision"), precision_body),
    Table("perplexity", runs_of("perplexity"), perplexity_body),
    Table("optimization-convex", runs_of("convex"), convex_body, convex_picture),
    Table("privacy", runs_of("privacy"), privacy_body, privacy_picture),
    Table("compression", runs_of("compression"), compression_body, compression_picture),
]
