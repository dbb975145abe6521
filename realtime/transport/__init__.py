"""Transport: sockets, send queues (`outbox`), and the loop between a socket and a session
(`connection`) or the response service (`responses_connection`)."""

from continuo.realtime.transport.connection import Connection
from continuo.realtime.transport.pacing import run_paced
from continuo.realtime.transport.socket import Socket, SocketClosed, StarletteSocket

__all__ = ["Connection", "Socket", "SocketClosed", "StarletteSocket", "run_paced"]
