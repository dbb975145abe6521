"""Read turns: input is parsed for a bounded time in a round of the event loop."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from typing import cast

import pytest

from continuo.realtime.metrics import REGISTRY
from continuo.realtime.server.hardening import guards
from continuo.realtime.server.hardening.guarded_http import GuardedHttp
from continuo.realtime.server.hardening.guarded_websocket import MESSAGE_S, GuardedWebSocket
from continuo.realtime.server.hardening.guards import SLICE_BYTES, UnreadInput
from continuo.realtime.server.hardening.read_turns import ReadTurns
from continuo.realtime.transport import connection
from tests.support.frames import BINARY, CONTINUATION, PING, PONG, RawWebSocket, encode_frame
from tests.support.waiting import wait_until
from tests.support.web_servers import API_KEY, RunningServer

BEARER = f"Bearer {API_KEY}"
READ_BYTES = 256 * 1024
"""Bytes that a peer sends at once."""


class Clock:
    """Time that passes only when a reader parses."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FakeReader:
    """A reader of slices that each take `slice_s` on a fake clock."""

    def __init__(
        self, clock: Clock, slices: int, slice_s: float, slice_bytes: int = SLICE_BYTES
    ) -> None:
        self._clock, self._slice_s, self._slice_bytes = clock, slice_s, slice_bytes
        self.left = slices
        self.parsed = 0
        self.used_s = 0.0
        self.is_light = True
        self.owner: object = None

    @property
    def unread_bytes(self) -> int:
        return self.left * self._slice_bytes

    def parse_slice(self) -> bool:
        self._clock.now_s += self._slice_s
        self.left -= 1
        self.parsed += 1
        return self.left > 0

    def spend(self, seconds: float) -> None:
        self.used_s += seconds

    def abort(self) -> None:
        raise AssertionError("it cannot fail")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> ReadTurns:
    return ReadTurns(0.001, 0.004, clock)


async def rounds(turns: ReadTurns) -> AsyncIterator[None]:
    """Each iteration of the event loop until no reader waits."""
    while turns._waiting:
        await asyncio.sleep(0)
        yield


async def test_reader_yields_when_its_turn_is_used(clock: Clock, turns: ReadTurns) -> None:
    reader = FakeReader(clock, slices=100, slice_s=0.0003)
    turns.submit(reader)
    assert (reader.parsed, reader.used_s) == (4, pytest.approx(0.0012))
    parsed = [reader.parsed async for _ in rounds(turns)]
    assert reader.left == 0
    gains = [after - before for before, after in itertools.pairwise([4, *parsed])]
    assert max(gains) <= 16, "a round of four turns"


async def test_small_read_is_parsed_at_once(clock: Clock, turns: ReadTurns) -> None:
    reader = FakeReader(clock, slices=1, slice_s=0.0001)
    turns.submit(reader)
    assert reader.parsed == 1
    assert not turns._waiting


async def test_many_small_reads_at_the_same_time_wait_for_rounds(
    clock: Clock, turns: ReadTurns
) -> None:
    """64 new readers: none but the first few is parsed at once, and no round takes over its time
    and one turn."""
    readers = [FakeReader(clock, slices=1, slice_s=0.0005) for _ in range(64)]
    for reader in readers:
        turns.submit(reader, least_s=0.001)
    at_once = sum(reader.parsed for reader in readers)
    assert 2 <= at_once <= 8, "one round of it"
    done = [at_once]
    async for _ in rounds(turns):
        done.append(sum(reader.parsed for reader in readers))
    assert done[-1] == 64
    assert max(after - before for before, after in itertools.pairwise(done)) == 4


async def test_reader_of_a_tenant_does_not_wait_behind_hundreds_without_a_key(
    clock: Clock, turns: ReadTurns
) -> None:
    """Nor behind those of another tenant. All have as much to read, and have used much time."""
    readers = [FakeReader(clock, slices=3, slice_s=0.0005) for _ in range(400)]
    for reader in readers[200:]:
        reader.owner = "another"
    for reader in readers:
        reader.is_light = False
        turns.submit(reader)
    own = FakeReader(clock, slices=3, slice_s=0.0005)
    own.owner, own.is_light = "own", False
    turns.submit(own)
    assert not own.parsed
    async for _ in rounds(turns):
        if not own.left:
            break
    assert sum(not reader.left for reader in readers) < 20


async def test_small_read_of_a_light_connection_does_not_wait_for_others(
    clock: Clock, turns: ReadTurns
) -> None:
    flood = FakeReader(clock, slices=1000, slice_s=0.0005)
    turns.submit(flood)
    light = FakeReader(clock, slices=1, slice_s=0.0001)
    turns.submit(light)
    assert light.parsed == 1
    heavy = FakeReader(clock, slices=1, slice_s=0.0001)
    heavy.is_light = False
    turns.submit(heavy)
    assert heavy.parsed == 0
    turns.withdraw(flood)


async def test_light_readers_of_a_tenant_have_a_round_in_each_iteration(
    clock: Clock, turns: ReadTurns
) -> None:
    """However many they are; a flood goes on in the rounds that are left to it."""
    flood = FakeReader(clock, slices=100_000, slice_s=0.0005)
    flood.is_light, flood.owner = False, "flood"
    streams = [FakeReader(clock, slices=1, slice_s=0.001) for _ in range(100)]
    for reader in (flood, *streams):
        reader.owner = reader.owner or "own"
        turns.submit(reader)
    parsed = [sum(reader.parsed for reader in streams)]
    flooded = flood.parsed
    while any(reader.left for reader in streams):
        await asyncio.sleep(0)
        parsed.append(sum(reader.parsed for reader in streams))
    gains = {after - before for before, after in itertools.pairwise(parsed[:-1])}
    assert gains == {4}, "a round in each iteration"
    assert flood.parsed - flooded <= 6, "one round of its own"
    while flood.parsed - flooded <= 6:
        await asyncio.sleep(0)
    turns.withdraw(flood)


async def test_long_wait_of_a_light_reader_is_counted_and_logged(
    clock: Clock, turns: ReadTurns, caplog: pytest.LogCaptureFixture
) -> None:
    def waits() -> float:
        return REGISTRY.get_sample_value("continuo_input_wait_seconds_count") or 0.0

    before = waits()
    readers = [FakeReader(clock, slices=1, slice_s=0.6) for _ in range(6)]
    for reader in readers:
        reader.owner = "own"
        turns.submit(reader)
    async for _ in rounds(turns):
        pass
    assert waits() - before == 5, "all but the one that was parsed at once"
    assert caplog.messages == ["input of a client within its share has waited 1.2 s"]


async def test_light_connections_together_take_half_of_the_time(
    clock: Clock, turns: ReadTurns
) -> None:
    flood, at_once = FakeReader(clock, slices=1000, slice_s=0.0005), 0
    turns.submit(flood)
    began_s = clock.now_s
    for _ in range(1000):
        reader = FakeReader(clock, slices=1, slice_s=0.0005)
        turns.submit(reader)
        at_once += reader.parsed
        turns.withdraw(reader)
        clock.now_s += 0.0001
    assert at_once > 10
    assert at_once * 0.0005 <= 0.5 * (clock.now_s - began_s) + 0.005
    turns.withdraw(flood)


async def test_reading_at_once_takes_half_of_the_time(clock: Clock, turns: ReadTurns) -> None:
    at_once = 0
    for _ in range(1000):
        reader = FakeReader(clock, slices=1, slice_s=0.0005)
        reader.is_light = False
        turns.submit(reader)
        at_once += reader.parsed
        turns.withdraw(reader)
        clock.now_s += 0.0001
    assert at_once * 0.0005 <= 0.5 * (clock.now_s - 100) + 0.005


async def test_reader_with_little_comes_before_those_with_much(
    clock: Clock, turns: ReadTurns
) -> None:
    many = [FakeReader(clock, slices=1000, slice_s=0.0005) for _ in range(100)]
    for reader in many:
        turns.submit(reader)
    small = FakeReader(clock, slices=1, slice_s=0.0001, slice_bytes=100)
    turns.submit(small)
    before = sum(reader.parsed for reader in many)
    async for _ in rounds(turns):
        if small.parsed:
            break
    assert sum(reader.parsed for reader in many) - before <= 8, "one round"


async def test_turn_of_the_reader_that_waited_longest_leaves_the_round_to_small_ones(
    clock: Clock, turns: ReadTurns
) -> None:
    large = [FakeReader(clock, slices=1000, slice_s=0.004) for _ in range(50)]
    small = [FakeReader(clock, slices=1, slice_s=0.0005, slice_bytes=100) for _ in range(16)]
    for reader in (*large, *small):
        reader.is_light = False
        turns.submit(reader)
    before = sum(reader.parsed for reader in large)
    async for _ in rounds(turns):
        if all(reader.parsed for reader in small):
            break
    assert sum(reader.parsed for reader in large) - before <= 2, "two rounds"


async def test_reader_with_much_is_served_while_small_ones_keep_coming(
    clock: Clock, turns: ReadTurns
) -> None:
    large = FakeReader(clock, slices=5, slice_s=0.001)
    small = [FakeReader(clock, slices=100_000, slice_s=0.001, slice_bytes=0) for _ in range(8)]
    for reader in (*small, large):
        turns.submit(reader)
    async with asyncio.timeout(60):
        while large.left:
            await asyncio.sleep(0)
    assert sum(reader.parsed for reader in small) > 5 * 3


async def test_other_work_gets_twice_the_time_that_a_round_took() -> None:
    """A small request takes several iterations of the event loop: all fit between two rounds."""
    turns, reader = ReadTurns(), BusyReader(0.05, 3)
    turns.submit(reader)
    while reader.left == 2:
        await asyncio.sleep(0)
    iterations = 0
    while reader.left:
        await asyncio.sleep(0)
        iterations += 1
    assert iterations >= 20
    assert reader.began_s[2] - reader.ended_s[1] >= 0.09, "twice 0.05, less the clock's rounding"


class BusyReader:
    """A reader of slices that each take `slice_s` of the thread's time."""

    unread_bytes = 1_000_000
    is_light = False
    owner: object = None

    def __init__(self, slice_s: float, slices: int) -> None:
        self._slice_s = slice_s
        self.left = slices
        self.began_s: list[float] = []
        self.ended_s: list[float] = []

    def parse_slice(self) -> bool:
        self.began_s.append(time.monotonic())
        end_s = time.thread_time() + self._slice_s
        while time.thread_time() < end_s:
            pass
        self.ended_s.append(time.monotonic())
        self.left -= 1
        return self.left > 0

    def spend(self, seconds: float) -> None: ...

    def abort(self) -> None: ...


async def test_exception_of_a_reader_does_not_stop_the_turns(
    clock: Clock, turns: ReadTurns
) -> None:
    aborted: list[str] = []

    class Broken:
        unread_bytes = 10_000
        owner = None
        is_light = False

        def parse_slice(self) -> bool:
            raise RuntimeError("a fault of a parser")

        def spend(self, seconds: float) -> None: ...

        def abort(self) -> None:
            aborted.append("the broken one")

    loop, reported = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda _loop, context: reported.append(str(context["exception"])))
    first, second = (FakeReader(clock, slices=20, slice_s=0.001) for _ in range(2))
    for reader in (first, Broken(), second):
        turns.submit(reader)
    async for _ in rounds(turns):
        pass
    assert (first.left, second.left) == (0, 0)
    assert (reported, aborted) == (["a fault of a parser"], ["the broken one"])


PIECES = {
    "pings": encode_frame(b"", PING),
    "pongs": encode_frame(b"", PONG),
    "fragments": encode_frame(b"xx" * 32, CONTINUATION, fin=False),
    "texts": encode_frame(b"{}"),
}


@pytest.mark.parametrize("piece", PIECES.values(), ids=list(PIECES))
async def test_read_of_small_frames_lets_the_loop_run(server: RunningServer, piece: bytes) -> None:
    peer = await RawWebSocket.connect(server.port, Authorization=BEARER)
    await peer.receive_event()
    (socket,) = cast("set[GuardedWebSocket]", server.web_server.server_state.connections)
    first = encode_frame(b"{", fin=False) if piece == PIECES["fragments"] else b""
    assert await count_iterations(socket, first + piece * (READ_BYTES // len(piece))) >= 10
    peer.reset()


async def test_read_of_small_chunks_lets_the_loop_run(server: RunningServer) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    await wait_until(lambda: bool(server.web_server.server_state.connections))
    (connection,) = cast("set[GuardedHttp]", server.web_server.server_state.connections)
    await wait_until(lambda: connection.cycle is not None)
    chunks = b"1\r\nx\r\n" * (READ_BYTES // 6)
    assert await count_iterations(connection, chunks) >= 10
    writer.close()


async def count_iterations(connection: UnreadInput, data: bytes) -> int:
    """Give a connection the bytes of one read. Returns after how many iterations of the event loop
    it has parsed the last."""
    connection.data_received(data)  # type: ignore[attr-defined]  # of the protocol
    iterations = 0
    while connection.unread_bytes:
        await asyncio.sleep(0)
        iterations += 1
    return iterations


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


async def test_reads_are_bounded(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop reads all sockets with input before it does anything else."""
    reads: list[int] = []
    submit = ReadTurns.submit

    def noting(turns: ReadTurns, reader: UnreadInput, seconds: float) -> None:
        reads.append(reader.unread_bytes)
        submit(turns, reader, seconds)

    monkeypatch.setattr(ReadTurns, "submit", noting)
    body = b" " * READ_BYTES
    head = f"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head.encode() + body)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
    writer.close()
    peer = await RawWebSocket.connect(server.port, Authorization=BEARER)
    await peer.wait_for("session.created")
    peer.writer.write(encode_frame(b"x" * READ_BYTES))
    await peer.wait_for("error")
    peer.reset()
    assert max(reads) == guards.READ_BYTES
    assert sum(reads) > 2 * READ_BYTES


async def test_input_after_a_close_waits_in_the_socket(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A binary frame closes the connection; the peer goes on sending."""
    waiting: list[int] = []
    receive = GuardedWebSocket._receive

    def noting(socket: GuardedWebSocket, data: bytes, least_s: float = 0.0) -> None:
        receive(socket, data, least_s)
        waiting.append(socket.unread_bytes)

    monkeypatch.setattr(GuardedWebSocket, "_receive", noting)
    peer = await RawWebSocket.connect(server.port, Authorization=BEARER)
    await peer.wait_for("session.created")
    frame = encode_frame(b"x", BINARY)
    peer.writer.write(frame * (4 * READ_BYTES // len(frame)))
    await wait_until(lambda: not server.web_server.server_state.connections, timeout_s=60)
    assert len(waiting) > 3
    assert max(waiting) <= 2 * guards.READ_BYTES
    peer.reset()


async def test_receiving_counts_as_time_of_a_turn(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Input that is only copied and discarded takes time, too."""
    least_s: list[float] = []
    submit = ReadTurns.submit

    def noting(turns: ReadTurns, reader: UnreadInput, seconds: float) -> None:
        least_s.append(seconds)
        submit(turns, reader, seconds)

    monkeypatch.setattr(ReadTurns, "submit", noting)
    peer = await RawWebSocket.connect(server.port, Authorization=BEARER)
    await peer.wait_for("session.created")
    (socket,) = cast("set[GuardedWebSocket]", server.web_server.server_state.connections)
    used_s = socket.account._used_s
    socket.data_received(encode_frame(b"", PONG) * (READ_BYTES // 6))
    assert least_s[-1] == pytest.approx(MESSAGE_S + 0.00026, rel=0.1)
    assert socket.account._used_s - used_s >= 0.00026
    peer.reset()


async def test_bytes_that_wait_are_charged_to_the_budget(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[UnreadInput] = []
    monkeypatch.setattr(ReadTurns, "submit", lambda _turns, reader, _s: waiting.append(reader))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: {4 * SLICE_BYTES}\r\n\r\n"
    writer.write(head.encode() + b" " * (4 * SLICE_BYTES))
    await wait_until(lambda: bool(waiting))
    assert server.web_server.incoming_budget.charged_bytes > SLICE_BYTES
    while waiting[0].parse_slice():
        pass
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
    writer.close()
    await wait_until(lambda: server.web_server.incoming_budget.charged_bytes == 0)


def note_parts(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Note each part that a connection over HTTP parses in one piece."""
    parts: list[bytes] = []
    parse = GuardedHttp._read

    def parse_and_note(connection: GuardedHttp, part: bytes) -> None:
        parts.append(part)
        parse(connection, part)

    monkeypatch.setattr(GuardedHttp, "_read", parse_and_note)
    return parts


async def test_body_of_a_stated_length_is_parsed_in_one_piece_and_all_else_in_slices(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece of a body costs as much as its first byte, and so does a chunk of one byte."""
    parts = note_parts(monkeypatch)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = b"POST /nothing HTTP/1.1\r\nHost: x\r\n"
    whole = b"Content-Length: %d\r\n\r\n" % (4 * SLICE_BYTES) + b"b" * 4 * SLICE_BYTES
    short = b"content-length: 5\r\n\r\nbbbbb"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nb\r\n" * 700 + b"0\r\n\r\n"
    writer.write(b"".join(head + body for body in (whole, chunked, short, chunked, whole)))
    for _ in range(5):
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404 ")
        await reader.readexactly(int(answer.lower().split(b"content-length: ")[1].split(b"\r")[0]))
    large = [part for part in parts if len(part) > SLICE_BYTES]
    assert {bytes([byte]) for part in large for byte in part} == {b"b"}
    assert sum(map(len, large)) > 2 * SLICE_BYTES
    writer.close()


async def test_each_frame_is_parsed_in_one_piece(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[bytes] = []
    take = GuardedWebSocket._take

    def take_and_note(connection: GuardedWebSocket, size: int) -> bytes:
        parts.append(part := take(connection, size))
        return part

    monkeypatch.setattr(GuardedWebSocket, "_take", take_and_note)
    peer = await RawWebSocket.connect(server.port, Authorization=BEARER)
    await peer.wait_for("session.created")
    payload = b" " * 4 * SLICE_BYTES
    text, pong = encode_frame(payload), encode_frame(b"", PONG)
    await peer.send(text + pong * 700 + text)
    for _ in range(2):
        assert (await peer.receive_event())["error"]["code"] == "invalid_json"
    assert [part for part in parts if len(part) != len(text)] == [pong] * 700
    assert len(parts) == 702
    peer.reset()


async def test_heads_and_payloads_may_arrive_in_any_pieces(server: RunningServer) -> None:
    """A text, a fragmented one and one of several reads, cut at each of their first bytes."""
    clear = '{"type": "input_audio_buffer.clear"}'
    for text in (clear, clear + " " * 70_000):
        whole = encode_frame(text)
        fragments = encode_frame(text[:5], fin=False) + encode_frame(text[5:], CONTINUATION)
        for frames, cut in itertools.product((whole, fragments), range(1, 16)):
            peer = await RawWebSocket.connect(server.port, Authorization=BEARER)
            await peer.wait_for("session.created")
            (socket,) = cast("set[GuardedWebSocket]", server.web_server.server_state.connections)
            socket.data_received(frames[:cut])
            socket.data_received(frames[cut:])
            assert (await peer.receive_event())["type"] == "input_audio_buffer.cleared"
            peer.reset()
            await wait_until(lambda: not server.web_server.server_state.connections)


async def test_owner_of_a_connection_is_its_tenant(server: RunningServer) -> None:
    """Over HTTP, that of its request; a WebSocket has one from its start."""
    connections = server.web_server.server_state.connections
    body = b'{"model": "demo", "input": "Hello!"}'
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: {BEARER}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await wait_until(lambda: len(connections) == 1)
    (http,) = cast(set[GuardedHttp], connections)
    assert http.owner is None
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert b" 200 " in await reader.readline()
    tenant = http.owner
    assert tenant is not None
    websocket = await RawWebSocket.connect(server.port, Authorization=BEARER)
    await websocket.wait_for("session.created")
    (accepted,) = connections - {http}
    assert cast(GuardedWebSocket, accepted).owner is tenant
    writer.close()
    websocket.reset()
