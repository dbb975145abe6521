"""Ports for servers that a test stops and starts again.

A server that is started once binds port 0. If it is started again, its port must still be free, so
these ports lie below those that Linux gives to port 0 and to outgoing connections, and each worker
of pytest-xdist has its own.
"""

import asyncio
import itertools
import os
import random
import socket

PORTS = range(10_000, 32_000)
WORKERS_MAX = 16


def _own_ports() -> range:
    """Return the ports of this worker of pytest-xdist."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
    share = len(PORTS) // WORKERS_MAX
    return PORTS[worker * share : (worker + 1) * share]


def _cycle_ports() -> "itertools.cycle[int]":
    """Return the ports of this worker in turn, from a random one on: other runs have the same."""
    ports = _own_ports()
    first = random.SystemRandom().randrange(len(ports))
    return itertools.cycle([*ports[first:], *ports[:first]])


_ports = _cycle_ports()


def free_port() -> int:
    """Return a port of 127.0.0.1 that no socket is bound to, and no other test is given."""
    for port in itertools.islice(_ports, len(PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")


async def wait_until_open(port: int) -> None:
    """Wait until a port of 127.0.0.1 accepts connections."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0)
            continue
        writer.close()
        return
