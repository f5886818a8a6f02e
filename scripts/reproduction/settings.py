"""The data sets of the papers with the algorithms run on them, at each scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reproduction.tables import Method, Scale, Setting

__all__ = ["LABELS", "SYNTHETIC", "algorithm", "brief", "fedem_settings", "few", "method", "solver", "stand_in"]

LABELS = {
    "local": "Local",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedavg_plus": "FedAvg+",
    "clustered_fl": "Clustered FL",
    "pfedme": "pFedMe",
    "prox_avg": "prox_avg",
    "apfl": "APFL",
    "mocha": "MOCHA",
    "fedem": "FedEM",
    "fedem_steps": "FedEM, 20 E-steps",
    "fedem_clipped": "FedEM, gradients clipped at norm 1",
    "fedavg_clipped": "FedAvg, gradients clipped at norm 1",
    "fedavg_plus_clipped": "FedAvg+, gradients clipped at norm 1",
    "fedem_adam": "FedEM, Adam",
    "fedavg_adam": "FedAvg, Adam",
    "fedavg_plus_adam": "FedAvg+, Adam",
    "dfedem": "D-FedEM",
    "oracle": "Oracle",
    "fedfomo": "FedFOMO",
    "federico": "FedeRiCo",
}


def algorithm(name: str, **options: object) -> tuple[str, ...]:
    """Arguments that choose an algorithm with its hyper-parameters."""
    return ("--model.algorithm", name, *_flags("model.algorithm", options))


def solver(**options: object) -> tuple[str, ...]:
    """Arguments of the local solver."""
    return _flags("model.solver", options)


def _flags(prefix: str, options: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(part for key, value in options.items() for part in (f"--{prefix}.{key}", _written(value)))


def _written(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def method(name: str, *arguments: tuple[str, ...]) -> Method:
    """A method under its usual label."""
    return Method(name, LABELS[name], tuple(part for one in arguments for part in one))


plain: dict[str, Any] = {"momentum": 0.0, "persist_optimizer": False}
steady = plain | {"schedule": "constant"}  # a small rate leaves pFedMe's personal models at the common one
pfedme = algorithm("PFedMe", prox_weight=15.0, inner_steps=5, inner_lr=0.05)
faster_pfedme = algorithm("PFedMe", prox_weight=2.0, inner_steps=3, inner_lr=0.15)  # a step of 1/λ, few steps in all
splitting = {"relative": True, "mean_norm_below": 0.5, "max_norm_above": 0.0, "warmup_rounds": 20}
clustered = algorithm("ClusteredFL", linkage="complete", **splitting)

training = ("--trainer.callbacks+=TrainingSplitEvaluation",)

SYNTHETIC = Setting(
    "synthetic",
    "Synthetic",
    "synthetic_fedavg",
    (
        method("local", algorithm("Local", unseen_epochs=1), solver(lr=0.003162)),
        method("fedavg", algorithm("FedAvg"), solver(lr=0.1)),
        method("fedprox", algorithm("FedProx", prox_weight=0.1), solver(lr=0.316228, **plain)),
        method("fedavg_plus", algorithm("FedAvgPlus"), solver(lr=0.316228)),
        method("clustered_fl", clustered, solver(lr=0.316228)),
        method("pfedme", pfedme, solver(lr=0.316228, **steady)),
        method("prox_avg", algorithm("ProxAvg", prox_weight=1.0), solver(lr=0.316228, **plain)),
        method("apfl", algorithm("APFL", alpha=0.5, alpha_update="fixed"), solver(lr=0.01)),
        method(
            "mocha",
            algorithm("MOCHA", loss="hinge", rounds_per_relation=10, regularisation=0.003),
            solver(local_steps=64, **plain),
        ),
        method("fedem", algorithm("FedEM", num_components=3), solver(lr=0.316228)),
        method("fedem_steps", algorithm("FedEM", num_components=3, em_steps=20), solver(lr=0.316228)),
        method("dfedem", algorithm("DFedEM", num_components=3), solver(lr=0.316228)),
    ),
    ("--model.init_seeds", "null", *training),
    draws_data=False,
)
WRITERS = Setting(
    "mnist_by_writer",
    "MNIST by writer",
    "mnist_by_writer",
    (
        method("local", algorithm("Local"), solver(lr=0.1)),
        method("fedavg", algorithm("FedAvg"), solver(lr=0.1)),
        method("fedprox", algorithm("FedProx", prox_weight=0.1), solver(lr=0.1)),
        method("fedavg_plus", algorithm("FedAvgPlus", fine_tune_lr=0.01), solver(lr=0.1)),
        method("pfedme", faster_pfedme, solver(lr=0.5, **plain)),
        method("prox_avg", algorithm("ProxAvg", prox_weight=1.0), solver(lr=0.1, **plain)),
        method("fedem", algorithm("FedEM", num_components=3), solver(lr=0.1)),
        method("dfedem", algorithm("DFedEM", num_components=3, mixing="metropolis"), solver(lr=0.1)),
    ),
)
CIFAR10 = Setting(
    "cifar10_dirichlet",
    "CIFAR-10",
    "cifar10_dirichlet",
    (
        method("local", algorithm("Local"), solver(lr=0.03)),
        method("fedavg", algorithm("FedAvg"), solver(lr=0.03)),
        method("fedprox", algorithm("FedProx", prox_weight=0.1), solver(lr=0.03)),
        method("fedavg_plus", algorithm("FedAvgPlus"), solver(lr=0.03)),
        method("clustered_fl", clustered, solver(lr=0.03)),
        method("pfedme", pfedme, solver(lr=0.06, **steady)),
        method("prox_avg", algorithm("ProxAvg", prox_weight=1.0), solver(lr=0.1, **plain)),
        method("fedem", algorithm("FedEM", num_components=3), solver(lr=0.1)),
        method("dfedem", algorithm("DFedEM", num_components=3), solver(lr=0.1)),
    ),
)
SHAKESPEARE = Setting(
    "shakespeare_roles",
    "Shakespeare",
    "shakespeare_roles",
    (
        method("local", algorithm("Local")),
        method("fedavg", algorithm("FedAvg")),
        method("fedavg_plus", algorithm("FedAvgPlus", fine_tune_lr=0.001)),
        method("fedem", algorithm("FedEM", num_components=3)),
    ),
)
PACHINKO = CIFAR10._replace(
    name="cifar100_pachinko",
    label="CIFAR-100",
    config="cifar100_pachinko",
    methods=tuple(one for one in CIFAR10.methods if one.name in ("local", "fedavg", "fedavg_plus", "fedem")),
)
REDUCED = {one.name: one for one in (SYNTHETIC, WRITERS, CIFAR10, PACHINKO, SHAKESPEARE)}


def official(rates: str, prox: tuple[float, float], personal: tuple[float, float]) -> tuple[Method, ...]:
    """The methods with the learning rates of the FedEM paper's run scripts.

    Args:
        rates: of FedAvg, FedAvg+, Local, Clustered FL and FedEM.
        prox: learning rate and proximal weight of FedProx.
        personal: those of what the scripts call pFedMe.
    """
    fedavg, tuned, local, clusters, fedem = map(float, rates.split())
    return (
        method("local", algorithm("Local", unseen_epochs=1), solver(lr=local)),
        method("fedavg", algorithm("FedAvg"), solver(lr=fedavg)),
        method("fedprox", algorithm("FedProx", prox_weight=prox[1]), solver(lr=prox[0], **plain)),
        method("fedavg_plus", algorithm("FedAvgPlus"), solver(lr=tuned)),
        method("clustered_fl", algorithm("ClusteredFL"), solver(lr=clusters)),
        method("pfedme", pfedme, solver(lr=personal[0], **plain)),
        method("prox_avg", algorithm("ProxAvg", prox_weight=personal[1]), solver(lr=personal[0], **plain)),
        method("fedem", algorithm("FedEM", num_components=3), solver(lr=fedem)),
        method("dfedem", algorithm("DFedEM", num_components=3), solver(lr=fedem)),
        method("apfl", algorithm("APFL", alpha=0.5, alpha_update="fixed"), solver(lr=fedavg)),
    )


FEMNIST = Setting(
    "femnist", "FEMNIST", "fedem_femnist", official("0.03 0.03 0.01 0.01 0.03", (0.05, 0.05), (0.03, 10.0)), training
)
EMNIST = Setting(
    "emnist", "EMNIST", "fedem_emnist", official("0.01 0.01 0.01 0.01 0.05", (0.01, 0.1), (0.01, 1.0)), training
)
CIFAR10_PAPER = Setting(
    "cifar10", "CIFAR-10", "fedem_cifar10", official("0.01 0.001 0.03 0.003 0.03", (0.01, 1.0), (0.001, 1.0)), training
)
CIFAR100 = Setting(
    "cifar100",
    "CIFAR-100",
    "fedem_cifar100",
    official("0.01 0.001 0.01 0.01 0.01", (0.01, 0.1), (0.001, 1.0)),
    training,
)
SHAKESPEARE_PAPER = Setting(
    "shakespeare",
    "Shakespeare",
    "fedem_shakespeare",
    official("0.01 0.01 0.01 0.01 0.05", (0.01, 0.1), (0.01, 1.0)),
    training,
)
PAPER = {one.name: one for one in (FEMNIST, EMNIST, CIFAR10_PAPER, CIFAR100, SHAKESPEARE_PAPER, SYNTHETIC)}


def stand_in(shape: str, classes: int, **options: object) -> tuple[str, ...]:
    """Arguments that put drawn samples in the place of a data set."""
    given = {"shape": shape, "classes": classes, **options}
    return ("--data.dataset", "reproduction.stand_in.StandIn", *_flags("data.dataset", given))


brief = ("--trainer.max_epochs", "2", "--trainer.check_val_every_n_epoch", "1", "--trainer.accelerator", "cpu")
few = ("--data.num_clients", "5", "--data.batch_size", "20")
light = ("--model.network", "LeNet5")
text = ("--model.network", "CharLSTM", "--model.network.hidden_size", "8", "--model.network.num_layers", "1")
STAND_INS = {
    "femnist": (*stand_in("[1,28,28]", 62, owners=5), *brief, "--data.batch_size", "20", *light),
    "emnist": (*stand_in("[1,28,28]", 62), *brief, *few, *light),
    "cifar10": (*stand_in("[3,32,32]", 10), *brief, *few, *light),
    "cifar100": (*stand_in("[3,32,32]", 100), *brief, *few, *light),
    "shakespeare": (
        *stand_in("[20]", 100, kind="text", owners=5), *brief, "--data.batch_size", "20", *text
    ),
    "synthetic": (
        "--data.dataset.num_clients", "10", "--data.dataset.test_size", "20", "--data.dataset.dimension", "5", *brief
    ),
}  # fmt: skip
SMOKE = {name: setting._replace(arguments=(*setting.arguments, *STAND_INS[name])) for name, setting in PAPER.items()}


def fedem_settings(scale: Scale) -> dict[str, Setting]:
    """The settings of the FedEM paper's tables."""
    return {"smoke": SMOKE, "reduced": REDUCED, "paper": PAPER}[scale]
