"""A turn as its front sees it: pieces are told in the moment they come, or when one asks."""

import asyncio
from pathlib import Path

import pytest

from continuo.engine.client.turn_stream import Piece, Turn
from continuo.engine.errors import StaleFence, TurnFailed
from continuo.engine.text import Text
from continuo.engine.wire.messages import Reason, Sampling, Tokens, TurnEnded


@pytest.fixture
def turn(letters: Path) -> Turn:
    return Turn("t", "s", Text(str(letters)).detokenizer(), Sampling(max_tokens=9))


def tokens(first: int, *ids: int) -> Tokens:
    return Tokens("s", "t", first, list(ids))


def ended(reason: Reason = "length", error: str | None = None) -> TurnEnded:
    return TurnEnded("s", "t", reason, 9, 3, 0, 6, 7, error=error)


async def followed(turn: Turn, taken: list[Piece]) -> "asyncio.Task[None]":
    following = asyncio.create_task(turn.follow(taken.append))
    await asyncio.sleep(0)
    return following


def said(pieces: list[Piece]) -> list[int]:
    return [id for piece in pieces for id in piece.ids]


async def test_what_comes_is_told_before_anything_else_happens(turn: Turn) -> None:
    taken: list[Piece] = []
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


async def test_a_fault_of_who_follows_is_theirs(turn: Turn) -> None:
    def take(piece: Piece) -> None:
        raise KeyError(piece.first)

    following = asyncio.create_task(turn.follow(take))
    await asyncio.sleep(0)
    turn.put(tokens(0, 40))
    turn.put(tokens(1, 41))
    with pytest.raises(KeyError):
        await following


async def test_who_stops_following_can_go_on(turn: Turn) -> None:
    taken: list[Piece] = []
    following = await followed(turn, taken)
    turn.put(tokens(0, 40))
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    turn.put(tokens(1, 41))
    turn.put(ended())
    assert said(taken) == [40]
    assert said([piece async for piece in turn]) == [41]


@pytest.mark.parametrize("follows", [True, False])
async def test_a_turn_that_failed_tells_all_it_has_said(turn: Turn, follows: bool) -> None:
    taken: list[Piece] = []

    async def read() -> None:
        if follows:
            await turn.follow(taken.append)
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
async def test_where_it_is_interrupted(turn: Turn, follows: bool) -> None:
    """Between the last piece before and the first after; and what ends it is raised."""
    told: list[int | str] = []
    turn.when_interrupted(lambda: told.append("gone"))

    async def read() -> None:
        if follows:
            await turn.follow(lambda piece: told.extend(piece.ids))
        else:
            async for piece in turn:
                told.extend(piece.ids)

    turn.put(tokens(0, 40))
    turn.interrupt()
    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    turn.put(tokens(1, 41))
    turn.put(StaleFence("taken over"))
    with pytest.raises(StaleFence):
        await reading
    assert told == [40, "gone", 41]
