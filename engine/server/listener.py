"""Listener: accepts links from remote clients, which are gateways in other processes, on a
listening socket."""

import asyncio
import logging
import socket
import ssl
from typing import cast

import msgspec

from continuo.engine.config import ListenerConfig
from continuo.engine.server.clients import Clients, ClientState
from continuo.engine.wire.handshake import EngineHandshake, read_secret
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import EngineCommand, EngineEvent, EngineReady, refuse_malformed

log = logging.getLogger(__name__)

SILENCE_TIMEOUT_S = 10.0
"""Silence after which a remote client is disconnected; each sends a ping every second."""


UNPROVEN_LINKS_MAX = 64
"""Maximum number of links before the end of their handshake; further ones are closed at once, so
that strangers cannot take all file descriptors."""


class RemoteClient:
    """Link to a remote client: added to the clients after the handshake, removed when the link
    is lost."""

    def __init__(
        self, clients: Clients, ready: EngineReady, secret: bytes, unproven: "set[RemoteClient]"
    ) -> None:
        """`unproven`: the links whose handshake has not ended."""
        self._unproven = unproven
        self._clients = clients
        self._ready = ready
        self.client: ClientState | None = None
        self.link: Link[EngineEvent, EngineCommand] = Link(
            msgspec.msgpack.Decoder(list[EngineCommand]),
            self._on_commands,
            self._on_lost,
            EngineHandshake(secret),
            self._on_established,
            refuse_malformed,
        )
        unproven.add(self)

    def _on_established(self) -> None:
        self._unproven.discard(self)
        self.client = self._clients.add(self.link.send_now, self.link.abort)
        self.link.send(self._ready)

    def _on_commands(self, commands: list[EngineCommand]) -> None:
        assert self.client is not None, "no message precedes the handshake"
        self._clients.receive(self.client, commands)

    def _on_lost(self) -> None:
        self._unproven.discard(self)
        if self.link.handshake_error is not None:
            log.warning("refused a client: %s", self.link.handshake_error)
        if self.client is not None:
            self._clients.remove(self.client)


class _RefusedLink(asyncio.Protocol):
    """A connection above UNPROVEN_LINKS_MAX."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()  # uvloop's own class is not a subclass


async def listen(listener: ListenerConfig, clients: Clients, ready: EngineReady) -> asyncio.Server:
    """Accept clients on the socket of `listener`. Raises LinkRefused for an unusable secret."""
    secret = read_secret(listener.secret_file) if listener.secret_file else b""
    event_loop = asyncio.get_running_loop()

    unproven: set[RemoteClient] = set()

    def make_protocol() -> asyncio.Protocol:
        if len(unproven) >= UNPROVEN_LINKS_MAX:
            return _RefusedLink()
        return RemoteClient(clients, ready, secret, unproven).link

    server = await event_loop.create_server(
        make_protocol,
        sock=socket.socket(fileno=listener.fd),
        ssl=_tls_context(listener),
    )

    def sweep() -> None:
        if server.is_serving():
            clients.disconnect_silent(SILENCE_TIMEOUT_S)
            event_loop.call_later(SILENCE_TIMEOUT_S / 10, sweep)

    sweep()
    return server


def _tls_context(listener: ListenerConfig) -> ssl.SSLContext | None:
    if listener.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(listener.ssl_certfile, listener.ssl_keyfile)
    return context
