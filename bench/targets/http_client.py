"""A small HTTP/1.1 client for server-sent events, on a connection that is kept open.

urllib blocks, and the server's dependencies include no other client.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import urlsplit

LINE_BYTES_MAX = 1 << 24


class HttpClient:
    """Sends requests to `base_url`, one at a time."""

    def __init__(self, base_url: str, api_key: str = "") -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SystemExit(f"--base-url: not the URL of an HTTP server: {base_url}")
        self._host: str = parts.hostname
        self._is_secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._is_secure else 80)
        self._path = parts.path.rstrip("/")
        self._headers = f"Host: {parts.netloc}\r\nContent-Type: application/json\r\n"
        if api_key:
            self._headers += f"Authorization: Bearer {api_key}\r\n"
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> Any:
        """Return the JSON value at `path`. Raises RuntimeError unless the status is 200."""
        return json.loads(b"".join([part async for part in self._request("GET", path, b"")]))

    async def stream(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Post `body` and yield the data of each event. Raises RuntimeError unless the status is
        200."""
        rest = b""
        async for part in self._request("POST", path, json.dumps(body).encode()):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                data = line.removeprefix(b"data:").strip()
                if line.startswith(b"data:") and data != b"[DONE]":
                    yield json.loads(data)

    def close(self) -> None:
        """Close the connection; the server cancels the request in flight."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _request(self, method: str, path: str, body: bytes) -> AsyncIterator[bytes]:
        """Send a request and yield the parts of the response's body as they arrive."""
        if self._connection is None:
            self._connection = await asyncio.open_connection(
                self._host, self._port, ssl=self._is_secure or None, limit=LINE_BYTES_MAX
            )
        reader, writer = self._connection
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, headers = await _read_head(reader)
        if status != 200:
            text = b"".join([part async for part in _read_body(reader, headers)]).decode()
            self.close()
            raise RuntimeError(f"{method} {path}: {status} {text[:500]}")
        async for part in _read_body(reader, headers):
            yield part
        if headers.get("connection", "").lower() == "close" or not _has_length(headers):
            self.close()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in head[1:] if line)
    return int(head[0].split()[1]), {name.lower(): value.strip() for name, _, value in fields}


def _has_length(headers: dict[str, str]) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if "transfer-encoding" in headers:
        while size := int((await reader.readline()).partition(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while part := await reader.read(1 << 16):
            yield part
