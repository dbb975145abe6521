"""Bounds of HTTP request heads, however they arrive, and the memory that floods may use."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from continuo.realtime.server.hardening import guarded_http, guards
from continuo.realtime.server.hardening.guarded_http import GuardedHttp
from tests.support.frames import upgrade_request
from tests.support.waiting import wait_until
from tests.support.web_servers import API_KEY, RunningServer

pytestmark = pytest.mark.slow

LINE = b"GET /health HTTP/1.1\r\nHost: x\r\n"
KIB = 1024


class RawConnection:
    """A TCP connection for raw HTTP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send data. Raises ConnectionError once the server has disconnected."""
        if self.writer.is_closing():  # uvloop would raise RuntimeError
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    async def send_many(self, chunk: bytes, bytes_max: int) -> None:
        """Send `chunk` again and again until the server disconnects or `bytes_max` are sent."""
        with contextlib.suppress(ConnectionError):
            for _ in range(bytes_max // len(chunk)):
                await self.send(chunk)

    async def send_forever(self, chunk: bytes, pause_s: float = 0.0) -> None:
        """Send `chunk` again and again until cancelled or disconnected."""
        while True:
            await self.send(chunk)
            await asyncio.sleep(pause_s)

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the next response."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)
        first, *lines = head.decode().split("\r\n")[:-2]
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers, body

    async def refusal(self) -> tuple[int, str, str]:
        """Return status, code and message, after an orderly end of the connection."""
        status, headers, body = await self.response()
        assert headers["connection"] == "close"
        assert headers["content-type"] == "application/json"
        assert await asyncio.wait_for(self.reader.read(), 20) == b"", "an orderly end, not a reset"
        error = json.loads(body)["error"]
        assert error["type"] == ("server_error" if status == 503 else "invalid_request_error")
        return status, error["code"], error["message"]


@contextlib.asynccontextmanager
async def open_raw(port: int) -> AsyncIterator[RawConnection]:
    connection = RawConnection(*await asyncio.open_connection("127.0.0.1", port))
    yield connection
    connection.writer.close()


TOO_LONG_LINE = (414, "request_line_too_long", "The request line is over 16,384 bytes.")
TOO_LARGE = (431, "headers_too_large", "The headers are over 65,536 bytes.")
TOO_MANY = (431, "headers_too_large", "The request has more than 128 header lines.")


def headers(count: int, size: int) -> bytes:
    return b"".join(b"X-%04d: %s\r\n" % (number, b"a" * size) for number in range(count))


OVER_THE_BOUNDS = {
    "headers": (LINE + headers(100, 700), TOO_LARGE),
    "small headers": (LINE + headers(300, 1), TOO_MANY),
    "one value": (LINE + b"X: " + b"a" * 100_000, TOO_LARGE),
    "one name": (LINE + b"a" * 100_000, TOO_LARGE),
    "a request line": (b"GET /" + b"a" * 100_000, TOO_LONG_LINE),
    "spaces before the target": (b"GET " + b" " * 100_000, TOO_LONG_LINE),
    "line ends": (b"\r\n" * 50_000, TOO_LONG_LINE),
    "an upgrade": (upgrade_request()[:-2] + headers(100, 700), TOO_LARGE),
    "lines of an upgrade": (upgrade_request()[:-2] + headers(300, 1), TOO_MANY),
}


@pytest.mark.parametrize("size", [256 * KIB, 1000], ids=["at once", "in pieces"])
@pytest.mark.parametrize(("sent", "refusal"), OVER_THE_BOUNDS.values(), ids=list(OVER_THE_BOUNDS))
async def test_head_over_the_bounds_is_refused(
    server: RunningServer, sent: bytes, refusal: tuple[int, str, str], size: int
) -> None:
    async with open_raw(server.port) as connection:
        for start in range(0, len(sent), size):
            await connection.send(sent[start : start + size])
        assert await connection.refusal() == refusal
    assert server.web_server.incoming_budget.charged_bytes == 0


@pytest.mark.parametrize("name", ["headers", "small headers", "one value", "a request line"])
async def test_head_over_the_bounds_in_single_bytes_is_refused(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(guarded_http, "REQUEST_LINE_BYTES_MAX", 500)
    monkeypatch.setattr(guarded_http, "HEADERS_BYTES_MAX", 1500)
    sent, (status, code, _) = OVER_THE_BOUNDS[name]
    async with open_raw(server.port) as connection:
        for number in range(min(len(sent), 3000)):
            with contextlib.suppress(ConnectionError):
                await connection.send(sent[number : number + 1])
                await asyncio.sleep(0)
        assert (await connection.refusal())[:2] == (status, code)


async def test_head_at_the_bounds_and_its_body_are_accepted(server: RunningServer) -> None:
    """Head and body arrive in one chunk, twice on the same connection."""
    body = b'{"expires_after": {"seconds": 60}}' + b" " * 1_000_000
    line = b"POST /v1/realtime/client_secrets?x=" + b"a" * 16_000 + b" HTTP/1.1\r\nHost: x\r\n"
    head = line + b"Authorization: Bearer %s\r\n" % API_KEY.encode() + headers(120, 500)
    async with open_raw(server.port) as connection:
        for _ in range(2):
            await connection.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert (await connection.response())[0] == 200


async def test_chunked_body_does_not_count_as_head(server: RunningServer) -> None:
    """Sizes and extensions of the chunks do not count either."""
    start = (
        b"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        b"Authorization: Bearer %s\r\n\r\n2\r\n{}\r\n" % API_KEY.encode()
    )
    async with open_raw(server.port) as connection:
        await connection.send(start + b"00000001;x=y\r\n \r\n" * 20_000 + b"0\r\nX: y\r\n\r\n")
        assert (await connection.response())[0] == 200


TRAILERS = {
    "trailers": headers(300, 1),
    "one trailer": b"X: " + b"a" * 100_000,
    "a chunk extension": b"",
}


@pytest.mark.parametrize("trailers", TRAILERS.values(), ids=list(TRAILERS))
async def test_trailers_over_the_bounds_are_refused(server: RunningServer, trailers: bytes) -> None:
    start = (
        b"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        b"Authorization: Bearer %s\r\n\r\n2\r\n{}\r\n" % API_KEY.encode()
    )
    async with open_raw(server.port) as connection:
        await connection.send(start)
        await connection.send(b"0\r\n" + trailers if trailers else b"1;x=" + b"a" * 100_000)
        assert (await connection.refusal())[0] == 431


@pytest.mark.parametrize("is_pipelined", [True, False], ids=["pipelined", "after the response"])
async def test_refusal_of_a_later_head_follows_the_earlier_responses(
    server: RunningServer, is_pipelined: bool
) -> None:
    short, oversized = LINE + b"\r\n", LINE + headers(300, 500)
    async with open_raw(server.port) as connection:
        if is_pipelined:
            await connection.send(short + short + oversized)
        else:
            await connection.send(short + short)
        for _ in range(2):
            assert (await connection.response())[0] == 200
        if not is_pipelined:
            await connection.send(oversized)
        assert await connection.refusal() in (TOO_LARGE, TOO_MANY)


async def test_number_of_pipelined_requests_is_bounded(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request uses a hundred times its bytes in the server. All are parsed in one turn, so
    that none is answered meanwhile."""
    async with open_raw(server.port) as connection:
        await wait_until(lambda: bool(server.web_server.server_state.connections))
        (http,) = cast("set[GuardedHttp]", server.web_server.server_state.connections)
        monkeypatch.setattr(http.read_turns, "turn_s", 1000.0)
        await connection.send((LINE + b"\r\n") * 5000)
        for _ in range(1 + guarded_http.PIPELINED_REQUESTS_MAX):
            assert (await connection.response())[0] == 200
        assert (await connection.refusal())[:2] == (503, "too_many_pipelined_requests")


async def test_refusal_arrives_while_the_peer_still_sends(server: RunningServer) -> None:
    async with open_raw(server.port) as connection:
        await connection.send(LINE + headers(300, 500))
        await connection.send_many(b"x" * 65_536, 8 * 1024 * KIB)
        assert (await connection.refusal())[0] == 431


async def test_lingering_close_reads_up_to_a_bound(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "LINGER_BYTES_MAX", 1024 * KIB)
    monkeypatch.setattr(guarded_http, "LINGER_S", 600.0)
    async with open_raw(server.port) as connection:
        await connection.send(LINE + headers(300, 500))
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(connection.send_forever(b"x" * 65_536), 20)


async def test_lingering_close_ends_after_a_timeout(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "LINGER_S", 0.1)
    async with open_raw(server.port) as connection:
        await connection.send(LINE + headers(300, 500))
        await wait_until(lambda: not server.web_server.server_state.connections)


async def test_empty_lines_do_not_keep_a_connection_open(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "HEAD_TIMEOUT_S", 0.3)
    async with open_raw(server.port) as connection:
        await connection.send(LINE + b"\r\n")
        assert (await connection.response())[0] == 200
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(connection.send_forever(b"\r\n", 0.05), 15)


# ---------------------------------------------------------------- upgrades


async def test_upgrade_within_the_bounds_is_accepted(server: RunningServer) -> None:
    bearer = b"Authorization: Bearer %s\r\n" % API_KEY.encode()
    async with open_raw(server.port) as connection:
        await connection.send(upgrade_request()[:-2] + bearer + headers(8, 7500) + b"\r\n")
        head = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), 20)
        assert head.startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("sent", "status", "excerpt"),
    [
        (
            upgrade_request(Authorization="a" * 9000),
            431,
            "header 'authorization' of a WebSocket upgrade",
        ),
        (upgrade_request("/" + "a" * 9000), 414, "request line of a WebSocket upgrade"),
        (upgrade_request(Content_Length="5"), 400, "not a valid WebSocket upgrade"),
    ],
    ids=["a long header", "a long line", "a body"],
)
async def test_invalid_upgrade_gets_an_http_error(
    server: RunningServer, sent: bytes, status: int, excerpt: str
) -> None:
    async with open_raw(server.port) as connection:
        await connection.send(sent)
        received, _, message = await connection.refusal()
        assert received == status
        assert excerpt in message


# ---------------------------------------------------------------- memory


@contextlib.asynccontextmanager
async def gateway(folder: Path, model: Path) -> AsyncIterator[tuple[int, int]]:
    """Run a server in a process of its own. Yields its port and its process id."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "continuo.bench.gateway_server",
            str(model),
            "0",
            str(folder / "trace"),
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


def resident_mib(pid: int, field: str = "VmHWM") -> float:
    """Return the resident memory of a process; VmHWM is its peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / KIB
    raise AssertionError(f"no {field}")


FLOODS = {
    "headers": (LINE, headers(200, 300)),
    "small headers": (LINE, b"a: b\r\n" * 10_000),
    "one value": (LINE + b"X: ", b"a" * 65_536),
    "a request line": (b"GET /", b"a" * 65_536),
    "requests": (b"", (LINE + b"\r\n") * 2000),
    "an upgrade": (upgrade_request()[:-2], headers(200, 300)),
}
UNFINISHED_PEERS = 22
UNFINISHED_MIB = 19


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.timeout(120)
async def test_floods_use_bounded_memory(tmp_path: Path, chat_model: Path) -> None:
    """Send 200 MB of a head on each of several connections, then 420 MiB of unfinished messages."""
    async with gateway(tmp_path, chat_model) as (port, pid):
        base = resident_mib(pid)
        for name, (start, chunk) in FLOODS.items():
            async with open_raw(port) as connection:
                await connection.send(start)
                await connection.send_many(chunk, 200_000_000)
            async with open_raw(port) as other:
                await other.send(LINE + b"\r\n")
                assert (await other.response())[0] == 200
            assert resident_mib(pid) - base < 40, name
        await hold_unfinished(port)
        assert 120 < resident_mib(pid) - base < 160 * 1.5
        async with asyncio.timeout(20):
            while resident_mib(pid, "VmRSS") - base > 80:
                await asyncio.sleep(0.1)


async def hold_unfinished(port: int) -> None:
    head = b"\x81\xff" + (20 * KIB * KIB).to_bytes(8, "big") + bytes(4)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(UNFINISHED_PEERS):
            connection = await stack.enter_async_context(open_raw(port))
            await connection.send(upgrade_request("/v1/responses", Authorization="Bearer bench"))
            assert b" 101 " in await connection.reader.readuntil(b"\r\n\r\n")
            await connection.send(head)
            await connection.send_many(bytes(KIB * KIB), UNFINISHED_MIB * KIB * KIB)
        await asyncio.sleep(0.5)
