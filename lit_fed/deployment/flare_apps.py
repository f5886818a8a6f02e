"""The classes that an NVFlare job names: a controller that runs `fit` at the server, and a relay at each site.

The job brings no code. The relay imports no PyTorch: `lit-fed client`, on the same machine, does the work and survives
the job.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Any

from lit_fed import __version__
from lit_fed.deployment.https_server import HttpsServer
from lit_fed.deployment.transport import check_node_name
from lit_fed.errors import ConfigError
from lit_fed.system.files import given_path
from lit_fed.system.packages import optional_package
from lit_fed.system.plain_yaml import read_yaml

try:
    from nvflare.apis.event_type import EventType
    from nvflare.apis.executor import Executor
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.apis.impl.controller import Controller
    from nvflare.apis.shareable import Shareable
except ModuleNotFoundError:  # without the extra `nvflare` these classes are never run
    Controller = Executor = object
    Shareable = dict

__all__ = ["OF_RUN", "FitController", "RelayExecutor", "Shareable", "flare", "run_fit", "versions"]

NVFLARE = "nvflare>=2.9,<2.10"
"""Of the extra `nvflare`; newer versions often change these interfaces."""

TASK = "lit_fed"
"""One name for all packets: a site treats them alike."""

OF_RUN = "fit.yaml"
"""The configuration of the run in the app's folder `config`.

NVFlare puts values of its environment into the texts of its own two files, and builds what looks like a component.
"""

LISTEN, CERTIFICATES = "lit_fed_listen", "lit_fed_tls"
"""Scope properties of a site, in its `local/privacy.json`, which NVFlare does not tell the server."""

SECONDS_TO_COME = 5.0
"""For the client of a site to connect before the server hears that it is missing."""

PROBLEMS = {
    "client": "no `lit-fed client` is connected to its relay; its log has the command",
    "late": "its client has not answered in time",
    "relay": "its relay cannot start; its log says why",
}
"""Codes of a relay that cannot ask its client, with phrases for the server's operator."""


def flare(module: str) -> Any:
    """A module of nvflare.

    Raises:
        ConfigError: if the package is missing or of another version than lit_fed knows, naming what to install.
    """
    found = optional_package(f"nvflare.{module}", NVFLARE, "nvflare", "a federation over NVFlare")
    if (version := versions()["nvflare"]) != "2.9":
        raise ConfigError(
            f"nvflare {version} is installed here, and lit_fed {__version__} runs in jobs of {NVFLARE}; "
            f'pip install "{NVFLARE}" on the server and on all sites'
        )
    return found


def versions() -> dict[str, str]:
    """The versions that server and sites have in common: of lit_fed, and of nvflare without its patch releases."""
    return {"lit_fed": __version__, "nvflare": ".".join(metadata.version("nvflare").split(".")[:2])}


# ---------------------------------------------------------------------- server
class FitController(Controller):
    """The workflow of a job: `lit-fed fit` in the server's job process, with the configuration in the job."""

    def start_controller(self, fl_ctx: Any) -> None:
        """Do nothing."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Do nothing."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Any, fl_ctx: Any
    ) -> None:
        """Ignore an answer that came after its question was given up."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the fit.

        Raises:
            RuntimeError: if it ends with a nonzero status, which fails the job.
        """
        flare("apis.controller_spec")
        workspace = fl_ctx.get_workspace()
        resources = json.loads(Path(workspace.get_resources_file_path()).read_text())
        allowed = resources.get("class_allow_list", [])
        config = read_yaml(
            (Path(workspace.get_app_config_dir(fl_ctx.get_job_id())) / OF_RUN).read_text(encoding="utf-8")
        )
        run_fit(config, allowed, (self, abort_signal, fl_ctx))


def run_fit(config: dict[str, Any], allowed: Collection[str], job: Any) -> None:
    """Run `lit-fed fit` in this thread.

    Args:
        config: of a job.
        allowed: paths of classes that it may name beside those of lit_fed.
        job: arguments of the transport.

    Raises:
        RuntimeError: if it ends with a nonzero status, with its message.
    """
    # rooms above this one, by their names; not `main` of `__main__`, which sets handlers of signals
    cli = importlib.import_module("lit_fed.__main__").command_line()
    running = importlib.import_module("lit_fed.deployment.flare_transport").JOB
    try:
        importlib.import_module("lit_fed.command_line.flare_job").check_job(config, allowed)
    except ConfigError as error:
        raise RuntimeError(f"lit-fed refuses the job: {error}") from error
    token = running.set(job)
    try:
        cli.main(["fit", "--config", json.dumps(config)])
    except SystemExit as end:
        if end.code:
            why = getattr(end.__context__, "message", end.__context__)  # of the error that the command line printed
            raise RuntimeError(f"lit-fed fit ended with status {end.code}: {why}") from end
    finally:
        running.reset(token)


# ---------------------------------------------------------------------- site
class RelayExecutor(Executor):
    """Hands packets to `lit-fed client` on this machine, which gets one again after it was killed and started again.

    The client connects to 127.0.0.1:8443, or to `lit_fed_listen` of the site's scope properties, under the site's name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._server: HttpsServer | None = None
        self._lock = threading.Lock()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Open the port when the job starts, so that the client comes meanwhile, and close it at its end."""
        if event_type == EventType.START_RUN:
            self._open(fl_ctx)
        elif event_type == EventType.END_RUN and self._server is not None:
            self._server.close()

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """The client's answer to a packet; for a task without one, the versions at this site once the client is there.

        Args:
            task_name: NVFlare's.
            shareable: `packet`, and for its answer `most_bytes` and `seconds`.
            fl_ctx: NVFlare's.
            abort_signal: NVFlare's.
        """
        server = self._open(fl_ctx)
        if server is None:
            return Shareable({"problem": "relay", "versions": versions()})
        site, packet, seconds = fl_ctx.get_identity_name(), shareable.get("packet"), shareable.get("seconds")
        if packet is None:
            try:
                server.wait_for(1, SECONDS_TO_COME)
            except ConfigError as error:
                self._say(str(error))
                return Shareable({"problem": "client", "versions": versions()})
            return Shareable({"versions": versions()})
        found = server.call({site: packet}, most_bytes={site: shareable["most_bytes"]}, seconds=seconds)
        return Shareable({"packet": found[site]} if found else {"problem": "late"})

    def _open(self, fl_ctx: Any) -> HttpsServer | None:
        """The relay's server; None if it cannot start, which the log explains."""
        with self._lock:
            if self._server is None:
                own = fl_ctx.get_prop(FLContextKey.SCOPE_PROPERTIES) or {}
                try:
                    flare("apis.executor")
                    site = check_node_name(fl_ctx.get_identity_name(), "the name of the site,")
                    tls = given_path(own[CERTIFICATES], CERTIFICATES) if CERTIFICATES in own else None
                    self._server = HttpsServer(own.get(LISTEN, "127.0.0.1:8443"), tls, [site], say=self._say)
                except ConfigError as error:
                    self._say(str(error))
            return self._server

    def _say(self, line: str) -> None:
        """A line of the site's log, which adds the time."""
        self.logger.warning(line)
