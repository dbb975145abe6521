"""What goes wrong, and what a client does then: each with a server that is made for it (see
test_error_rows)."""
# pyright: reportMissingImports=false

import json
from collections.abc import Awaitable
from typing import Any

from openai import APIError, APIStatusError, AsyncOpenAI
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.clients.flows.responses import Call, Event, cached, call
from tests.clients.flows.talk import Client, at, text_of

BREAKS = "@@@@@@"
"""What the model of the server `broken` cannot read."""
HISTORY = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "and?"},
]
"""All that was said, for a connection that knows nothing of it."""


async def http_refusal(asking: Awaitable[object]) -> APIStatusError:
    try:
        await asking
    except APIStatusError as error:
        return error
    raise AssertionError("it was not refused")


async def upgrade_refusal(client: Client, api: AsyncOpenAI) -> Any:
    """The HTTP answer instead of a connection."""
    note = client.exchange()
    note("C", "GET /responses, to be a WebSocket")
    try:
        async with api.responses.connect():
            pass
    except InvalidStatus as refused:
        note("S", str(refused.response.status_code))
        return refused.response
    raise AssertionError("it was not refused")


async def all_again(client: Client) -> None:
    """What clients do when a connection or its history is lost."""
    async with call(client) as line:
        await line.turn(input=HISTORY, max_output_tokens=4)


@at("plain")
async def a_response_nobody_knows(client: Client) -> None:
    async with call(client) as line:
        await line.refused("previous_response_not_found", input="x", previous_response_id="resp_no")
        await line.turn(input=HISTORY, max_output_tokens=4)
    await all_again(client)


@at("brief")
async def a_connection_at_its_end(client: Client) -> None:
    async with call(client) as line:
        error = await line.recv()
        assert (error["type"], error["status"]) == ("error", 400)
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        assert await line.closed() == 1000
    await all_again(client)


@at("limited")
async def a_tenant_at_its_limit(client: Client) -> None:
    async with call(client) as line:
        await line.turn("hello", max_output_tokens=4)
        await line.refused("rate_limit_exceeded", status=429, input="hello")
        await line.refused("rate_limit_exceeded", status=429, input="hello")
    async with call(client) as line:  # the upgrade is never answered so
        await line.refused("rate_limit_exceeded", status=429, input="hello")
    api = client.api()
    messages: Any = [{"role": "user", "content": "hello"}]
    for asking in (
        api.responses.create(model="demo", input="hello"),
        api.chat.completions.create(model="demo", messages=messages),
    ):
        refused = await http_refusal(asking)
        assert (refused.status_code, refused.code) == (429, "rate_limit_exceeded")
        assert int(refused.response.headers["Retry-After"]) > 60
    async with client.talk() as talk:
        await talk.say("hello")
        await talk.send(type="response.create", event_id="e1")
        error = (await talk.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("rate_limit_exceeded", "e1")


@at("broken")
async def a_fault_of_the_server(client: Client) -> None:
    """Of ours, in what is asked for: nothing else is harmed."""
    async with call(client) as line:
        await line.refused("server_error", status=500, input="x", previous_response_id="resp_bug")
        await line.turn(input=HISTORY, max_output_tokens=4)
    refused = await http_refusal(client.api().responses.retrieve("resp_bug"))
    assert (refused.status_code, refused.code) == (500, "server_error")
    await all_again(client)


@at("broken")
async def a_response_that_fails(client: Client) -> None:
    async with call(client) as line:
        wish = {"instructions": "Be kind.", "max_output_tokens": 4}
        first = await line.turn("hello", **wish)
        await line.create(input=BREAKS, previous_response_id=first["id"], **wish)
        failed = _failed((await line.end())[-1])
        again = await line.turn("and?", previous_response_id=first["id"], **wish)
        assert cached(again) >= first["usage"]["total_tokens"] - 1, "nothing else was lost"
    api = client.api()
    whole = await api.responses.create(model="demo", input=BREAKS)
    assert (whole.status, whole.error and whole.error.code) == ("failed", "server_error")
    events = [
        event async for event in await api.responses.create(model="demo", input=BREAKS, stream=True)
    ]
    again = _failed(json.loads(events[-1].model_dump_json(exclude_unset=True)))
    assert again["error"] == failed["error"]


def _failed(event: Event) -> Event:
    assert event["type"] == "response.failed", event
    response = event["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert (response["output"], response["incomplete_details"]) == ([], None)
    return response


@at("broken")
async def a_chat_completion_that_fails(client: Client) -> None:
    chat, messages = client.api().chat.completions, [{"role": "user", "content": BREAKS}]
    asked: Any = {"model": "demo", "messages": messages}
    refused = await http_refusal(chat.create(**asked))
    assert (refused.status_code, refused.code) == (500, "turn_failed")
    broke = None
    try:
        async for _ in await chat.create(**asked, stream=True):
            pass
    except APIError as error:
        broke = error.code
    assert broke == "turn_failed"


@at("broken")
async def a_turn_that_fails(client: Client) -> None:
    async with client.talk() as talk:
        item = (await talk.say(BREAKS))["item"]
        done = (await talk.answer(max_output_tokens=4))[-1]["response"]
        assert (done["status"], done["status_details"]["type"]) == ("failed", "failed")
        assert done["status_details"]["error"]["code"] == "turn_failed"
        await talk.connection.conversation.item.delete(item_id=item["id"])
        await talk.expect("conversation.item.deleted")
        await talk.usable()


@at("without_websockets")
async def a_way_that_carries_no_websockets(client: Client) -> None:
    api = client.api()
    assert (await upgrade_refusal(client, api)).status_code == 426
    asked: Any = {"model": "demo", "max_output_tokens": 4}
    events = [
        event async for event in await api.responses.create(**asked, input=HISTORY, stream=True)
    ]
    first = events[-1].response
    second = await api.responses.create(**asked, input="so?", previous_response_id=first.id)
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1


@at("plain")
async def a_key_that_is_wrong(client: Client) -> None:
    api = client.api("sk-wrong")
    assert (await upgrade_refusal(client, api)).status_code == 401
    refused = await http_refusal(api.responses.create(model="demo", input="hello"))
    assert (refused.status_code, refused.code) == (401, "invalid_api_key")


@at("plain")
async def a_path_that_is_wrong(client: Client) -> None:
    api = client.api(base_url=client.url.replace("/v1", "/v2"))
    assert (await upgrade_refusal(client, api)).status_code == 404
    refused = await http_refusal(api.responses.create(model="demo", input="hello"))
    assert (refused.status_code, refused.code) == (404, "not_found")


@at("starting")
async def a_server_that_is_not_ready(client: Client) -> None:
    refused = await upgrade_refusal(client, client.api())
    assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
    asked: Any = {"model": "demo", "input": "hello", "max_output_tokens": 4}
    told = await http_refusal(client.api().responses.create(**asked))
    assert (told.status_code, told.code) == (503, "server_not_ready")
    again = await client.api(max_retries=3).responses.create(**asked)
    assert again.status in ("completed", "incomplete"), "the SDK comes back by itself"


@at("cut")
async def a_connection_that_is_cut(client: Client) -> None:
    """In the middle of a response: it is made to its end, and can be heard and gone on from."""
    async with call(client) as line:
        wish: Event = {"ignore_eos": True, "max_output_tokens": 60}
        await line.connection.send({"type": "response.create", "input": "hello", **wish})
        events = await _to_the_cut(line)
    id, heard = events[0]["response"]["id"], _text(events)
    later = [
        event.model_dump()
        async for event in await client.api().responses.retrieve(
            id, stream=True, starting_after=events[-1]["sequence_number"]
        )
    ]
    assert later[0]["sequence_number"] == events[-1]["sequence_number"] + 1
    assert heard + _text(later) == text_of(later[-1]["response"])
    async with call(client) as line:
        await line.turn("and?", previous_response_id=id, max_output_tokens=4)
    await all_again(client)


async def _to_the_cut(line: Call) -> list[Event]:
    events = await line.end("response.output_text.delta")
    while True:
        try:
            events.append(await line.recv())
        except ConnectionClosed:
            break
    assert await line.closed() == 1006, "without a word"
    assert events[-1]["type"] == "response.output_text.delta"
    return events


def _text(events: list[Event]) -> str:
    return "".join(
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    )
