"""A turn as its front sees it: pieces are told in the moment they come, or when one asks."""

import asyncio
from pathlib import Path

import pytest

from continuo.engine.client.turn_stream import OutputChunk, TurnStream
from continuo.engine.errors import StaleEngineFence, TurnFailed
from continuo.engine.text import ModelText
from continuo.engine.wire.messages import Sampling, TurnEnded, TurnEndReason, TurnTokens


@pytest.fixture
def turn(letters: Path) -> TurnStream:
    return TurnStream(
        "t", "s", ModelText(str(letters)).create_detokenizer(), Sampling(max_tokens=9)
    )


def tokens(first: int, *ids: int) -> TurnTokens:
    return TurnTokens("s", "t", first, list(ids))


def ended(reason: TurnEndReason = "length", error: str | None = None) -> TurnEnded:
    return TurnEnded("s", "t", reason, 9, 3, 0, 6, 7, error=error)


async def followed(turn: TurnStream, taken: list[OutputChunk]) -> "asyncio.Task[None]":
    following = asyncio.create_task(turn.consume(taken.append))
    await asyncio.sleep(0)
    return following


def said(pieces: list[OutputChunk]) -> list[int]:
    return [id for piece in pieces for id in piece.ids]


async def test_what_comes_is_told_before_anything_else_happens(turn: TurnStream) -> None:
    taken: list[OutputChunk] = []
    turn.put(tokens(0, 40, 41))
    following = await followed(turn, taken)
    assert said(taken) == [40, 41], "what was there"
    turn.put(tokens(2, 42))
    assert said(taken) == [40, 41, 42], "without a turn of the event loop"
    turn.put(tokens(1, 41, 42, 43))
    assert said(taken) == [40, 41, 42, 43], "only what is new"
    turn.put(ended())
    await following
    assert turn.ended == ended()


async def test_a_fault_of_who_follows_is_theirs(turn: TurnStream) -> None:
    def take(piece: OutputChunk) -> None:
        raise KeyError(piece.first)

    following = asyncio.create_task(turn.consume(take))
    await asyncio.sleep(0)
    turn.put(tokens(0, 40))
    turn.put(tokens(1, 41))
    with pytest.raises(KeyError):
        await following


async def test_who_stops_following_can_go_on(turn: TurnStream) -> None:
    taken: list[OutputChunk] = []
    following = await followed(turn, taken)
    turn.put(tokens(0, 40))
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    turn.put(tokens(1, 41))
    turn.put(ended())
    assert said(taken) == [40]
    assert said([piece async for piece in turn]) == [41]


@pytest.mark.parametrize("follows", [True, False])
async def test_a_turn_that_failed_tells_all_it_has_said(turn: TurnStream, follows: bool) -> None:
    taken: list[OutputChunk] = []

    async def read() -> None:
        if follows:
            await turn.consume(taken.append)
        else:
            async for piece in turn:
                taken.append(piece)

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    turn.put(tokens(0, 40, 41))
    turn.put(ended("failed", "it broke"))
    with pytest.raises(TurnFailed, match="it broke"):
        await reading
    assert said(taken) == [40, 41]


@pytest.mark.parametrize("follows", [True, False])
async def test_where_it_is_interrupted(turn: TurnStream, follows: bool) -> None:
    """Between the last piece before and the first after; and what ends it is raised."""
    told: list[int | str] = []
    turn.set_on_interrupted(lambda: told.append("gone"))

    async def read() -> None:
        if follows:
            await turn.consume(lambda piece: told.extend(piece.ids))
        else:
            async for piece in turn:
                told.extend(piece.ids)

    turn.put(tokens(0, 40))
    turn.interrupt()
    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    turn.put(tokens(1, 41))
    turn.put(StaleEngineFence("taken over"))
    with pytest.raises(StaleEngineFence):
        await reading
    assert told == [40, "gone", 41]
