"""Frames in, frames out: a socket, what waits to be sent (`outbox`), and the loop between a socket
and a session (`connection`)."""
