"""Responses in stored conversations: `conversation` of the Responses API, on the null device."""

import asyncio
from typing import Any

import pytest

from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.clients import (
    cached_tokens,
    connect_realtime,
    connect_responses,
    output_text,
)
from tests.support.engines import EngineHarness
from tests.support.sessions import SLOW_STEP_S
from tests.support.waiting import wait_until
from tests.support.web_servers import TENANTS, UMBRELLA, RunningServer, serve_harness

Body = dict[str, Any]
LONG: Body = {"input": "long", "max_output_tokens": 150, "ignore_eos": True}


async def new_conversation(server: RunningServer, *texts: str) -> str:
    items = [{"role": "user", "content": text} for text in texts]
    status, created = await server.request("POST", "/v1/conversations", {"items": items})
    assert status == 200, created
    return created["id"]


async def texts_of(server: RunningServer, conversation: str) -> list[str]:
    path = f"/v1/conversations/{conversation}/items?order=asc&limit=100"
    status, page = await server.request("GET", path)
    assert status == 200, page
    return ["".join(part["text"] for part in item["content"]) for item in page["data"]]


async def respond(server: RunningServer, text: str, conversation: object, **more: Any) -> Body:
    body = {"input": text, "max_output_tokens": 5, "ignore_eos": True, **more}
    status, response = await server.request(
        "POST", "/v1/responses", {**body, "conversation": conversation}
    )
    assert status == 200, response
    return response


async def test_items_come_before_the_input_and_input_and_output_are_added(
    server: RunningServer,
) -> None:
    conversation = await new_conversation(server, "before")
    first = await respond(server, "one", conversation)
    assert first["conversation"] == {"id": conversation}
    second = await respond(server, "two", {"id": conversation})
    assert await texts_of(server, conversation) == [
        *("before", "one", output_text(first)),
        *("two", output_text(second)),
    ]
    # The same history without a conversation.
    history = [{"role": "user", "content": text} for text in ("before", "one")]
    fields = {"max_output_tokens": 5, "ignore_eos": True}
    _, same = await server.request("POST", "/v1/responses", {"input": history, **fields})
    assert output_text(same) == output_text(first)
    following = {"input": "two", "previous_response_id": same["id"], **fields}
    _, same = await server.request("POST", "/v1/responses", following)
    assert output_text(same) == output_text(second)
    assert same["usage"]["input_tokens"] == second["usage"]["input_tokens"]
    whole = first["usage"]["total_tokens"]
    assert cached_tokens(second) >= whole - 1, "the history is not computed again"


@pytest.mark.parametrize("store", [True, False])
async def test_conversation_goes_on_at_another_gateway(harness: EngineHarness, store: bool) -> None:
    settings = GatewaySettings(tenants=TENANTS, served_model_name=("demo",), secret=b"x" * 16)
    async with (
        serve_harness(harness, settings) as one,
        serve_harness(harness, settings) as other,
    ):
        conversation = await new_conversation(one, "before")
        texts = ["before"]
        for n, server in enumerate((one, other, one, one)):
            response = await respond(server, f"n{n}", conversation, store=store)
            texts += [f"n{n}", output_text(response)]
            assert await texts_of(other if n % 2 else one, conversation) == texts
        response = await respond(other, "last", conversation, instructions="be brief")
        assert (await texts_of(one, conversation))[-1] == output_text(response)
        body = {"conversation": conversation, "instructions": "be brief"}
        status, counted = await one.request("POST", "/v1/responses/input_tokens", body)
        assert status == 200
        assert counted["input_tokens"] > response["usage"]["total_tokens"]


async def test_edited_conversation_is_continued_as_it_is_now(server: RunningServer) -> None:
    conversation = await new_conversation(server, "secret", "open")
    await respond(server, "one", conversation)
    path = f"/v1/conversations/{conversation}/items"
    _, page = await server.request("GET", f"{path}?order=asc")
    await server.request("DELETE", f"{path}/{page['data'][0]['id']}")
    texts = await texts_of(server, conversation)
    assert texts[0] == "open"
    response = await respond(server, "two", conversation)
    roles = ("user", "user", "assistant", "user")
    items = [
        {"role": role, "content": text} for role, text in zip(roles, [*texts, "two"], strict=True)
    ]
    body = {"input": items, "max_output_tokens": 5, "ignore_eos": True}
    _, same = await server.request("POST", "/v1/responses", body)
    assert output_text(response) == output_text(same)


async def test_connection_and_stream_add_to_a_conversation_too(server: RunningServer) -> None:
    conversation = await new_conversation(server)
    async with (
        connect_realtime(f"{server.url}?session_id={conversation}") as listener,
        connect_responses(server) as client,
    ):
        await listener.wait_for("session.updated")
        response = await client.create_response(
            "hello", conversation=conversation, max_output_tokens=4, ignore_eos=True
        )
        assert response["conversation"] == {"id": conversation}
        added = [await listener.wait_for("conversation.item.added") for _ in range(2)]
        assert [event["item"]["role"] for event in added] == ["user", "assistant"]
        assert added[1]["previous_item_id"] == added[0]["item"]["id"]
        error = await client.expect_error(
            input="x", conversation=conversation, previous_response_id=response["id"]
        )
        assert error["error"]["code"] == "mutually_exclusive_parameters"
        error = await client.expect_error(input="x", conversation="conv_0", stream_id="other")
        assert (error["error"]["code"], error["status"]) == ("conversation_not_found", 404)
        error = await client.expect_error(conversation=conversation, generate=False)
        assert error["error"]["param"] == "generate"
        continued = await client.create_response("go on", previous_response_id=response["id"])
        assert "conversation" not in continued
    assert await texts_of(server, conversation) == ["hello", output_text(response)]


async def test_response_of_a_conversation_cannot_be_steered(
    server: RunningServer, harness: EngineHarness
) -> None:
    conversation = await new_conversation(server)
    harness.runner.step_s = SLOW_STEP_S
    async with connect_responses(server) as client:
        await client.send(conversation=conversation, **LONG)
        created = await client.wait_for("response.created")
        response_id = created["response"]["id"]
        steer = {"previous_response_id": response_id, "input": "stop"}
        await client.send("response.steer", **steer)
        failed = await client.wait_for("response.steer.failed")
        assert failed["error"]["code"] == "steering_not_supported"
        await client.send("response.cancel", response_id=response_id)
        await client.wait_for("response.incomplete")
    assert await texts_of(server, conversation) == [], "a cancelled response adds nothing"


async def test_conversation_has_one_response_at_a_time(
    server: RunningServer, harness: EngineHarness
) -> None:
    conversation = await new_conversation(server, "before")
    harness.runner.step_s = SLOW_STEP_S
    body = {**LONG, "conversation": conversation}
    _, running = await server.request("POST", "/v1/responses", {**body, "background": True})
    status, refused = await server.request("POST", "/v1/responses", body)
    assert (status, refused["error"]["code"]) == (400, "conversation_locked")
    status, unknown = await server.request("POST", "/v1/responses", body, UMBRELLA)
    assert (status, unknown["error"]["code"]) == (404, "conversation_not_found")
    assert await texts_of(server, conversation) == ["before"]
    harness.runner.step_s = 0
    path = f"/v1/responses/{running['id']}"
    status, cancelled = await server.request("POST", f"{path}/cancel")
    assert (status, cancelled["status"]) == (200, "cancelled")
    await respond(server, "after", conversation)
    assert (await texts_of(server, conversation))[:2] == ["before", "after"]
    status, refused = await server.request(
        "POST", "/v1/responses", {"input": "x" * 500, "conversation": conversation}
    )
    assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")
    await respond(server, "a refused one holds no lock", conversation)


async def test_response_fails_if_its_conversation_is_deleted_meanwhile(
    server: RunningServer, harness: EngineHarness
) -> None:
    conversation = await new_conversation(server)
    harness.runner.step_s = SLOW_STEP_S
    responding = asyncio.create_task(respond(server, "hi", conversation, max_output_tokens=30))
    await wait_until(lambda: len(harness.scheduler.admission.turns) > 0)
    assert (await server.request("DELETE", f"/v1/conversations/{conversation}"))[0] == 200
    response = await responding
    assert response["status"] == "failed"
    assert "conversation_not_found" in response["error"]["message"]


async def test_other_text_under_an_id_of_the_conversation_is_refused(
    server: RunningServer,
) -> None:
    conversation = await new_conversation(server, "before")
    path = f"/v1/conversations/{conversation}/items"
    _, page = await server.request("GET", path)
    known = page["data"][0]["id"]
    item = {"type": "message", "role": "user", "content": "again", "id": known}
    body = {"input": [item], "conversation": conversation}
    status, refused = await server.request("POST", "/v1/responses", body)
    assert (status, refused["error"]["code"]) == (400, "item_create_duplicate_item_id")
    referring = [{"type": "item_reference", "id": known}, {"role": "user", "content": "more"}]
    await respond(server, "", conversation, input=referring)
    assert (await texts_of(server, conversation))[:2] == ["before", "more"]


async def test_items_of_the_conversation_that_are_sent_again_are_not_doubled(
    server: RunningServer,
) -> None:
    conversation = await new_conversation(server, "before")
    first = await respond(server, "one", conversation)
    path = f"/v1/conversations/{conversation}/items?order=asc"
    _, page = await server.request("GET", path)
    again = await respond(
        server, "", conversation, input=[*page["data"], {"role": "user", "content": "two"}]
    )
    assert again["status"] == "incomplete"
    texts = await texts_of(server, conversation)
    assert texts == ["before", "one", output_text(first), "two", output_text(again)]
    _, page = await server.request("GET", f"/v1/responses/{again['id']}/input_items")
    assert [item["content"][0]["text"] for item in page["data"]] == ["two"]
