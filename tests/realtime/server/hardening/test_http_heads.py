"""The head of a request has a bound, however it arrives, and what it may not cost."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.realtime.server.hardening import guarded_http, guards
from tests.support.frames import upgrade
from tests.support.web_servers import KEY, Running

LINE = b"GET /health HTTP/1.1\r\nHost: x\r\n"
KIB = 1024


class Caller:
    """One TCP connection, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def pour(self, chunk: bytes, bytes_max: int) -> None:
        """Until the server has had enough, or so much is sent."""
        with contextlib.suppress(ConnectionError):
            for _ in range(bytes_max // len(chunk)):
                await self.send(chunk)

    async def send_for_ever(self, chunk: bytes, pause_s: float = 0.0) -> None:
        """Until it is stopped."""
        while True:
            await self.send(chunk)
            await asyncio.sleep(pause_s)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)
        first, *lines = head.decode().split("\r\n")[:-2]
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers, body

    async def refusal(self) -> tuple[int, str, str]:
        """Status, code and message; then the end of the connection, in order."""
        status, headers, body = await self.answer()
        assert headers["connection"] == "close"
        assert headers["content-type"] == "application/json"
        assert await asyncio.wait_for(self.reader.read(), 20) == b"", "the end, not a reset"
        error = json.loads(body)["error"]
        assert error["type"] == ("server_error" if status == 503 else "invalid_request_error")
        return status, error["code"], error["message"]


@contextlib.asynccontextmanager
async def called(port: int) -> AsyncIterator[Caller]:
    caller = Caller(*await asyncio.open_connection("127.0.0.1", port))
    yield caller
    caller.writer.close()


TOO_LONG_LINE = (414, "request_line_too_long", "The request line is over 16,384 bytes.")
TOO_LARGE = (431, "headers_too_large", "The headers are over 65,536 bytes.")
TOO_MANY = (431, "headers_too_large", "The request has more than 128 header lines.")


def headers(count: int, size: int) -> bytes:
    return b"".join(b"X-%04d: %s\r\n" % (number, b"a" * size) for number in range(count))


ENDLESS = {
    "headers": (LINE + headers(100, 700), TOO_LARGE),
    "small headers": (LINE + headers(300, 1), TOO_MANY),
    "one value": (LINE + b"X: " + b"a" * 100_000, TOO_LARGE),
    "one name": (LINE + b"a" * 100_000, TOO_LARGE),
    "a request line": (b"GET /" + b"a" * 100_000, TOO_LONG_LINE),
    "spaces before the target": (b"GET " + b" " * 100_000, TOO_LONG_LINE),
    "line ends": (b"\r\n" * 50_000, TOO_LONG_LINE),
    "an upgrade": (upgrade()[:-2] + headers(100, 700), TOO_LARGE),
    "lines of an upgrade": (upgrade()[:-2] + headers(300, 1), TOO_MANY),
}


@pytest.mark.parametrize("size", [256 * KIB, 1000], ids=["at once", "in pieces"])
@pytest.mark.parametrize(("sent", "refusal"), ENDLESS.values(), ids=list(ENDLESS))
async def test_an_endless_head_is_refused(
    running: Running, sent: bytes, refusal: tuple[int, str, str], size: int
) -> None:
    async with called(running.port) as caller:
        for start in range(0, len(sent), size):
            await caller.send(sent[start : start + size])
        assert await caller.refusal() == refusal
    assert running.server.incoming_budget.charged_bytes == 0


@pytest.mark.parametrize("name", ["headers", "small headers", "one value", "a request line"])
async def test_an_endless_head_of_single_bytes_is_refused(
    running: Running, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(guarded_http, "REQUEST_LINE_BYTES_MAX", 500)
    monkeypatch.setattr(guarded_http, "HEADERS_BYTES_MAX", 1500)
    sent, (status, code, _) = ENDLESS[name]
    async with called(running.port) as caller:
        for number in range(min(len(sent), 3000)):
            with contextlib.suppress(ConnectionError):
                await caller.send(sent[number : number + 1])
                await asyncio.sleep(0)
        assert (await caller.refusal())[:2] == (status, code)


async def test_a_head_at_the_bounds_and_a_body_behind_it(running: Running) -> None:
    """In one chunk, and again on the same connection."""
    body = b'{"expires_after": {"seconds": 60}}' + b" " * 1_000_000
    line = b"POST /v1/realtime/client_secrets?x=" + b"a" * 16_000 + b" HTTP/1.1\r\nHost: x\r\n"
    head = line + b"Authorization: Bearer %s\r\n" % KEY.encode() + headers(120, 500)
    async with called(running.port) as caller:
        for _ in range(2):
            await caller.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert (await caller.answer())[0] == 200


async def test_a_body_in_small_chunks_is_no_head(running: Running) -> None:
    """And neither is what frames the chunks."""
    start = (
        b"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        b"Authorization: Bearer %s\r\n\r\n2\r\n{}\r\n" % KEY.encode()
    )
    async with called(running.port) as caller:
        await caller.send(start + b"00000001;x=y\r\n \r\n" * 20_000 + b"0\r\nX: y\r\n\r\n")
        assert (await caller.answer())[0] == 200


TRAILERS = {
    "trailers": headers(300, 1),
    "one trailer": b"X: " + b"a" * 100_000,
    "the frame of a chunk": b"",
}


@pytest.mark.parametrize("trailers", TRAILERS.values(), ids=list(TRAILERS))
async def test_endless_trailers_are_refused(running: Running, trailers: bytes) -> None:
    start = (
        b"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        b"Authorization: Bearer %s\r\n\r\n2\r\n{}\r\n" % KEY.encode()
    )
    async with called(running.port) as caller:
        await caller.send(start)
        await caller.send(b"0\r\n" + trailers if trailers else b"1;x=" + b"a" * 100_000)
        assert (await caller.refusal())[0] == 431


@pytest.mark.parametrize("together", [True, False], ids=["pipelined", "after the answer"])
async def test_a_later_head_is_refused_behind_the_answers(running: Running, together: bool) -> None:
    first, endless = LINE + b"\r\n", LINE + headers(300, 500)
    async with called(running.port) as caller:
        if together:
            await caller.send(first + first + endless)
        else:
            await caller.send(first + first)
        for _ in range(2):
            assert (await caller.answer())[0] == 200
        if not together:
            await caller.send(endless)
        assert await caller.refusal() in (TOO_LARGE, TOO_MANY)


async def test_pipelined_requests_have_a_bound(running: Running) -> None:
    """Each costs the server a hundred times its bytes."""
    async with called(running.port) as caller:
        await caller.send((LINE + b"\r\n") * 5000)
        for _ in range(1 + guarded_http.PIPELINED_REQUESTS_MAX):
            assert (await caller.answer())[0] == 200
        assert (await caller.refusal())[:2] == (503, "too_many_pipelined_requests")


async def test_a_refusal_arrives_though_the_peer_sends_on(running: Running) -> None:
    async with called(running.port) as caller:
        await caller.send(LINE + headers(300, 500))
        await caller.pour(b"x" * 65_536, 8 * 1024 * KIB)
        assert (await caller.refusal())[0] == 431


async def test_who_sends_on_after_a_refusal_is_not_read_for_ever(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "LINGER_BYTES_MAX", 1024 * KIB)
    monkeypatch.setattr(guarded_http, "LINGER_S", 600.0)
    async with called(running.port) as caller:
        await caller.send(LINE + headers(300, 500))
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(caller.send_for_ever(b"x" * 65_536), 20)


async def test_a_refused_peer_that_stays_is_dropped(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "LINGER_S", 0.1)
    async with called(running.port) as caller:
        await caller.send(LINE + headers(300, 500))
        async with asyncio.timeout(20):
            while running.server.server_state.connections:
                await asyncio.sleep(0.01)


async def test_line_ends_keep_no_connection_open(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "HEAD_TIMEOUT_S", 0.3)
    async with called(running.port) as caller:
        await caller.send(LINE + b"\r\n")
        assert (await caller.answer())[0] == 200
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(caller.send_for_ever(b"\r\n", 0.05), 15)


# ---------------------------------------------------------------- upgrades


async def test_an_upgrade_within_the_bounds(running: Running) -> None:
    bearer = b"Authorization: Bearer %s\r\n" % KEY.encode()
    async with called(running.port) as caller:
        await caller.send(upgrade()[:-2] + bearer + headers(8, 7500) + b"\r\n")
        head = await asyncio.wait_for(caller.reader.readuntil(b"\r\n\r\n"), 20)
        assert head.startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("sent", "status", "named"),
    [
        (upgrade(Authorization="a" * 9000), 431, "header 'authorization' of a WebSocket upgrade"),
        (upgrade("/" + "a" * 9000), 414, "request line of a WebSocket upgrade"),
        (upgrade(Content_Length="5"), 400, "not a valid WebSocket upgrade"),
    ],
    ids=["a long header", "a long line", "a body"],
)
async def test_an_upgrade_that_cannot_be_read_is_answered(
    running: Running, sent: bytes, status: int, named: str
) -> None:
    async with called(running.port) as caller:
        await caller.send(sent)
        got, _, message = await caller.refusal()
        assert got == status
        assert named in message


# ---------------------------------------------------------------- what it costs


@contextlib.asynccontextmanager
async def gateway(folder: Path, model: Path) -> AsyncIterator[tuple[int, int]]:
    """A server in a process of its own: its port and its process id."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "continuo.bench.gateway_server",
            str(model),
            "0",
            str(folder / "told"),
        ),
        *(f"sqlite:///{folder}/store.db", "normal", "0"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        port, pid = map(int, (await asyncio.wait_for(process.stdout.readline(), 60)).split())
        yield port, pid
    finally:
        process.kill()
        await process.wait()


def resident_mib(pid: int, of: str = "VmHWM") -> float:
    """VmHWM: the most it has been."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(of):
            return int(line.split()[1]) / KIB
    raise AssertionError(f"no {of}")


FLOODS = {
    "headers": (LINE, headers(200, 300)),
    "small headers": (LINE, b"a: b\r\n" * 10_000),
    "one value": (LINE + b"X: ", b"a" * 65_536),
    "a request line": (b"GET /", b"a" * 65_536),
    "requests": (b"", (LINE + b"\r\n") * 2000),
    "an upgrade": (upgrade()[:-2], headers(200, 300)),
}
UNFINISHED = 22
PEERS_MIB = 19


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.timeout(120)
async def test_floods_cost_no_memory(tmp_path: Path, chatty: Path) -> None:
    """200 MB of a head on each of several connections; then 420 MiB of unfinished messages."""
    async with gateway(tmp_path, chatty) as (port, pid):
        base = resident_mib(pid)
        for name, (start, chunk) in FLOODS.items():
            async with called(port) as caller:
                await caller.send(start)
                await caller.pour(chunk, 200_000_000)
            async with called(port) as other:
                await other.send(LINE + b"\r\n")
                assert (await other.answer())[0] == 200
            assert resident_mib(pid) - base < 40, name
        await hold_unfinished(port)
        assert 120 < resident_mib(pid) - base < 160 * 1.5
        async with asyncio.timeout(20):
            while resident_mib(pid, "VmRSS") - base > 80:
                await asyncio.sleep(0.1)


async def hold_unfinished(port: int) -> None:
    head = b"\x81\xff" + (20 * KIB * KIB).to_bytes(8, "big") + bytes(4)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(UNFINISHED):
            caller = await stack.enter_async_context(called(port))
            await caller.send(upgrade("/v1/responses", Authorization="Bearer bench"))
            assert b" 101 " in await caller.reader.readuntil(b"\r\n\r\n")
            await caller.send(head)
            await caller.pour(bytes(KIB * KIB), PEERS_MIB * KIB * KIB)
        await asyncio.sleep(0.5)
