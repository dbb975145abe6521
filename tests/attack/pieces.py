"""Attack with small pieces: much input in the smallest units that a peer can send.

A kilobyte of one-byte chunks, of pings or of empty objects takes a hundred times as long to parse
as a kilobyte of text, so a bound on bytes bounds no time. Kind and size of the piece, the number of
connections, the rhythm and the key are drawn.
"""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from tests.attack.peers import HOLD_S, RESPONSE_TIMEOUT_S, Tally, create_browser_key
from tests.attack.target import Address
from tests.support.frames import (
    BINARY,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    encode_frame,
    upgrade_request,
)

HTTP_KINDS = ("chunk", "garbage request")
FRAME_KINDS = ("fragment", "ping", "pong", "binary", "two-byte text", "empty object")
KINDS = (*HTTP_KINDS, *FRAME_KINDS)
CONNECTIONS = (1, 10, 400, 800)
PIECE_BYTES_MAX = 256
CONTROL_BYTES_MAX = 125
"""Longest payload of a ping or pong (RFC 6455, 5.5)."""
BURST_BYTES = 128 * 1024
"""Bytes that one connection sends at once in a burst."""
STREAM_S = min(2.0, HOLD_S)
"""How long connections stream."""
OPENED_AT_ONCE = 50


class Plan(NamedTuple):
    """The behaviour of the connections of one round."""

    kind: str
    piece_bytes: int
    """Size of the payload of a piece, where its kind leaves a choice."""
    connections: int
    is_burst: bool
    """Whether all connections send BURST_BYTES at the same time; else each streams."""
    key: str
    """`none`, `ek_` or `full`."""


def draw_plan(random: Random) -> Plan:
    return Plan(
        random.choice(KINDS),
        random.choice((1, 2, random.randint(1, PIECE_BYTES_MAX))),
        random.choice(CONNECTIONS),
        random.random() < 0.5,
        random.choice(("none", "ek_", "full")),
    )


async def small_pieces(server: Address, random: Random, tally: Tally) -> None:
    """Small pieces on up to 800 connections, in one burst or for two seconds."""
    plan = draw_plan(random)
    key = {"none": "", "full": server.key}.get(plan.key)
    if key is None:
        key = await create_browser_key(server)
    head = _head(plan, key)
    opening = asyncio.Semaphore(OPENED_AT_ONCE)
    all_open = asyncio.Barrier(plan.connections)
    senders = (_send(server, plan, head, opening, all_open, tally) for _ in range(plan.connections))
    await asyncio.gather(*senders)
    tally[f"{plan.kind}: {'bursts' if plan.is_burst else 'streams'}"] += plan.connections


async def _send(
    server: Address,
    plan: Plan,
    head: bytes,
    opening: asyncio.Semaphore,
    all_open: asyncio.Barrier,
    tally: Tally,
) -> None:
    """Open one connection, wait for the others, and send pieces until the server ends it."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with opening:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(head)
            if plan.kind in FRAME_KINDS:
                answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), RESPONSE_TIMEOUT_S)
                tally[answer.split(maxsplit=2)[1].decode()] += 1
    except (OSError, asyncio.IncompleteReadError):
        tally["connection lost"] += 1
    await all_open.wait()
    if writer is None:
        return
    answering = asyncio.create_task(_discard(reader))
    try:
        async with asyncio.timeout(HOLD_S):
            tally["bytes"] += await _send_pieces(writer, plan, answering)
    except (OSError, TimeoutError):
        tally["ended by the server"] += 1
    answering.cancel()
    writer.transport.abort()


async def _send_pieces(
    writer: asyncio.StreamWriter, plan: Plan, answering: "asyncio.Task[None]"
) -> int:
    """Returns the number of bytes sent."""
    end_s, sent = time.monotonic() + STREAM_S, 0
    for block in _blocks(plan):
        writer.write(block)
        sent += len(block)
        await writer.drain()
        ended = answering.done() or time.monotonic() > end_s
        if ended or (plan.is_burst and sent >= BURST_BYTES):
            break
        if not plan.is_burst:
            await asyncio.sleep(0)
    return sent


async def _discard(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(64 * 1024):
            pass


def _head(plan: Plan, key: str) -> bytes:
    """Return the first bytes of a connection."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if plan.kind in FRAME_KINDS:
        return upgrade_request(**headers)
    if plan.kind == "garbage request":
        return b""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return (
        f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{lines}\r\n"
    ).encode()


def _blocks(plan: Plan) -> Iterator[bytes]:
    """Yield the pieces of a connection: as one block in a burst, else in blocks of 4 KiB."""
    first, piece = _pieces(plan)
    count = BURST_BYTES if plan.is_burst else 4 * 1024
    yield first + piece * (count // len(piece) + 1)
    yield from itertools.repeat(piece * (count // len(piece) + 1))


def _pieces(plan: Plan) -> tuple[bytes, bytes]:
    """The first piece, if it differs, and the one that is repeated."""
    payload = os.urandom(plan.piece_bytes).hex().encode()[: plan.piece_bytes]
    match plan.kind:
        case "chunk":
            return b"", b"%x\r\n%b\r\n" % (len(payload), payload)
        case "garbage request":
            return b"", payload + b"\r\n\r\n"
        case "fragment":
            return (
                encode_frame(b"{", TEXT, fin=False),
                encode_frame(payload, CONTINUATION, fin=False),
            )
        case "ping":
            return b"", encode_frame(payload[:CONTROL_BYTES_MAX], PING)
        case "pong":
            return b"", encode_frame(payload[:CONTROL_BYTES_MAX], PONG)
        case "binary":  # closes the connection, after which the rest is read and discarded
            return b"", encode_frame(payload, BINARY)
        case "two-byte text":
            return b"", encode_frame(b"12", TEXT)
        case _:
            return b"", encode_frame(b"{}", TEXT)
