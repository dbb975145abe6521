"""python -m bench.scripted_engine FD FOLDER RATE ASKED: the engine on a device that keeps time.

All of the engine is real but the device: it does nothing, and answers each step at its next beat,
RATE a second by the monotonic clock. The id it draws says which beat that was, so that whoever
reads the text knows how late it came. At rate 0 it answers at once. When each turn was asked for is
written to the file ASKED.
"""

import asyncio
import math
import secrets
import socket
import sys
import time
from typing import TextIO

import msgspec
import uvloop

from engine.batch import Batch, Drawn, Geometry, Sampled
from engine.cache import SessionAwareCache
from engine.config import EngineConfig
from engine.fronts import Fronts
from engine.link import Link
from engine.loop import Loop
from engine.messages import AnyCommand, AnyEvent, Generate, Ready
from engine.metrics import Counters
from engine.schedule import Scheduler
from engine.sessions import Sessions
from engine.text import StopWatch, Text

PAGES, PAGE = 65_536, 16
CONTEXT = 8192
ROWS = 512
FIRST_ID, BEATS = 256, 3840
"""Ids that read as <n> in the models of bench/, and stand for a beat."""


class TimedRunner:
    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._beat = 0

    @property
    def geometry(self) -> Geometry:
        return Geometry(PAGES, PAGE, CONTEXT, FIRST_ID + BEATS, 8192, 0)

    def launch(self, batch: Batch) -> Sampled:
        if self._rate:
            self._beat = max(self._beat + 1, math.ceil(time.monotonic() * self._rate))
            time.sleep(max(self._beat / self._rate - time.monotonic(), 0))
        drawn = Drawn(FIRST_ID + self._beat % BEATS)
        return Sampled([drawn if row.sample else None for row in batch.rows], 0.0)

    def collect(self, ticket: Sampled) -> Sampled:
        return ticket


def lateness_s(beat: int, rate: float, now_s: float) -> float:
    """How long ago the beat was, that is known by its remainder."""
    last = math.floor(now_s * rate)
    return now_s - (last - (last - beat) % BEATS) / rate


async def serve(sock: socket.socket, folder: str, rate: float, asked: TextIO) -> None:
    runner, text, counters = TimedRunner(rate), Text(folder), Counters()
    geometry = runner.geometry
    cache = SessionAwareCache(geometry.pages, geometry.page_size)
    scheduler = Scheduler(cache, geometry.batched_tokens, ROWS)
    loop = Loop(runner, cache, scheduler, counters)
    sessions = Sessions(
        cache,
        scheduler,
        geometry,
        counters,
        watch=lambda stops: StopWatch(stops, text.detokenizer()),
        grammars=text.grammars(geometry.vocab_size, loop.wake),
        emit=loop.emit,
        clock=time.monotonic,
    )

    fronts = Fronts(loop.tell, sessions.load, EngineConfig(), time.monotonic, folder)

    def hear(commands: list[AnyCommand]) -> None:
        now_s = time.monotonic()
        for command in commands:
            if isinstance(command, Generate):
                asked.write(f"{command.turn} {now_s}\n")
        fronts.receive(front, commands)

    link: Link[AnyEvent, AnyCommand] = Link(
        msgspec.msgpack.Decoder(list[AnyCommand]), hear, loop.stop
    )
    front = fronts.join(link.send_all)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=sock)
    link.send(
        Ready(
            folder=folder,
            model="bench",
            architecture="-",
            max_model_len=CONTEXT,
            vocab_size=geometry.vocab_size,
            pages=PAGES,
            page_size=PAGE,
            device="none",
            dtype="-",
            load_s=0.0,
            incarnation=secrets.token_hex(8),
        )
    )
    await loop.run(sessions, fronts.send_all)


if __name__ == "__main__":
    fd, folder, rate, file = sys.argv[1:]
    with open(file, "w", buffering=1) as asked:
        uvloop.run(serve(socket.socket(fileno=int(fd)), folder, float(rate), asked))
