"""Listening: an engine takes fronts of other processes, which come and go."""

import asyncio
import logging
import socket
import ssl

import msgspec

from continuo.engine.config import Listening
from continuo.engine.server.clients import Front, Fronts
from continuo.engine.wire.handshake import EngineGreeting, read_secret
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import AnyCommand, AnyEvent, Ready, malformed

log = logging.getLogger(__name__)

SILENT_S = 10.0
"""A front that says nothing for so long is gone; each pings every second."""


class Visitor:
    """One link to a front elsewhere: greeted, it joins; lost, it leaves."""

    def __init__(self, fronts: Fronts, ready: Ready, secret: bytes) -> None:
        self._fronts = fronts
        self._ready = ready
        self.front: Front | None = None
        self.link: Link[AnyEvent, AnyCommand] = Link(
            msgspec.msgpack.Decoder(list[AnyCommand]),
            self._hear,
            self._leave,
            EngineGreeting(secret),
            self._join,
            malformed,
        )

    def _join(self) -> None:
        self.front = self._fronts.join(self.link.send_now, self.link.abort)
        self.link.send(self._ready)

    def _hear(self, commands: list[AnyCommand]) -> None:
        assert self.front is not None, "the greeting comes first"
        self._fronts.receive(self.front, commands)

    def _leave(self) -> None:
        if self.link.refused is not None:
            log.warning("a front was refused: %s", self.link.refused)
        if self.front is not None:
            self._fronts.leave(self.front)


async def listen(listening: Listening, fronts: Fronts, ready: Ready) -> asyncio.Server:
    """On the socket it was given. Raises LinkRefused for a secret that cannot be used."""
    secret = read_secret(listening.secret_file) if listening.secret_file else b""
    here = asyncio.get_running_loop()

    server = await here.create_server(
        lambda: Visitor(fronts, ready, secret).link,
        sock=socket.socket(fileno=listening.fd),
        ssl=_tls(listening),
    )

    def sweep() -> None:
        if server.is_serving():
            fronts.drop_silent(SILENT_S)
            here.call_later(SILENT_S / 10, sweep)

    sweep()
    return server


def _tls(listening: Listening) -> ssl.SSLContext | None:
    if listening.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(listening.ssl_certfile, listening.ssl_keyfile)
    return context
