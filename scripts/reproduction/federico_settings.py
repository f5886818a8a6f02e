"""Settings of the FedeRiCo paper, https://arxiv.org/abs/2210.06597: Section 4.1, Appendices C and D."""

from __future__ import annotations

from reproduction.settings import algorithm, brief, method, solver, splitting, stand_in
from reproduction.tables import Method, Scale, Setting

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "DATA",
    "GROUPS",
    "METHODS",
    "OFFICE_HOME",
    "PAPER",
    "REDUCED",
    "SMOKE",
    "TABLE2_SETTINGS",
    "federico",
    "table1_settings",
]

GROUPS = (2, 3, 4)
METHODS = ("fedavg", "fedavg_plus", "local", "clustered_fl", "fedem", "fedfomo", "federico")
WEIGHED = ("fedem", "federico")  # have weights to look at
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "office_home": "Office-Home"}

fresh = solver(persist_optimizer=False)  # its neighbours' models are others in each round
persistent = solver(persist_optimizer=True)


def federico(**options: object) -> tuple[str, ...]:
    """FedeRiCo with local steps and these hyper-parameters."""
    return (*algorithm("FedeRiCo", exchange="pseudo_gradient", **options), *fresh)


def collaborators(*names: str, fomo_epochs: int = 1, warmup: int = 10) -> tuple[Method, ...]:
    """The paper's methods, or some of them.

    Args:
        names: in the kept files; none: all.
        fomo_epochs: local epochs of FedFOMO.
        warmup: rounds before Clustered FL divides clients.
    """
    division = {**splitting, "warmup_rounds": warmup, "linkage": "complete", "newcomers": "loss"}
    all_of_them = {
        "fedavg": algorithm("FedAvg"),
        "fedavg_plus": algorithm("FedAvgPlus"),
        "local": algorithm("Local"),
        "clustered_fl": algorithm("ClusteredFL", **division),
        "fedem": algorithm("FedEM", num_components=4),
        "fedfomo": (*algorithm("FedFOMO"), *(solver(local_epochs=fomo_epochs) if fomo_epochs > 1 else ())),
        "federico": federico(),
    }
    return tuple(method(name, all_of_them[name]) for name in METHODS if not names or name in names)


def grouped(setting: Setting, groups: int, *names: str) -> Setting:
    """A setting with so many groups of clients; with four the weights of FedEM and FedeRiCo are kept.

    Args:
        setting: the setting.
        groups: number of groups.
        names: methods that are run there; none: all of the setting's.
    """
    chosen = [one for one in setting.methods if not names or one.name in names]
    if groups == max(GROUPS):
        chosen = [_weighed(one) if one.name in WEIGHED else one for one in chosen]
    arguments = (*setting.arguments, "--data.partition.num_groups", str(groups))
    return setting._replace(name=f"{setting.name}_{groups}", methods=tuple(chosen), arguments=arguments)


def _weighed(one: Method) -> Method:
    """A method whose weights are kept, a good dozen times in a run."""
    arguments = (*one.arguments, "--trainer.check_val_every_n_epoch", "4")
    return one._replace(arguments=arguments, measures=("client_weights",))


TENTH = Setting("cifar10_label_groups", "CIFAR-10", "cifar10_label_groups", collaborators(), draws_pool=True)
CIFAR10, CIFAR100, OFFICE_HOME = (
    Setting(
        f"{name}_label_groups_paper", label, f"federico_{name}",
        collaborators(fomo_epochs=5 if name == "cifar100" else 1), persistent, draws_pool=name != "office_home",
    )
    for name, label in DATA.items()
)  # fmt: skip


def _tiny(setting: Setting, shape: str, classes: int) -> Setting:
    """The paper's setting with drawn samples and a small network."""
    network = ("--model.network", "MLP", "--model.network.hidden_sizes", "[8]", "--data.num_clients", "8")
    arguments = (*setting.arguments, *stand_in(shape, classes), *brief, *network)
    return setting._replace(arguments=arguments, methods=collaborators(warmup=1))


SMOKE = {
    "cifar10": {2: grouped(_tiny(CIFAR10, "[3,8,8]", 10), 2, "local", "federico")},
    "cifar100": {4: grouped(_tiny(CIFAR100, "[3,8,8]", 100), 4)},
    "office_home": {3: grouped(_tiny(OFFICE_HOME, "[16]", 65), 3, "fedavg", "federico")},
}
REDUCED = {
    "cifar10": {
        2: grouped(TENTH, 2, "fedavg", "local", "fedem", "federico"),
        3: grouped(TENTH, 3, "fedavg", "local", "fedem", "federico"),
        4: grouped(TENTH, 4),
    }
}
PAPER = {
    name: {groups: grouped(setting, groups) for groups in GROUPS}
    for name, setting in zip(DATA, (CIFAR10, CIFAR100, OFFICE_HOME), strict=True)
}


def table1_settings(scale: Scale) -> dict[str, dict[int, Setting]]:
    """For each data set the settings of Table 1, by the number of groups."""
    return {"smoke": SMOKE, "reduced": REDUCED, "paper": PAPER}[scale]


mixed = ("--data.partition", "Dirichlet", "--data.partition.alpha", "0.4", "--data.partition.label_groups", "4")
small = (
    *persistent, *mixed, "--data.partition.min_samples", "40", "--data.num_clients", "10",
    "--data.test_fraction", "0.5", "--model.network.hidden_sizes", "[64]",
)  # fmt: skip
DIGITS = Setting("digits_dirichlet", "Digits", "digits_label_groups", collaborators(), small)
TABLE2_SETTINGS: dict[Scale, Setting] = {
    "smoke": DIGITS._replace(arguments=(*small, *brief), methods=collaborators(warmup=1)),
    "reduced": DIGITS,
    "paper": OFFICE_HOME._replace(name="office_home_dirichlet_paper", arguments=(*persistent, *mixed)),
}
