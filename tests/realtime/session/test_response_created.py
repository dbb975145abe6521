"""`response.created` comes before any waiting for the device: here that is in the middle of a step
which does not end, so that the engine answers nobody."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from continuo.engine.batch import Batch, BatchResult, Geometry
from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.digest_runner import VOCABULARY, DigestRunner
from tests.support.engines import Bench, engine_on
from tests.support.response_chains import ENDS, calling
from tests.support.web_servers import BEARER, KEY, Running, first, serve

GEOMETRY = Geometry(256, 4, 400, VOCABULARY, 64, 1)
"""Steps run ahead, so on a thread of their own."""


class Holding(DigestRunner):
    """Cleared, `free` keeps the step that is launched."""

    def __init__(self) -> None:
        super().__init__(GEOMETRY)
        self.free = threading.Event()
        self.free.set()
        self.held = threading.Event()

    def launch(self, batch: Batch) -> BatchResult:
        if not self.free.is_set():
            self.held.set()
            self.free.wait()
        return super().launch(batch)


@pytest.fixture
async def bench(chatty: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(
        "continuo.engine.client.connection.UNRESPONSIVE_AFTER_S", 600.0
    )  # it is not taken for dead
    async with engine_on(chatty, Holding) as bench:
        try:
            yield bench
        finally:
            bench.runner.free.set()


@pytest.fixture
async def running(bench: Bench) -> AsyncIterator[Running]:
    async with serve(
        bench, GatewaySettings(tenants={KEY: "default"}, served_model_name=("demo",))
    ) as running:
        yield running


@contextlib.asynccontextmanager
async def held(running: Running, device: Holding) -> AsyncIterator[None]:
    """Somebody else's response is in a step that lasts until this ends."""
    async with calling(running, KEY) as other:
        device.free.clear()
        await other.send(input="hello", max_output_tokens=4)
        assert await asyncio.to_thread(device.held.wait, 20)
        try:
            yield
        finally:
            device.free.set()
        await other.until(*ENDS)


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def expect(socket: ClientConnection, *kinds: str) -> dict[str, Any]:
    event: dict[str, Any] = {}
    for kind in kinds:
        event = await first(socket)
        assert event["type"] == kind, event
    return event


async def test_response_created_over_realtime(running: Running, bench: Bench) -> None:
    async with connect(running.url, additional_headers=BEARER) as socket:
        await expect(socket, "session.created")
        content = [{"type": "input_text", "text": "hello"}]
        item = {"type": "message", "role": "user", "content": content}
        await send(socket, "conversation.item.create", item=item)
        await expect(socket, "conversation.item.added", "conversation.item.done")
        wish = {"max_output_tokens": 4}
        async with held(running, bench.runner):
            await send(socket, "response.create", response=wish)
            main = (await expect(socket, "response.created"))["response"]
            apart = {**wish, "conversation": "none", "input": []}
            await send(socket, "response.create", response=apart)
            beside = (await expect(socket, "response.created"))["response"]
            assert main["status"] == beside["status"] == "in_progress"
        ended: set[str] = set()
        while ended != {main["id"], beside["id"]}:
            event = await first(socket)
            if event["type"] == "response.done":
                ended.add(event["response"]["id"])


async def test_response_created_over_responses(running: Running, bench: Bench) -> None:
    async with calling(running, KEY) as caller:
        async with held(running, bench.runner):
            for lane in ("a", "b"):
                await caller.send(input="hello", stream_id=lane, max_output_tokens=4)
                kinds = [(await caller.recv())["type"] for _ in range(2)]
                assert kinds == ["response.created", "response.in_progress"]
        for _ in range(2):
            await caller.until(*ENDS)
