"""Rewind: the counts reported for an edit, over a real socket, equal what the engine computes."""

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.support.engines import EngineHarness
from tests.support.web_servers import (
    AUTHORIZATION_HEADERS,
    RunningServer,
    receive_event,
    receive_until,
)

Event = dict[str, Any]
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}


async def send(socket: ClientConnection, **event: object) -> None:
    await socket.send(json.dumps(event))


async def add_message(socket: ClientConnection, name: str, text: str, **more: object) -> Event:
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "id": name, "role": "user", "content": content}
    await send(socket, type="conversation.item.create", item=item, **more)
    added = await receive_until(socket, "conversation.item.added")
    assert "rewind" not in await receive_until(socket, "conversation.item.done")
    return added


async def configure(socket: ClientConnection, **session: object) -> Event:
    await send(socket, type="session.update", session={"type": "realtime", **session})
    return await receive_until(socket, "session.updated")


async def create_response(socket: ClientConnection, tokens: int = 12) -> Event:
    response = {"max_output_tokens": tokens, "ignore_eos": True}
    await send(socket, type="response.create", response=response)
    done = await receive_until(socket, "response.done")
    return done["response"]


async def settled_status(running: RunningServer, name: str) -> Event:
    """Wait until the session is idle and all of its KV is computed. Returns its status."""
    while True:
        _, session = await running.get_json(
            f"/v1/realtime/sessions/{name}", **AUTHORIZATION_HEADERS
        )
        kv = session["kv"]
        assert isinstance(kv, dict)
        if session["state"] == "idle" and kv["tokens"] == session["tokens"]:
            return session
        await asyncio.sleep(0.01)


async def delete(socket: ClientConnection, response_item_id: str) -> Event:
    await send(socket, type="conversation.item.delete", item_id="two")
    return await receive_until(socket, "conversation.item.deleted")


async def insert(socket: ClientConnection, response_item_id: str) -> Event:
    return await add_message(socket, "between", "by the way", previous_item_id="one")


async def insert_first(socket: ClientConnection, response_item_id: str) -> Event:
    return await add_message(socket, "front", "by the way", previous_item_id="root")


async def truncate(socket: ClientConnection, response_item_id: str) -> Event:
    fields = {"item_id": response_item_id, "content_index": 0, "text_end": 3}
    await send(socket, type="conversation.item.truncate", **fields)
    return await receive_until(socket, "conversation.item.truncated")


async def set_instructions(socket: ClientConnection, response_item_id: str) -> Event:
    return await configure(socket, instructions="be brief and kind")


async def set_tools(socket: ClientConnection, response_item_id: str) -> Event:
    return await configure(socket, tools=[TOOL])


@pytest.mark.parametrize(
    "edit", [delete, insert, insert_first, truncate, set_instructions, set_tools]
)
async def test_edits_rewind_to_the_first_changed_token(
    running: RunningServer, bench: EngineHarness, edit: Any
) -> None:
    async with connect(running.url, additional_headers=AUTHORIZATION_HEADERS) as socket:
        name = (await receive_event(socket))["session"]["id"]
        await configure(socket, instructions="be brief")
        for item in ("one", "two", "three"):
            assert "rewind" not in await add_message(
                socket, item, f"this is {item} of three things"
            )
        response_item_id = (await create_response(socket))["output"][0]["id"]
        before = await settled_status(running, name)
        computed = bench.runner.token_count
        rewind = (await edit(socket, response_item_id))["rewind"]
        kept, prefilled = rewind["kept_tokens"], rewind["prefill_tokens"]
        after = await settled_status(running, name)
        assert kept < before["tokens"], "the edit rewound nothing"
        assert kept + prefilled == after["tokens"]
        assert bench.runner.token_count - computed == prefilled, (
            "computed other tokens than it reported"
        )
        usage = (await create_response(socket, 1))["usage"]
        assert usage["input_token_details"]["cached_tokens"] == kept + prefilled


async def test_changes_that_invalidate_no_kv_report_no_rewind(running: RunningServer) -> None:
    async with connect(running.url, additional_headers=AUTHORIZATION_HEADERS) as socket:
        await receive_event(socket)
        await configure(socket, instructions="be brief")
        assert "rewind" not in await add_message(socket, "one", "hello")
        assert "rewind" not in await add_message(socket, "two", "again", previous_item_id="one")
        assert "rewind" not in await configure(socket, temperature=0.5)
        message = (await create_response(socket))["output"][0]
        await send(
            socket,
            type="conversation.item.truncate",
            item_id=message["id"],
            content_index=0,
            text_end=len(message["content"][0]["text"]),
        )
        assert "rewind" not in await receive_until(socket, "conversation.item.truncated")


async def test_items_leaving_the_context_window_report_their_rewind(running: RunningServer) -> None:
    async with connect(running.url, additional_headers=AUTHORIZATION_HEADERS) as socket:
        name = (await receive_event(socket))["session"]["id"]
        await configure(socket, instructions="be brief")
        for n in range(40):
            added = await add_message(socket, f"u{n}", f"{n} is something to remember")
            if "rewind" in added:
                break
        else:
            raise AssertionError("no item left the context window")
        after = await settled_status(running, name)
        assert after["dropped_items"] > 0
        rewind = added["rewind"]
        assert rewind["kept_tokens"] + rewind["prefill_tokens"] == after["tokens"]
        assert rewind["kept_tokens"] < rewind["prefill_tokens"]
