"""Clients on other machines, as a data set of the command line; only their numbers of samples are known here."""

import atexit
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.reduce import num_ranks
from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import ClientDataSet, Names, names_of
from lit_fed.data.populations.drawn_clients import DrawnSplit
from lit_fed.deployment.messages import SPLITS
from lit_fed.deployment.node_pool import Missing, NodePool
from lit_fed.deployment.remote import RemoteTrainer, VersionStore
from lit_fed.deployment.settings import common_settings
from lit_fed.deployment.transport import Transport
from lit_fed.errors import ConfigError
from lit_fed.system.files import given_path

__all__ = ["Federation", "RemoteClients"]


class RemoteSplit(DrawnSplit):
    """Sizes of a split whose samples are on nodes.

    Attributes:
        is_cut: whether it is cut from the training samples, or cut by others, which the nodes do themselves.
    """

    def __init__(
        self, sizes: Tensor, x: Tensor, y: Tensor, origin: str, first_id: int = 0, *, is_cut: bool = False
    ) -> None:
        super().__init__(_refuse_to_draw, sizes, x, y, origin, first_id=first_id)
        self.is_cut, self.samples_per_block = is_cut, None  # no samples are loaded

    def select(self, client_ids: Tensor) -> Split:
        ids = client_ids.cpu().unique()
        return Split(self.x, self.y, torch.zeros(len(ids) + 1, dtype=torch.int64), self.first_id, ids)

    def rows(self, rows_of: Callable[[int], np.ndarray], sizes: Tensor) -> "RemoteSplit":
        return RemoteSplit(sizes, self.x, self.y, self.origin, self.first_id, is_cut=True)

    def flattened(self) -> "RemoteSplit":
        y = self.y.flatten(1)
        return RemoteSplit(self.sizes, self.x, y, self.origin, self.first_id, is_cut=self.is_cut)

    def subset(self, positions: Tensor) -> NoReturn:
        """Refuse: the nodes decide which clients are seen.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "--data.unseen_fraction keeps clients out of the training, and those of a federation are on their nodes; "
            "leave it at 0, and put the files of unseen clients into the folder `unseen` of their node"
        )

    def _copy(self, device: torch.device) -> "RemoteSplit":
        x, y = self.x.to(device), self.y.to(device)
        return RemoteSplit(self.sizes, x, y, self.origin, self.first_id, is_cut=self.is_cut)


def _refuse_to_draw(number: int) -> NoReturn:
    raise ConfigError(f"the samples of client {number} are on its node; this command needs them here")


@dataclass(frozen=True, kw_only=True)
class RemoteClients(ClientDataSet):
    """Base of data sets whose clients are on nodes; a subclass says how to reach them.

    Args:
        num_nodes: number of nodes that the server waits for.
        missing: treatment of a question that a node has not answered after `seconds`: ask again until `patience` is
            over (`wait`), end the run (`stop`), or go on with the round without the node's clients (`drop`, which needs
            `--model.faults.on_bad_client drop`).
        seconds: timeout of an answer; in rounds of `drop`, `--model.faults.deadline` replaces it.
        patience: how long the server waits for nodes, in seconds: for all of them at its start, and for one that is
            missing later.
        max_update_norm: bound on the Euclidean norm of a client's update, the difference between the models that it
            sends and those that it was sent. A client above it has failed, see `--model.faults.on_bad_client`. null:
            only updates whose squared norm is no float32 are refused.
        most_classes: bound on the number of classes. A node with a larger label is refused, since the largest of all
            says how many outputs every model has.
    """

    num_nodes: int = 1
    missing: Missing = "wait"
    seconds: float = 600.0
    patience: float = 3600.0
    max_update_norm: float | None = None
    most_classes: int = 1000

    is_remote = True
    reaches: ClassVar[Mapping[str, str]] = {"": "waits for other machines"}

    def __post_init__(self) -> None:
        most, above = self.max_update_norm, "a number > 0"
        checks = {
            name: (getattr(self, name) > 0, above) for name in ("num_nodes", "seconds", "patience", "most_classes")
        }
        checks["max_update_norm"] = (most is None or most > 0, f"{above}, or null")
        checks["missing"] = (self.missing in ("wait", "stop", "drop"), "wait, stop or drop")
        for name, (holds, wanted) in checks.items():  # `check_settings` would refuse infinite seconds
            if not holds:
                raise ConfigError(f"--data.dataset.{name} is {getattr(self, name)}; give {wanted}")

    @abstractmethod
    def connect(self) -> Transport:
        """The transport to the nodes."""

    @cached_property
    def pool(self) -> NodePool:
        """The nodes and their clients, connected at the first access.

        Raises:
            ConfigError: if they do not come in time, are of another version, or their clients conflict.
        """
        if num_ranks() > 1:
            raise ConfigError(
                f"{type(self).__name__} has one server, and the run several ranks; give --trainer.devices 1"
            )
        pool = NodePool(
            self.connect(), missing=self.missing, seconds=self.seconds, patience=self.patience,
            max_update_norm=self.max_update_norm, most_classes=self.most_classes,
        )  # fmt: skip
        atexit.register(pool.end)
        pool.meet(self.num_nodes)
        return pool

    @property
    def num_classes(self) -> int | None:  # type: ignore[override] # the base promises one number for the whole class
        """One more than the largest training label on any node; None where labels are not classes."""
        return self.pool.directory.num_classes

    def new_store(self, num_clients: int) -> VersionStore:
        return VersionStore(num_clients)

    def client_trainer(self, module: Any, data: Any) -> RemoteTrainer:
        seen, unseen = data.populations
        module.settings.check_combination(deployed=True, missing=self.missing, poison=data.poison is not None)
        model = module.history.arguments.get("model")
        session = {
            "model": None if model is None else common_settings(model), "facts": module.facts.public.plain(),
            "val_fraction": data.val_fraction if seen.val.is_cut else 0.0,
            "calibration_fraction": data.calibration_fraction, "data_seed": data.seed,
        }  # fmt: skip
        return RemoteTrainer(self.pool, module.federation, (seen, unseen), session)

    def load(self) -> tuple[Population, Population | None]:
        directory = self.pool.directory
        some = next(iter(directory.facts.values()))
        x, y = some.empty("x"), some.empty("y")
        origin = " ".join(sorted(one.digest for one in directory.facts.values()))
        found: list[Population | None] = []
        for kind, names in directory.names.items():
            splits = [RemoteSplit(directory.sizes(kind, name), x, y, origin) for name in SPLITS]
            population = Population(splits[0], splits[1], splits[2], names, stored_type=some.stored, inputs=some.inputs)
            found.append(population if names else None)
        assert found[0] is not None
        return found[0], found[1]


@dataclass(frozen=True)
class Federation(RemoteClients):
    """Clients on other machines, which connect to this one by HTTPS; their samples and states stay with them.

    The server waits for `num_nodes` nodes, each started by `lit-fed client`. A node has one client or many.

    Args:
        listen: HOST:PORT where nodes reach the server.
        tls: folder with `server.pem`, `server.key` and `ca.pem`, as `lit-fed certificates` writes it; null: plain HTTP,
            on this machine alone (127.0.0.1).
        nodes: names of the nodes that are admitted; null: all that have a certificate.
    """

    listen: str = "127.0.0.1:8443"
    tls: str | None = None
    nodes: Names | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", None if self.nodes is None else names_of(self.nodes))
        super().__post_init__()
        if self.nodes is not None and len(set(self.nodes)) < self.num_nodes:
            raise ConfigError(
                f"--data.dataset.nodes names {len(set(self.nodes))} nodes, and num_nodes is {self.num_nodes}; name all"
            )

    def connect(self) -> Transport:
        """The listening HTTPS server; a second federation of this process at the same address reuses it."""
        from lit_fed.deployment.https_server import shared_server  # of the extra `federation`

        tls = None if self.tls is None else given_path(self.tls, "--data.dataset.tls")
        return shared_server(self.listen, tls, self.nodes)
