"""Frames in, frames out: a socket, what waits to be sent (`outbox`), and the loop between a socket
and a session (`connection`)."""

from realtime.transport.connection import Connection
from realtime.transport.pacing import paced
from realtime.transport.socket import Socket, SocketClosed, StarletteSocket

__all__ = ["Connection", "Socket", "SocketClosed", "StarletteSocket", "paced"]
