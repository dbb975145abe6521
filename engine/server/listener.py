"""Listener: accepts links from remote clients, which are gateways in other processes, on a
listening socket.

    accepted ──▶ stranger: TLS, handshake ──▶ remote client, one of `Clients`
                     ╰──▶ refused: too late, wrong, or displaced by another stranger

A task admits each stranger. The place of a stranger is held by this task, and is free when the task
ends.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Generator

import msgspec

from continuo.engine.config import ListenerConfig
from continuo.engine.line_limit import LineLimit
from continuo.engine.peer_address import address_of
from continuo.engine.server.clients import Clients, ClientState
from continuo.engine.wire.handshake import EngineHandshake, read_secret
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import EngineCommand, EngineEvent, EngineReady, refuse_malformed

log = logging.getLogger(__name__)

SILENCE_TIMEOUT_S = 10.0
"""Silence after which a remote client is disconnected; each sends a ping every second."""
STRANGERS_MAX = 64
"""Maximum number of strangers, so that they cannot take all file descriptors."""
STRANGER_TIMEOUT_S = 10.0
"""Time from the acceptance of a connection to the end of its handshake, TLS included."""
ACCEPT_RETRY_S = 1.0
"""Time until the next attempt, if the process cannot accept a connection."""


class Displaced(Exception):
    """A stranger has given way to another one."""


class Strangers:
    """The tasks that admit strangers, by address, the oldest first.

    If there are too many, the oldest of the address with the most gives way to a new one. So
    hundreds of silent connections do not keep a gateway out, which needs milliseconds to prove the
    secret, and those of one address do not displace a gateway at another.
    """

    def __init__(self) -> None:
        self._by_address: dict[str, dict[asyncio.Task[object], None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_address.values()))

    @contextlib.contextmanager
    def hold_place(self, address: str) -> Generator[None]:
        """Hold a place for the current task. Raises Displaced in it if another task needs the
        place."""
        task = asyncio.current_task()
        assert task is not None
        if len(self) >= STRANGERS_MAX:
            self._displace_one()
        self._by_address.setdefault(address, {})[task] = None
        try:
            yield
        except asyncio.CancelledError:
            if task in self._by_address.get(address, ()):
                raise
            task.uncancel()
            raise Displaced from None
        finally:
            self._release(task, address)

    def cancel_all(self) -> None:
        for tasks in self._by_address.values():
            for task in tasks:
                task.cancel()

    def _displace_one(self) -> None:
        address, tasks = max(self._by_address.items(), key=lambda item: len(item[1]))
        task = next(iter(tasks))
        self._release(task, address)
        task.cancel()

    def _release(self, task: asyncio.Task[object], address: str) -> None:
        tasks = self._by_address.get(address, {})
        tasks.pop(task, None)
        if not tasks:
            self._by_address.pop(address, None)


class RemoteClient:
    """Link to a remote client: added to the clients after the handshake, removed when the link
    is lost."""

    def __init__(self, clients: Clients, ready: EngineReady, secret: bytes) -> None:
        self._clients = clients
        self._ready = ready
        self.client: ClientState | None = None
        """None before the end of the handshake."""
        self.handshake_ended = asyncio.Event()
        """Set when the handshake is complete, or the link is lost."""
        self.link: Link[EngineEvent, EngineCommand] = Link(
            msgspec.msgpack.Decoder(list[EngineCommand]),
            self._on_commands,
            self._on_lost,
            EngineHandshake(secret),
            self._on_established,
            refuse_malformed,
        )

    def _on_established(self) -> None:
        self.client = self._clients.add(self.link.send_now, self.link.abort)
        self.link.send(self._ready)
        self.handshake_ended.set()

    def _on_commands(self, commands: list[EngineCommand]) -> None:
        assert self.client is not None, "no message precedes the handshake"
        self._clients.receive(self.client, commands)

    def _on_lost(self) -> None:
        self.handshake_ended.set()
        if self.client is not None:
            self._clients.remove(self.client)


class Listener:
    """Accepts clients until `close` is called."""

    def __init__(self, config: ListenerConfig, clients: Clients, ready: EngineReady) -> None:
        """Raises LinkRefused for an unusable secret."""
        self._secret = read_secret(config.secret_file) if config.secret_file else b""
        self._tls = _tls_context(config)
        self._clients = clients
        self._ready = ready
        self._event_loop = asyncio.get_running_loop()
        self._strangers = Strangers()
        self._line_limit = LineLimit(self._event_loop.time, lines_per_minute=1)
        self._socket = socket.socket(fileno=config.fd)
        self._socket.setblocking(False)
        self._tasks = [
            self._event_loop.create_task(self._accept_all()),
            self._event_loop.create_task(self._disconnect_silent()),
        ]

    def close(self) -> None:
        """Accept no more clients, and disconnect strangers."""
        for task in self._tasks:
            task.cancel()
        self._strangers.cancel_all()
        self._socket.close()

    async def _accept_all(self) -> None:
        while True:
            try:
                sock, address = await self._event_loop.sock_accept(self._socket)
            except ConnectionError:
                continue  # the peer has left
            except OSError as error:  # no more file descriptors
                if self._line_limit.admit("accept") is not None:
                    log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            admitting = self._event_loop.create_task(self._admit(sock, address_of(address[0])))
            await asyncio.sleep(0)  # one connection in each iteration of the event loop
            del admitting  # it has begun, and holds its place

    async def _admit(self, sock: socket.socket, address: str) -> None:
        """Run TLS and the handshake with a stranger."""
        remote = RemoteClient(self._clients, self._ready, self._secret)
        reason: object = None
        try:
            with self._strangers.hold_place(address):
                async with asyncio.timeout(STRANGER_TIMEOUT_S):
                    await self._event_loop.connect_accepted_socket(
                        lambda: remote.link, sock, ssl=self._tls
                    )
                    await remote.handshake_ended.wait()
            reason = remote.link.handshake_error
        except Displaced:
            reason = f"{STRANGERS_MAX} newer connections without a handshake"
        except TimeoutError:
            reason = f"no handshake within {STRANGER_TIMEOUT_S:g} s"
        except ConnectionError:
            pass  # the peer has left
        except OSError as error:
            reason = f"TLS failed: {error}"
        finally:
            if remote.client is None:
                remote.link.abort()
                remote.link.release()
        others = None if reason is None else self._line_limit.admit("refused")
        if others is not None:
            log.warning(
                "refused a client at %s: %s; %d others in the minute before",
                address,
                reason,
                others,
            )

    async def _disconnect_silent(self) -> None:
        while True:
            self._clients.disconnect_silent(SILENCE_TIMEOUT_S)
            await asyncio.sleep(SILENCE_TIMEOUT_S / 10)


def _tls_context(listener: ListenerConfig) -> ssl.SSLContext | None:
    if listener.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(listener.ssl_certfile, listener.ssl_keyfile)
    return context
