"""An edit says how far it rewinds, and how much is read again: over a real socket, compared with
what the engine then computes."""

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.support.engines import Bench
from tests.support.web_servers import BEARER, Running, first

Event = dict[str, Any]
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}


async def until(socket: ClientConnection, kind: str) -> Event:
    while (event := await first(socket))["type"] != kind:
        assert event["type"] != "error", event
    return event


async def send(socket: ClientConnection, **event: object) -> None:
    await socket.send(json.dumps(event))


async def say(socket: ClientConnection, name: str, text: str, **more: object) -> Event:
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "id": name, "role": "user", "content": content}
    await send(socket, type="conversation.item.create", item=item, **more)
    added = await until(socket, "conversation.item.added")
    assert "rewind" not in await until(socket, "conversation.item.done")
    return added


async def configure(socket: ClientConnection, **session: object) -> Event:
    await send(socket, type="session.update", session={"type": "realtime", **session})
    return await until(socket, "session.updated")


async def answer(socket: ClientConnection, tokens: int = 12) -> Event:
    response = {"max_output_tokens": tokens, "ignore_eos": True}
    await send(socket, type="response.create", response=response)
    done = await until(socket, "response.done")
    return done["response"]


async def look(running: Running, name: str) -> Event:
    """The session when the engine has taken in all of it."""
    while True:
        _, session = await running.get(f"/v1/realtime/sessions/{name}", **BEARER)
        kv = session["kv"]
        assert isinstance(kv, dict)
        if session["state"] == "idle" and kv["tokens"] == session["tokens"]:
            return session
        await asyncio.sleep(0.01)


async def delete(socket: ClientConnection, answered: str) -> Event:
    await send(socket, type="conversation.item.delete", item_id="two")
    return await until(socket, "conversation.item.deleted")


async def insert(socket: ClientConnection, answered: str) -> Event:
    return await say(socket, "between", "by the way", previous_item_id="one")


async def in_front(socket: ClientConnection, answered: str) -> Event:
    return await say(socket, "front", "by the way", previous_item_id="root")


async def truncate(socket: ClientConnection, answered: str) -> Event:
    asked = {"item_id": answered, "content_index": 0, "text_end": 3}
    await send(socket, type="conversation.item.truncate", **asked)
    return await until(socket, "conversation.item.truncated")


async def instruct(socket: ClientConnection, answered: str) -> Event:
    return await configure(socket, instructions="be brief and kind")


async def equip(socket: ClientConnection, answered: str) -> Event:
    return await configure(socket, tools=[LOOK])


@pytest.mark.parametrize("edit", [delete, insert, in_front, truncate, instruct, equip])
async def test_edits_rewind_to_the_first_changed_token(
    running: Running, bench: Bench, edit: Any
) -> None:
    async with connect(running.url, additional_headers=BEARER) as socket:
        name = (await first(socket))["session"]["id"]
        await configure(socket, instructions="be brief")
        for item in ("one", "two", "three"):
            assert "rewind" not in await say(socket, item, f"this is {item} of three things")
        answered = (await answer(socket))["output"][0]["id"]
        before = await look(running, name)
        computed = bench.runner.tokens_run
        rewind = (await edit(socket, answered))["rewind"]
        kept, again = rewind["kept_tokens"], rewind["prefill_tokens"]
        after = await look(running, name)
        assert kept < before["tokens"], "something of it has gone"
        assert kept + again == after["tokens"]
        assert bench.runner.tokens_run - computed == again, "what follows, and nothing else"
        usage = (await answer(socket, 1))["usage"]
        assert usage["input_token_details"]["cached_tokens"] == kept + again


async def test_what_changes_nothing_that_was_read_says_no_counts(running: Running) -> None:
    async with connect(running.url, additional_headers=BEARER) as socket:
        await first(socket)
        await configure(socket, instructions="be brief")
        assert "rewind" not in await say(socket, "one", "hello")
        assert "rewind" not in await say(socket, "two", "again", previous_item_id="one")
        assert "rewind" not in await configure(socket, temperature=0.5)
        said = (await answer(socket))["output"][0]
        await send(
            socket,
            type="conversation.item.truncate",
            item_id=said["id"],
            content_index=0,
            text_end=len(said["content"][0]["text"]),
        )
        assert "rewind" not in await until(socket, "conversation.item.truncated")


async def test_dropping_the_oldest_says_what_is_read_again(running: Running) -> None:
    async with connect(running.url, additional_headers=BEARER) as socket:
        name = (await first(socket))["session"]["id"]
        await configure(socket, instructions="be brief")
        for n in range(40):
            added = await say(socket, f"u{n}", f"{n} is something to remember")
            if "rewind" in added:
                break
        else:
            raise AssertionError("something is dropped in the end")
        after = await look(running, name)
        assert after["dropped_items"] > 0
        rewind = added["rewind"]
        assert rewind["kept_tokens"] + rewind["prefill_tokens"] == after["tokens"]
        assert rewind["kept_tokens"] < rewind["prefill_tokens"]
