"""The app that Flower runs on the server: the command line's `fit`, whose clients are behind Flower's Grid."""

import json
import runpy
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import yaml

from lit_fed.deployment.fleet import Missing
from lit_fed.deployment.flower_transport import flower
from lit_fed.deployment.flower_transport import FlowerTransport
from lit_fed.deployment.remote_clients import RemoteClients
from lit_fed.deployment.transport import Transport
from lit_fed.errors import ConfigError, check_settings

__all__ = ["FlowerFederation", "run_fit", "server_app"]  # noqa: F822 - below

GRID: ContextVar[Any] = ContextVar("grid")
"""That of the app that runs; data sets are made of plain settings, and it is none."""


@dataclass(frozen=True)
class FlowerFederation(RemoteClients):
    """Clients on the SuperNodes of a Flower federation; their samples and states stay with them.

    Args:
        num_nodes: how many SuperNodes there have to be before the run begins; more than these take part as well.
        missing: what becomes of a question that a node has not answered after `seconds`: it is asked again until
            `patience` is over (`wait`), the run ends (`stop`), or the round goes on without its clients (`drop`, where
            `--model.faults.on_bad_client` is drop, too).
        seconds: how long a node may take for an answer, 10 s for Flower itself included; in rounds of `drop`,
            `--model.faults.deadline` takes its place.
        patience: how long the server waits for nodes, in seconds: for all of them at its start, and for one that is
            missing later.
        pause: seconds between two looks for answers.
        max_update_norm: bound on the Euclidean norm of a client's update, see `Federation`.
    """

    num_nodes: int = 2
    missing: Missing = "wait"
    seconds: float = 600.0
    patience: float = 3600.0
    pause: float = 0.5
    max_update_norm: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no federation can have."""
        checks = {
            name: (getattr(self, name) > 0, "a number > 0") for name in ("num_nodes", "seconds", "patience", "pause")
        }
        checks["max_update_norm"] = (self.max_update_norm is None or self.max_update_norm > 0, "a number > 0, or null")
        missing = {"missing": (self.missing in ("wait", "stop", "drop"), "wait, stop or drop")}
        check_settings(self, checks | missing, "--data.dataset")

    def connect(self) -> Transport:
        """A transport over the Grid of the app that runs.

        Raises:
            ConfigError: outside of one.
        """
        grid = GRID.get(None)
        if grid is None:
            raise ConfigError(
                "--data.dataset FlowerFederation is for runs that Flower starts; write their app with `lit-fed "
                "flower-app`, or take Federation, which needs no Flower"
            )
        return FlowerTransport(grid, self.pause)

    def expected(self) -> int:
        """How many nodes there have to be."""
        return self.num_nodes


def run_fit(grid: Any, context: Any) -> None:
    """Run `lit-fed fit` in this process, with the configuration of the app.

    Args:
        grid: Flower's.
        context: Flower's, with the run's settings `config`, text in YAML, and `ckpt-path`, or "".

    Raises:
        RuntimeError: if it ends with a status; what it has to say stands in the log.
    """
    settings = context.run_config
    resumed = ["--ckpt_path", str(settings["ckpt-path"])] if settings.get("ckpt-path") else []
    config = json.dumps(yaml.safe_load(str(settings["config"])))
    before, token = sys.argv, GRID.set(grid)
    sys.argv = ["lit-fed", "fit", "--config", config, *resumed]
    try:
        runpy.run_module("lit_fed", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"lit-fed fit ended with status {end.code}") from end
    finally:
        sys.argv = before
        GRID.reset(token)


def __getattr__(name: str) -> Any:
    """Make the app when Flower asks for it: where nobody does, there is no flwr."""
    if name != "server_app":
        raise AttributeError(name)
    app = flower("serverapp").ServerApp()
    app.main()(run_fit)
    return app
