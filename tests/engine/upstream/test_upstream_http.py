"""Tests of the HTTP client: replies byte by byte from a socket, whole or cut."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from continuo.engine.upstream import http
from continuo.engine.upstream.errors import (
    RequestRefused,
    ServerLost,
    UnusableReply,
    UpstreamError,
)
from continuo.engine.upstream.http import HttpClient
from tests.support.certificates import create_certificate
from tests.support.garbage import garbage_of_block
from tests.support.ports import free_port

pytestmark = pytest.mark.server

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class ScriptedServer:
    """Sends a fixed reply to each request, and closes the connection unless `stays_open`."""

    def __init__(self, reply: bytes, *, stays_open: bool = False) -> None:
        self.reply = reply
        self.stays_open = stays_open
        self.received = b""
        self.closed = asyncio.Event()
        """Set when a client has closed its connection."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received = await reader.readuntil(b"\r\n\r\n")
        writer.write(self.reply)
        with contextlib.suppress(ConnectionError):
            if self.stays_open:
                while await reader.read(1000):
                    pass
                self.closed.set()
        writer.close()


@contextlib.asynccontextmanager
async def scripted(
    reply: bytes, *, stays_open: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[ScriptedServer, str]]:
    script = ScriptedServer(reply, stays_open=stays_open)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield script, f"{'https' if tls else 'http'}://127.0.0.1:{port}"


async def fetch(reply: bytes) -> bytes:
    async with scripted(reply) as (_, url):
        return await HttpClient(url).fetch("GET", "/x")


async def stream(reply: bytes) -> list[bytes]:
    async with scripted(reply) as (_, url):
        return [event async for event in HttpClient(url).stream_events("/x", {})]


@pytest.mark.parametrize(
    "reply",
    [
        OK + b"Content-Length: 4\r\n\r\nbody",
        OK + b"content-length: 4\r\n\r\nbody",
        CHUNKED + b"3\r\nbod\r\n1\r\ny\r\n0\r\n\r\n",
        OK + b"\r\nbody",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 4\r\n\r\nbody",
    ],
    ids=["length", "small letters", "chunked", "until the end", "continue"],
)
async def test_body_is_read_to_its_end(reply: bytes) -> None:
    assert await fetch(reply) == b"body"


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 2",
        OK + b"Content-Length: 5\r\n\r\nbody",
        CHUNKED + b"3\r\nbod\r\n",
        CHUNKED + b"3\r\nb",
    ],
)
async def test_cut_reply_is_a_loss(reply: bytes) -> None:
    with pytest.raises(ServerLost):
        await fetch(reply)


async def test_events_before_a_cut_are_received() -> None:
    async with scripted(CHUNKED + b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n") as (_, url):
        events = HttpClient(url).stream_events("/x", {})
        assert [await anext(events), await anext(events)] == [b"1", b"2"]
        with pytest.raises(ServerLost):
            await anext(events)


async def test_final_event_of_openai_is_left_out() -> None:
    assert await stream(OK + b"\r\ndata: 1\n\ndata: [DONE]\n\n") == [b"1"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, RequestRefused),
        (400, RequestRefused),
        (401, RequestRefused),
        (404, RequestRefused),
        (408, ServerLost),
        (429, ServerLost),
        (500, ServerLost),
        (501, RequestRefused),
        (503, ServerLost),
    ],
)
async def test_status_says_whether_to_try_again(status: int, kind: type[UpstreamError]) -> None:
    with pytest.raises(kind, match="no such luck"):
        await fetch(f"HTTP/1.1 {status} X\r\n\r\nno such luck".encode())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"error": "Model is loading"}', "Model is loading"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>Bad\n  Gateway</html>", "<html>Bad Gateway</html>"),
        (b"", "HTTP 400"),
        (b"\xff" * 5000, "�" * http.ERROR_CHARS_MAX),
    ],
)
async def test_refusal_has_the_words_of_the_server(body: bytes, words: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        await fetch(b"HTTP/1.1 400 Bad Request\r\n\r\n" + body)
    assert (refused.value.status, str(refused.value)) == (400, words)


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        OK + b"X: " + b"x" * (2 * http.HEAD_BYTES_MAX),
        OK + b"Content-Length: 4, 5\r\n\r\nbody",
    ],
    ids=["not HTTP", "endless head", "two lengths"],
)
async def test_reply_that_is_not_http_is_unusable(reply: bytes) -> None:
    with pytest.raises(UnusableReply):
        await fetch(reply)


async def test_body_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_BYTES_MAX", 3)
    with pytest.raises(UnusableReply, match="more than 3 bytes"):
        await fetch(OK + b"\r\nbody")


async def test_silent_server_is_lost_after_a_time() -> None:
    async with scripted(b"", stays_open=True) as (script, url):
        with pytest.raises(ServerLost, match="took longer"):
            await HttpClient(url).fetch("GET", "/x", timeout_s=0.01)
        await script.closed.wait()


async def test_closed_stream_closes_its_connection() -> None:
    async with scripted(CHUNKED + b"9\r\ndata: 1\n\n\r\n", stays_open=True) as (script, url):
        async with aclosing(HttpClient(url).stream_events("/x", {})) as events:
            assert await anext(events) == b"1"
        await script.closed.wait()


async def test_cancelled_stream_closes_its_connection() -> None:
    async with scripted(CHUNKED + b"9\r\ndata: 1\n\n\r\n", stays_open=True) as (script, url):
        events = HttpClient(url).stream_events("/x", {})
        await anext(events)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await script.closed.wait()


async def test_request_leaves_nothing_to_the_garbage_collector() -> None:
    """A process with thousands of turns would otherwise stall, or keep each of them."""
    reply = CHUNKED + b"d\r\ndata: {one}\n\n\r\n"
    async with scripted(reply, stays_open=True) as (_, url):
        with garbage_of_block() as garbage:
            assert await fetch(OK + b"Content-Length: 4\r\n\r\nbody") == b"body"
            async with aclosing(HttpClient(url).stream_events("/x", {})) as events:
                assert await anext(events) == b"{one}"
    assert not garbage


async def test_no_server_is_a_loss() -> None:
    with pytest.raises(ServerLost, match="no connection"):
        await HttpClient(f"http://127.0.0.1:{free_port()}").fetch("GET", "/x")


@pytest.mark.process
async def test_server_with_tls_must_have_a_trusted_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = create_certificate(tmp_path, "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    async with scripted(OK + b"Content-Length: 4\r\n\r\nbody", tls=tls) as (_, url):
        with pytest.raises(UnusableReply, match="certificate"):
            await HttpClient(url).fetch("GET", "/x")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await HttpClient(url).fetch("GET", "/x") == b"body"


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
async def test_request_has_its_headers(path: str) -> None:
    async with scripted(OK + b"Content-Length: 0\r\n\r\n") as (script, url):
        await HttpClient(url + path, "secret").fetch("POST", "/v1/x", {"a": [1]})
    line, *headers = script.received.decode().split("\r\n")
    assert line == "POST /v1/x HTTP/1.1"
    assert {"Authorization: Bearer secret", "Content-Length: 9", "Connection: close"} <= {*headers}


async def test_prefix_of_a_proxy_is_kept() -> None:
    async with scripted(OK + b"Content-Length: 0\r\n\r\n") as (script, url):
        await HttpClient(url + "/models/a/").fetch("GET", "/v1/x")
    assert script.received.startswith(b"GET /models/a/v1/x HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://user:secret@host",
        "http://",
        "http://host:port",
        "http://host:70000",
        "http://user:secret@host",
        "http://host/?a=1",
        "http://host/#a",
    ],
)
def test_other_urls_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        HttpClient(url)
    assert "secret" not in str(refused.value)
