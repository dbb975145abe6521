"""POST with a spoilt body: an answer, as JSON or as events to their end, or an error in words that
is the client's own."""

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.fuzz import mutate
from tests.fuzz.doors import Tally, Thrown

ANSWER_S = 60.0


class Answer(NamedTuple):
    status: int
    kind: str
    """What its content is."""
    body: bytes


class Posts:
    """One after the other on a connection, on which half of the last ones are not waited for."""

    def __init__(
        self, port: int, tally: Tally, path: str, corpus: Sequence[dict[str, Any]]
    ) -> None:
        self._port = port
        self._tally = tally
        self._path = path
        self._corpus = corpus

    def spoilt(self, source: random.Random) -> list[Thrown]:
        return [mutate.event(source, self._corpus) for _ in range(source.randrange(1, 20))]

    def packed(self, thrown: Sequence[Thrown]) -> list[bytes]:
        return [
            self._request(self._tally.known(each).encode(errors="replace"))
            for each in thrown
            if isinstance(each, str)
        ]

    def _request(self, body: bytes) -> bytes:
        head = f"POST {self._path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def throw(self, packed: Sequence[bytes], odd: bool) -> str | None:
        wrong: str | None = None
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            for request in packed:
                writer.write(request)
                answer = await asyncio.wait_for(_answer(reader), ANSWER_S)
                self._tally.codes[answer.status] += 1
                self._tally.remember(answer.body)
                wrong = wrong or judged(answer)
            if odd:
                writer.write(packed[-1])
                await writer.drain()
        except TimeoutError:
            wrong = "it answers no more"
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            wrong = f"ended: {error!r}"
        writer.close()
        return wrong


async def _answer(reader: asyncio.StreamReader) -> Answer:
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
    return Answer(int(status.split()[1]), headers.get("content-type", ""), bytes(body))


def judged(answer: Answer) -> str | None:
    """What is wrong with it."""
    if b'"server_error"' in answer.body:
        return f"a fault of the server: {answer.body[:2000]!r}"
    if 400 <= answer.status < 500:
        error = json.loads(answer.body)["error"]
        if not error["message"] or not error["code"] or error["type"] != "invalid_request_error":
            return f"an error without words: {error}"
        return None
    if answer.status != 200:
        return f"HTTP {answer.status}: {answer.body[:2000]!r}"
    if answer.kind.startswith("text/event-stream"):
        last = answer.body.rstrip().rpartition(b"\n\n")[2]
        ended = last == b"data: [DONE]" or last.startswith(_ENDS)
        return None if ended else f"events that do not end: {last[:2000]!r}"
    json.loads(answer.body)
    return None


_ENDS = tuple(b"event: response." + end for end in (b"completed", b"incomplete", b"failed"))
