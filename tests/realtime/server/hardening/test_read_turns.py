"""Read turns: few connections with much to read are served per round of the event loop."""

import asyncio
import time
from collections.abc import Callable

import pytest

from continuo.realtime.server.hardening.guarded_websocket import MESSAGES_PER_TURN
from continuo.realtime.server.hardening.guards import SLICE_BYTES
from continuo.realtime.server.hardening.read_turns import ReadTurns
from continuo.realtime.transport import connection
from tests.support.frames import RawWebSocket, encode_frame
from tests.support.waiting import wait_until
from tests.support.web_servers import API_KEY, RunningServer

BEARER = f"Bearer {API_KEY}"


async def test_few_turns_run_per_round_in_the_order_of_requests() -> None:
    turns, taken, rounds = ReadTurns(per_round=2), list[int](), list[int]()
    for number in range(5):
        turns.call_in_turn(lambda number=number: taken.append(number))
    while len(taken) < 5:
        await asyncio.sleep(0)
        rounds.append(len(taken))
    assert taken == [0, 1, 2, 3, 4]
    assert [count for count in dict.fromkeys(rounds) if count] == [2, 4, 5]


async def test_other_work_gets_as_much_time_as_a_round_took() -> None:
    """A small request takes several iterations of the event loop: all fit between two rounds."""
    turns, taken = ReadTurns(per_round=1), list[int]()

    def read_much(number: int) -> None:
        time.sleep(0.05)
        taken.append(number)

    for number in range(2):
        turns.call_in_turn(lambda number=number: read_much(number))
    while not taken:
        await asyncio.sleep(0)
    iterations = 0
    while taken == [0]:
        await asyncio.sleep(0)
        iterations += 1
    assert iterations >= 20


async def test_work_that_a_read_begins_counts_as_time_of_its_round() -> None:
    """A connection is read in the iteration after its turn, and its request begins in the next."""
    turns, taken, loop = ReadTurns(per_round=1), list[int](), asyncio.get_running_loop()

    def read(number: int) -> None:
        taken.append(number)
        loop.call_soon(loop.call_soon, time.sleep, 0.05)

    for number in range(2):
        turns.call_in_turn(lambda number=number: read(number))
    while not taken:
        await asyncio.sleep(0)
    iterations = 0
    while taken == [0]:
        await asyncio.sleep(0)
        iterations += 1
    assert iterations >= 20


async def test_turn_requested_within_a_turn_runs_in_the_next_round() -> None:
    turns, taken = ReadTurns(per_round=8), list[str]()

    def request_turn() -> None:
        taken.append("first")
        turns.call_in_turn(lambda: taken.append("second"))

    turns.call_in_turn(request_turn)
    await asyncio.sleep(0)
    assert taken == ["first"]
    while len(taken) < 2:
        await asyncio.sleep(0)
    assert taken == ["first", "second"]


async def test_cancelled_wait_does_not_use_up_a_turn() -> None:
    turns = ReadTurns(per_round=1)
    waits = [asyncio.create_task(turns.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*waits[1:])


async def test_flood_of_frames_does_not_delay_another_client(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frame of another client is handled before thousands of frames in one chunk are."""
    handled: list[str | None] = []
    decode_command = connection.decode_command

    def counting(event, *rest):
        handled.append(event.event_id)
        return decode_command(event, *rest)

    monkeypatch.setattr(connection, "decode_command", counting)
    flood = await RawWebSocket.connect(server.port, Authorization=BEARER)
    other = await RawWebSocket.connect(server.port, Authorization=BEARER)
    for peer in (flood, other):
        await peer.wait_for("session.created")
    clear = encode_frame('{"type": "input_audio_buffer.clear"}')
    flood.writer.write(clear * 4_000)
    while not handled:
        await asyncio.sleep(0)
    await other.send_event(type="input_audio_buffer.clear", event_id="single")
    await other.wait_for("input_audio_buffer.cleared")
    assert "single" in handled
    assert len(handled) < 2_000
    flood.reset()
    other.close()


async def test_only_the_first_read_of_a_connection_waits_for_a_turn(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few new connections are read per round; later requests of open ones need no turn."""
    taken: list[None] = []
    call_in_turn = ReadTurns.call_in_turn

    def counted(turns: ReadTurns, callback: Callable[[], None]) -> None:
        taken.append(None)
        call_in_turn(turns, callback)

    monkeypatch.setattr(ReadTurns, "call_in_turn", counted)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for _ in range(3):
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(size)
        assert len(taken) == 1
    writer.close()


@pytest.fixture
def held_turns(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The requested turns, none of which is granted."""
    held: list[Callable[[], None]] = []
    monkeypatch.setattr(ReadTurns, "call_in_turn", lambda _turns, turn: held.append(turn))
    return held


async def test_request_sent_with_its_connection_waits_for_a_turn(
    server: RunningServer, held_turns: list[Callable[[], None]]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
    await wait_until(lambda: bool(held_turns))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.1)
    held_turns[0]()
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
    writer.close()


async def test_rest_of_a_large_first_read_waits_for_another_turn(
    server: RunningServer, held_turns: list[Callable[[], None]]
) -> None:
    """The bytes that wait are charged to the incoming budget meanwhile."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: {4 * SLICE_BYTES}\r\n\r\n"
    writer.write(head.encode() + b" " * (4 * SLICE_BYTES))
    for granted in range(2):
        await wait_until(lambda granted=granted: len(held_turns) > granted)
        assert server.web_server.incoming_budget.charged_bytes > SLICE_BYTES
        held_turns[granted]()
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
    writer.close()
    await wait_until(lambda: server.web_server.incoming_budget.charged_bytes == 0)


async def test_few_small_messages_sent_together_wait_for_no_turn(
    server: RunningServer, held_turns: list[Callable[[], None]]
) -> None:
    connecting = asyncio.create_task(RawWebSocket.connect(server.port, Authorization=BEARER))
    await wait_until(lambda: bool(held_turns))
    held_turns.pop()()
    peer = await connecting
    await peer.wait_for("session.created")
    clear = encode_frame('{"type": "input_audio_buffer.clear"}')
    for _ in range(2):
        peer.writer.write(clear * MESSAGES_PER_TURN)
        for _ in range(MESSAGES_PER_TURN):
            await peer.wait_for("input_audio_buffer.cleared")
        assert not held_turns
    peer.writer.write(clear * 100)
    for _ in range(MESSAGES_PER_TURN):
        await peer.wait_for("input_audio_buffer.cleared")
    await wait_until(lambda: bool(held_turns))
    peer.reset()
