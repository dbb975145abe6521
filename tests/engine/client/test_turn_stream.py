"""Tests of the turn stream: pieces are pushed to a consumer on arrival, or pulled by iteration."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from continuo.engine.client.turn_stream import OutputChunk, TurnStream
from continuo.engine.errors import SessionDetached, StaleEngineFence, TurnFailed
from continuo.engine.text import ModelText
from continuo.engine.wire.messages import Sampling, TurnEnded, TurnEndReason, TurnTokens
from tests.support.garbage import garbage_of_block


@pytest.fixture
def turn(letters: Path) -> TurnStream:
    return TurnStream(
        "t", "s", ModelText(str(letters)).create_output_decoder(), Sampling(max_tokens=9)
    )


def tokens(first: int, *ids: int) -> TurnTokens:
    return TurnTokens("s", "t", first, list(ids))


def ended(reason: TurnEndReason = "length", error: str | None = None) -> TurnEnded:
    return TurnEnded("s", "t", reason, 9, 3, 0, 6, 7, error=error)


async def start_consuming(turn: TurnStream, pieces: list[OutputChunk]) -> "asyncio.Task[None]":
    consuming = asyncio.create_task(turn.consume(pieces.append))
    await asyncio.sleep(0)
    return consuming


def ids_of(chunks: list[OutputChunk]) -> list[int]:
    return [id for piece in chunks for id in piece.ids]


async def test_tokens_are_delivered_without_waiting_for_the_event_loop(turn: TurnStream) -> None:
    pieces: list[OutputChunk] = []
    turn.put(tokens(0, 40, 41))
    consuming = await start_consuming(turn, pieces)
    assert ids_of(pieces) == [40, 41], "tokens that arrived before"
    turn.put(tokens(2, 42))
    assert ids_of(pieces) == [40, 41, 42], "without a round of the event loop"
    turn.put(tokens(1, 41, 42, 43))
    assert ids_of(pieces) == [40, 41, 42, 43], "only new tokens"
    turn.put(ended())
    await consuming
    assert turn.ended == ended()


async def test_exception_of_the_consumer_is_raised_from_consume(turn: TurnStream) -> None:
    def fail(piece: OutputChunk) -> None:
        raise KeyError(piece.first)

    consuming = asyncio.create_task(turn.consume(fail))
    await asyncio.sleep(0)
    turn.put(tokens(0, 40))
    turn.put(tokens(1, 41))
    with pytest.raises(KeyError):
        await consuming


async def test_cancelled_consumer_can_continue_by_iteration(turn: TurnStream) -> None:
    pieces: list[OutputChunk] = []
    consuming = await start_consuming(turn, pieces)
    turn.put(tokens(0, 40))
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    turn.put(tokens(1, 41))
    turn.put(ended())
    assert ids_of(pieces) == [40]
    assert ids_of([piece async for piece in turn]) == [41]


@pytest.mark.parametrize("consumes", [True, False])
async def test_failed_turn_delivers_all_its_output_first(turn: TurnStream, consumes: bool) -> None:
    pieces: list[OutputChunk] = []

    async def read() -> None:
        if consumes:
            await turn.consume(pieces.append)
        else:
            async for piece in turn:
                pieces.append(piece)

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    turn.put(tokens(0, 40, 41))
    turn.put(ended("failed", "it broke"))
    with pytest.raises(TurnFailed, match="it broke"):
        await reading
    assert ids_of(pieces) == [40, 41]


@pytest.mark.parametrize("consumes", [True, False])
async def test_error_of_a_turn_is_freed_without_garbage_collection(
    letters: Path, consumes: bool
) -> None:
    """An error keeps the frames that it passed. A cycle of theirs stays in a gateway for ever."""
    decoder = ModelText(str(letters)).create_output_decoder()

    async def read(turn: TurnStream, begun: asyncio.Event) -> None:
        asyncio.get_running_loop().call_soon(begun.set)
        with contextlib.suppress(StaleEngineFence):
            if consumes:
                await turn.consume(lambda _: None)
            else:
                _ = [piece async for piece in turn]
            raise AssertionError("the turn was not taken over")

    def take_over(turn: TurnStream) -> None:
        taken_over = StaleEngineFence("session s was taken over")
        for each in [turn]:
            each.put(taken_over)

    async def read_and_take_over() -> None:
        turn = TurnStream("t", "s", decoder, Sampling(max_tokens=9))
        reading = asyncio.create_task(read(turn, begun := asyncio.Event()))
        await begun.wait()
        take_over(turn)
        await reading

    with garbage_of_block() as garbage:
        await read_and_take_over()
    assert not garbage


@pytest.mark.parametrize("consumes", [True, False])
async def test_loss_of_the_engine_is_raised_between_the_pieces_around_it(
    turn: TurnStream, consumes: bool
) -> None:
    """SessionDetached is raised once until the session is attached again. The error that ends the
    turn is raised after the last piece."""
    received: list[int] = []

    async def read() -> None:
        if consumes:
            await turn.consume(lambda piece: received.extend(piece.ids))
        else:
            async for piece in turn:
                received.extend(piece.ids)

    turn.put(tokens(0, 40))
    for last in (41, 42):
        turn.detach()
        turn.detach()
        with pytest.raises(SessionDetached):
            await read()
        assert received == turn.ids
        turn.attach()
        turn.put(tokens(0, *turn.ids, last))
    turn.put(StaleEngineFence("taken over"))
    turn.detach()
    with pytest.raises(StaleEngineFence):
        await read()
    assert received == turn.ids == [40, 41, 42]


async def test_loss_of_the_server_is_reported_between_the_pieces_around_it(
    turn: TurnStream,
) -> None:
    received: list[int | str] = []

    def extend(piece: OutputChunk) -> None:
        received.extend(piece.ids)

    def interrupt() -> None:
        received.append("interrupted")

    turn.put(tokens(0, 40))
    turn.put(TurnTokens("s", "t", 1, [], interrupted=True))
    turn.put(tokens(1, 41))
    turn.put(ended())
    await turn.consume(extend, interrupt)
    assert received == [40, "interrupted", 41]


async def test_turn_ended_by_the_client_counts_its_ids(turn: TurnStream) -> None:
    turn.prompt_tokens = 3
    turn.put(tokens(0, 40, 41))
    turn.end("failed", "the session is quarantined")
    with pytest.raises(TurnFailed, match="quarantined"):
        await turn.consume(lambda _piece: None)
    assert turn.ended is not None
    assert (turn.ended.prompt_tokens, turn.ended.output_tokens, turn.ended.length) == (3, 2, 5)
