"""A proxy that cuts connections, and the events that a client receives nevertheless."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class CuttingProxy:
    """A TCP proxy that cuts its first connections, each after a number of bytes of the server.

    A cut may fall into the middle of a frame. Connections are cut in the reverse order of `cuts`.
    """

    def __init__(self, port: int, cuts: list[int]) -> None:
        self._port = port
        self._cuts = cuts
        self.cut_count = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        yield server.sockets[0].getsockname()[1]
        server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        upstream = asyncio.create_task(_pipe(reader, to_server))
        limit = self._cuts.pop() if self._cuts else None
        await _pipe(from_server, writer, limit)
        self.cut_count += limit is not None
        upstream.cancel()
        for end in (writer, to_server):
            end.transport.abort()


async def _pipe(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None = None
) -> None:
    while limit is None or limit > 0:
        data = await reader.read(65536 if limit is None else min(limit, 4096))
        if not data:
            return
        writer.write(data)
        limit = None if limit is None else limit - len(data)


async def run_client(
    *command: str | Path,
    on_event: Callable[[Event], None] = lambda event: None,
    env: dict[str, str] | None = None,
) -> list[Event]:
    """Run a client that prints each event as a line of JSON. Returns the events."""
    client = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
        env={**os.environ, **(env or {})},
    )
    assert client.stdout is not None
    events: list[Event] = []
    async for line in client.stdout:
        events.append(json.loads(line))
        await asyncio.sleep(0)
        on_event(events[-1])
    assert await client.wait() == 0
    return events


def received_text(events: list[Event]) -> str:
    """Return the text of the only response, whose deltas arrived exactly once."""
    kinds = [event["type"] for event in events]
    assert kinds.count("session.created") == kinds.count("response.created") == 1
    assert "error" not in kinds
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    (done,) = (event["text"] for event in events if event["type"] == "response.output_text.done")
    assert text == done
    ids = [event["event_id"] for event in events]
    assert len({*ids}) == len(ids), "no event was received twice"
    return text
