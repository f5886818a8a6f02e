"""Real images by the protocol of the FedEM paper, https://arxiv.org/abs/2108.10252, at its size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

__all__ = ["GRIDS", "RATES", "TABLES", "at", "best_rates", "image_settings", "tuning"]

FINAL = ("test/seen/accuracy", "test/seen/accuracy_decile")
RATES: dict[str, dict[str, float]] = json.loads(Path(__file__).with_name("image_rates.json").read_text())
"""The best of each grid on the validation samples, for each setting and method."""

GRIDS: dict[str, tuple[float, ...]] = {
    "local": (0.01, 0.03),
    "fedavg": (0.01, 0.03, 0.1),
    "fedavg_plus": (0.003, 0.01, 0.03),
    "fedem": (0.03, 0.1, 0.3),
    "clustered_fl": (0.03,),
    "fedprox": (0.1, 0.3),
    "prox_avg": (0.1, 0.3),
    "pfedme": (0.06,),
}
METHODS = tuple(GRIDS)
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
        "fedprox": (algorithm("FedProx", prox_weight=0.1), plain),
        "prox_avg": (algorithm("ProxAvg", prox_weight=1.0), plain),
        "pfedme": (pfedme, steady),
    }
    what, options = chosen[name]
    return method(name, what, solver(**({"lr": rate} | options)))


# ---------------------------------------------------------------------- settings
NETWORK = ("--model.network", "FedEMCNN")
CIFAR10 = Setting(
    "images_cifar10", "CIFAR-10, FedEM's CNN", "fedem_cifar10", (),
    (*NETWORK, "--data.num_clients", "100", "--data.unseen_fraction", "0.2", "--data.val_fraction", "0",
     "--trainer.check_val_every_n_epoch", "20"),
)  # fmt: skip
LENET5 = CIFAR10._replace(
    name="images_cifar10_lenet5", label="CIFAR-10, LeNet5",
    arguments=("--model.network", "LeNet5", *CIFAR10.arguments[2:]),
)  # fmt: skip
MNIST = Setting(
    "images_mnist", "MNIST, FedEM's CNN", "fedem_emnist", (),
    ("--data.dataset", "MNIST", "--data.dataset.fraction", "0.1", "--data.partition.label_groups", "3",
     "--data.val_fraction", "0"),
    draws_pool=True,
)  # fmt: skip
WRITERS = Setting(
    "images_writers", "MNIST by writer, LeNet5", "mnist_by_writer", (),
    ("--data.clients_per_round", "null", "--data.batch_size", "128", "--trainer.max_epochs", "200",
     "--trainer.check_val_every_n_epoch", "10", *solver(weight_decay=0.0005, persist_optimizer=True)),
)  # fmt: skip
SETTINGS = {one.name: one for one in (CIFAR10, LENET5, MNIST, WRITERS)}
SHORT = ("--data.val_fraction", "0.2", "--trainer.max_epochs", "30", "--trainer.check_val_every_n_epoch", "15")
STAND_INS = {
    "images_cifar10": (*stand_in("[3,16,16]", 10), *brief, *few),
    "images_cifar10_lenet5": (*stand_in("[3,16,16]", 10), *brief, *few),
    "images_mnist": (*stand_in("[1,16,16]", 10), *brief, *few),
    "images_writers": (*stand_in("[1,16,16]", 10, owners=5), *brief),
}
SMALL = ("--model.network", "LeNet5")


def _with(setting: Setting, scale: Scale, methods: tuple[Method, ...], more: tuple[str, ...] = ()) -> Setting:
    smoke = (*SMALL, *STAND_INS[setting.name]) if scale == "smoke" else ()
    return setting._replace(methods=methods, arguments=(*setting.arguments, *more, *smoke))


def image_settings(scale: Scale) -> dict[str, Setting]:
    """The settings, each method at its best rate; FedEM's mixture is watched, and everyone's training samples too."""
    found = {}
    for name, setting in SETTINGS.items():
        methods = tuple(at(one, RATES[name][one], common=RATES[name]["fedavg"]) for one in METHODS)
        methods = tuple(
            one._replace(arguments=(*one.arguments, *watched), measures=("mixture_curve",))
            if one.name == "fedem"
            else one
            for one in methods
        )
        if name == "images_cifar10":
            slow = at("fedem", 0.03)._replace(name="fedem_0.03", measures=("mixture_curve",))
            methods += (slow._replace(arguments=(*slow.arguments, *watched)),)
        found[name] = _with(setting, scale, methods, training)
    return found


def tuning(scale: Scale) -> dict[str, Setting]:
    """The settings with every method at every rate of its grid, for fewer rounds, judged on validation samples."""
    found = {}
    for name, setting in SETTINGS.items():
        methods = tuple(
            at(one, rate, common=RATES[name]["fedavg"])._replace(name=f"{one}_{rate:g}")
            for one, rates in GRIDS.items()
            for rate in rates
        )
        found[name] = _with(setting, scale, methods, SHORT)._replace(name=f"{name}_tuning")
    return found


def validated(record: Record) -> float:
    """Validation accuracy of seen clients at the end of a short run."""
    curve = record.get("validation_curve", {}).get("val/seen/accuracy", [])
    return float(curve[-1]) if curve else 0.0


def best_rates(kept: Kept, scale: Scale) -> dict[str, dict[str, float]]:
    """For each setting and method the rate whose short run is the best; where none was made, what is written down."""
    found: dict[str, dict[str, float]] = {}
    for name, setting in tuning(scale).items():
        found[name] = dict(RATES[name])
        for one, rates in GRIDS.items():
            records = {rate: kept.all(setting.runs([1], [f"{one}_{rate:g}"])) for rate in rates}
            made = {rate: validated(some[0]) for rate, some in records.items() if some}
            if made:
                found[name][one] = max(made, key=lambda rate: made[rate])
    return found


# ---------------------------------------------------------------------- the runs
def images_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """All methods in all settings."""
    return [run for setting in image_settings(scale).values() for run in setting.runs(seeds)]


def tuning_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """All rates of all methods."""
    return [run for setting in tuning(scale).values() for run in setting.runs(seeds)]


def images_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """A table for each setting."""
    lines: list[str] = []
    for name, setting in image_settings(scale).items():
        rows = []
        for one in METHODS:
            records = kept.all(setting.runs(seeds, [one]))
            if records:
                rows.append(
                    [LABELS[one], f"{RATES[name][one]:g}", cell(records, FINAL, len(records)), str(len(records))]
                )
        if rows:
            lines += [f"## {setting.label}", "", *grid(["algorithm", "rate", "seen: mean / decile", "seeds"], rows), ""]
    return lines


def tuning_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Validation accuracy at each rate."""
    lines: list[str] = []
    for setting in tuning(scale).values():
        rows = []
        for one, rates in GRIDS.items():
            made = [(rate, kept.all(setting.runs([1], [f"{one}_{rate:g}"]))) for rate in rates]
            cells = [f"{rate:g}: {100 * validated(some[0]):.1f}" for rate, some in made if some]
            rows += [[LABELS[one], ", ".join(cells)]] if cells else []
        if rows:
            lines += [f"## {setting.label}", "", *grid(["algorithm", "rate: validation accuracy"], rows), ""]
    return lines or wrap("Nothing was run.")


TABLES = [
    Table(
        "fedem-images", "Real images by the paper's protocol", "FedEM paper, Table 2", "CIFAR-10, MNIST",
        images_runs, images_body, None, {"reduced": "a GPU hour", "paper": "as reduced"}, "", (1,),
    ),
    Table(
        "fedem-images-tuning", "Learning rates on real images", "FedEM paper, Appendix I", "CIFAR-10, MNIST",
        tuning_runs, tuning_body, None, {"reduced": "a GPU hour", "paper": "as reduced"}, "", (1,),
    ),
]  # fmt: skip
