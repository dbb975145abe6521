"""Flows of failures and what a client does then, each with a server made for it in
test_error_rows."""
# pyright: reportMissingImports=false

import json
from collections.abc import Awaitable
from typing import Any

from openai import APIError, APIStatusError, AsyncOpenAI
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.clients.flows.connections import Client, on_server, text_of
from tests.clients.flows.responses import Event, ResponsesConnection, cached, connect_responses

BREAKS = "@@@@@@"
"""A text with which a step of the server `broken` fails."""
HISTORY = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "and?"},
]
"""The whole conversation, for a connection without it."""


async def http_refusal(request: Awaitable[object]) -> APIStatusError:
    try:
        await request
    except APIStatusError as error:
        return error
    raise AssertionError("the request was not refused")


async def upgrade_refusal(client: Client, api: AsyncOpenAI) -> Any:
    """Return the HTTP response that refuses the upgrade."""
    record = client.begin_exchange()
    record("C", "GET /responses, to be a WebSocket")
    try:
        async with api.responses.connect():
            pass
    except InvalidStatus as refused:
        record("S", str(refused.response.status_code))
        return refused.response
    raise AssertionError("the request was not refused")


async def send_whole_history(client: Client) -> None:
    """Send the whole conversation on a new connection, as clients do after a loss."""
    async with connect_responses(client) as connection:
        await connection.run_turn(input=HISTORY, max_output_tokens=4)


@on_server("plain")
async def a_response_nobody_knows(client: Client) -> None:
    async with connect_responses(client) as connection:
        await connection.check_refused(
            "previous_response_not_found", input="x", previous_response_id="resp_no"
        )
        await connection.run_turn(input=HISTORY, max_output_tokens=4)
    await send_whole_history(client)


@on_server("brief")
async def a_connection_at_its_end(client: Client) -> None:
    async with connect_responses(client) as connection:
        error = await connection.recv()
        assert (error["type"], error["status"]) == ("error", 400)
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        assert await connection.close_code() == 1000
    await send_whole_history(client)


@on_server("limited")
async def a_tenant_at_its_limit(client: Client) -> None:
    async with connect_responses(client) as connection:
        await connection.run_turn("hello", max_output_tokens=4)
        await connection.check_refused("rate_limit_exceeded", status=429, input="hello")
        await connection.check_refused("rate_limit_exceeded", status=429, input="hello")
    async with connect_responses(client) as connection:  # the upgrade itself is not limited
        await connection.check_refused("rate_limit_exceeded", status=429, input="hello")
    api = client.api()
    messages: Any = [{"role": "user", "content": "hello"}]
    for request in (
        api.responses.create(model="demo", input="hello"),
        api.chat.completions.create(model="demo", messages=messages),
    ):
        refused = await http_refusal(request)
        assert (refused.status_code, refused.code) == (429, "rate_limit_exceeded")
        assert int(refused.response.headers["Retry-After"]) > 60
    async with client.connect_realtime() as connection:
        await connection.add_message("hello")
        await connection.send(type="response.create", event_id="e1")
        error = (await connection.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("rate_limit_exceeded", "e1")


@on_server("broken")
async def a_fault_of_the_server(client: Client) -> None:
    """An internal error in one request affects no other request."""
    async with connect_responses(client) as connection:
        await connection.check_refused(
            "server_error", status=500, input="x", previous_response_id="resp_bug"
        )
        await connection.run_turn(input=HISTORY, max_output_tokens=4)
    refused = await http_refusal(client.api().responses.retrieve("resp_bug"))
    assert (refused.status_code, refused.code) == (500, "server_error")
    await send_whole_history(client)


@on_server("broken")
async def a_response_that_fails(client: Client) -> None:
    async with connect_responses(client) as connection:
        fields = {"instructions": "Be kind.", "max_output_tokens": 4}
        first = await connection.run_turn("hello", **fields)
        await connection.create(input=BREAKS, previous_response_id=first["id"], **fields)
        failed = _failed((await connection.receive_until())[-1])
        second = await connection.run_turn("and?", previous_response_id=first["id"], **fields)
        assert cached(second) >= first["usage"]["total_tokens"] - 1, "nothing else was lost"
    api = client.api()
    whole = await api.responses.create(model="demo", input=BREAKS)
    assert (whole.status, whole.error and whole.error.code) == ("failed", "server_error")
    events = [
        event async for event in await api.responses.create(model="demo", input=BREAKS, stream=True)
    ]
    streamed = _failed(json.loads(events[-1].model_dump_json(exclude_unset=True)))
    assert streamed["error"] == failed["error"]


def _failed(event: Event) -> Event:
    assert event["type"] == "response.failed", event
    response = event["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert (response["output"], response["incomplete_details"]) == ([], None)
    return response


@on_server("broken")
async def a_chat_completion_that_fails(client: Client) -> None:
    chat, messages = client.api().chat.completions, [{"role": "user", "content": BREAKS}]
    body: Any = {"model": "demo", "messages": messages}
    refused = await http_refusal(chat.create(**body))
    assert (refused.status_code, refused.code) == (500, "turn_failed")
    code = None
    try:
        async for _ in await chat.create(**body, stream=True):
            pass
    except APIError as error:
        code = error.code
    assert code == "turn_failed"


@on_server("broken")
async def a_turn_that_fails(client: Client) -> None:
    async with client.connect_realtime() as connection:
        item = (await connection.add_message(BREAKS))["item"]
        done = (await connection.create_response(max_output_tokens=4))[-1]["response"]
        assert (done["status"], done["status_details"]["type"]) == ("failed", "failed")
        assert done["status_details"]["error"]["code"] == "turn_failed"
        await connection.sdk.conversation.item.delete(item_id=item["id"])
        await connection.expect("conversation.item.deleted")
        await connection.check_usable()


@on_server("without_websockets")
async def a_way_that_carries_no_websockets(client: Client) -> None:
    api = client.api()
    assert (await upgrade_refusal(client, api)).status_code == 426
    body: Any = {"model": "demo", "max_output_tokens": 4}
    events = [
        event async for event in await api.responses.create(**body, input=HISTORY, stream=True)
    ]
    first = events[-1].response
    second = await api.responses.create(**body, input="so?", previous_response_id=first.id)
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1


@on_server("plain")
async def a_key_that_is_wrong(client: Client) -> None:
    api = client.api("sk-wrong")
    assert (await upgrade_refusal(client, api)).status_code == 401
    refused = await http_refusal(api.responses.create(model="demo", input="hello"))
    assert (refused.status_code, refused.code) == (401, "invalid_api_key")


@on_server("plain")
async def a_path_that_is_wrong(client: Client) -> None:
    api = client.api(base_url=client.url.replace("/v1", "/v2"))
    assert (await upgrade_refusal(client, api)).status_code == 404
    refused = await http_refusal(api.responses.create(model="demo", input="hello"))
    assert (refused.status_code, refused.code) == (404, "not_found")


@on_server("starting")
async def a_server_that_is_not_ready(client: Client) -> None:
    refused = await upgrade_refusal(client, client.api())
    assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
    body: Any = {"model": "demo", "input": "hello", "max_output_tokens": 4}
    rejected = await http_refusal(client.api().responses.create(**body))
    assert (rejected.status_code, rejected.code) == (503, "server_not_ready")
    retried = await client.api(max_retries=3).responses.create(**body)
    assert retried.status in ("completed", "incomplete"), "the SDK retries by itself"


@on_server("cut")
async def a_connection_that_is_cut(client: Client) -> None:
    """A response whose connection is cut is generated to its end, retrieved and continued."""
    async with connect_responses(client) as connection:
        fields: Event = {"ignore_eos": True, "max_output_tokens": 60}
        await connection.sdk.send({"type": "response.create", "input": "hello", **fields})
        events = await _receive_until_cut(connection)
    id, received = events[0]["response"]["id"], _text(events)
    later = [
        event.model_dump()
        async for event in await client.api().responses.retrieve(
            id, stream=True, starting_after=events[-1]["sequence_number"]
        )
    ]
    assert later[0]["sequence_number"] == events[-1]["sequence_number"] + 1
    assert received + _text(later) == text_of(later[-1]["response"])
    async with connect_responses(client) as connection:
        await connection.run_turn("and?", previous_response_id=id, max_output_tokens=4)
    await send_whole_history(client)


async def _receive_until_cut(connection: ResponsesConnection) -> list[Event]:
    events = await connection.receive_until("response.output_text.delta")
    while True:
        try:
            events.append(await connection.recv())
        except ConnectionClosed:
            break
    assert await connection.close_code() == 1006, "the connection is cut without a close frame"
    assert events[-1]["type"] == "response.output_text.delta"
    return events


def _text(events: list[Event]) -> str:
    return "".join(
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    )
