"""How many components and E-steps a mixture needs where the rules are known, and how much hangs on where it starts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from reproduction.e_steps import STEPS
from reproduction.mixture_grid import COMMON, DIFFERENCES, SAMPLES, TINY
from reproduction.runs import Kept, Run
from reproduction.settings import LABELS, algorithm, solver
from reproduction.tables import Method, Scale, Setting, cell, grid, mean, wrap

__all__ = ["number_lines", "number_runs", "start_lines", "start_runs", "step_lines"]

RULES = 3
"""How many the clients of the synthetic data mix."""

COMPONENTS = (1, 2, 3, 4, 6, 10)
RATE = "0.316228"
STEPPED, STEPPED_WITH = (3, 10), (100, 1000)
"""Numbers of components, and samples of a client, in the table of E-steps."""

DIGITS = Setting(
    "when_steps_digits", "other classes: the quickstart's digits, five seeds", "quickstart",
    (Method("fedem", "FedEM", (), ("unseen_by_e_steps",)),), draws_data=False,
)  # fmt: skip
"""Clients that contradict nobody, since each has classes of its own; about 70 training samples of a client."""

DIGITS_SEEDS = (0, 1, 2, 3, 4)
STARTS = (1, 2, 3, 4, 5)
STARTED = {"fedavg": (algorithm("FedAvg"), "0.1"), "fedem": (algorithm("FedEM", num_components=RULES), RATE)}
STARTED_WITH = (300,)
"""Samples of a client in the runs from several starts."""


def _cells(prefix: str, methods: Sequence[Method], scale: Scale, samples: Sequence[int], data: tuple[str, ...]) -> dict:
    """A setting for each difference between clients and number of samples."""
    found = {}
    for key, difference in DIFFERENCES.items():
        for number in samples:
            arguments = (*COMMON, *difference.arguments, "--data.dataset.samples_per_client", str(number), *data)
            found[key, number] = Setting(
                f"{prefix}_{key}_{number}", difference.label, "synthetic_fedavg", tuple(methods),
                (*arguments, *(TINY if scale == "smoke" else ())), draws_data=not data, draws_pool=not data,
            )  # fmt: skip
    return dict(list(found.items())[:1]) if scale == "smoke" else found


# ---------------------------------------------------------------------- number of components
def _numbered(scale: Scale) -> dict[tuple[str, int], Setting]:
    methods = [
        Method(
            f"fedem_{M}", f"M = {M}", (*algorithm("FedEM", num_components=M), *solver(lr=RATE)),
            ("unseen_by_e_steps",) if M in STEPPED else (),
        )
        for M in COMPONENTS
    ]  # fmt: skip
    return _cells("when_number", methods[2:3] if scale == "smoke" else methods, scale, SAMPLES, ())


def number_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """FedEM with every number of components, in all cells, and on digits with one."""
    digits = [] if scale == "smoke" else DIGITS.runs(DIGITS_SEEDS)
    return [*(run for setting in _numbered(scale).values() for run in setting.runs(seeds)), *digits]


def number_lines(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """A table of accuracies by number of components."""
    cells, rows = _numbered(scale), []
    numbers = sorted({number for _, number in cells})
    for key, difference in DIFFERENCES.items():
        found = {
            M: [kept.all(cells[key, n].runs(seeds, [f"fedem_{M}"])) if (key, n) in cells else [] for n in numbers]
            for M in COMPONENTS
        }
        each = zip(*found.values(), strict=True)
        best = [max((mean(column) for column in columns if column), default=0.0) for columns in each]
        for components, columns in found.items():
            if any(columns):
                texts = [cell(one, ["test/seen/accuracy", "test/unseen/accuracy"], len(seeds)) for one in columns]
                bold = [bool(one) and mean(one) == most for one, most in zip(columns, best, strict=True)]
                texts = [f"**{text}**" if most else text for text, most in zip(texts, bold, strict=True)]
                rows.append([difference.label, str(components), *texts])
    if not rows:
        return []
    text = (
        f"The same clients, of whom there are {RULES} rules, with other numbers of components M, all at FedEM's rate; "
        "one component is FedAvg at this rate."
    )
    return ["## How many components", "", *wrap(text), "", *grid(["clients", "M", *map(str, numbers)], rows)]


def step_lines(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """A table of unseen clients' accuracies by number of E-steps."""
    asked = [
        (setting.label, str(number), str(components), setting.runs(seeds, [f"fedem_{components}"]))
        for (_, number), setting in _numbered(scale).items()
        for components in STEPPED
        if scale == "smoke" or number in STEPPED_WITH
    ]
    rows = []
    for label, number, components, runs in [*asked, (DIGITS.label, "70", "3", DIGITS.runs(DIGITS_SEEDS))]:
        found = kept.all(runs)
        if found:
            steps = [statistics.mean(100 * one["unseen_by_e_steps"][str(step)] for one in found) for step in STEPS]
            rows.append([label, number, components, *(f"{value:.2f}" for value in steps), f"{mean(found):.2f}"])
    if not rows:
        return []
    text = (
        "Test accuracy of unseen clients in percent, by how many E-steps they take from equal weights before they are "
        "served (`--model.algorithm.em_steps`; the paper takes one), and that of seen clients, whose weights are of "
        "the last rounds. The samples pass the network once, however many steps there are."
    )
    head = ["clients", "samples", "M", *map(str, STEPS), "seen clients"]
    return ["## How many E-steps before a client is served", "", *wrap(text), "", *grid(head, rows)]


# ---------------------------------------------------------------------- initial values
def _started(scale: Scale) -> dict[tuple[str, int], Setting]:
    methods = [Method(name, LABELS[name], (*chosen, *solver(lr=rate))) for name, (chosen, rate) in STARTED.items()]
    same = ("--data.seed", "1", "--data.dataset.seed", "1")
    return _cells("when_start", methods[1:] if scale == "smoke" else methods, scale, STARTED_WITH, same)


def start_runs(scale: Scale) -> list[Run]:
    """FedAvg and FedEM on the same samples from other initial models and with other batches."""
    starts = STARTS[:1] if scale == "smoke" else STARTS
    return [run for setting in _started(scale).values() for run in setting.runs(starts)]


def start_lines(kept: Kept, scale: Scale) -> list[str]:
    """A table of the least, mean and largest accuracy over the starts."""
    rows = []
    for setting in _started(scale).values():
        for name in STARTED:
            values = [mean([one]) for one in kept.all(setting.runs(STARTS, [name]))]
            if values:
                ends = f"{min(values):.2f} to {max(values):.2f}"
                samples = setting.name.rpartition("_")[2]
                rows.append([setting.label, samples, LABELS[name], f"{statistics.mean(values):.2f}", ends])
    if not rows:
        return []
    text = (
        f"The same samples, {len(STARTS)} times, from other initial models and with other batches: test accuracy of "
        "seen clients in percent, on average, and that of the worst and of the best start."
    )
    head = ["clients", "samples", "method", "mean", "worst to best"]
    return ["## How much hangs on the start", "", *wrap(text), "", *grid(head, rows)]
