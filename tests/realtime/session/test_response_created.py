"""`response.created` is sent without waiting for the device.

The device is held in the middle of a step meanwhile, so that the engine sends nothing."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine.batch import Batch, BatchResult, Geometry
from tests.support.clients import FINAL_EVENT_TYPES, connect_responses, open_realtime_session
from tests.support.digest_runner import VOCABULARY, DigestRunner
from tests.support.engines import EngineHarness, running_engine
from tests.support.web_servers import RunningServer

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
async def harness(
    chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EngineHarness]:
    monkeypatch.setattr(
        "continuo.engine.client.connection.UNRESPONSIVE_AFTER_S", 600.0
    )  # so that the blocked engine is not replaced
    async with running_engine(chat_model, HeldRunner) as harness:
        try:
            yield harness
        finally:
            harness.runner.free.set()


@contextlib.asynccontextmanager
async def device_held(server: RunningServer, device: HeldRunner) -> AsyncIterator[None]:
    """Keep the device in a step of another client's response."""
    async with connect_responses(server) as other:
        device.free.clear()
        await other.send(input="hello", max_output_tokens=4)
        assert await asyncio.to_thread(device.held.wait, 20)
        try:
            yield
        finally:
            device.free.set()
        await other.wait_for(*FINAL_EVENT_TYPES)


async def test_response_created_is_not_delayed_in_the_realtime_api(
    server: RunningServer, harness: EngineHarness
) -> None:
    async with open_realtime_session(server.url) as client:
        await client.add_message("hello")
        settings = {"max_output_tokens": 4}
        async with device_held(server, harness.runner):
            await client.send("response.create", response=settings)
            first_response = (await client.expect("response.created"))["response"]
            out_of_band = {**settings, "conversation": "none", "input": []}
            await client.send("response.create", response=out_of_band)
            second_response = (await client.expect("response.created"))["response"]
            assert first_response["status"] == second_response["status"] == "in_progress"
        for response in (first_response, second_response):
            await client.wait_response(response["id"])


async def test_response_created_is_not_delayed_in_the_responses_api(
    server: RunningServer, harness: EngineHarness
) -> None:
    async with connect_responses(server) as client:
        async with device_held(server, harness.runner):
            for stream in ("a", "b"):
                await client.send(input="hello", stream_id=stream, max_output_tokens=4)
                kinds = [(await client.receive())["type"] for _ in range(2)]
                assert kinds == ["response.created", "response.in_progress"]
        for _ in range(2):
            await client.wait_for(*FINAL_EVENT_TYPES)
