"""The scenarios of the user-centric paper, https://arxiv.org/abs/2110.09869, with the algorithms run on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reproduction.settings import LABELS, algorithm, brief, few, splitting, stand_in
from reproduction.tables import Method, Scale, Setting

__all__ = ["PUBLISHED", "STREAMS", "SYSTEMS", "Scenario", "scenarios"]

STREAMS = (1, 2, 4, 20)
BASELINES = ("local", "fedavg", "oracle", "clustered_fl", "fedfomo")
SYSTEMS = {"slow_uplink": (4, 1, 1), "fast_uplink": (2, 1, 0), "wired": (1, 1, 0)}
"""The systems of Figure 3: ρ, T_min and 1/μ, the last two in units of T_dl."""


class Scenario(NamedTuple):
    """One of the three kinds of differences between users."""

    setting: Setting
    best: str  # UCFL with as many streams as Table I gives
    published: Mapping[str, float]  # accuracy of the worst user, in percent

    @property
    def table1(self) -> list[str]:
        """Methods of Table I."""
        known = [one.name for one in self.setting.methods]
        return [name for name in (*BASELINES, self.best) if name in known]

    def label(self, method: str) -> str:
        """A method as it is called in tables."""
        return next(one.label for one in self.setting.methods if one.name == method)


def methods(*, grouped: bool = True, division: int = 10, **options: int) -> tuple[Method, ...]:
    """The methods of a scenario.

    Args:
        grouped: the data know true groups of users, so that there is an oracle.
        division: rounds before Clustered FL divides clients.
        options: of UCFL.
    """
    rule = {**splitting, "warmup_rounds": division, "newcomers": "loss"}
    chosen = {
        "local": algorithm("Local"),
        "fedavg": algorithm("FedAvg"),
        **({"oracle": algorithm("Oracle")} if grouped else {}),
        "clustered_fl": algorithm("ClusteredFL", linkage="complete", **rule),
        "fedfomo": algorithm("FedFOMO"),
    }
    streams = [
        Method(f"ucfl_{number}", f"UCFL, {number} streams".replace(" 1 streams", " 1 stream"), arguments)
        for number in STREAMS
        for arguments in [algorithm("UCFL", num_streams=number, **options)]
    ]
    return (*(Method(name, LABELS[name], arguments) for name, arguments in chosen.items()), *streams)


def _row(text: str, best: str) -> dict[str, float]:
    """Published accuracies in the paper's order of methods."""
    names = (*BASELINES, best)
    return {name: float(one) for name, one in zip(names, text.split(), strict=True) if one != "-"}


LABEL_SHIFT = _row("58.8 68.9 - 70.3 70.0 73.2", "ucfl_20")
ROTATED = _row("56.0 67.5 77.4 76.1 73.6 76.4", "ucfl_4")
CONCEPT_SHIFT = _row("35.7 19.6 49.1 48.6 45.5 49.1", "ucfl_4")
PUBLISHED = {"label_shift": LABEL_SHIFT, "rotations": ROTATED, "concept_shift": CONCEPT_SHIFT}

timed = tuple(
    part
    for name, values in SYSTEMS.items()
    for part in (
        "--trainer.callbacks+=SimulatedTime", "--trainer.callbacks.name", name,
        *(text for key, value in zip(("uplink_ratio", "compute_min", "compute_mean"), values, strict=True)
          for text in (f"--trainer.callbacks.{key}", str(value))),
    )
)  # fmt: skip


def _scenario(kind: str, best: str, label: str, config: str, **options: int) -> Scenario:
    """A scenario whose samples, partition and split are drawn by the seed."""
    chosen = methods(grouped=kind != "label_shift", **options)
    arguments = timed if kind == "rotations" else ()
    return Scenario(Setting(config, label, config, chosen, arguments, draws_pool=True), best, PUBLISHED[kind])


REDUCED = {
    "label_shift": _scenario("label_shift", "ucfl_20", "MNIST, label shift", "ucfl_label_shift_mnist"),
    "rotations": _scenario("rotations", "ucfl_4", "MNIST, label and covariate shift", "ucfl_rotations_mnist"),
    "concept_shift": _scenario("concept_shift", "ucfl_4", "CIFAR-10, concept shift", "cifar10_label_permutations"),
}
PAPER = {
    "label_shift": _scenario("label_shift", "ucfl_20", "EMNIST, label shift", "ucfl_label_shift"),
    "rotations": _scenario("rotations", "ucfl_4", "EMNIST, label and covariate shift", "ucfl_rotations"),
    "concept_shift": _scenario("concept_shift", "ucfl_4", "CIFAR-10, concept shift", "ucfl_concept_shift"),
}


def _tiny(kind: str, shape: str, classes: int) -> Scenario:
    """The paper's scenario with drawn samples and a linear network."""
    scenario = PAPER[kind]
    drawn = (*stand_in(shape, classes), *brief, *few, "--model.network", "Linear")
    chosen = methods(grouped=kind != "label_shift", division=1, warmup_rounds=1)
    setting = scenario.setting._replace(arguments=(*scenario.setting.arguments, *drawn), methods=chosen)
    return scenario._replace(setting=setting)


SMOKE = {
    "label_shift": _tiny("label_shift", "[1,28,28]", 62),
    "rotations": _tiny("rotations", "[1,28,28]", 62),
    "concept_shift": _tiny("concept_shift", "[3,32,32]", 10),
}


def scenarios(scale: Scale) -> dict[str, Scenario]:
    """The three scenarios of the paper."""
    return {"smoke": SMOKE, "reduced": REDUCED, "paper": PAPER}[scale]
