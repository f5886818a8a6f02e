"""Personal parts: `--model.personal`, and `--model.batch_norm local`, by which BatchNorm layers are one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from lit_fed.core.algorithm import takes_steps
from lit_fed.core.context import Context
from lit_fed.core.types import Tree
from lit_fed.data.data_sets.base import names_of
from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import innermost
from lit_fed.wrappers.feature import Feature

__all__ = ["PersonalFeature"]

LEFT_OUT = "choose an algorithm that averages models, or leave it out"
PARTS = "--model.personal keeps [{personal}] out of an average of models, and {name} %s; " + LEFT_OUT


@dataclass(frozen=True)
class PersonalFeature(Feature):
    """Leaves that stay with their client.

    Args:
        batch_norm: parameters and running statistics of BatchNorm layers: averaged like all weights (`average`), or
            kept by each client (`local`, FedBN).
        personal: leaves that stay with their client and are never sent: patterns of names, such as `[layer4.*, fc]`, or
            `head` for the last layer, `body` for all others, `norm` for BatchNorm layers; null: none.
        personal_training: `joint`, every local step moves all leaves (FedSim); or `alternating`, epochs of the personal
            leaves come before the algorithm's local work on the others (FedAlt, FedRep).
        personal_epochs: passes over the local samples for the personal leaves, in `alternating`; null: 1.
        personal_lr: learning rate of the first round for the personal leaves, in `alternating`; null: that of the
            solver.
    """

    batch_norm: Literal["average", "local"] = "average"
    personal: list[str] | str | None = None
    personal_training: Literal["joint", "alternating"] = "joint"
    personal_epochs: int | None = None
    personal_lr: float | None = None

    order = 0
    reasons = {
        "local_norm": "--model.batch_norm local",
        "personal_parts": "--model.personal",
    }
    acts = {"personal": PARTS}
    accepts = frozenset({"multiples"})
    kinds = {"rows": "combines the whole models of single clients"}
    refused = {
        "local_norm refuses_local_norm": "--model.batch_norm is local, and {name} {refuses_local_norm}; leave it out",
        "personal refuses_personal_parts": PARTS % "{refuses_personal_parts}",
        "alternating noisy_steps": (
            "--model.personal_training is alternating, and --model.privacy ExamplePrivacy counts the steps of one "
            "stage; give joint, or leave it out"
        ),
    }

    def check(self) -> None:
        """Refuse values out of range, and settings that have no effect."""
        kinds = {"epochs": "a whole number", "lr": "a number"}
        given = {name: getattr(self, f"personal_{name}") for name in ("training", *kinds)}
        for name, kind in kinds.items():
            if given[name] is not None and not 0 <= given[name] < math.inf:
                raise ConfigError(f"--model.personal_{name} is {given[name]}; give {kind} >= 0, or null")
        for name in kinds:
            if given[name] is not None and self.personal_training == "joint" and self.personal is not None:
                raise ConfigError(
                    f"--model.personal_{name} is {given[name]}, and --model.personal_training is joint, in which all "
                    "leaves take the same steps; give alternating, or leave it out"
                )
        for name, value in given.items():
            if self.personal is None and value != ("joint" if name == "training" else None):
                way = "" if name == "training" else ", and --model.personal_training alternating"
                raise ConfigError(
                    f"--model.personal_{name} is {value}, and nothing is personal; add --model.personal, such as "
                    f"[head]{way}, or leave it out"
                )
        if self.personal is not None and not names_of(self.personal):
            raise ConfigError("--model.personal is []; give patterns of names, such as [head], or leave it out")

    @property
    def parts(self) -> tuple[str, ...]:
        """Patterns of the leaves that stay."""
        return (*names_of(self.personal or ()), *(("norm",) if self.batch_norm == "local" else ()))

    def facts(self, algorithm: Any) -> dict[str, Any]:
        return {
            "local_norm": self.batch_norm == "local",
            "personal": None if self.personal is None else ", ".join(self.parts),
            "alternating": self.personal_training == "alternating",
        }

    def around(self, algorithm: Any) -> Any:
        """The algorithm inside `PersonalParts`."""
        from lit_fed.wrappers.personal.parts import PersonalParts

        epochs = 1 if self.personal_epochs is None else self.personal_epochs
        return PersonalParts(algorithm, self.parts, self.personal_training, epochs, self.personal_lr)

    def terms(self, terms: Context) -> Context:
        """The same; refuse normalisation that is not there."""
        if self.batch_norm == "local" and not terms.task.norm_names:
            raise ConfigError(
                f"--model.batch_norm is local, and {type(terms.task.network).__name__} has no BatchNorm to train; "
                "leave it out"
            )
        return terms

    def check_models(self, algorithm: Any, terms: Context, shared: Tree) -> None:
        """Refuse steps ahead of none."""
        if self.personal_training == "alternating" and not takes_steps(algorithm, terms):
            raise ConfigError(
                "--model.personal_training is alternating, which puts steps of personal leaves ahead of local steps, "
                f"and {type(innermost(algorithm)).__name__} takes none with these settings; give joint"
            )
