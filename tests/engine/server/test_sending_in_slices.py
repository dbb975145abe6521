"""What an engine says at once is passed on a slice at a time, in order, all of it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest

from continuo.engine.client.connection import EVENTS_PER_SLICE, EngineConnection
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import (
    CommandDone,
    EngineCommand,
    EngineEvent,
    EngineReady,
    TurnEnded,
    TurnTokens,
)

COUNT = 5 * EVENTS_PER_SLICE + 3


class Heard:
    """`Listener` of one peer."""

    client_id = "front"

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.order: list[str] = []
        self.slices: list[int] = []
        self.down_after: int | None = None

    def on_events(self, connection: EngineConnection, events: list[EngineEvent]) -> None:
        self.slices.append(len(events))
        self.order += [name_of(event) for event in events]
        self.numbers += [event.first for event in events if isinstance(event, TurnTokens)]

    def on_ready(self, ready: EngineReady) -> None: ...
    def on_connected(self, connection: EngineConnection) -> None: ...
    def on_given_up(self, connection: EngineConnection) -> None: ...

    def on_disconnected(self, connection: EngineConnection) -> None:
        self.down_after = len(self.numbers)


READY = EngineReady(
    folder="",
    model="none",
    architecture="-",
    max_model_len=1,
    vocab_size=1,
    pages=1,
    page_size=1,
    device="none",
    dtype="-",
    load_s=0.0,
    incarnation="1",
)


@contextlib.asynccontextmanager
async def connected(heard: Heard) -> AsyncIterator[Link[EngineEvent, EngineCommand]]:
    """The engine's end of the link."""
    ours, theirs = socket.socketpair()

    async def launch() -> socket.socket:
        return ours

    link: Link[EngineEvent, EngineCommand] = Link(
        msgspec.msgpack.Decoder(list[EngineCommand]), lambda _: None, lambda: None
    )
    await asyncio.get_running_loop().create_connection(lambda: link, sock=theirs)
    peer = EngineConnection("engine", launch, heard)
    link.send(READY)
    await peer.connect()
    yield link
    peer.close()
    link.close()


def name_of(event: EngineEvent) -> str:
    match event:
        case TurnTokens(turn=turn, first=first):
            return f"{turn}{first}"
        case TurnEnded(turn=turn):
            return f"{turn}."
        case _:
            return type(event).__name__


def ended(turn: str) -> TurnEnded:
    return TurnEnded(f"of {turn}", turn, "stop", 9, 3, 0, 6, 7)


def said(turn: str, first: int) -> TurnTokens:
    return TurnTokens(f"of {turn}", turn, first, [1])


async def test_beginnings_are_told_first_but_nothing_overtakes_what_it_stands_behind() -> None:
    heard = Heard()
    async with connected(heard) as link:
        first = [said("a", 7), said("b", 0), said("b", 1), ended("a")]
        then = [said("c", 4), said("d", 0), TurnTokens("of a", "e", 0, [1]), said("f", 0)]
        link.send_now([CommandDone(1), *first, *then, CommandDone(2), said("g", 3), said("h", 0)])
        async with asyncio.timeout(20):
            while len(heard.order) < 12:
                await asyncio.sleep(0)
    before, behind = ["b0", "d0", "f0"], ["a7", "b1", "a.", "c4", "e0"]
    assert heard.order == ["CommandDone", *before, *behind, "CommandDone", "h0", "g3"]


def burst() -> list[EngineEvent]:
    return [TurnTokens("s", "t", number, [1]) for number in range(COUNT)]


async def test_others_have_their_turn_between_slices() -> None:
    heard, seen = Heard(), list[int]()
    async with connected(heard) as link:
        link.send_now(burst())
        async with asyncio.timeout(20):
            while len(heard.numbers) < COUNT:
                seen.append(len(heard.numbers))
                await asyncio.sleep(0)
    assert heard.numbers == list(range(COUNT))
    assert max(heard.slices) == EVENTS_PER_SLICE
    assert set(range(EVENTS_PER_SLICE, COUNT, EVENTS_PER_SLICE)) <= set(seen), (
        "between any two slices"
    )


@pytest.mark.parametrize("waits", [0, 1, 2])
async def test_all_that_was_heard_is_passed_on_before_the_end(waits: int) -> None:
    heard = Heard()
    async with connected(heard) as link:
        link.send_now(burst())
        while not heard.numbers:
            await asyncio.sleep(0)
        for _ in range(waits):
            await asyncio.sleep(0)
        link.close()
        async with asyncio.timeout(20):
            while heard.down_after is None:
                await asyncio.sleep(0)
    assert heard.down_after == COUNT
    assert heard.numbers == list(range(COUNT))
