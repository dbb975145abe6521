"""What an engine says at once is passed on a slice at a time, in order, all of it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest

from engine.link import Link
from engine.messages import AnyCommand, AnyEvent, Ready, Tokens
from engine.peer import SLICE, Peer

COUNT = 5 * SLICE + 3


class Heard:
    """`Listener` of one peer."""

    name = "front"

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.slices: list[int] = []
        self.down_after: int | None = None

    def on_events(self, peer: Peer, events: list[AnyEvent]) -> None:
        self.slices.append(len(events))
        self.numbers += [event.first for event in events if isinstance(event, Tokens)]

    def on_ready(self, ready: Ready) -> None: ...
    def on_up(self, peer: Peer) -> None: ...
    def on_gone(self, peer: Peer) -> None: ...

    def on_down(self, peer: Peer) -> None:
        self.down_after = len(self.numbers)


READY = Ready(
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
async def connected(heard: Heard) -> AsyncIterator[Link[AnyEvent, AnyCommand]]:
    """The engine's end of the link."""
    ours, theirs = socket.socketpair()

    async def launch() -> socket.socket:
        return ours

    link: Link[AnyEvent, AnyCommand] = Link(
        msgspec.msgpack.Decoder(list[AnyCommand]), lambda _: None, lambda: None
    )
    await asyncio.get_running_loop().create_connection(lambda: link, sock=theirs)
    peer = Peer("engine", launch, heard)
    link.send(READY)
    await peer.connect()
    yield link
    peer.close()
    link.close()


def burst() -> list[AnyEvent]:
    return [Tokens("s", "t", number, [1]) for number in range(COUNT)]


async def test_others_have_their_turn_between_slices() -> None:
    heard, seen = Heard(), list[int]()
    async with connected(heard) as link:
        link.send_now(burst())
        async with asyncio.timeout(20):
            while len(heard.numbers) < COUNT:
                seen.append(len(heard.numbers))
                await asyncio.sleep(0)
    assert heard.numbers == list(range(COUNT))
    assert max(heard.slices) == SLICE
    assert set(range(SLICE, COUNT, SLICE)) <= set(seen), "between any two slices"


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
