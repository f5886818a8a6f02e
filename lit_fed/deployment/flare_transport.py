"""Packets as tasks of an NVFlare job.

A site asks for its task, again after a lost connection, so NVFlare delivers each packet while the job processes live. A
task that comes back without an answer is given out again after a pause.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from lit_fed.deployment.federation import RemoteClients
from lit_fed.deployment.flare_apps import PROBLEMS, TASK, Shareable, flare, versions
from lit_fed.deployment.transport import Transport, check_node_name, foreign_text
from lit_fed.errors import ConfigError, LostNodesError, logged

__all__ = ["FlareFederation", "FlareTransport"]

JOB: ContextVar[Any] = ContextVar("job")
"""Controller, abort signal and context of the running job; a data set is built from plain settings."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a site is asked again that gave no answer; the pause doubles each time."""

SECONDS_BETWEEN_LOOKS = 0.2


def task_of(data: dict[str, Any], received: Callable[[Any], None]) -> Any:
    """A task for one site; `received` takes the site's reply."""

    def take(client_task: Any, fl_ctx: Any) -> None:
        reply, client_task.result = client_task.result, None
        received(reply)

    return flare("apis.controller_spec").Task(TASK, Shareable(data), result_received_cb=take)


@dataclass
class _Asked:
    """A question that a site has not answered."""

    data: dict[str, Any]
    task: Any = None
    not_before: float = 0.0
    pause: float = 0.0


class FlareTransport:
    """A `Transport` over the sites of a running job, whose names are those of the nodes.

    Args:
        controller: the running workflow.
        abort: NVFlare's signal, triggered when the job is aborted.
        fl_ctx: NVFlare's context.
        goes_on: whether the run goes on without a site that left the job, to which NVFlare never gives it again.
    """

    def __init__(self, controller: Any, abort: Any, fl_ctx: Any, *, goes_on: bool) -> None:
        self.controller, self.abort, self.fl_ctx, self.goes_on = controller, abort, fl_ctx, goes_on
        self._complaints: set[tuple[str, str]] = set()

    def wait_for(self, num_nodes: int, seconds: float) -> list[str]:
        """See `Transport.wait_for`; all sites of the job are waited for.

        Raises:
            ConfigError: also if a site has another version of lit_fed or NVFlare, naming both.
        """
        names = sorted(one.name for one in self.fl_ctx.get_engine().get_clients())
        for one in names:
            check_node_name(one, "the site")
        if len(names) < num_nodes:
            raise ConfigError(
                f"the job runs on {len(names)} sites ({', '.join(names)}), and --data.dataset.num_nodes is "
                f"{num_nodes}; start the others and submit the job again, or write it anew with another number"
            )
        came = self._ask({one: {} for one in names}, seconds, self._greeted)
        if len(came) < num_nodes:
            raise ConfigError(
                f"waited {seconds:g} s for {num_nodes} sites, and {len(came)} came ({', '.join(sorted(came))}); see to "
                "the logs of the others, and submit the job again"
            )
        return sorted(came)

    def call(self, packets: Mapping[str, bytes], *, most_bytes: Mapping[str, int], seconds: float) -> dict[str, bytes]:
        """See `Transport.call`.

        Raises:
            LostNodesError: if the job was aborted, or a site left it without which the run cannot go on.
        """

        def read(node: str, reply: Any) -> tuple[Any, str]:
            data = reply.get("packet")
            if not isinstance(data, bytes):
                return None, _problem(reply)
            if len(data) > most_bytes[node]:
                return None, f"{len(data)} bytes where at most {most_bytes[node]} were asked for"
            return data, ""

        asked = {node: {"packet": data, "most_bytes": most_bytes[node]} for node, data in packets.items()}
        return self._ask(asked, seconds, read)

    def close(self, *, over: bool = False) -> None:
        """Do nothing: NVFlare ends the job when the workflow returns."""

    def _greeted(self, node: str, reply: Any) -> tuple[Any, str]:
        """The versions at a site, once its client is there.

        Raises:
            ConfigError: if they are not those of the server.
        """
        its = reply.get("versions")
        if not isinstance(its, dict):
            return None, _problem(reply)
        for name, version in versions().items():
            if its.get(name) != version:
                raise ConfigError(
                    f"site {node} has version {foreign_text(its.get(name), 20)} of {name}, and the server {version}; "
                    "install the same on both, and submit the job again"
                )
        return its, _problem(reply) if "problem" in reply else ""

    def _ask(
        self, packets: Mapping[str, dict[str, Any]], seconds: float, read: Callable[[str, Any], tuple[Any, str]]
    ) -> dict[str, Any]:
        """The usable replies of some sites within so many seconds; `read` gives a reply's value, or the problem."""
        end, answers = time.monotonic() + seconds, {}
        replies: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        asked = {node: _Asked(data) for node, data in packets.items()}
        try:
            while asked and (left := end - time.monotonic()) > 0:
                if self.abort.triggered:
                    raise LostNodesError(
                        "NVFlare has aborted the job; if a site failed, `Failing job` in the server's log names it"
                    )
                self._send(asked, left, replies)
                try:
                    node, reply = replies.get(timeout=min(left, SECONDS_BETWEEN_LOOKS))
                except queue.Empty:
                    self._look_around(asked, replies)
                    continue
                value, problem = read(node, reply)
                if problem:
                    self._complain(node, asked[node], problem)
                else:
                    answers[node] = value
                    del asked[node]
        finally:
            for one in asked.values():
                if one.task is not None:
                    self.controller.cancel_task(one.task)
        return answers

    def _send(self, asked: dict[str, _Asked], seconds: float, replies: queue.SimpleQueue[tuple[str, Any]]) -> None:
        """Give out the tasks of sites that have none."""
        for node, one in asked.items():
            if one.task is None and time.monotonic() >= one.not_before:
                one.task = task_of({**one.data, "seconds": seconds}, partial(_put, replies, node))
                self.controller.send(one.task, self.fl_ctx, targets=[node])

    def _look_around(self, asked: dict[str, _Asked], replies: queue.SimpleQueue[tuple[str, Any]]) -> None:
        """Notice tasks that NVFlare has ended without a reply.

        Raises:
            LostNodesError: if a site left the job without which the run cannot go on.
        """
        for node, one in asked.items():
            status = None if one.task is None else one.task.completion_status
            if status is None or not replies.empty():
                continue
            if status.value == "client_dead" and not self.goes_on:
                raise LostNodesError(
                    f"site {node} left the job, and NVFlare never gives a running job to a site again; submit the job "
                    "again when the site is back"
                )
            self._complain(node, one, f"NVFlare ended its task ({status.value})")

    def _complain(self, node: str, one: _Asked, what: str) -> None:
        """Report a problem once for each site, and delay the next task."""
        one.task, one.pause = None, min(2 * one.pause or FIRST_PAUSE, LONGEST_PAUSE)
        one.not_before = time.monotonic() + one.pause
        if (node, what) not in self._complaints:
            self._complaints.add((node, what))
            logged(f"site {node}: {what}")


def _put(replies: queue.SimpleQueue[tuple[str, Any]], node: str, reply: Any) -> None:
    replies.put((node, reply))


def _problem(reply: Any) -> str:
    return PROBLEMS.get(reply.get("problem"), "no answer of lit_fed; its log says why")


@dataclass(frozen=True)
class FlareFederation(RemoteClients):
    """Clients on the sites of an NVFlare job; their samples and states stay with them.

    The run begins when all sites of the job answer, which are at least `num_nodes`, and each has `lit-fed client`
    connected to its relay. A site that leaves the job ends the run, unless `missing` is `drop`.
    """

    num_nodes: int = 2

    def connect(self) -> Transport:
        """A transport over the sites of the running job; `ConfigError` if no job is running."""
        job = JOB.get(None)
        if job is None:
            raise ConfigError(
                "--data.dataset FlareFederation is for runs that NVFlare starts; write their job with `lit-fed "
                "flare-job`, or take Federation, which needs no NVFlare"
            )
        return FlareTransport(*job, goes_on=self.missing == "drop")
