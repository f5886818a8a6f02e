"""The samples of a node's clients, and what a server may know of them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.types import Split
from lit_fed.data.data_sets.client_folder import check_alike, read_clients, to_population
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.populations.build import select_clients
from lit_fed.data.populations.splits import cut_validation
from lit_fed.deployment.facts import POPULATIONS, SPLITS, ClientFacts, NodeFacts
from lit_fed.deployment.states import node_key
from lit_fed.deployment.wire import TYPES
from lit_fed.errors import ConfigError

__all__ = ["NodeData"]


class NodeData:
    """The clients of one machine.

    Args:
        root: folder with `seen/*.npz`, and `unseen/*.npz` of clients that are served and never train.
        states: folder with the key of this node's digests.

    Raises:
        ConfigError: naming what is wrong with the files.
    """

    def __init__(self, root: Path, states: Path) -> None:
        self._states = states
        clients = {
            kind: read_clients(root / kind, may_lack_training=kind == "unseen")
            for kind in POPULATIONS
            if (root / kind).is_dir()
        }
        if not clients:
            raise ConfigError(
                f"{root}: no folder `seen` or `unseen` with a .npz file for each client; correct --data.root"
            )
        check_alike([one for some in clients.values() for one in some])
        self.populations = {kind: to_population(some) for kind, some in clients.items()}

    @cached_property
    def facts(self) -> NodeFacts:
        """Names, sizes, types, largest labels, and a digest that is keyed by this node's secret."""
        clients, digest = {}, hmac.new(node_key(self._states), digestmod=hashlib.blake2b)
        for kind, population in self.populations.items():
            splits = [getattr(population, name) for name in SPLITS]
            for split in splits:
                for tensor in (split.offsets, split.x, split.y):
                    digest.update(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
            for position, name in enumerate(population.names):
                labels = population.train.client(position).y
                largest = None if labels.is_floating_point() or not len(labels) else int(labels.max())
                sizes = tuple(int(split.sizes[position]) for split in splits)
                clients[name] = ClientFacts(kind, sizes, largest)  # type: ignore[arg-type] # three of them
        stored = next(iter(self.populations.values())).stored_type
        return NodeFacts(clients, self.types, stored, digest.hexdigest()[:32])

    @property
    def types(self) -> dict[str, tuple[str, list[int]]]:
        """Type and shape of a sample, for `x` and `y`."""
        some = next(iter(self.populations.values())).train
        return {which: _type_of(getattr(some, which)) for which in ("x", "y")}

    def check_types(self, facts: TrainingFacts) -> None:
        """Refuse a training on samples of another type or shape.

        Raises:
            ConfigError: naming both.
        """
        wanted = {
            "x": (facts.input_type, list(facts.input_shape)),
            "y": ("float32" if facts.target.continuous else "int64", list(facts.label_shape)),
        }
        for which, found in self.types.items():
            if found != wanted[which]:
                here, there = (f"{kind} of shape {shape}" for kind, shape in (found, wanted[which]))
                raise ConfigError(f"--data.root: samples of {which} are {here}, those of the training were {there}")

    def keep_only(self, names: Collection[str]) -> list[str]:
        """Leave out all clients but these; returns the names of those that are left out.

        Raises:
            ConfigError: if none is left.
        """
        left_out = []
        for kind, population in list(self.populations.items()):
            positions = [place for place, name in enumerate(population.names) if name in names]
            left_out += [name for name in population.names if name not in names]
            del self.populations[kind]
            if positions:
                self.populations[kind] = select_clients(population, np.array(positions))
        if not self.populations:
            raise ConfigError("--data.root: no client in it took part in the training; give the node's folder")
        return left_out

    def numbered(self, ids: dict[str, int], val_fraction: float, seed: int) -> dict[str, dict[str, Split]]:
        """The splits of this node's clients, by population, under the numbers that the server has given them.

        Args:
            ids: the number of each client by name.
            val_fraction: part of each client's training samples for validation.
            seed: seed of the splits.

        Raises:
            ConfigError: if a client has no number, or numbers are not in the order of names.
        """
        found: dict[str, dict[str, Split]] = {}
        for kind, population in self.populations.items():
            missing = [name for name in population.names if name not in ids]
            if missing:
                raise ConfigError(f"the server has no number for client {missing[0]!r}; start its command again")
            numbers = torch.tensor([ids[name] for name in population.names])
            if bool((numbers.diff() <= 0).any()):
                raise ConfigError("the server's numbers of clients are not in the order of their names")
            if val_fraction:
                population = cut_validation(population, val_fraction, seed, numbers.tolist())
            found[kind] = {
                name: Split(one.x, one.y, one.offsets, ids=numbers)
                for name, one in ((name, getattr(population, name)) for name in SPLITS)
            }
        return found


def _type_of(samples: Tensor) -> tuple[str, list[int]]:
    kind = str(samples.dtype).removeprefix("torch.")
    assert kind in TYPES
    return kind, list(samples.shape[1:])
