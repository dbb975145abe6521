"""`response.created` is sent without waiting for the device.

The device is held in the middle of a step meanwhile, so that the engine sends nothing."""

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
from tests.support.engines import EngineHarness, running_engine
from tests.support.response_chains import FINAL_EVENT_TYPES, connect_responses_client
from tests.support.web_servers import (
    API_KEY,
    AUTHORIZATION_HEADERS,
    RunningServer,
    receive_event,
    serve_harness,
)

GEOMETRY = Geometry(256, 4, 400, VOCABULARY, 64, 1)
"""The device with one step ahead: steps run on a thread of their own."""


class HeldRunner(DigestRunner):
    """A null device whose launched steps block while `free` is cleared."""

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
async def bench(chatty: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineHarness]:
    monkeypatch.setattr(
        "continuo.engine.client.connection.UNRESPONSIVE_AFTER_S", 600.0
    )  # so that the blocked engine is not replaced
    async with running_engine(chatty, HeldRunner) as bench:
        try:
            yield bench
        finally:
            bench.runner.free.set()


@pytest.fixture
async def running(bench: EngineHarness) -> AsyncIterator[RunningServer]:
    async with serve_harness(
        bench, GatewaySettings(tenants={API_KEY: "default"}, served_model_name=("demo",))
    ) as running:
        yield running


@contextlib.asynccontextmanager
async def device_held(running: RunningServer, device: HeldRunner) -> AsyncIterator[None]:
    """Keep the device in a step of another client's response."""
    async with connect_responses_client(running, API_KEY) as other:
        device.free.clear()
        await other.send(input="hello", max_output_tokens=4)
        assert await asyncio.to_thread(device.held.wait, 20)
        try:
            yield
        finally:
            device.free.set()
        await other.wait_for(*FINAL_EVENT_TYPES)


async def send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def expect(socket: ClientConnection, *kinds: str) -> dict[str, Any]:
    event: dict[str, Any] = {}
    for kind in kinds:
        event = await receive_event(socket)
        assert event["type"] == kind, event
    return event


async def test_response_created_is_not_delayed_in_the_realtime_api(
    running: RunningServer, bench: EngineHarness
) -> None:
    async with connect(running.url, additional_headers=AUTHORIZATION_HEADERS) as socket:
        await expect(socket, "session.created")
        content = [{"type": "input_text", "text": "hello"}]
        item = {"type": "message", "role": "user", "content": content}
        await send(socket, "conversation.item.create", item=item)
        await expect(socket, "conversation.item.added", "conversation.item.done")
        settings = {"max_output_tokens": 4}
        async with device_held(running, bench.runner):
            await send(socket, "response.create", response=settings)
            first_response = (await expect(socket, "response.created"))["response"]
            out_of_band = {**settings, "conversation": "none", "input": []}
            await send(socket, "response.create", response=out_of_band)
            second_response = (await expect(socket, "response.created"))["response"]
            assert first_response["status"] == second_response["status"] == "in_progress"
        ended: set[str] = set()
        while ended != {first_response["id"], second_response["id"]}:
            event = await receive_event(socket)
            if event["type"] == "response.done":
                ended.add(event["response"]["id"])


async def test_response_created_is_not_delayed_in_the_responses_api(
    running: RunningServer, bench: EngineHarness
) -> None:
    async with connect_responses_client(running, API_KEY) as caller:
        async with device_held(running, bench.runner):
            for stream in ("a", "b"):
                await caller.send(input="hello", stream_id=stream, max_output_tokens=4)
                kinds = [(await caller.receive())["type"] for _ in range(2)]
                assert kinds == ["response.created", "response.in_progress"]
        for _ in range(2):
            await caller.wait_for(*FINAL_EVENT_TYPES)
