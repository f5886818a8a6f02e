"""When a mixture of models helps: samples per client, kind of heterogeneity and number of components, on CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.fedem_images import CIFAR10, RATES, SMALL, STAND_INS, at
from reproduction.runs import Kept, Run
from reproduction.settings import LABELS
from reproduction.tables import Method, Scale, Setting, Table, cell, grid

__all__ = ["TABLES"]

METHODS = ("local", "fedavg", "fedavg_plus", "fedem")
FRACTIONS = ("0.1", "0.3", "1.0")
KINDS = {
    "groups": ("labels in three groups, Dirichlet(0.4)", ()),
    "labels": ("each label for itself, Dirichlet(0.4)", ("--data.partition.label_groups", "null")),
    "alike": ("Dirichlet(10)", ("--data.partition.alpha", "10")),
    "permuted": (
        "three groups of clients that name the classes otherwise",
        ("--data.partition", "LabelPermutations", "--data.partition.num_groups", "3"),
    ),
}
COMPONENTS = (2, 3, 6)
ROUNDS = ("--trainer.max_epochs", "100")


def when_settings(scale: Scale) -> dict[str, Setting]:
    """A setting for each share of the samples and kind of heterogeneity."""
    rates = RATES["images_cifar10"]
    methods: tuple[Method, ...] = tuple(at(one, rates[one], common=rates["fedavg"]) for one in METHODS)
    for number in COMPONENTS:
        for times in (1, number):
            rate = float(f"{rates['fedavg'] * times:g}")
            methods += (at("fedem", rate, number)._replace(name=f"fedem_{number}_rate_{rate:g}"),)
    smoke = (*SMALL, *STAND_INS["images_cifar10"]) if scale == "smoke" else ()
    return {
        f"{kind}_{fraction}": CIFAR10._replace(
            name=f"when_{kind}_{fraction}", label=f"{what}, {fraction} of the samples", methods=methods,
            arguments=(*CIFAR10.arguments, *more, "--data.dataset.fraction", fraction, *ROUNDS, *smoke)
            if not smoke else (*CIFAR10.arguments, *more, *smoke),
        )
        for kind, (what, more) in KINDS.items()
        for fraction in FRACTIONS
    }  # fmt: skip


def when_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """All runs."""
    found = when_settings(scale)
    chosen = [next(iter(found.values()))] if scale == "smoke" else list(found.values())
    return [run for setting in chosen for run in setting.runs(seeds)]


def when_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """A row for each setting."""
    rows = []
    for setting in when_settings(scale).values():
        cells = [cell(kept.all(setting.runs(seeds, [one])), ["test/seen/accuracy"], len(seeds)) for one in METHODS]
        if set(cells) != {"not run"}:
            rows.append([setting.label, *cells])
    return grid(["setting", *(LABELS[one] for one in METHODS)], rows)


TABLES = [
    Table(
        "when-mixtures-help", "When a mixture helps", "A study of our own", "CIFAR-10",
        when_runs, when_body, None, {"reduced": "a GPU hour", "paper": "as reduced"}, "", (1,),
    ),
]  # fmt: skip
