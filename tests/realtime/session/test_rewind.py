"""Rewind: the counts reported for an edit, over a real socket, equal what the engine computes."""

import asyncio
from typing import Any

import pytest

from tests.support.clients import JsonEvent, RealtimeClient, open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.web_servers import RunningServer

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}


async def add_message(client: RealtimeClient, name: str, text: str, **more: object) -> JsonEvent:
    await client.send_message(text, name, **more)
    added = await client.wait_for("conversation.item.added")
    assert "rewind" not in await client.wait_for("conversation.item.done")
    return added


async def configure(client: RealtimeClient, **session: object) -> JsonEvent:
    await client.send("session.update", session={"type": "realtime", **session})
    return await client.wait_for("session.updated")


async def create_response(client: RealtimeClient, tokens: int = 12) -> JsonEvent:
    response = await client.start_response(max_output_tokens=tokens, ignore_eos=True)
    await client.wait_response(response)
    return client.ended_responses[response]


async def settled_status(server: RunningServer, name: str) -> JsonEvent:
    """Wait until the session is idle and all of its KV is computed. Returns its status."""
    while True:
        _, session = await server.request("GET", f"/v1/realtime/sessions/{name}")
        kv = session["kv"]
        assert isinstance(kv, dict)
        if session["state"] == "idle" and kv["tokens"] == session["tokens"]:
            return session
        await asyncio.sleep(0.01)


async def delete(client: RealtimeClient, response_item_id: str) -> JsonEvent:
    await client.send("conversation.item.delete", item_id="two")
    return await client.wait_for("conversation.item.deleted")


async def insert(client: RealtimeClient, response_item_id: str) -> JsonEvent:
    return await add_message(client, "between", "by the way", previous_item_id="one")


async def insert_first(client: RealtimeClient, response_item_id: str) -> JsonEvent:
    return await add_message(client, "front", "by the way", previous_item_id="root")


async def truncate(client: RealtimeClient, response_item_id: str) -> JsonEvent:
    fields = {"item_id": response_item_id, "content_index": 0, "text_end": 3}
    await client.send("conversation.item.truncate", **fields)
    return await client.wait_for("conversation.item.truncated")


async def set_instructions(client: RealtimeClient, response_item_id: str) -> JsonEvent:
    return await configure(client, instructions="be brief and kind")


async def set_tools(client: RealtimeClient, response_item_id: str) -> JsonEvent:
    return await configure(client, tools=[TOOL])


@pytest.mark.parametrize(
    "edit", [delete, insert, insert_first, truncate, set_instructions, set_tools]
)
async def test_edits_rewind_to_the_first_changed_token(
    server: RunningServer, harness: EngineHarness, edit: Any
) -> None:
    async with open_realtime_session(server.url) as client:
        await configure(client, instructions="be brief")
        for item in ("one", "two", "three"):
            assert "rewind" not in await add_message(
                client, item, f"this is {item} of three things"
            )
        response_item_id = (await create_response(client))["output"][0]["id"]
        before = await settled_status(server, client.session_id)
        computed = harness.runner.token_count
        rewind = (await edit(client, response_item_id))["rewind"]
        kept, prefilled = rewind["kept_tokens"], rewind["prefill_tokens"]
        after = await settled_status(server, client.session_id)
        assert kept < before["tokens"], "the edit rewound nothing"
        assert kept + prefilled == after["tokens"]
        assert harness.runner.token_count - computed == prefilled, (
            "computed other tokens than it reported"
        )
        usage = (await create_response(client, 1))["usage"]
        details = usage["input_token_details"]
        assert details["cached_tokens"] == kept
        assert usage["input_tokens"] - details["prefilled_after_commit"] == kept + prefilled


async def test_changes_that_invalidate_no_kv_report_no_rewind(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        await configure(client, instructions="be brief")
        assert "rewind" not in await add_message(client, "one", "hello")
        assert "rewind" not in await add_message(client, "two", "again", previous_item_id="one")
        assert "rewind" not in await configure(client, temperature=0.5)
        message = (await create_response(client))["output"][0]
        await client.send(
            "conversation.item.truncate",
            item_id=message["id"],
            content_index=0,
            text_end=len(message["content"][0]["text"]),
        )
        assert "rewind" not in await client.wait_for("conversation.item.truncated")


async def test_items_leaving_the_context_window_report_their_rewind(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        await configure(client, instructions="be brief")
        for n in range(40):
            added = await add_message(client, f"u{n}", f"{n} is something to remember")
            if "rewind" in added:
                break
        else:
            raise AssertionError("no item left the context window")
        after = await settled_status(server, client.session_id)
        assert after["dropped_items"] > 0
        rewind = added["rewind"]
        assert rewind["kept_tokens"] + rewind["prefill_tokens"] == after["tokens"]
        assert rewind["kept_tokens"] < rewind["prefill_tokens"]
