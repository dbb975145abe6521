"""Limits of tenants on the wire: what is refused, in which words, and what another tenant sees."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import Store, StoreError, TenantUsage, delete_tenant, open_store
from continuo.realtime.tenants.tenants import Tenants
from tests.support.clients import (
    RealtimeClient,
    RequestRefused,
    connect_realtime,
    connect_responses,
    open_realtime_session,
)
from tests.support.engines import EngineHarness
from tests.support.redis_process import RedisProcess
from tests.support.sessions import SLOW_STEP_S, shared_store
from tests.support.waiting import wait_until
from tests.support.web_servers import (
    ACME,
    UMBRELLA,
    RunningServer,
    encode_request,
    exchange_raw,
    serve_harness,
)

KEYS = """
[tenants.acme]
{limits}
[[keys]]
key = "key-one"
tenant = "acme"
[[keys]]
key = "key-two"
tenant = "umbrella"
"""


@contextlib.asynccontextmanager
async def serve(
    harness: EngineHarness, folder: Path, store: Store | None = None, **limits: float
) -> AsyncIterator[RunningServer]:
    """Serve with `limits` of the tenant acme."""
    file = folder / "keys.toml"
    text = "\n".join(f"{name} = {value}" for name, value in limits.items())
    file.write_text(KEYS.format(limits=text))
    settings = GatewaySettings(api_keys_file=str(file), served_model_name=("demo",))
    async with serve_harness(harness, settings, store) as server:
        yield server


def request_of(tokens: int, **fields: Any) -> dict[str, Any]:
    body = {"model": "demo", "input": "hi", "max_output_tokens": tokens, "ignore_eos": True}
    return {**body, **fields}


async def test_connections_above_the_limit_are_refused_with_1013(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path, connections_max=2) as server:
        async with open_realtime_session(server.url), open_realtime_session(server.url):
            async with connect_realtime(server.url) as refused:
                error = (await refused.expect("error"))["error"]
                assert error["code"] == "rate_limit_exceeded"
                assert "2 connections of tenant 'acme' are open" in error["message"]
                assert "the limit is 2" in error["message"]
                assert await refused.wait_close_code() == 1013
            async with connect_responses(server) as other:
                assert (await other.expect("error"))["error"]["code"] == "rate_limit_exceeded"
                assert await other.wait_close_code() == 1013
            status, headers, body = await server.exchange(
                "POST", "/v1/responses", request_of(5, stream=True)
            )
            assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
            assert int(headers["retry-after"]) > 0
            async with open_realtime_session(server.url, UMBRELLA):
                pass
        acme = server.registry.tenants.of("acme")
        await wait_until(lambda: acme.ledger.connections == 0)
        async with open_realtime_session(server.url):
            pass


async def test_sessions_above_the_limit_are_refused_also_when_opened_at_once(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path, sessions_max=3) as server:
        stack = contextlib.AsyncExitStack()
        connecting = (stack.enter_async_context(connect_realtime(server.url)) for _ in range(6))
        clients = await asyncio.gather(*connecting)
        events = [await client.receive() for client in clients]
        assert sorted(event["type"] for event in events) == [
            *["error"] * 3,
            *["session.created"] * 3,
        ]
        (error, *_) = (event["error"] for event in events if event["type"] == "error")
        assert "Tenant 'acme' has 3 sessions; the limit is 3" in error["message"]
        async with open_realtime_session(server.url, UMBRELLA):
            pass
        await stack.aclose()
        opened = next(each for each in clients if each.session)
        await server.request("DELETE", f"/v1/realtime/sessions/{opened.session_id}")
        async with open_realtime_session(server.url):
            pass


@pytest.mark.long
async def test_responses_above_the_limit_wait_and_then_are_refused(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path, running_responses_max=2, waiting_responses_max=1) as server:
        turns = server.registry.tenants.of("acme").turns
        harness.runner.step_s = SLOW_STEP_S
        background = request_of(300, background=True)
        started = [await server.request("POST", "/v1/responses", background) for _ in range(3)]
        assert [status for status, _ in started] == [200, 200, 200]
        assert (turns.running_count, turns.waiting_count) == (2, 1)
        status, headers, body = await server.exchange("POST", "/v1/responses", background)
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "2 responses in generation and 1 waiting" in body["error"]["message"]
        assert "retry-after" in headers
        async with open_realtime_session(server.url) as client:
            await client.send("response.create")
            assert (await client.wait_for("error"))["error"]["code"] == "rate_limit_exceeded"
            async with open_realtime_session(server.url, UMBRELLA) as other:
                await other.complete_response(max_output_tokens=3)
            _, cancelled = await server.request(
                "POST", f"/v1/responses/{started[2][1]['id']}/cancel"
            )
            assert (cancelled["output"], turns.waiting_count) == ([], 0), "it was waiting"
            assert turns.running_count == 2
            await client.send("response.create", response={"max_output_tokens": 3})
            response_id = (await client.wait_for("response.created"))["response"]["id"]
            assert turns.waiting_count == 1
            await client.send("response.cancel", response_id=response_id)
            done = await client.wait_for("response.done")
            assert done["response"]["status"] == "cancelled"
            assert turns.waiting_count == 0
            await client.start_response(max_output_tokens=3)
            for _, response in started[:2]:
                await server.request("POST", f"/v1/responses/{response['id']}/cancel")
            done = await client.wait_for("response.done")
            assert done["response"]["status"] == "incomplete"
        assert (turns.running_count, turns.waiting_count) == (0, 0)


def completion_of(tokens: int, prompt: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **fields}


async def test_completions_take_turn_slots_and_wait_for_them(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path, running_responses_max=1, waiting_responses_max=3) as server:
        turns = server.registry.tenants.of("acme").turns
        path = "/v1/completions"
        several = ["one", "two", "three"]
        status, body = await server.request("POST", path, completion_of(4, several))
        assert (status, len(body["choices"])) == (200, 3), "one at a time, all are completed"
        assert (turns.running_count, turns.waiting_count) == (0, 0)
        status, body = await server.request("POST", path, completion_of(4, [*several, "4", "5"]))
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert (turns.running_count, turns.waiting_count) == (0, 0), "none of them runs"
        harness.runner.step_s = SLOW_STEP_S
        running = asyncio.create_task(server.request("POST", path, completion_of(200)))
        await wait_until(lambda: turns.running_count == 1)
        waiting = asyncio.create_task(server.request("POST", path, completion_of(2, several)))
        await wait_until(lambda: turns.waiting_count == 3)
        for refused_path, fields in (
            (path, completion_of(2)),
            ("/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 2}}),
            ("/v1/messages", messages_of(2)),
        ):
            status, body = await server.request("POST", refused_path, fields)
            assert (status, "waiting" in body["error"]["message"]) == (429, True), refused_path
        status, _ = await server.request("POST", path, completion_of(2), UMBRELLA)
        assert status == 200
        harness.runner.step_s = 0
        assert [(await each)[0] for each in (running, waiting)] == [200, 200]
        assert (turns.running_count, turns.waiting_count) == (0, 0)


def messages_of(tokens: int) -> dict[str, Any]:
    return {
        "model": "demo",
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": "hi"}],
    }


async def post_without_reply(server: RunningServer, path: str, body: object) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_request("POST", path, body, ACME))
    assert b" 200 " in await reader.readline()
    writer.close()


async def test_abort_reaches_a_turn_that_waits_for_a_slot(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path, running_responses_max=1) as server:
        turns = server.registry.tenants.of("acme").turns
        harness.runner.step_s = SLOW_STEP_S
        sampling = {"max_new_tokens": 300, "ignore_eos": True}
        bodies = [{"text": "hi", "rid": rid, "sampling_params": sampling} for rid in "ab"]
        first = asyncio.create_task(server.request("POST", "/generate", bodies[0]))
        await wait_until(lambda: turns.running_count == 1)
        second = asyncio.create_task(server.request("POST", "/generate", bodies[1]))
        await wait_until(lambda: turns.waiting_count == 1)
        for rid, task in (("b", second), ("a", first)):
            await post_without_reply(server, "/abort_request", {"rid": rid})
            status, reply = await task
            assert (status, reply["meta_info"]["finish_reason"]["type"]) == (200, "abort")
        assert (turns.running_count, turns.waiting_count) == (0, 0)


async def test_streamed_completion_above_the_limit_of_connections_gives_its_slot_back(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path, connections_max=1, running_responses_max=2) as server:
        turns = server.registry.tenants.of("acme").turns
        async with open_realtime_session(server.url):
            for path, fields in (
                ("/v1/completions", completion_of(300, stream=True)),
                ("/v1/messages", {**messages_of(3), "stream": True}),
            ):
                status, body = await server.request("POST", path, fields)
                assert status == 429
                assert "1 connections" in body["error"]["message"]
            assert "type" in body, "an error of the Messages API has its shape"
            await wait_until(lambda: turns.running_count == 0)


async def test_token_sessions_above_the_limit_are_refused(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path, sessions_max=2) as server:
        opened = [await server.request("POST", "/open_session", {}) for _ in range(3)]
        assert [status for status, _ in opened] == [200, 200, 429]
        assert "the limit is 2" in opened[2][1]["error"]["message"]
        assert (await server.request("POST", "/open_session", {}, UMBRELLA))[0] == 200


async def test_stored_bytes_above_the_limit_refuse_what_would_add_to_them(
    harness: EngineHarness, tmp_path: Path
) -> None:
    store = await shared_store(harness)
    async with serve(harness, tmp_path, store, stored_bytes_max=10_000) as server:
        async with open_realtime_session(server.url) as client:
            item = await client.add_message("x" * 300)
            await server.registry.tenants.exchange(store)
            await client.add_message("still room")
            large = {"model": "demo", "input": "y" * 300, "max_output_tokens": 1, "metadata": {}}
            for n in range(20):
                large["metadata"] = {f"k{n}": "m" * 500 for n in range(16)}
                status, body = await server.request("POST", "/v1/responses", large)
            tenants = server.registry.tenants
            tenants._measured_s.clear()
            await tenants.exchange(store)
            await client.send_message("one more")
            error = (await client.wait_for("error"))["error"]
            assert error["code"] == "insufficient_quota"
            assert "the limit is 10,000" in error["message"]
            status, body = await server.request("POST", "/v1/responses", request_of(1))
            assert (status, body["error"]["code"]) == (429, "insufficient_quota")
            await client.send("conversation.item.delete", item_id=item)
            await client.wait_for("conversation.item.deleted")
            async with open_realtime_session(server.url, UMBRELLA) as other:
                await other.add_message("of another tenant")
        usage = (await store.tenants.read_usage("acme")), tenants.of("acme").rate_limits
        await tenants.exchange(store)
        assert (await store.tenants.read_usage("acme")).refused == 2, usage


async def test_parked_sessions_and_stored_responses_are_deleted_after_the_retention(
    harness: EngineHarness, tmp_path: Path
) -> None:
    store = await shared_store(harness)
    async with serve(harness, tmp_path, store, retention_s=0.2) as server:
        async with connect_realtime(server.url, UMBRELLA) as other:
            created = await other.expect("session.created")
            assert created["session"]["resume"]["window_s"] == Limits().resume_window_s
        async with open_realtime_session(server.url) as client:
            assert client.session["resume"]["window_s"] == 0.2
            await client.add_message("hello")
            held = await store.find(client.session_id)
            assert held is not None
            assert held.tenant == "acme"
        while await store.find(client.session_id) is not None:
            await asyncio.sleep(0.02)
        assert await store.find(other.session_id) is not None
        async with connect_realtime(f"{server.url}?{client.resume_query}") as late:
            error = (await late.expect("error"))["error"]
            assert error["code"] == "session_expired"
            assert "longer than 0.2 seconds" in error["message"]
        _, response = await server.request("POST", "/v1/responses", request_of(1))
        while (await server.request("GET", f"/v1/responses/{response['id']}"))[0] != 404:
            await asyncio.sleep(0.02)


async def test_usage_is_recorded_by_tenant(harness: EngineHarness, tmp_path: Path) -> None:
    store = await shared_store(harness)
    async with serve(harness, tmp_path, store) as server:
        async with open_realtime_session(server.url) as client:
            await client.add_message("hello")
            response = await client.start_response(max_output_tokens=5, ignore_eos=True)
            await client.wait_response(response)
            usage = client.ended_responses[response]["usage"]
        await server.registry.tenants.exchange(store)
        cached = usage["input_token_details"]["cached_tokens"]
        assert await store.tenants.read_usage("acme") == TenantUsage(
            requests=1,
            computed_tokens=usage["input_tokens"] - cached,
            cached_tokens=cached,
            generated_tokens=5,
        )
        assert await store.tenants.read_usage("umbrella") == TenantUsage()


MESSAGES = [{"role": "user", "content": "hello there"}]
SGLANG = {"max_new_tokens": 5, "ignore_eos": True}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hello there", "max_output_tokens": 5},
    "/v1/chat/completions": {"messages": MESSAGES, "max_completion_tokens": 5},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/v1/completions": {"prompt": "hello there", "max_tokens": 5},
    "/generate": {"text": "hello there", "sampling_params": SGLANG},
}


def reported(reply: dict[str, Any]) -> tuple[int, int]:
    """Return the input tokens that a reply reports as computed and as cached."""
    usage = reply.get("usage") or reply["meta_info"]
    details = usage.get("input_tokens_details") or usage.get("prompt_tokens_details") or usage
    cached = details.get("cached_tokens", usage.get("cache_read_input_tokens"))
    total = usage.get("input_tokens", usage.get("prompt_tokens"))
    if "cache_read_input_tokens" in usage:
        return total, cached
    return total - cached, cached


@pytest.mark.parametrize("path", REQUESTS)
async def test_computed_tokens_are_those_that_each_wire_reports(
    harness: EngineHarness, tmp_path: Path, path: str
) -> None:
    """The second request finds the KV of the first."""
    store = await shared_store(harness)
    async with serve(harness, tmp_path, store) as server:
        computed, cached = 0, 0
        for _ in range(2):
            body = {"model": "demo", "ignore_eos": True, **REQUESTS[path]}
            answer = await exchange_raw(server, encode_request("POST", path, body))
            reply = json.loads(answer.partition(b"\r\n\r\n")[2])
            more = reported(reply)
            computed, cached = computed + more[0], cached + more[1]
        assert cached > 0
        await server.registry.tenants.exchange(store)
        assert await store.tenants.read_usage("acme") == TenantUsage(
            requests=2, computed_tokens=computed, cached_tokens=cached, generated_tokens=10
        )


async def type_message(client: RealtimeClient, number: int) -> None:
    text = f"{number} is the number of this message, which is computed while it is typed "
    for _ in range(3):
        await client.send("input_text_buffer.append", text=text)


async def respond_until_refused(client: RealtimeClient) -> tuple[int, str]:
    """Type messages, and request a response to each, until one is refused. Returns how many tokens
    the responses say were computed, and the code of the refusal."""
    used = 0
    for number in range(20):
        await type_message(client, number)
        await client.send("input_text_buffer.commit")
        try:
            response = await client.start_response(max_output_tokens=2, ignore_eos=True)
        except RequestRefused as refused:
            return used, refused.code
        await client.wait_response(response)
        usage = client.ended_responses[response]["usage"]
        details = usage["input_token_details"]
        computed = usage["input_tokens"] - details["cached_tokens"]
        assert computed >= details["prefilled_after_commit"]
        assert computed >= 50, "the words were computed since the last response"
        used += computed + usage["output_tokens"]
    raise AssertionError("no response was refused")


async def test_words_typed_ahead_count_against_the_limit(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """Words are computed while they are typed. A response reports them as computed; when the limit
    is used up, the next response is refused, and nothing more is computed ahead."""
    async with (
        serve(harness, tmp_path, tokens_per_minute=1_000) as server,
        open_realtime_session(server.url) as client,
    ):
        used, code = await respond_until_refused(client)
        assert (used >= 500, code) == (True, "rate_limit_exceeded")
        before = harness.runner.token_count
        await type_message(client, 99)
        await client.send("no.such.event")  # when it is answered, the words have been taken
        await client.wait_for("error")
        assert harness.runner.token_count == before


async def test_words_typed_ahead_of_no_response_are_charged(
    harness: EngineHarness, tmp_path: Path
) -> None:
    store = await shared_store(harness)
    async with serve(harness, tmp_path, store) as server:
        async with open_realtime_session(server.url) as client:
            await client.send("input_text_buffer.append", text="words that nobody answers " * 4)
            await client.send("no.such.event")  # when it is answered, the words have been taken
            await client.wait_for("error")
            session = client.session_id
        assert await server.registry.delete(session, "acme")
        await server.registry.tenants.exchange(store)
        usage = await store.tenants.read_usage("acme")
        assert usage.computed_tokens >= 60
        assert (usage.requests, usage.generated_tokens) == (0, 0)


async def test_limits_a_minute_are_shared_by_the_gateways_of_a_redis(
    redis: RedisProcess,
) -> None:
    stores = [await open_store(redis.url) for _ in range(2)]
    limits = Limits(requests_per_minute=10)
    gateways = [Tenants(limits) for _ in stores]
    name = "tenant-of-two-gateways"

    async def exchange() -> None:
        for gateway, store in zip(gateways, stores, strict=True):
            await gateway.exchange(store)

    def begin(gateway: Tenants) -> None:
        with gateway.of(name).rate_limits.charge_request():
            pass

    for _ in range(6):
        begin(gateways[0])
    for gateway in gateways:
        gateway.of(name)
    begin(gateways[1])
    await exchange()
    await exchange()
    levels = [gateway.of(name).rate_limits.levels()[0].remaining for gateway in gateways]
    assert levels == [3, 3]
    for gateway in gateways:  # each grants what it knows of; together they exceed the limit
        for _ in range(3):
            begin(gateway)
    await exchange()
    await exchange()
    for gateway in gateways:
        with pytest.raises(Refusal, match="10 requests a minute is reached") as refused:
            begin(gateway)
        assert 20 < (refused.value.retry_after_s or 0) <= 24
    for store in stores:
        await store.aclose()


async def test_usage_and_charges_survive_an_outage_of_the_store(
    harness: EngineHarness,
) -> None:
    tenants, store = Tenants(Limits(requests_per_minute=100)), await shared_store(harness)
    with tenants.of("acme").rate_limits.charge_request():
        pass
    await store.aclose()
    with pytest.raises(StoreError):
        await tenants.exchange(store)
    assert tenants.of("acme").rate_limits.take_usage() == TenantUsage(requests=1)


async def test_deleted_tenant_is_disconnected_and_finds_nothing(
    harness: EngineHarness, tmp_path: Path
) -> None:
    store = await shared_store(harness)
    async with serve(harness, tmp_path, store) as server:
        tenants, scope_of = server.registry.tenants, server.registry.group_of
        scopes = [scope_of("acme"), scope_of("umbrella")]

        def close_tenant(tenant: str) -> None:
            server.registry.close_tenant(tenant)
            server.app.state.responses.close_tenant(tenant)

        async with (
            tenants.exchanging(store, close_tenant),
            open_realtime_session(server.url) as client,
            open_realtime_session(server.url, UMBRELLA) as other,
        ):
            await client.add_message("hello")
            _, stored = await server.request("POST", "/v1/responses", request_of(3))
            harness.runner.step_s = SLOW_STEP_S
            _, running = await server.request(
                "POST", "/v1/responses", request_of(300, background=True)
            )
            await delete_tenant(store, "acme")
            assert await client.wait_close_code() == 4003
            harness.runner.step_s = 0
            for response in (stored, running):
                status, _ = await server.request("GET", f"/v1/responses/{response['id']}")
                if status == 200:  # the running response is being cancelled
                    await asyncio.sleep(0.5)
                    status, _ = await server.request("GET", f"/v1/responses/{response['id']}")
                assert status == 404
                continued = request_of(3, previous_response_id=response["id"])
                status, _ = await server.request("POST", "/v1/responses", continued)
                assert status == 400
            await other.add_message("still here")
            assert scope_of("acme") != scopes[0], "KV of before is never matched"
            assert scope_of("umbrella") == scopes[1]
            async with open_realtime_session(server.url) as again:
                await again.complete_response(max_output_tokens=3)
        sessions = [info.session for info in await harness.engine.fleet.list_sessions()]
        assert client.session_id not in sessions
    assert (await store.tenants.read_usage("acme")).requests > 0
