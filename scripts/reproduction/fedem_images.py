"""Real images by the protocol of the FedEM paper, https://arxiv.org/abs/2108.10252, with all its clients and rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproduction.fedem import PUBLISHED, UNSEEN
from reproduction.pictures import Curve, curves
from reproduction.runs import Kept, Record, Run
from reproduction.settings import (
    LABELS,
    algorithm,
    brief,
    clustered,
    few,
    method,
    pfedme,
    plain,
    solver,
    stand_in,
    steady,
)
from reproduction.tables import Method, Scale, Setting, Table, cell, grid, wrap

__all__ = ["CIFAR10", "RATES", "TABLES", "at", "image_settings", "smoke_of", "tuning"]

SEEN = ("test/seen/accuracy", "test/seen/accuracy_decile")
RATES = {
    "images_cifar10": {
        "local": 0.03, "fedavg": 0.03, "fedavg_plus": 0.01, "clustered_fl": 0.03, "prox_avg": 0.1, "fedem": 0.03,
    },
    "images_mnist": {"local": 0.03, "fedavg": 0.03, "fedavg_plus": 0.01, "fedem": 0.1},
    "images_lenet5": {
        "local": 0.03, "fedavg": 0.03, "fedavg_plus": 0.01, "fedprox": 0.03, "clustered_fl": 0.03, "prox_avg": 0.03,
        "pfedme": 0.06, "fedem": 0.03,
    },
    "images_lenet5_faster": {
        "fedavg": 0.1, "fedavg_plus": 0.01, "fedem": 0.1,
        "fedavg_clipped": 0.1, "fedavg_plus_clipped": 0.01, "fedem_clipped": 0.1,
        "fedavg_adam": 0.003, "fedavg_plus_adam": 0.001, "fedem_adam": 0.003,
    },
    "images_writers": {"local": 0.1, "fedavg": 0.1, "fedavg_plus": 0.01, "fedem": 0.1},
}  # fmt: skip
"""The learning rate of each setting and method; of FedAvg+ that of its fine-tuning."""

GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "images_cifar10": {
        "local": (0.01, 0.03), "fedavg": (0.01, 0.03), "fedavg_plus": (0.003, 0.01, 0.03), "fedem": (0.03, 0.1),
    },
    "images_lenet5": {
        "fedavg": (0.03, 0.1), "fedem": (0.03, 0.1), "fedavg_adam": (0.001, 0.003), "fedem_adam": (0.001, 0.003),
    },
}  # fmt: skip
"""Rates that short runs compared, by setting and method."""

WAYS: dict[str, dict[str, Any]] = {"clipped": {"clip_norm": 1.0}, "adam": {"optimizer": "adam"}}
"""How a method is trained whose name ends so; the others by SGD with momentum."""

METHODS = {name: tuple(rates) for name, rates in RATES.items()}
watched = ("--trainer.callbacks+=reproduction.mixture_curve.MixtureCurve",)
training = ("--trainer.callbacks+=TrainingSplitEvaluation",)


def at(name: str, rate: float, components: int = 3, common: float = 0.03) -> Method:
    """A method at a learning rate: of FedAvg+ that of its fine-tuning, the common model is trained at `common`."""
    chosen: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "local": (algorithm("Local"), {}),
        "fedavg": (algorithm("FedAvg"), {}),
        "fedavg_plus": (algorithm("FedAvgPlus", fine_tune_lr=rate), {"lr": common}),
        "fedem": (algorithm("FedEM", num_components=components), {}),
        "clustered_fl": (clustered, {}),
        "prox_avg": (algorithm("ProxAvg", prox_weight=1.0), plain),
        "fedprox": (algorithm("FedProx", prox_weight=0.1), {}),
        "pfedme": (pfedme, steady),
    }
    plainly, way = ways_of(name)
    what, options = chosen[plainly]
    return method(name, what, solver(**({"lr": rate} | options | WAYS.get(way, {}))))


def ways_of(name: str) -> tuple[str, str]:
    """A method, and the way it is trained: of "fedem_adam" FedEM and "adam", of "fedem" FedEM and ""."""
    plainly, _, way = name.rpartition("_")
    return (plainly, way) if way in WAYS else (name, "")


# ---------------------------------------------------------------------- settings
CIFAR10 = Setting(
    "images_cifar10", "CIFAR-10", "fedem_cifar10", (),
    ("--model.network", "FedEMCNN", "--data.num_clients", "100", "--data.unseen_fraction", "0.2",
     "--data.val_fraction", "0"),
)  # fmt: skip
LENET5 = CIFAR10._replace(
    name="images_lenet5", label="CIFAR-10, LeNet5",
    arguments=("--model.network", "LeNet5", *CIFAR10.arguments[2:]),
)  # fmt: skip
FASTER = LENET5._replace(name="images_lenet5_faster", label="CIFAR-10, LeNet5, other steps")
MNIST = Setting(
    "images_mnist", "MNIST", "fedem_emnist", (),
    ("--data.dataset", "MNIST", "--data.dataset.fraction", "0.1", "--data.partition.label_groups", "3",
     "--data.val_fraction", "0"),
    draws_pool=True,
)  # fmt: skip
WRITERS = Setting(
    "images_writers", "MNIST by writer", "mnist_by_writer", (),
    ("--data.clients_per_round", "null", "--trainer.max_epochs", "200"),
)  # fmt: skip
RARELY = ("--trainer.check_val_every_n_epoch", "20")
SHORT = ("--data.val_fraction", "0.2", "--trainer.max_epochs", "30")
SHAPES = {"images_cifar10": "[3,16,16]", "images_lenet5": "[3,16,16]"}
"""Images of a run through."""


def smoke_of(name: str) -> tuple[str, ...]:
    """Arguments that make a setting a run through."""
    return ("--model.network", "LeNet5", *stand_in(SHAPES[name], 10), *brief, *few)


def image_settings(scale: Scale) -> dict[str, Setting]:
    """The settings with each method at its rate; training samples are measured too, and of FedEM the mixture."""
    found = {}
    for setting in (CIFAR10, LENET5, FASTER, MNIST, WRITERS):
        rates, methods = RATES[setting.name], []
        for name in METHODS[setting.name]:
            way = ways_of(name)[1]
            one = at(name, rates[name], common=rates[f"fedavg_{way}" if way else "fedavg"])
            if name.startswith("fedem"):
                one = one._replace(arguments=(*one.arguments, *watched), measures=("mixture_curve",))
            methods.append(one)
        often = RARELY if setting in (CIFAR10, LENET5, FASTER) else ()
        more = (*often, *training, *(smoke_of(setting.name) if scale == "smoke" and setting.name in SHAPES else ()))
        found[setting.name] = setting._replace(methods=tuple(methods), arguments=(*setting.arguments, *more))
    return found


def tuning(scale: Scale) -> dict[str, Setting]:
    """CIFAR-10 with methods at every rate of their grids for 30 rounds, judged on validation samples, by setting."""
    found = {}
    for setting in (CIFAR10, LENET5):
        methods = []
        for name, rate in _grid(setting.name):
            seldom = ways_of(name)[0] != "fedavg"
            often = (*RARELY, *SHORT, "--trainer.check_val_every_n_epoch", "15") if seldom else SHORT
            one = at(name, rate)
            methods.append(one._replace(name=f"{name}_{rate:g}", arguments=(*often, *one.arguments)))
        smoke = smoke_of(setting.name) if scale == "smoke" else ()
        if smoke:  # what stands in for the data comes last
            methods = [one._replace(arguments=(*one.arguments, *brief)) for one in methods]
        arguments = (*setting.arguments, *smoke)
        found[setting.name] = setting._replace(
            name=f"{setting.name}_tuning", methods=tuple(methods), arguments=arguments
        )
    return found


def _grid(place: str) -> list[tuple[str, float]]:
    """Method and rate of each short run."""
    return [(name, rate) for name, rates in GRIDS[place].items() for rate in rates]


def validated(record: Record) -> float:
    """Validation accuracy of seen clients at the end of a short run."""
    return float(record["validation_curve"]["val/seen/accuracy"][-1])


# ---------------------------------------------------------------------- the page
def images_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """All methods in all settings, and the short runs; a run through has one setting, which stands for the others."""
    settings = [*image_settings(scale).values(), *tuning(scale).values()]
    return [run for one in (settings[:1] if scale == "smoke" else settings) for run in one.runs(seeds)]


def images_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Both tables, the mixture over the rounds, and the short runs."""
    settings = image_settings(scale)
    return [
        *_cifar(settings, kept, seeds), "",
        *_mnist(settings["images_mnist"], kept, seeds), "",
        *_writers(settings["images_writers"], kept, seeds), "",
        "## The mixture over the rounds", "", *_mixture(settings, kept, seeds), "",
        "## Learning rates", "", *_rates(tuning(scale), kept),
    ]  # fmt: skip


def _cifar(settings: dict[str, Setting], kept: Kept, seeds: Sequence[int]) -> list[str]:
    text = (
        "All 60,000 images; the labels are shuffled and cut into three groups, each of which Dirichlet(0.4) shares out "
        "over 100 clients: 80 train in every one of 200 rounds, 20 are only served. A client has 600 images on "
        "average, of which it keeps a fifth to be tested on. SGD with momentum 0.9 and weight decay 5e-4, both kept "
        "from round to round, batches of 128, a rate that falls to a tenth after 100 and after 150 rounds. What is "
        "not the paper's: FedEM's CNN from random weights in the place of MobileNet-v2 from ImageNet's, which is why "
        "all figures are lower."
    )
    small = (
        "The same with LeNet5, a network of 62,000 parameters, which a CPU trains in an hour; made on one core in "
        "float32. The first rows have the rates of FedEM's CNN. The last ones have the rate that short runs prefer for "
        "LeNet5 with both FedAvg and FedEM, see below: all three diverged with it. The runs with clipped gradients "
        "were made after FedEM's had diverged, with this one bound; those with Adam have the better of two rates, "
        "FedAvg+ a third of it for its fine-tuning, which was not tuned."
    )
    wide = _with_unseen([settings["images_cifar10"]], "cifar10", kept, seeds)
    narrow = _with_unseen([settings[one.name] for one in (LENET5, FASTER)], "cifar10", kept, seeds)
    return ["## CIFAR-10", "", *wrap(text), "", *wide, "", *wrap(small), "", *narrow]


def _with_unseen(settings: Sequence[Setting], column: str, kept: Kept, seeds: Sequence[int]) -> list[str]:
    published = PUBLISHED[column]
    unseen = dict(zip(("fedavg", "fedavg_plus", "fedem"), UNSEEN[column], strict=True))
    rows = []
    for setting, name in ((one, name) for one in settings for name in METHODS[one.name]):
        runs = setting.runs(seeds, [name])
        records, ended = kept.all(runs), [at for at in map(kept.diverged, runs) if at is not None]
        plainly = ways_of(name)[0]
        as_theirs = "pfedme" if plainly == "prox_avg" else plainly  # their code's pFedMe is prox_avg
        theirs = published[as_theirs]
        beside = f"{theirs.mean} / {theirs.other}" + (f"; {unseen[as_theirs][0]}" if as_theirs in unseen else "")
        beside = "–" if name == "pfedme" else beside
        ours = [cell(records, keys, len(seeds)) for keys in (SEEN, ["test/unseen/accuracy"], ["train/seen/accuracy"])]
        if ended:
            ours[0] = f"diverged in round {ended[0]}"
        rows.append([LABELS[name], f"{RATES[setting.name][name]:g}", *ours, beside])
    head = ["algorithm", "rate", "seen: mean / decile", "unseen", "training samples", "the paper: seen; unseen"]
    return grid(head, rows)


def _mnist(setting: Setting, kept: Kept, seeds: Sequence[int]) -> list[str]:
    rows = []
    for name in METHODS[setting.name]:
        records, theirs = kept.all(setting.runs(seeds, [name])), PUBLISHED["emnist"][name]
        ours = [cell(records, keys, len(seeds)) for keys in (SEEN, ["train/seen/accuracy"])]
        rows.append([LABELS[name], f"{RATES[setting.name][name]:g}", *ours, f"{theirs.mean} / {theirs.other}"])
    head = ["algorithm", "rate", "seen: mean / decile", "training samples", "the paper, EMNIST"]
    text = (
        "A tenth of MNIST's digits in the place of a tenth of EMNIST: three groups of labels by Dirichlet(0.4) over "
        "100 clients, 56 training digits each on average, all in every one of 200 rounds; FedEM's CNN. The rates were "
        "not tuned."
    )
    return ["## MNIST", "", *wrap(text), "", *grid(head, rows)]


def _writers(setting: Setting, kept: Kept, seeds: Sequence[int]) -> list[str]:
    text = (
        "MNIST's digits with their writers as clients, in the place of FEMNIST: 669 train in every one of 200 rounds, "
        "167 are only served; a writer has 84 digits on average, of which it keeps a fifth to be tested on. LeNet5, "
        "batches of 32, momentum from anew each round, a rate that falls to a tenth after 100 and after 150 rounds, "
        "chosen for the 40 rounds with 100 writers in each of [Table 2](fedem-table2.md)."
    )
    return ["## MNIST by writer", "", *wrap(text), "", *_with_unseen([setting], "femnist", kept, seeds)]


def _mixture(settings: dict[str, Setting], kept: Kept, seeds: Sequence[int]) -> list[str]:
    rows = []
    for setting in settings.values():
        for name in (one for one in METHODS[setting.name] if ways_of(one)[0] == "fedem"):
            for record in kept.all(setting.runs(seeds, [name]))[:1]:
                measured = record["mixture_curve"]
                for row in (one for one in measured if one["round"] in (20, 40, 60, 100, 200)):
                    alone = ", ".join(f"{100 * value:.1f}" for value in row["components"])
                    entropies = (row["entropy_of_clients"], row["entropy_of_samples"], row["largest_weight"])
                    numbers = [f"{value:.2f}" for value in entropies]
                    rows.append([setting.label, LABELS[name], str(row["round"]), *numbers, alone])
    head = ["data", "algorithm", "round", "entropy of π", "entropy of q", "largest weight", "each alone, in percent"]
    text = (
        "Means over the clients of the training, entropies in nats (three equal weights have 1.10): π is a client's "
        "mixture, q the posterior of one of its training samples. The last column serves every client by one component "
        "alone, on its test samples."
    )
    return [*wrap(text), "", *grid(head, rows)]


def _rates(settings: dict[str, Setting], kept: Kept) -> list[str]:
    reached: dict[tuple[str, str], list[str]] = {}
    for place, setting in settings.items():
        for name, rate in _grid(place):
            (run,) = setting.runs([1], [f"{name}_{rate:g}"])
            record, ended = kept.find(run), kept.diverged(run)
            said = reached.setdefault((setting.label, LABELS[name]), [])
            if record is not None:
                said.append(f"{rate:g}: {100 * validated(record):.1f}")
            elif ended is not None:
                said.append(f"{rate:g}: diverged in round {ended}")
    rows = [[*row, ", ".join(said) or "not run"] for row, said in reached.items()]
    text = (
        "CIFAR-10, 30 rounds, a fifth of each client's samples for validation: accuracy in percent on these. FedAvg+ "
        "is trained with FedAvg's rate, and the rate here is that of its fine-tuning. With FedEM's CNN a rate of 0.1 "
        "made FedAvg diverge, and one of 0.3 FedEM. FedEM is the better with 0.1 in 30 rounds, in which the rate falls "
        "early; in 200 rounds it diverged with it in round 24, and so it has 0.03 above. FedAvg+ with 0.03 diverged in "
        "round 78, where FedAvg, whose training is the same, did not: perhaps because sums on a GPU are not the same "
        "twice, which was not tested. prox_avg with 0.1 diverged in round 44. Momentum that is kept from round to "
        "round leaves little room. With LeNet5 FedEM is 1 point ahead of FedAvg after 30 rounds with a rate of 0.03, 8 "
        "with 0.1, 8 with Adam; the tables above say what 200 rounds leave of it. The rounds of divergence named in "
        "these sentences are those of the runs' messages, which are not kept."
    )
    return [*wrap(text), "", *grid(["data", "algorithm", "rate: accuracy"], rows)]


def images_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """Accuracy over the rounds on test and training samples."""
    groups: dict[str, list[Curve]] = {}
    for setting in image_settings(scale).values():
        for split in ("test", "train"):
            lines: list[Curve] = []
            for name in METHODS[setting.name]:
                records = kept.all(setting.runs(seeds, [name]))
                values = [[100 * value for value in one["curve"][f"{split}/seen/accuracy"]] for one in records]
                lines += [(LABELS[name], records[0]["curve"]["rounds"], values)] if records else []
            if lines:
                groups[f"{setting.label}, {'test' if split == 'test' else 'training'} samples"] = lines
    if groups:
        curves(groups, "round", "accuracy in percent", path, columns=2)


TABLES = [
    Table("fedem-images", images_runs, images_body, images_picture),
]
