"""Replies of the HTTPS server to requests of nodes."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from lit_fed import __version__
from lit_fed.deployment import https_protocol as protocol
from lit_fed.deployment.https_mailbox import Mailbox, Member, Posted, RefusedError, hang_up
from lit_fed.deployment.https_protocol import ANSWERS, OVER, Limits, pieces, version_headers
from lit_fed.deployment.https_server import Connections
from lit_fed.deployment.transport import is_node_name

__all__ = ["Requests"]

LONGEST_PROCESS = 64
SOON = 30
"""Days before a certificate expires from which the operator is warned."""


class Requests:
    """Answers requests; none of their contents gets into an error or a log.

    Args:
        mailbox: packets and answers.
        connections: notified of the begin and the end of each request.
        limits: of a node.
        with_tls: names come from certificates; else from a header.
    """

    def __init__(self, mailbox: Mailbox, connections: Connections, limits: Limits, *, with_tls: bool) -> None:
        self.mailbox, self.connections, self.limits, self.with_tls = mailbox, connections, limits, with_tls

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        self.connections.begin(request.protocol)
        try:
            return await self._answer(request)
        except RefusedError as refused:
            response = web.Response(status=refused.status, text=refused.text, headers=version_headers())
            if refused.status != OVER:
                response.force_close()
            return response
        except (TimeoutError, ConnectionError, web.RequestPayloadError):  # it stalled or broke off
            hang_up(request.protocol)
            raise ConnectionResetError from None
        finally:
            self.connections.end(request.protocol)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        asks_for_work = request.method == "GET" and request.path_qs == protocol.WORK
        answers = request.method in ("GET", "POST") and request.path_qs.startswith(ANSWERS)
        if not (asks_for_work or answers):
            raise RefusedError(404, "there is nothing here")
        member, process = self._sender(request)
        if request.method == "GET" and request.can_read_body:
            raise RefusedError(400, "a question has no body")
        if asks_for_work:
            packet = await self.mailbox.next_packet(member, process, self.limits.poll_seconds)
            return web.Response(status=204) if packet is None else await self._send(request, packet)
        packet = member.packet
        if packet is None or packet.key != request.path_qs.removeprefix(ANSWERS):
            raise RefusedError(OVER, "nobody waits for this answer any more")
        if request.method == "POST":
            body = await self._read(
                request, member, packet, lambda: member.process == process and member.packet is packet
            )
            member.packet = None
            packet.answer.set_result(body)
        return web.Response(status=204)

    def _sender(self, request: web.BaseRequest) -> tuple[Member, str]:
        """The node that sent a request, and its process."""
        own = version_headers()
        if any(request.headers.get(key) != value for key, value in own.items()):
            raise RefusedError(426, f"this server runs lit_fed {__version__}; install the same version at the node")
        names, note = request.headers.getall(protocol.NAME, []), ""
        if self.with_tls:
            certificate = request.transport.get_extra_info("peercert")
            names = [value for part in certificate["subject"] for key, value in part if key == "commonName"]
            note = _end_of(certificate)
        process = request.headers.get(protocol.PROCESS, "")
        if len(names) != 1 or not is_node_name(names[0]):
            raise RefusedError(403, "there is no name of a node in the certificate, or the header in its place")
        if not process or len(process) > LONGEST_PROCESS:
            raise RefusedError(400, "the process has no name")
        return self.mailbox.admit(names[0], process, request.protocol, note), process

    async def _send(self, request: web.BaseRequest, packet: Posted) -> web.StreamResponse:
        most = min(packet.most_bytes, self.limits.most_bytes)
        response = web.StreamResponse(headers={protocol.PACKET: packet.key, protocol.MOST_BYTES: str(most)})
        response.content_type, response.content_length = "application/octet-stream", len(packet.data)
        await response.prepare(request)
        for piece in pieces(packet.data):
            async with asyncio.timeout(self.limits.stall_seconds):
                await response.write(piece)
        return response

    async def _read(
        self, request: web.BaseRequest, member: Member, packet: Posted, wanted: Callable[[], bool]
    ) -> bytes:
        """The body, read while it is still wanted."""
        most = min(packet.most_bytes, self.limits.most_bytes)
        if "Content-Encoding" in request.headers:
            raise RefusedError(415, "answers are not compressed")
        if request.content_length is None or "Transfer-Encoding" in request.headers:
            raise RefusedError(411, "the length of the answer is missing")
        if request.content_length > most:
            line = f"refused an answer of {member.name}: {request.content_length} bytes, where {most} are the most"
            self.mailbox.complain(member, line)
            raise RefusedError(413, f"the answer has {request.content_length} bytes; {most} are the most")
        pieces, length, now = [], 0, asyncio.get_running_loop().time
        end = now() + self.limits.stall_seconds + request.content_length / self.limits.least_speed
        while length < request.content_length:
            async with asyncio.timeout_at(min(now() + self.limits.stall_seconds, end)):
                pieces.append(await request.content.readany())
            if not pieces[-1]:
                raise ConnectionResetError
            if not wanted():
                raise RefusedError(OVER, "nobody waits for this answer any more")
            length += len(pieces[-1])
        if not wanted():
            raise RefusedError(OVER, "nobody waits for this answer any more")
        return b"".join(pieces)


def _end_of(certificate: dict[str, Any]) -> str:
    """A warning if a certificate expires soon, else ""."""
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / 86_400
    return f"; its certificate ends in {days:.0f} days" if days < SOON else ""
