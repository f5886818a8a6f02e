"""Starting a new run from the shared models of another: what a checkpoint has of them, and where they go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from lit_fed.core.networks.layers import digest_of
from lit_fed.core.networks.start import Start
from lit_fed.core.task import Task
from lit_fed.core.types import ModelState
from lit_fed.errors import ConfigError
from lit_fed.rounds import FederatedRounds
from lit_fed.system.given_paths import shown
from lit_fed.training.checkpoint import CHECKPOINT_KEY, load_checkpoint

__all__ = ["WarmStart"]

PARAMETERS, BUFFERS, FROZEN = "__parameters__", "__buffers__", "frozen__"
"""What stands between the place of models in a shared state, or before a frozen one, and the name of a leaf."""


class WarmStart(NamedTuple):
    """The shared models of another run; leaves [S, ...] by their names in a checkpoint, where dots are underscores."""

    path: str
    algorithm: str
    rounds: int
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    frozen: dict[str, Tensor]  # leaves without a model axis, of a checkpoint that holds them
    digest: str = ""  # of what was frozen, of one that does not; '' if nothing was
    spent: dict[str, Any] | None = None  # its guarantee of privacy, see `spent_by`; None: it has none

    @classmethod
    def read(cls, path: str) -> WarmStart:
        """The models in a checkpoint.

        Raises:
            ConfigError: if it cannot be read, was not written by lit_fed, or has no shared models.
        """
        if not Path(path).is_file():
            raise ConfigError(f"--init_from {shown(path)}: no such file; give a .ckpt file of another run")
        content = load_checkpoint(Path(path), option="--init_from")
        state, algorithm = content["state_dict"], content[CHECKPOINT_KEY]["identity"]["algorithm"].partition("(")[0]
        place = _place_of_models(list(state))
        if place is None:
            raise ConfigError(
                f"--init_from {path}: {algorithm} has no models that all of its clients share; give the checkpoint of "
                "another algorithm"
            )
        parameters, buffers, frozen = (
            {name.removeprefix(start): leaf for name, leaf in state.items() if name.startswith(start)}
            for start in (place + PARAMETERS, place + BUFFERS, FROZEN)
        )
        digest = (content[CHECKPOINT_KEY].get("frozen") or {"digest": ""})["digest"]
        spent = content[CHECKPOINT_KEY].get("spent")
        return cls(str(path), algorithm, int(content["global_step"]), parameters, buffers, frozen, digest, spent)

    @classmethod
    def found_in(cls, stored: dict[str, Any]) -> WarmStart | None:
        """Those that a checkpoint's own run started from, of what it keeps under `CHECKPOINT_KEY`; None: none."""
        plain = stored.get("init_from")
        return None if plain is None else cls(**plain, frozen={})  # its own state has what is frozen

    def plain(self) -> dict[str, Any]:
        """What `found_in` reads."""
        return {name: value for name, value in self._asdict().items() if name != "frozen"}

    @property
    def num_models(self) -> int:
        """S."""
        return len(next(iter(self.parameters.values())))

    @property
    def origin(self) -> dict[str, Any]:
        """Where the models come from, for people."""
        return {"path": self.path, "algorithm": self.algorithm, "rounds": self.rounds}

    def into(self, task: Task) -> Task:
        """A task whose models start from these; what is frozen is that of the other run, too.

        Raises:
            ConfigError: naming what is frozen and does not fit.
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
        for name, leaf in task.frozen.items():
            found = self.frozen.get(_flat(name))
            if found is not None and found.shape != leaf.shape:
                raise ConfigError(
                    f"--init_from {self.path} does not fit: the frozen {name} is {list(found.shape)}, and "
                    f"{list(leaf.shape)} here"
                )
        frozen = {name: self.frozen.get(_flat(name), leaf).to(leaf) for name, leaf in task.frozen.items()}
        return replace(task, frozen=frozen, start=self._start(task))

    def restart(self, federation: FederatedRounds) -> None:
        """Let a federation that goes on start clients without a state of their own where the run started them."""
        server: Any = federation.server  # a `ModuleServer`
        task = replace(federation.terms.task, start=self._start(federation.terms.task))
        federation.terms = federation.terms._replace(task=task)
        server.start_from(task, federation.algorithm.shared_init(federation.terms))

    def _start(self, task: Task) -> Start:
        names = {_flat(name): name for name, _ in (*task.network.named_parameters(), *task.network.named_buffers())}
        models = ModelState(
            *({names.get(name, name): leaf for name, leaf in part.items()} for part in (self.parameters, self.buffers))
        )
        return Start(models, f"--init_from {self.path}", "give a checkpoint with as many models, or leave it out")


def _flat(name: str) -> str:
    return name.replace(".", "_")


def _place_of_models(keys: list[str]) -> str | None:
    """What the names of the shared models' leaves begin with; of peers without a server, their mean."""
    own = [key for key in keys if PARAMETERS in key and not key.startswith(("store.", "tables."))]
    places = list(dict.fromkeys(key.partition(PARAMETERS)[0] for key in own))
    preferred = [one for one in places if one == "models" or one.split("__")[-1] in ("mean", "common")]
    return next(iter(sorted(preferred, key=lambda one: one != "models") or places), None)
