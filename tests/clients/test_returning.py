"""The real openai SDK, unmodified, cut off in the middle of an answer; and its server killed."""

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.clients.conftest import KEY, SDK, Server, start, stop
from tests.realtime.store.redis_process import free_port

SCRIPT = Path(__file__).with_name("returning.py")
Event = dict[str, Any]


class Wire:
    """Carries bytes between a client and a server, and cuts them off now and then: after so many
    bytes of the server, in the middle of a frame or not."""

    def __init__(self, port: int, cuts: list[int]) -> None:
        self._port = port
        self._cuts = cuts
        self.cut = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        yield server.sockets[0].getsockname()[1]
        server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        going = asyncio.create_task(_pipe(reader, back))
        limit = self._cuts.pop() if self._cuts else None
        await _pipe(there, writer, limit)
        self.cut += limit is not None
        going.cancel()
        for end in (writer, back):
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


async def hear(url: str, seed: int, on_event: Any = lambda event: None) -> list[Event]:
    client = await asyncio.create_subprocess_exec(
        SDK, SCRIPT, url, KEY, str(seed), stdout=asyncio.subprocess.PIPE, limit=1 << 20
    )
    assert client.stdout is not None
    events: list[Event] = []
    async for line in client.stdout:
        events.append(json.loads(line))
        await asyncio.sleep(0)
        on_event(events[-1])
    assert await client.wait() == 0
    return events


def text(events: list[Event]) -> str:
    """What was heard, each word once."""
    kinds = [event["type"] for event in events]
    assert kinds.count("session.created") == kinds.count("response.created") == 1
    assert "error" not in kinds
    heard = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    (done,) = (event["text"] for event in events if event["type"] == "response.output_text.done")
    assert heard == done
    ids = [event["event_id"] for event in events]
    assert len({*ids}) == len(ids), "nothing came twice"
    return heard


@pytest.mark.timeout(200)
async def test_cut_again_and_again(server: Server) -> None:
    """The same seed gives the same text, cut or not."""
    port = urlsplit(server.url).port
    assert port is not None
    whole = text(await hear(server.url, 7))
    chance = random.Random(7)
    wire = Wire(port, [chance.randrange(800, 8000) for _ in range(8)])
    async with wire.open() as through:
        assert text(await hear(f"http://127.0.0.1:{through}/v1", 7)) == whole
    assert wire.cut >= 4, "it was cut"


@pytest.mark.timeout(200)
async def test_killed_and_started_again(tmp_path: Path, server: Server, model: str) -> None:
    """With its engine, in the middle of an answer: the conversation is in the file."""
    whole = text(await hear(server.url, 7))
    options = ("--model", model, "--served-model-name", "demo", "--port", str(free_port()))
    env = {"CONTINUO_API_KEY": KEY, "CONTINUO_STORE": f"sqlite:///{tmp_path / 'store.db'}"}
    running = await asyncio.to_thread(start, *options, env=env)
    heard = 0

    def kill(event: Event) -> None:
        nonlocal heard
        heard += event["type"] == "response.output_text.delta"
        if heard == 20 and running.process.poll() is None:
            running.process.send_signal(signal.SIGKILL)

    hearing = asyncio.create_task(hear(running.url, 7, kill))
    while running.process.poll() is None:
        await asyncio.sleep(0.01)
    again = await asyncio.to_thread(start, *options, env=env)
    assert text(await hearing) == whole
    assert await asyncio.to_thread(stop, again) == 0
