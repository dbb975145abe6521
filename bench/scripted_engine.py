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

from continuo.engine.batch import Batch, Drawn, Geometry, Row, Runner, Sampled
from continuo.engine.config import EngineConfig, Listening
from continuo.engine.fingerprint import fingerprint
from continuo.engine.server.assembly import assemble
from continuo.engine.server.clients import Fronts
from continuo.engine.server.listener import listen
from continuo.engine.text import Text
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import AnyCommand, AnyEvent, Generate, Ready, Tokens

PAGES, PAGE = 65_536, 16
CONTEXT = 8192
ROWS = 4096
FIRST_ID, BEATS = 256, 3840
"""Ids that are no letters of ASCII in the models of bench/, and stand for a beat."""


class Timed(NamedTuple):
    """A step, and the beat at which it is done."""

    sampled: Sampled
    beat: int


class TimedRunner(Runner[Timed]):
    """Draws the beat. Works beside the loop as a GPU does: the engine hears at any time."""

    steps_ahead = 1

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._beat = 0

    @property
    def geometry(self) -> Geometry:
        return Geometry(PAGES, PAGE, CONTEXT, FIRST_ID + BEATS, 8192, self.steps_ahead)

    def launch(self, batch: Batch) -> Timed:
        if self._rate:
            self._beat = max(self._beat + 1, math.ceil(time.monotonic() * self._rate))
        named = self._named(batch)
        drawn = (Drawn(FIRST_ID + number % BEATS) for number in named)
        rows = zip(batch.rows, drawn, strict=True)
        sampled = Sampled([one if row.sample else None for row, one in rows], 0.0)
        return Timed(sampled, self._beat)

    def collect(self, ticket: Timed) -> Sampled:
        if self._rate:
            time.sleep(max(ticket.beat / self._rate - time.monotonic(), 0))
        return ticket.sampled

    def _named(self, batch: Batch) -> Iterable[int]:
        """One number for each row."""
        return itertools.repeat(self._beat, len(batch.rows))


class ContextRunner(TimedRunner):
    """Draws what the whole past names: in place of KV it keeps digests."""

    steps_ahead = 0  # each needs the ids that the one before has drawn

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self._kv = array("q", bytes(8 * PAGES * PAGE))

    def _named(self, batch: Batch) -> Iterable[int]:
        for _, source, target in batch.moves:
            kept = self._kv[source * PAGE : (source + 1) * PAGE]
            self._kv[target * PAGE : (target + 1) * PAGE] = kept
        return map(self._digest, batch.rows)

    def _digest(self, row: Row) -> int:
        past = self._kv[self._place(row, row.start - 1)] if row.start else 0
        for position, id in enumerate(row.ids, row.start):
            past = hash((past, id))
            self._kv[self._place(row, position)] = past
        return past

    @staticmethod
    def _place(row: Row, position: int) -> int:
        return row.pages[position // PAGE] * PAGE + position % PAGE


def lateness_s(beat: int, rate: float, now_s: float) -> float:
    """How long ago the beat was, that is known by its remainder."""
    last = math.floor(now_s * rate)
    return now_s - (last - (last - beat) % BEATS) / rate


async def serve(draws: str, fd: int, folder: str, rate: float, told: TextIO) -> None:
    runner = ContextRunner(rate) if draws == "context" else TimedRunner(rate)
    parts = assemble(runner, Text(folder), EngineConfig(max_num_seqs=ROWS))
    ready = Ready(
        folder=folder,
        model="bench",
        architecture="-",
        max_model_len=CONTEXT,
        vocab_size=runner.geometry.vocab_size,
        pages=PAGES,
        page_size=PAGE,
        device="none",
        dtype="-",
        load_s=0.0,
        incarnation=secrets.token_hex(8),
        digest=fingerprint(folder),
    )
    if draws == "context":
        await listen(Listening(fd=fd), parts.fronts, ready)
    else:
        await _join(parts.fronts, ready, fd, told, parts.loop.stop)
    await parts.run()


async def _join(
    fronts: Fronts, ready: Ready, fd: int, told: TextIO, lost: Callable[[], None]
) -> None:
    def hear(commands: list[AnyCommand]) -> None:
        now_s = time.monotonic()
        for command in commands:
            if isinstance(command, Generate):
                told.write(f"asked {command.turn} {now_s}\n")
        fronts.receive(front, commands)

    def send(events: list[AnyEvent]) -> None:
        link.send_now(events)
        now_s = time.monotonic()
        for event in events:
            if isinstance(event, Tokens) and not event.first:
                told.write(f"answered {event.turn} {now_s}\n")

    link: Link[AnyEvent, AnyCommand] = Link(msgspec.msgpack.Decoder(list[AnyCommand]), hear, lost)
    front = fronts.join(send)
    sock = socket.socket(fileno=fd)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=sock)
    link.send(ready)


if __name__ == "__main__":
    draws, fd, folder, rate, file = sys.argv[1:]
    with open(file, "w", buffering=1) as told:
        uvloop.run(serve(draws, int(fd), folder, float(rate), told))
