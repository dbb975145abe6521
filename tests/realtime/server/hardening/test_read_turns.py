"""Turns of connections with much to read."""

import asyncio
from collections.abc import Callable

import pytest

from continuo.realtime.server.hardening.read_turns import ReadTurns
from continuo.realtime.transport import connection
from tests.support.frames import Peer, frame
from tests.support.web_servers import KEY, Running

BEARER = f"Bearer {KEY}"


async def test_a_few_take_their_turn_in_each_round_first_come_first_served() -> None:
    turns, taken, rounds = ReadTurns(per_round=2), list[int](), list[int]()
    for number in range(5):
        turns.call_in_turn(lambda number=number: taken.append(number))
    while len(taken) < 5:
        await asyncio.sleep(0)
        rounds.append(len(taken))
    assert taken == [0, 1, 2, 3, 4]
    assert [count for count in dict.fromkeys(rounds) if count] == [2, 4, 5]


async def test_a_turn_that_is_taken_within_a_turn_is_one_of_the_next_round() -> None:
    turns, taken = ReadTurns(per_round=8), list[str]()

    def again() -> None:
        taken.append("first")
        turns.call_in_turn(lambda: taken.append("second"))

    turns.call_in_turn(again)
    await asyncio.sleep(0)
    assert taken == ["first"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert taken == ["first", "second"]


async def test_a_wait_that_is_cancelled_takes_no_turn_of_others() -> None:
    turns = ReadTurns(per_round=1)
    waits = [asyncio.create_task(turns.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*waits[1:])


async def test_a_flood_of_frames_does_not_hold_up_a_single_one(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of frames in one chunk are not handled before the frame of another client."""
    handled: list[str | None] = []
    hear = connection.decode_command

    def counting(event, *rest):
        handled.append(event.event_id)
        return hear(event, *rest)

    monkeypatch.setattr(connection, "decode_command", counting)
    flood = await Peer.connect(running.port, Authorization=BEARER)
    other = await Peer.connect(running.port, Authorization=BEARER)
    for peer in (flood, other):
        await peer.until("session.created")
    clear = frame('{"type": "input_audio_buffer.clear"}')
    flood.writer.write(clear * 4_000)
    while not handled:
        await asyncio.sleep(0)
    await other.say(type="input_audio_buffer.clear", event_id="single")
    await other.until("input_audio_buffer.cleared")
    assert "single" in handled
    assert len(handled) < 2_000
    flood.reset()
    other.close()


async def test_a_new_connection_waits_for_a_turn_and_an_open_one_does_not(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst of connections is read a few in each round; open connections are not behind it."""
    taken: list[None] = []
    call_in_turn = ReadTurns.call_in_turn

    def counted(turns: ReadTurns, callback: Callable[[], None]) -> None:
        taken.append(None)
        call_in_turn(turns, callback)

    monkeypatch.setattr(ReadTurns, "call_in_turn", counted)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    for _ in range(3):
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(size)
        assert len(taken) == 1
    writer.close()
