"""Run an engine on a device without a model.

Usage: python -m continuo.bench.scripted_engine SCHEME FD FOLDER RATE TRACE

The engine is real except for its device, which computes nothing. The monotonic clock ticks RATE
times a second; each step ends at the next tick, or at once if RATE is 0. FOLDER is the checkpoint
that has the tokenizer. SCHEME determines the ids drawn and the kind of socket FD:

ticks     Each id encodes the tick at which it was drawn, so that a client can compute the lateness
          of each token. FD is a connected socket to the only client. The times at which each turn
          was received and its first id was sent are written to the file TRACE.
context   Each id is a digest of all ids before it, so that a lost, duplicated or misplaced id
          changes the text. FD is a listening socket for any number of clients.
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

from continuo.engine.batch import (
    Batch,
    BatchResult,
    BatchRow,
    Geometry,
    RowResult,
    Runner,
    TicketT,
)
from continuo.engine.config import EngineConfig, ListenerConfig
from continuo.engine.fingerprint import compute_fingerprint
from continuo.engine.garbage_collection import collect_garbage
from continuo.engine.server.assembly import EngineCore, assemble
from continuo.engine.server.clients import Clients
from continuo.engine.server.listener import Listener
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
"""The scripted engine draws one id per turn at regular times, the ticks. The id encodes the number
n of the tick as FIRST_TICK_ID + n % TICK_ID_COUNT. None of these ids is an ASCII character in the
tokenizer of the benchmark models."""


class TimedStep(NamedTuple):
    """The result of a step, and the number of the clock tick at which the step ends. The clock
    ticks RATE times a second."""

    result: BatchResult
    tick: int


class TimedRunner(Runner[TimedStep]):
    """A device whose steps end at ticks of the clock (RATE a second) and draw ids that encode the
    tick. Works asynchronously to the engine's loop, one step ahead, like a GPU."""

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
        rows = zip(batch.rows, self._draw_ids(batch), strict=True)
        result = BatchResult([RowResult(id) if row.sample else None for row, id in rows], 0.0)
        return TimedStep(result, self._tick)

    def collect(self, ticket: TimedStep) -> BatchResult:
        if self._rate:
            time.sleep(max(ticket.tick / self._rate - time.monotonic(), 0))
        return ticket.result

    def _draw_ids(self, batch: Batch) -> Iterable[int]:
        """Return an id for each row of the batch, which counts for the rows that draw one."""
        return itertools.repeat(FIRST_TICK_ID + self._tick % TICK_ID_COUNT, len(batch.rows))


class TimedDigestRunner(TimedRunner):
    """A device whose steps end at ticks of the clock (RATE a second). Each id drawn is a digest of
    all earlier ids of the sequence. Keeps digests in place of KV."""

    steps_ahead = 0  # a step needs the ids of the previous one

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self._digests = array("q", bytes(8 * PAGE_COUNT * PAGE_SIZE))

    def _draw_ids(self, batch: Batch) -> Iterable[int]:
        for _, source, target, _ in batch.moves:
            page = self._digests[source * PAGE_SIZE : (source + 1) * PAGE_SIZE]
            self._digests[target * PAGE_SIZE : (target + 1) * PAGE_SIZE] = page
        return (FIRST_TICK_ID + self._digest(row) % TICK_ID_COUNT for row in batch.rows)

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
    """Return the time from a tick to `now_s`. `tick`: number of the tick modulo TICK_ID_COUNT. Of
    all ticks with that remainder, the latest one not after `now_s` is assumed, so that the result
    is always below TICK_ID_COUNT / rate."""
    last = math.floor(now_s * rate)
    return now_s - (last - (last - tick) % TICK_ID_COUNT) / rate


async def serve(id_scheme: str, fd: int, folder: str, rate: float, trace: TextIO) -> None:
    runner = TimedDigestRunner(rate) if id_scheme == "context" else TimedRunner(rate)
    parts, ready = assemble_engine(runner, folder)
    if id_scheme == "context":
        Listener(ListenerConfig(fd=fd), parts.clients, ready)
    else:
        await serve_client(parts.clients, ready, fd, trace, parts.loop.stop)
    collecting = asyncio.create_task(collect_garbage())  # as an engine process does
    await parts.run()
    collecting.cancel()


def assemble_engine(
    runner: Runner[TicketT], folder: str
) -> tuple[EngineCore[TicketT], EngineReady]:
    """Return an engine on a device without a model, and its first message to clients."""
    parts = assemble(runner, ModelText(folder), EngineConfig(max_num_seqs=ROWS_MAX))
    geometry = runner.geometry
    ready = EngineReady(
        folder=folder,
        model="bench",
        architecture="-",
        max_model_len=geometry.max_model_len,
        vocab_size=geometry.vocab_size,
        pages=geometry.pages,
        page_size=geometry.page_size,
        device="none",
        dtype="-",
        load_s=0.0,
        incarnation=secrets.token_hex(8),
        digest=compute_fingerprint(folder),
    )
    return parts, ready


async def serve_client(
    clients: Clients, ready: EngineReady, fd: int, trace: TextIO, on_disconnect: Callable[[], None]
) -> None:
    """Serve the client at the other end of the socket `fd`. `trace`: see the module."""

    def receive(commands: list[EngineCommand]) -> None:
        now_s = time.monotonic()
        for command in commands:
            if isinstance(command, Generate):
                trace.write(f"requested {command.turn} {now_s}\n")
        clients.receive(client, commands)

    def send(events: list[EngineEvent]) -> None:
        link.send_now(events)
        now_s = time.monotonic()
        for event in events:
            if isinstance(event, TurnTokens) and not event.first:
                trace.write(f"first_sent {event.turn} {now_s}\n")

    link: Link[EngineEvent, EngineCommand] = Link(
        msgspec.msgpack.Decoder(list[EngineCommand]), receive, on_disconnect
    )
    client = clients.add(send)
    sock = socket.socket(fileno=fd)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=sock)
    link.send(ready)


if __name__ == "__main__":
    id_scheme, fd, folder, rate, file = sys.argv[1:]
    with open(file, "w", buffering=1) as trace:
        uvloop.run(serve(id_scheme, int(fd), folder, float(rate), trace))
