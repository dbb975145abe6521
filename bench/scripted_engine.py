"""Run the engine on a device without a model.

Usage: python -m continuo.bench.scripted_engine DRAWS FD FOLDER RATE TOLD

All of the engine is real but the device: it computes nothing, answers each step at its next beat,
RATE a second by the monotonic clock. At rate 0 it answers at once. When each turn was asked for,
and when its first id was sent, is written to the file TOLD. DRAWS says what an id tells, and where
the fronts are:

beats     which beat it was drawn at, so that whoever reads the text knows how late it came; the
          front is at the other end of the connected socket FD
context   a digest of all ids before it, so that anything lost, doubled or mixed up changes the
          text; fronts come and go at the listening socket FD
"""

import asyncio
import itertools
import math
import secrets
import socket
import sys
import time
from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple, TextIO

import msgspec
import uvloop

from continuo.engine.batch import Batch, BatchResult, BatchRow, Geometry, RowResult, Runner
from continuo.engine.config import EngineConfig, ListenerConfig
from continuo.engine.fingerprint import compute_fingerprint
from continuo.engine.server.assembly import assemble
from continuo.engine.server.clients import Clients
from continuo.engine.server.listener import listen
from continuo.engine.text import ModelText
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import (
    EngineCommand,
    EngineEvent,
    EngineReady,
    Generate,
    TurnTokens,
)

PAGE_COUNT, PAGE_SIZE = 65_536, 16
CONTEXT = 8192
ROWS_MAX = 4096
FIRST_TICK_ID, TICK_ID_COUNT = 256, 3840
"""Ids that are no letters of ASCII in the models of bench/, and stand for a beat."""


class TimedStep(NamedTuple):
    """A step, and the beat at which it is done."""

    result: BatchResult
    tick: int


class TimedRunner(Runner[TimedStep]):
    """Draws the beat. Works beside the loop as a GPU does: the engine hears at any time."""

    steps_ahead = 1

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tick = 0

    @property
    def geometry(self) -> Geometry:
        return Geometry(
            PAGE_COUNT, PAGE_SIZE, CONTEXT, FIRST_TICK_ID + TICK_ID_COUNT, 8192, self.steps_ahead
        )

    def launch(self, batch: Batch) -> TimedStep:
        if self._rate:
            self._tick = max(self._tick + 1, math.ceil(time.monotonic() * self._rate))
        named = self._number_rows(batch)
        drawn = (RowResult(FIRST_TICK_ID + number % TICK_ID_COUNT) for number in named)
        rows = zip(batch.rows, drawn, strict=True)
        sampled = BatchResult([one if row.sample else None for row, one in rows], 0.0)
        return TimedStep(sampled, self._tick)

    def collect(self, ticket: TimedStep) -> BatchResult:
        if self._rate:
            time.sleep(max(ticket.tick / self._rate - time.monotonic(), 0))
        return ticket.result

    def _number_rows(self, batch: Batch) -> Iterable[int]:
        """One number for each row."""
        return itertools.repeat(self._tick, len(batch.rows))


class TimedDigestRunner(TimedRunner):
    """Draws what the whole past names: in place of KV it keeps digests."""

    steps_ahead = 0  # each needs the ids that the one before has drawn

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self._digests = array("q", bytes(8 * PAGE_COUNT * PAGE_SIZE))

    def _number_rows(self, batch: Batch) -> Iterable[int]:
        for _, source, target in batch.moves:
            kept = self._digests[source * PAGE_SIZE : (source + 1) * PAGE_SIZE]
            self._digests[target * PAGE_SIZE : (target + 1) * PAGE_SIZE] = kept
        return map(self._digest, batch.rows)

    def _digest(self, row: BatchRow) -> int:
        past = self._digests[self._slot_index(row, row.start - 1)] if row.start else 0
        for position, id in enumerate(row.ids, row.start):
            past = hash((past, id))
            self._digests[self._slot_index(row, position)] = past
        return past

    @staticmethod
    def _slot_index(row: BatchRow, position: int) -> int:
        return row.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE


def lateness_s(tick: int, rate: float, now_s: float) -> float:
    """How long ago the beat was, that is known by its remainder."""
    last = math.floor(now_s * rate)
    return now_s - (last - (last - tick) % TICK_ID_COUNT) / rate


async def serve(id_scheme: str, fd: int, folder: str, rate: float, trace: TextIO) -> None:
    runner = TimedDigestRunner(rate) if id_scheme == "context" else TimedRunner(rate)
    parts = assemble(runner, ModelText(folder), EngineConfig(max_num_seqs=ROWS_MAX))
    ready = EngineReady(
        folder=folder,
        model="bench",
        architecture="-",
        max_model_len=CONTEXT,
        vocab_size=runner.geometry.vocab_size,
        pages=PAGE_COUNT,
        page_size=PAGE_SIZE,
        device="none",
        dtype="-",
        load_s=0.0,
        incarnation=secrets.token_hex(8),
        digest=compute_fingerprint(folder),
    )
    if id_scheme == "context":
        await listen(ListenerConfig(fd=fd), parts.clients, ready)
    else:
        await _serve_client(parts.clients, ready, fd, trace, parts.loop.stop)
    await parts.run()


async def _serve_client(
    clients: Clients, ready: EngineReady, fd: int, trace: TextIO, on_disconnect: Callable[[], None]
) -> None:
    def hear(commands: list[EngineCommand]) -> None:
        now_s = time.monotonic()
        for command in commands:
            if isinstance(command, Generate):
                trace.write(f"asked {command.turn} {now_s}\n")
        clients.receive(front, commands)

    def send(events: list[EngineEvent]) -> None:
        link.send_now(events)
        now_s = time.monotonic()
        for event in events:
            if isinstance(event, TurnTokens) and not event.first:
                trace.write(f"answered {event.turn} {now_s}\n")

    link: Link[EngineEvent, EngineCommand] = Link(
        msgspec.msgpack.Decoder(list[EngineCommand]), hear, on_disconnect
    )
    front = clients.add(send)
    sock = socket.socket(fileno=fd)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=sock)
    link.send(ready)


if __name__ == "__main__":
    draws, fd, folder, rate, file = sys.argv[1:]
    with open(file, "w", buffering=1) as told:
        uvloop.run(serve(draws, int(fd), folder, float(rate), told))
