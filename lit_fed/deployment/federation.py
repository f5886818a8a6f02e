"""Clients on machines of their own, as a data set of the command line."""

from dataclasses import dataclass

from lit_fed.data.data_sets.base import Names, names_of
from lit_fed.deployment.fleet import Missing
from lit_fed.deployment.remote_clients import RemoteClients
from lit_fed.deployment.transport import Transport
from lit_fed.errors import ConfigError
from lit_fed.system.files import given_path

__all__ = ["Federation"]


@dataclass(frozen=True)
class Federation(RemoteClients):
    """Clients on machines of their own, which reach this one by HTTPS; their samples and states stay with them.

    The server waits for `num_nodes` nodes, each started by `lit-fed client`. A node has one client or many.

    Args:
        listen: HOST:PORT where nodes reach the server.
        tls: folder with `server.pem`, `server.key` and `ca.pem`, as `lit-fed certificates` writes it; null: plain HTTP,
            on this machine alone (127.0.0.1).
        num_nodes: how many nodes there are to be.
        nodes: names of the nodes that may come; null: all that have a certificate.
        missing: what becomes of a question that a node has not answered after `seconds`: it is asked again until
            `patience` is over (`wait`), the run ends (`stop`), or the round goes on without its clients (`drop`, where
            `--model.faults.on_bad_client` is drop, too).
        seconds: how long a node may take for an answer; in rounds of `drop`, `--model.faults.deadline` takes its place.
        patience: how long the server waits for nodes, in seconds: for all of them at its start, and for one that is
            missing later.
        max_update_norm: bound on the Euclidean norm of a client's update, the difference between the models that it
            sends and those that it was sent. A client above it has failed, see `--model.faults.on_bad_client`. null:
            only updates whose squared norm is no float32 are refused.
    """

    listen: str = "127.0.0.1:8443"
    tls: str | None = None
    num_nodes: int = 1
    nodes: Names | None = None
    missing: Missing = "wait"
    seconds: float = 600.0
    patience: float = 3600.0
    max_update_norm: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no federation can have."""
        object.__setattr__(self, "nodes", None if self.nodes is None else names_of(self.nodes))
        for name in ("num_nodes", "seconds", "patience"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--data.dataset.{name} is {getattr(self, name)}; give a number > 0")
        if self.max_update_norm is not None and not self.max_update_norm > 0:
            raise ConfigError(f"--data.dataset.max_update_norm is {self.max_update_norm}; give a number > 0, or null")
        if self.missing not in ("wait", "stop", "drop"):
            raise ConfigError(f"--data.dataset.missing is {self.missing!r}; give wait, stop or drop")
        if self.nodes is not None and len(set(self.nodes)) < self.num_nodes:
            raise ConfigError(
                f"--data.dataset.nodes names {len(set(self.nodes))} nodes, and num_nodes is {self.num_nodes}; name all"
            )

    def connect(self) -> Transport:
        """A server of HTTPS, once it listens; that of an earlier federation of this process at the same address."""
        from lit_fed.deployment.https_server import shared_server  # of the extra `federation`

        tls = None if self.tls is None else given_path(self.tls, "--data.dataset.tls")
        return shared_server(self.listen, tls, self.nodes)

    def expected(self) -> int:
        """How many nodes there are to be."""
        return self.num_nodes
