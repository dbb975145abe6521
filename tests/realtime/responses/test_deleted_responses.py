"""Stored responses that were deleted at another gateway, or are past their retention: the gateway
that made them no longer continues them from its memory."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import open_store
from tests.realtime.responses.test_response_chains import (
    REQUESTER,
    is_unknown,
    request,
    response_service,
    turn,
)
from tests.support.clients import output_text
from tests.support.engines import EngineHarness
from tests.support.redis_process import RedisProcess
from tests.support.waiting import POLL_S
from tests.support.web_servers import TENANTS, RunningServer, serve_harness

Body = dict[str, Any]
pytestmark = pytest.mark.process


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        redis: RedisProcess = request.getfixturevalue("redis")
        return redis.url
    return f"sqlite:///{tmp_path / 'store.db'}"


@contextlib.asynccontextmanager
async def gateway_on(url: str, harness: EngineHarness) -> AsyncIterator[RunningServer]:
    settings = GatewaySettings(tenants=TENANTS, served_model_name=("demo",), secret=b"x" * 16)
    store = await open_store(url)
    async with serve_harness(harness, settings, store) as server:
        yield server
    await store.aclose()


async def respond(server: RunningServer, text: str, **more: Any) -> tuple[int, Body]:
    body = {"input": text, "max_output_tokens": 5, "ignore_eos": True, **more}
    return await server.request("POST", "/v1/responses", body)


async def test_response_deleted_at_another_gateway_cannot_be_continued(
    harness: EngineHarness, redis: RedisProcess
) -> None:
    async with (
        gateway_on(redis.url, harness) as one,
        gateway_on(redis.url, harness) as other,
    ):
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            _, first = await respond(one, "hello")
            id = first["id"]
            assert (await other.request("DELETE", f"/v1/responses/{id}"))[0] == 200
            body = {"input": "on", "previous_response_id": id}
            for store in (True, False):
                status, refused = await one.request("POST", path, {**body, "store": store})
                assert status == 400
                assert refused["error"]["code"] == "previous_response_not_found"
            assert (await one.request("GET", f"/v1/responses/{id}"))[0] == 404
            assert (await one.request("DELETE", f"/v1/responses/{id}"))[0] == 404
        assert len(one.app.state.responses.continuations) == 0, "the text is not kept either"


async def test_response_deleted_at_another_gateway_is_not_deleted_twice(
    harness: EngineHarness, redis: RedisProcess
) -> None:
    async with (
        gateway_on(redis.url, harness) as one,
        gateway_on(redis.url, harness) as other,
    ):
        _, first = await respond(one, "hello")
        assert (await other.request("DELETE", f"/v1/responses/{first['id']}"))[0] == 200
        assert (await one.request("DELETE", f"/v1/responses/{first['id']}"))[0] == 404


async def test_response_after_a_deleted_one_is_continued_from_memory(
    harness: EngineHarness, redis: RedisProcess
) -> None:
    async with (
        gateway_on(redis.url, harness) as one,
        gateway_on(redis.url, harness) as other,
    ):
        _, first = await respond(one, "hello")
        _, second = await respond(one, "on", previous_response_id=first["id"])
        assert (await other.request("DELETE", f"/v1/responses/{first['id']}"))[0] == 200
        status, third = await respond(one, "and on", previous_response_id=second["id"])
        assert status == 200
        assert output_text(third)
        status, _ = await respond(other, "and on", previous_response_id=second["id"])
        assert status == 400, "its history is not in the store"


async def test_response_past_its_retention_cannot_be_continued(
    harness: EngineHarness, url: str
) -> None:
    store = await open_store(url)
    async with response_service(harness, Limits(stored_response_ttl_s=0.3), store) as responses:
        first = await turn(responses, request("hello", store=True))
        unstored = await turn(responses, request("on", first.id))
        async with asyncio.timeout(20):
            while await store.has_response(first.id):
                await asyncio.sleep(POLL_S)
        assert await is_unknown(responses, first.id)
        assert not await is_unknown(responses, unstored.id), "it was not to be stored"
        assert not await responses.delete(first.id, REQUESTER)
    await store.aclose()


async def test_response_is_continued_from_memory_when_the_store_was_emptied(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """The store that is there now cannot know whether the response was deleted."""
    store = await open_store(f"sqlite:///{tmp_path / 'store.db'}")
    async with response_service(harness, store=store) as responses:
        first = await turn(responses, request("hello", store=True))
        with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as other, other:
            other.execute("DELETE FROM stored_responses")
            other.execute("UPDATE store SET epoch = 'another'")
        assert not await is_unknown(responses, first.id)
        assert not await store.has_response(first.id)
        assert not await is_unknown(responses, first.id)
    await store.aclose()
