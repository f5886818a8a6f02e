"""Every algorithm on the synthetic data of the FedEM paper: `synthetic.yaml` with its learning rates.

For each algorithm: six learning rates on 20 % held out of the training samples; the chosen one on all training samples,
measured on the test samples; and once more with 60 of the 300 clients kept out of training.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from reproduction.markdown import Part, grid, wrap
from reproduction.runs import Record, Run
from reproduction.settings import words
from reproduction.tables import ACCURACY, Results, Scale, Table

FILE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("synthetic.yaml").read_text())
NOT_RUN: dict[str, str] = FILE["not_run"]  # algorithms without a row, and why
LEARNING_RATES = tuple(round(10 ** (-half / 2), 6) for half in range(1, 7))
NUM_CLIENTS, ROUNDS, BYTES_PER_MODEL = 300, 200, 4 * 151
INIT_SEEDS = [*range(1234, 1242)]  # one for each model; the first three are the official FedEM code's
IN_THE_PAPER = {"fedavg", "fedavg_plus", "local", "fedprox", "prox_avg", "clustered_fl"}
COMPARED = {
    "fedem": "FedEM,\na mixture for each", "fedavg": "FedAvg,\none model for all", "local": "Local,\neach its own"
}  # fmt: skip
"""What the picture compares."""

TINY = (
    "--data.dataset.num_clients", "10", "--data.dataset.test_size", "20", "--data.dataset.dimension", "5",
    "--trainer.max_epochs", "2", "--trainer.check_val_every_n_epoch", "1",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A row of the page."""

    name: str
    label: str
    words: str
    chosen: float
    setting: str = ""
    paper: str = ""
    remark: str = ""
    models: int = 1
    mixture: bool = False  # a form of FedEM
    tuned: str = ""  # the hyper-parameter that is tuned; empty: the learning rate
    grid: Sequence[float] = LEARNING_RATES

    def arguments(self, value: float) -> tuple[str, ...]:
        """The arguments of a run with this value of what is tuned."""
        chosen = words(self.words, {**FILE["words"], "value": value})
        return (*chosen, "--model.init_seeds", json.dumps(INIT_SEEDS[: self.models]))

    def runs(self, scale: Scale) -> tuple[dict[float, Run], Run, Run]:
        """A run for each value on held-out samples, and with the chosen one those of seen and of unseen clients."""
        tiny = TINY if scale == "smoke" else ()

        def run(name: str, value: float, *more: str, measures: tuple[str, ...] = ()) -> Run:
            arguments = (*self.arguments(value), *more, *tiny)
            return Run(f"every_algorithm/{self.name}{name}-1234", "synthetic_fedavg", arguments, measures)

        values = self.grid[:1] if scale == "smoke" else self.grid
        held_out = {one: run(f"_held_out_{one:.3g}", one, "--data.val_fraction", "0.2") for one in values}
        clock, measures = "--trainer.callbacks+=reproduction.measures.RoundClock", ("cpu_seconds_per_round",)
        seen = run("", self.chosen, clock, measures=measures)
        return held_out, seen, run("_unseen", self.chosen, clock, "--data.unseen_fraction", "0.2", measures=measures)


ENTRIES = [Entry(name, **fields) for name, fields in FILE["entries"].items()]


class Found(NamedTuple):
    """The records of an entry."""

    held_out: dict[float, float | None]  # accuracy by value; None: the run diverged
    seen: Record
    unseen: Record

    @property
    def accuracy(self) -> float:
        """Of seen clients, in percent."""
        return 100 * float(self.seen["summary"][ACCURACY])


def entries(scale: Scale) -> list[Entry]:
    """The rows of the page."""
    return ENTRIES if scale != "smoke" else [one for one in ENTRIES if one.name in COMPARED]


def runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """All runs, whose seed is that of the configuration."""
    each = [one.runs(scale) for one in entries(scale)]
    return [run for held_out, seen, unseen in each for run in (*held_out.values(), seen, unseen)]


def found(results: Results) -> dict[str, Found]:
    """What is kept of each entry that has run whole, by its name."""
    kept, each = results.kept, {}
    for entry in entries(results.scale):
        held_out, *both = entry.runs(results.scale)
        records = kept.all(both)
        if len(records) == 2 and not kept.missing([*held_out.values()]):
            reached: dict[float, float | None] = dict.fromkeys(held_out)
            for value, run in held_out.items():
                if (one := kept.find(run)) is not None:
                    reached[value] = one["validation_curve"]["val/seen/accuracy"][-1]
            each[entry.name] = Found(reached, *records)
    return each


def body(results: Results) -> dict[str, Part]:
    """The table, how far FedEM is ahead, remarks, and the choice of the learning rates."""
    kept = found(results)
    rows, tuned, others, remarks = [], [], list[str](), list[str]()
    for entry in (one for one in ENTRIES if one.name in kept):
        held_out, seen, unseen = kept[entry.name]
        percent = [f"{100 * seen['summary'][f'test/seen/accuracy{part}']:.1f}" for part in ("", "_decile", "_worst")]
        percent.append(f"{100 * unseen['summary']['test/unseen/accuracy']:.1f}")
        sent = " / ".join(_models_sent(seen, direction) for direction in ("down", "up"))
        milliseconds = f"{1000 * seen['cpu_seconds_per_round']:.0f}"
        chosen = f"{entry.tuned or 'lr'} {entry.chosen:.3g}"
        rows.append([entry.label, entry.setting, chosen, *percent, sent, milliseconds, entry.paper])
        cells = {value: "diverged" if one is None else f"{100 * one:.1f}" for value, one in held_out.items()}
        if entry.tuned:
            pairs = ", ".join(f"{value:.3g}: {cell}" for value, cell in cells.items())
            others += ["", *wrap(f"{entry.label}, {entry.tuned}: {pairs}.")]
        else:
            tuned.append([entry.label, *cells.values()])
        remarks += ["", *wrap(f"**{entry.label}.** {entry.remark}")] if entry.remark else []
    head = ["algorithm", "setting", "chosen", "accuracy", "worst decile", "worst client", "unseen"]
    return {
        **(_gap(kept) if len(kept) == len(ENTRIES) else {"fedem": None, "best": None}),
        "table": grid([*head, "models down / up", "ms CPU per round", "the paper"], rows),
        "not_run": "; ".join(f"{', '.join(names)} ({reason})" for reason, names in _by_reason().items()),
        "remarks": remarks[1:],
        "rates": [*grid(["algorithm", *(f"{lr:.3g}" for lr in LEARNING_RATES)], tuned), *others],
    }


def _by_reason() -> dict[str, list[str]]:
    """The algorithms without a row by the reason, in the order of the file."""
    names: dict[str, list[str]] = {}
    for name, reason in NOT_RUN.items():
        names.setdefault(reason, []).append(name)
    return names


def _models_sent(record: Record, direction: str) -> str:
    """Models per client and round: bytes in units of one model of float32."""
    return f"{record['summary'][f'comm/total_bytes_{direction}'] / (BYTES_PER_MODEL * NUM_CLIENTS * ROUNDS):.3g}"


def _gap(kept: Mapping[str, Found]) -> dict[str, str]:
    """How far FedEM is ahead."""
    others = {one.name: one for one in ENTRIES if not one.mixture}
    order = sorted(others, key=lambda name: -kept[name].accuracy)

    def against(name: str) -> str:
        behind = kept["fedem"].accuracy - kept[name].accuracy
        where = f"{behind:.2f} points behind" if behind >= 0 else f"{-behind:.2f} points ahead of it"
        return f"{others[name].label} with {kept[name].accuracy:.2f} %, {where}"

    return {
        **{name: f"{kept[name].accuracy:.2f}" for name in ("fedem", "fedem_8")},
        "listed": against(next(name for name in order if name in IN_THE_PAPER)),
        "best": "; ".join(against(name) for name in order[:4]),
        "ahead": f"{kept['fedem_8'].accuracy - kept[order[0]].accuracy:.2f}",
    }


def picture(results: Results, path: Path) -> None:
    """The accuracies of seen and unseen clients with a model each, one for all, and a mixture."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from lit_fed.pictures.style import COLUMN, FULL_WIDTH, legend_above, save

    kept = found(results)
    with mpl.rc_context(COLUMN):
        figure = Figure(figsize=(0.75 * FULL_WIDTH, 2.2))
        axes = figure.subplots()
        looks = {"seen": {"color": "#1b4f8a"}, "unseen": {"color": "#f0b27a", "hatch": "///", "edgecolor": "white"}}
        for side, (population, look) in zip((0.2, -0.2), looks.items(), strict=True):
            summaries = [getattr(kept[name], population)["summary"] for name in COMPARED]
            values = [100 * one[f"test/{population}/accuracy"] for one in summaries]
            places = [height + side for height in range(len(COMPARED))]
            shown = axes.barh(places, values, height=0.38, label=f"{population} clients", **look)
            axes.bar_label(shown, fmt="%.1f", padding=3)
        axes.set_yticks(range(len(COMPARED)), list(COMPARED.values()))
        axes.set(xlabel="test accuracy (%), mean over clients", xlim=(0, 85))
        axes.grid(visible=False, axis="y")
        legend_above(figure)
        save(figure, path)


TABLES = [Table("synthetic", runs, body, picture)]
