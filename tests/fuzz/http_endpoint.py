"""POST with a mutated body: JSON, a complete event stream, or an error that names the client's
fault.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.fuzz import mutate
from tests.fuzz.endpoints import Payload, Tally

RESPONSE_TIMEOUT_S = 60.0


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes


class PostRequests:
    """Sequential requests on a connection; half of the connections do not wait for the last one."""

    def __init__(
        self, port: int, tally: Tally, path: str, corpus: Sequence[dict[str, Any]]
    ) -> None:
        self._port = port
        self._tally = tally
        self._path = path
        self._corpus = corpus

    def generate(self, source: random.Random) -> list[Payload]:
        return [mutate.text_frame(source, self._corpus) for _ in range(source.randrange(1, 20))]

    def encode(self, payloads: Sequence[Payload]) -> list[bytes]:
        return [
            self._request(self._tally.insert_response_id(payload).encode(errors="replace"))
            for payload in payloads
            if isinstance(payload, str)
        ]

    def _request(self, body: bytes) -> bytes:
        head = f"POST {self._path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def send(self, encoded: Sequence[bytes], is_abrupt: bool) -> str | None:
        problem: str | None = None
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            for request in encoded:
                writer.write(request)
                response = await asyncio.wait_for(_read_response(reader), RESPONSE_TIMEOUT_S)
                self._tally.codes[response.status] += 1
                self._tally.record_response_id(response.body)
                problem = problem or problem_of(response)
            if is_abrupt:
                writer.write(encoded[-1])
                await writer.drain()
        except TimeoutError:
            problem = "the server does not respond"
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            problem = f"ended: {error!r}"
        writer.close()
        return problem


async def _read_response(reader: asyncio.StreamReader) -> Response:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status, *lines = head.rstrip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    body = bytearray()
    if "content-length" in headers:
        body += await reader.readexactly(int(headers["content-length"]))
    else:
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    return Response(int(status.split()[1]), headers.get("content-type", ""), bytes(body))


def problem_of(response: Response) -> str | None:
    """The problem of a response. Returns None if it is correct."""
    if b'"server_error"' in response.body:
        return f"a server error: {response.body[:2000]!r}"
    if 400 <= response.status < 500:
        error = json.loads(response.body)["error"]
        if not error["message"] or not error["code"] or error["type"] != "invalid_request_error":
            return f"error without message or code: {error}"
        return None
    if response.status != 200:
        return f"HTTP {response.status}: {response.body[:2000]!r}"
    if response.content_type.startswith("text/event-stream"):
        last = response.body.rstrip().rpartition(b"\n\n")[2]
        is_complete = last == b"data: [DONE]" or last.startswith(_ENDS)
        return None if is_complete else f"incomplete event stream: {last[:2000]!r}"
    json.loads(response.body)
    return None


_ENDS = tuple(b"event: response." + end for end in (b"completed", b"incomplete", b"failed"))
