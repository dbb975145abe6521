"""Frames in, frames out: a socket, what waits to be sent (`outbox`), and the loop between a socket
and a session (`connection`)."""

from continuo.realtime.transport.connection import Connection
from continuo.realtime.transport.pacing import run_paced
from continuo.realtime.transport.socket import Socket, SocketClosed, StarletteSocket

__all__ = ["Connection", "Socket", "SocketClosed", "StarletteSocket", "run_paced"]
