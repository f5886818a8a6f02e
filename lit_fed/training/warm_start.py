"""Start a new run from the shared models of another run's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core.networks.start import Start, digest_of
from lit_fed.core.task import Task
from lit_fed.core.types import Leaves, ModelState
from lit_fed.data.facts import digests_in, known_names
from lit_fed.errors import ConfigError
from lit_fed.rounds import FederatedRounds
from lit_fed.system.checked_archive import DamagedFileError, load_checked
from lit_fed.system.files import quote
from lit_fed.training.checkpoint import CHECKPOINT_KEY, load_checkpoint

__all__ = ["OF_LIGHTNING", "WarmStart"]

OF_LIGHTNING = "Trainer"
"""Stands for the algorithm of a checkpoint that Lightning's Trainer wrote of the network itself."""

PARAMETERS, BUFFERS = "__parameters__", "__buffers__"
"""Infixes of leaf names in a checkpoint, between the path of the models in the shared state and the leaf's name."""


class WarmStart(NamedTuple):
    """The shared models of another run; leaves [S, ...] by their names in a checkpoint, where dots are underscores."""

    path: str
    algorithm: str
    rounds: int
    parameters: Leaves
    buffers: Leaves
    digest: str  # of the frozen part; "" without one
    spent: dict[str, Any] | None  # its privacy guarantee, see `spent_by`; None: it has none
    clients: Tensor | None = None  # [n] int64 digests of all whose samples it learned from, by way of starts too

    @classmethod
    def read(cls, path: str) -> WarmStart:
        """The models in a checkpoint.

        Raises:
            ConfigError: if it cannot be read, was not written by lit_fed, or has no shared models.
        """
        if not Path(path).is_file():
            raise ConfigError(f"--init_from {quote(path)}: no such file; give a .ckpt file of another run")
        if (leaves := _of_lightning(Path(path))) is not None:
            return cls(str(path), OF_LIGHTNING, 0, leaves, {}, "", None)
        content = load_checkpoint(Path(path), option="--init_from")
        state, stored = content["state_dict"], content[CHECKPOINT_KEY]
        settings, place = stored["identity"]["algorithm"], _place_of_models(list(state))
        algorithm = str(settings.get("class_path") if isinstance(settings, dict) else settings)
        if place is None:
            raise ConfigError(
                f"--init_from {path}: {algorithm} has no models that all of its clients share; give the checkpoint of "
                "another algorithm"
            )
        parameters, buffers = (
            {name.removeprefix(start): leaf for name, leaf in state.items() if name.startswith(start)}
            for start in (place + PARAMETERS, place + BUFFERS)
        )
        digest = (stored["frozen"] or {"digest": ""})["digest"]
        before = None if stored["init_from"] is None else stored["init_from"].get("clients")
        clients = torch.cat(
            [digests_in(stored["serving"]), *([] if before is None else [before.flatten().long()])]
        ).unique()
        rounds = int(content["global_step"])
        return cls(str(path), algorithm, rounds, parameters, buffers, digest, stored["spent"], clients)

    @classmethod
    def found_in(cls, stored: dict[str, Any]) -> WarmStart | None:
        """The models that a checkpoint's own run started from; None without any.

        Args:
            stored: entry of the checkpoint under `CHECKPOINT_KEY`.
        """
        return None if stored["init_from"] is None else cls(**stored["init_from"])

    @property
    def num_models(self) -> int:
        """S."""
        return len(next(iter(self.parameters.values())))

    def origin(self, excluded: Sequence[str]) -> dict[str, Any]:
        """Source of the models, as in `summary.json`, with the excluded clients whose samples they learned from."""
        known = self.learned_from(excluded)
        return {"path": self.path, "algorithm": self.algorithm, "rounds": self.rounds} | (
            {"learned_from_excluded": known} if known else {}
        )

    def learned_from(self, names: Sequence[str]) -> list[str]:
        """The given names of clients whose samples the models learned from."""
        return [] if self.clients is None else known_names(self.clients, names)

    def into(self, task: Task) -> Task:
        """A task whose models start from these.

        Raises:
            ConfigError: if the frozen parts of the two runs do not fit.
        """
        trained = [name for name in task.frozen if _flat(name) in {**self.parameters, **self.buffers}]
        if trained:
            raise ConfigError(
                f"--init_from {self.path} is of a run that trained {', '.join(trained[:3])}; these are frozen here; "
                "train them here, too, or give their values to the network itself, as those that it begins with"
            )
        if self.digest and task.frozen and self.digest != digest_of(task.frozen):
            raise ConfigError(
                f"--init_from {self.path} does not fit: its models were trained over other frozen parameters than "
                "those of this run; give the same --model.network with the same weights, and the same --model.trainable"
            )
        return replace(task, start=self._start(task))

    def restart(self, federation: FederatedRounds) -> None:
        """Give a resumed federation the initial models of its run, for clients without a stored state."""
        server: Any = federation.server  # a `ModuleServer`
        task = replace(federation.terms.task, start=self._start(federation.terms.task))
        federation.terms = federation.terms._replace(task=task)
        server.initial_shared = federation.algorithm.shared_init(federation.terms)

    def _start(self, task: Task) -> Start:
        kinds = [[name for name, _ in part] for part in (task.network.named_parameters(), task.network.named_buffers())]
        names, buffers = {_flat(name): name for part in kinds for name in part}, {*kinds[1]}
        given = {names.get(name, name): leaf for name, leaf in (self.parameters | self.buffers).items()}
        models = ModelState(
            {name: leaf for name, leaf in given.items() if name not in buffers},
            {name: leaf for name, leaf in given.items() if name in buffers},
        )
        return Start(models, f"--init_from {self.path}", "give a checkpoint with as many models, or leave it out")


def _of_lightning(path: Path) -> Leaves | None:
    """The leaves of a checkpoint of a LightningModule that a Trainer wrote, each of one model; None: it is none."""
    try:
        content = load_checked(path)
    except (DamagedFileError, OSError):  # `load_checkpoint` says what is wrong
        return None
    if not isinstance(content, dict) or CHECKPOINT_KEY in content or "pytorch-lightning_version" not in content:
        return None
    state = content.get("state_dict")
    if not isinstance(state, dict) or not all(isinstance(leaf, Tensor) for leaf in state.values()):
        return None
    return {_flat(str(name)): leaf.unsqueeze(0) for name, leaf in state.items()}


def _flat(name: str) -> str:
    return name.replace(".", "_")


def _place_of_models(keys: list[str]) -> str | None:
    """Prefix of the leaves of the shared models; without a server, of the peers' mean."""
    own = [key for key in keys if PARAMETERS in key and not key.startswith(("store.", "tables."))]
    places = list(dict.fromkeys(key.partition(PARAMETERS)[0] for key in own))
    preferred = [one for one in places if one == "models" or one.split("__")[-1] in ("mean", "common")]
    return next(iter(sorted(preferred, key=lambda one: one != "models") or places), None)
