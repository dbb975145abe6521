"""Tests of event slices: a burst of engine events is delivered slice by slice, in order."""

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


class RecordingListener:
    """Listener that records the events of one connection."""

    client_id = "client"

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
async def connected(listener: RecordingListener) -> AsyncIterator[Link[EngineEvent, EngineCommand]]:
    """Yield the engine's end of the link."""
    ours, theirs = socket.socketpair()

    async def launch() -> socket.socket:
        return ours

    link: Link[EngineEvent, EngineCommand] = Link(
        msgspec.msgpack.Decoder(list[EngineCommand]), lambda _: None, lambda: None
    )
    await asyncio.get_running_loop().create_connection(lambda: link, sock=theirs)
    peer = EngineConnection("engine", launch, listener)
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


def tokens(turn: str, first: int) -> TurnTokens:
    return TurnTokens(f"of {turn}", turn, first, [1])


async def test_first_tokens_of_turns_overtake_events_but_keep_session_order() -> None:
    listener = RecordingListener()
    async with connected(listener) as link:
        first = [tokens("a", 7), tokens("b", 0), tokens("b", 1), ended("a")]
        second = [tokens("c", 4), tokens("d", 0), TurnTokens("of a", "e", 0, [1]), tokens("f", 0)]
        link.send_now(
            [CommandDone(1), *first, *second, CommandDone(2), tokens("g", 3), tokens("h", 0)]
        )
        async with asyncio.timeout(20):
            while len(listener.order) < 12:
                await asyncio.sleep(0)
    expected_first, expected_rest = ["b0", "d0", "f0"], ["a7", "b1", "a.", "c4", "e0"]
    assert listener.order == [
        "CommandDone",
        *expected_first,
        *expected_rest,
        "CommandDone",
        "h0",
        "g3",
    ]


def burst() -> list[EngineEvent]:
    return [TurnTokens("s", "t", number, [1]) for number in range(COUNT)]


async def test_event_loop_runs_other_tasks_between_slices() -> None:
    listener, lengths_between_slices = RecordingListener(), list[int]()
    async with connected(listener) as link:
        link.send_now(burst())
        async with asyncio.timeout(20):
            while len(listener.numbers) < COUNT:
                lengths_between_slices.append(len(listener.numbers))
                await asyncio.sleep(0)
    assert listener.numbers == list(range(COUNT))
    assert max(listener.slices) == EVENTS_PER_SLICE
    assert set(range(EVENTS_PER_SLICE, COUNT, EVENTS_PER_SLICE)) <= set(lengths_between_slices), (
        "between any two slices"
    )


@pytest.mark.parametrize("rounds", [0, 1, 2])
async def test_received_events_are_delivered_before_the_disconnect(rounds: int) -> None:
    listener = RecordingListener()
    async with connected(listener) as link:
        link.send_now(burst())
        while not listener.numbers:
            await asyncio.sleep(0)
        for _ in range(rounds):
            await asyncio.sleep(0)
        link.close()
        async with asyncio.timeout(20):
            while listener.down_after is None:
                await asyncio.sleep(0)
    assert listener.down_after == COUNT
    assert listener.numbers == list(range(COUNT))
