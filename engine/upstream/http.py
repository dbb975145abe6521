"""HttpClient: requests to one server over HTTP/1.1, with JSON bodies and server-sent events.

Each request has a connection of its own: to close it is how a server learns that a turn was
cancelled, and no request fails because an idle connection was closed at the same moment. httptools
parses the responses. Redirects and proxies of the environment are not followed.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from urllib.parse import SplitResult, urlsplit

import httptools
import msgspec

from continuo.engine.upstream.errors import (
    ReplyLost,
    RequestRefused,
    ServerBusy,
    ServerLost,
    UnusableReply,
)
from continuo.engine.upstream.sse import EventStreamDecoder

CONNECT_S = 5.0
"""Time in which a connection is made, with TLS."""
REPLY_S = 10.0
"""Time of a whole request that streams nothing."""
HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 64 << 20
"""Longest body that is not a stream."""
ERROR_CHARS_MAX = 500
"""Characters of a server's words that are kept."""
_CHUNK_BYTES = 64 * 1024
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds, seconds and count: a host that is lost without a reset is noticed after 20 s, although a
stream may be silent for as long as a prompt takes."""
_BUSY = frozenset((408, 425, 429))
"""Refusals that say to try again; with them, all of 500 and above but 501."""
_FAILED = frozenset((500, 502))
"""Statuses of a server that failed at the request, the second one by a proxy."""

NO_HEADERS: Mapping[str, str] = {}


class HttpClient:
    """Client of one server. Methods raise UpstreamError."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """`url`: of the server, with the path prefix of a proxy, if any; a `/v1` at its end is left
        out. `api_key`: sent as a bearer token; None: none. Raises ValueError for a URL that is not
        one of HTTP."""
        parts = _split_url(url)
        self.url = url
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {
            "Host": parts.netloc,
            "Connection": "close",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    async def fetch(
        self, method: str, path: str, body: object = None, timeout_s: float = REPLY_S
    ) -> bytes:
        """Send a request. Returns the body of its reply."""
        try:
            async with asyncio.timeout(timeout_s), self._send(method, path, body) as reply:
                return await _read_all(reply)
        except TimeoutError:
            raise ServerLost(f"{method} {path} took longer than {timeout_s:g} s") from None

    async def stream_events(
        self, path: str, body: object, headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator[bytes]:
        """Send a POST request and yield the data of each event of its reply, without the final
        `[DONE]`. To close the generator closes the connection. A stream that ends as HTTP allows
        ends here too: its events say whether they are complete."""
        decoder = EventStreamDecoder()
        async with (
            self._send("POST", path, body, headers) as reply,
            aclosing(reply.chunks()) as chunks,
        ):
            async for chunk in chunks:
                for data in _decode_events(decoder, chunk):
                    if data != b"[DONE]":
                        yield data

    @contextlib.asynccontextmanager
    async def _send(
        self, method: str, path: str, body: object, headers: Mapping[str, str] = NO_HEADERS
    ) -> AsyncGenerator["_Reply"]:
        """Send a request and receive the head of its reply. Raises RequestRefused and ServerLost
        for any status but 200."""
        data = b"" if body is None else msgspec.json.encode(body)
        fields = {**self._headers, **headers, "Content-Length": str(len(data))}
        lines = [f"{method} {self._prefix}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        reader, writer = await self._connect()
        reply = _Reply(reader)
        try:
            writer.write("\r\n".join((*lines, "", "")).encode("latin-1") + data)
            await reply.receive_head()
            if reply.status != 200:
                message = _explain(await _read_all(reply)) or f"HTTP {reply.status}"
                raise make_error(reply.status, message)
            yield reply
        finally:
            writer.transport.abort()
            reply.release()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(CONNECT_S):
                streams = await asyncio.open_connection(
                    self._host, self._port, ssl=self._tls, limit=_CHUNK_BYTES
                )
        except TimeoutError:
            raise ServerLost(f"no connection to {self.url} within {CONNECT_S:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise UnusableReply(f"{self.url}: {error.verify_message}") from None
        except OSError as error:
            raise ServerLost(f"no connection to {self.url}: {error}") from None
        _keep_alive(streams[1].get_extra_info("socket"))
        return streams


class _Reply:
    """The response to one request. httptools calls its `on_` methods."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._has_head = False
        self._is_complete = False
        self._ends_with_connection = True
        self._parts: list[bytes] = []
        self.status = 0

    async def receive_head(self) -> None:
        received = 0
        while not self._has_head:
            received += await self._receive()
            if received > HEAD_BYTES_MAX and not self._has_head:
                raise UnusableReply(f"a head of more than {HEAD_BYTES_MAX:,} bytes")

    def release(self) -> None:
        """Release the parser, which refers to this reply: otherwise both would be garbage."""
        del self._parser

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body in pieces, as they arrive."""
        while True:
            parts, self._parts = self._parts, []
            if parts:
                yield b"".join(parts)
            elif self._is_complete:
                return
            else:
                await self._receive()

    async def _receive(self) -> int:
        """Receive and parse bytes. Returns their number."""
        try:
            data = await self._reader.read(_CHUNK_BYTES)
        except OSError as error:
            raise ReplyLost(f"the connection was lost: {error}") from None
        if data:
            self._parse(data)
        elif self._has_head and self._ends_with_connection:
            self._is_complete = True
        else:
            raise ReplyLost("the server closed the connection within its reply")
        return len(data)

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._is_complete:
                raise UnusableReply(f"the reply is not HTTP/1.1: {error}") from None

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 - by httptools
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status, self._has_head = status, True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_complete = True


def _split_url(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("a URL without user, password, query and fragment is expected")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not a URL like http://host:8000")
    _ = parts.port  # raises ValueError if it is not a number from 0 to 65,535
    return parts


def _keep_alive(sock: socket.socket | None) -> None:
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


async def _read_all(reply: _Reply) -> bytes:
    body = bytearray()
    async with aclosing(reply.chunks()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                raise UnusableReply(f"a body of more than {BODY_BYTES_MAX:,} bytes")
    return bytes(body)


def _decode_events(decoder: EventStreamDecoder, chunk: bytes) -> list[bytes]:
    try:
        return decoder.push(chunk)
    except ValueError as error:
        raise UnusableReply(str(error)) from None


def make_error(status: int, message: str) -> RequestRefused | ServerLost:
    """Make the error of a status of HTTP that is not 200."""
    if status in _BUSY:
        return ServerBusy(f"{message} (HTTP {status})")
    if status in _FAILED:
        return ReplyLost(f"{message} (HTTP {status})")
    if status >= 500 and status != 501:
        return ServerLost(f"{message} (HTTP {status})")
    return RequestRefused(status, message)


class _ErrorMessage(msgspec.Struct):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    """Body of an error status: an object of OpenAI's shape, or of vLLM's older one, or of
    FastAPI's."""

    error: _ErrorMessage | str | None = None
    message: str = ""
    detail: str = ""


def _explain(body: bytes) -> str:
    """Return the server's words for an error, in one line."""
    try:
        found = msgspec.json.decode(body, type=_ErrorBody)
    except msgspec.DecodeError:
        text = body[: 4 * ERROR_CHARS_MAX].decode(errors="replace")
    else:
        error = found.error.message if isinstance(found.error, _ErrorMessage) else found.error
        text = error or found.message or found.detail
    return " ".join(text.split())[:ERROR_CHARS_MAX]
