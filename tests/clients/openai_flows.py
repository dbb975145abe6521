"""Conversations with the real OpenAI SDK. Runs in .venv-openai: python openai_flows.py URL KEY.

Prints a JSON object: what went wrong in each flow, or null. Every frame is validated against the
SDK's own types when it arrives.
"""
# pyright: reportMissingImports=false

import asyncio
import json
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from openai import AsyncOpenAI, PermissionDeniedError
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed, InvalidStatus

Event = dict[str, Any]
SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
OURS = {
    "input_text_buffer.appended": {"type", "event_id", "length"},
    "input_text_buffer.cleared": {"type", "event_id"},
    "input_text_buffer.committed": {"type", "event_id", "item_id", "previous_item_id"},
    "session.closed": {"type", "event_id", "reason"},
}
"""Events that the SDK does not know: only flows that use our additions may receive them."""
OUR_FIELDS = {"conversation.item.truncated": {"text_end"}}
FLOWS: dict[str, Callable[["Client"], Awaitable[None]]] = {}


def flow(run: Callable[["Client"], Awaitable[None]]) -> Callable[["Client"], Awaitable[None]]:
    FLOWS[run.__name__] = run
    return run


class Talk:
    """One connection. `recv` validates what it gives."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.seen: set[str] = set()

    async def recv(self) -> Event:
        data = await asyncio.wait_for(self.connection.recv_bytes(), 60)
        event = json.loads(data)
        fields = OURS.get(event["type"])
        if fields is None:
            valid = SERVER_EVENT.validate_json(data)
            fields = set(type(valid).model_fields) | OUR_FIELDS.get(event["type"], set())
        assert fields >= set(event), "no field the SDK does not know"
        assert event["event_id"] not in self.seen, "event ids are unique"
        self.seen.add(event["event_id"])
        return event

    async def expect(self, *types: str) -> Event:
        """The next events are of these types; gives the last."""
        event: Event = {}
        for wanted in types:
            event = await self.recv()
            assert event["type"] == wanted, f"expected {wanted}, got {json.dumps(event)}"
        return event

    async def until(self, type: str) -> list[Event]:
        events = [await self.recv()]
        while events[-1]["type"] != type:
            assert events[-1]["type"] != "error", events[-1]
            events.append(await self.recv())
        return events

    async def send(self, **event: Any) -> None:
        await self.connection.send(event)

    async def send_raw(self, frame: str | bytes) -> None:
        await self.connection._connection.send(frame)

    async def say(self, text: str, **more: Any) -> Event:
        await self.send(type="conversation.item.create", item=user(text, **more))
        added = await self.expect("conversation.item.added")
        done = await self.expect("conversation.item.done")
        assert added["item"] == done["item"]
        assert added["previous_item_id"] == done["previous_item_id"]
        return added

    async def answer(self, **response: Any) -> list[Event]:
        await self.connection.response.create(response=response)
        events = await self.until("response.done")
        assert (await self.recv())["type"] == "rate_limits.updated"
        return events

    async def ask(self, text: str, **response: Any) -> Event:
        """A whole turn; gives the finished response."""
        await self.say(text)
        return (await self.answer(**response))[-1]["response"]

    async def closed(self) -> int:
        """The code the server closes with; nothing comes before it."""
        try:
            event = await self.connection.recv_bytes()
        except ConnectionClosed as end:
            return end.rcvd.code if end.rcvd else 1006
        raise AssertionError(f"still open: {event}")

    async def usable(self) -> None:
        """Whatever was, a turn works."""
        done = await self.ask("hi", max_output_tokens=2)
        assert done["status"] in ("completed", "incomplete"), done


class Client:
    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.key = key

    @asynccontextmanager
    async def talk(self, model: str = "demo", key: str | None = None) -> AsyncIterator[Talk]:
        client = AsyncOpenAI(base_url=self.url, api_key=key or self.key)
        async with client.realtime.connect(model=model) as connection:
            talk = Talk(connection)
            created = await talk.expect("session.created")
            assert created["session"]["model"] == model
            yield talk


def user(text: str, **more: Any) -> Event:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content, **more}


def kinds(events: list[Event]) -> list[str]:
    """The types, repeated deltas once."""
    types = [event["type"] for event in events]
    return [type for n, type in enumerate(types) if n == 0 or type != types[n - 1]]


def text_of(response: Event) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


# ---------------------------------------------------------------- turns


@flow
async def text_turn_in_canonical_order(client: Client) -> None:
    async with client.talk() as talk:
        await talk.connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "instructions": "Be kind."}
        )
        updated = await talk.expect("session.updated")
        assert updated["session"]["instructions"] == "Be kind."
        assert updated["session"]["audio"]["input"]["turn_detection"] is None
        item = await talk.say("hello there")
        events = await talk.answer(max_output_tokens=20, metadata={"topic": "greeting"})
        assert kinds(events) == [
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "conversation.item.done",
            "response.done",
        ]
        by_type = {event["type"]: event for event in events}
        created, done = events[0]["response"], events[-1]["response"]
        assert created["status"] == "in_progress"
        assert created["output"] == []
        assert created["metadata"] == done["metadata"] == {"topic": "greeting"}
        assert created["id"] == done["id"]
        assert by_type["response.content_part.added"]["part"]["type"] == "text"
        added = by_type["conversation.item.added"]
        assert added["previous_item_id"] == item["item"]["id"]
        text = "".join(event.get("delta", "") for event in events)
        assert text == by_type["response.output_text.done"]["text"] == text_of(done)
        for event in events[1:-1]:
            assert event.get("response_id", created["id"]) == created["id"]
            assert event.get("item_id", added["item"]["id"]) == added["item"]["id"]
        usage = done["usage"]
        assert usage["input_tokens"] > 0
        assert 0 < usage["output_tokens"] <= 20
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@flow
async def ten_turns_reuse_what_was_said(client: Client) -> None:
    async with client.talk() as talk:
        before = 0
        for turn in range(10):
            usage = (await talk.ask(f"count to {turn}", max_output_tokens=8))["usage"]
            cached = usage["input_token_details"]["cached_tokens"]
            assert usage["input_tokens"] > before, "the history is in the prompt"
            assert before - 1 <= cached < usage["input_tokens"], "and was not computed again"
            before = usage["total_tokens"]


@flow
async def a_name_is_recalled_ten_turns_later(client: Client) -> None:
    async with client.talk() as talk:
        await talk.ask("My name is Mira.")
        for question in ["hello", "how are you?", "count from one to five", "what are you?"] * 2:
            await talk.ask(question, max_output_tokens=80)
        assert "Mira" in text_of(await talk.ask("What is my name?", max_output_tokens=80))


@flow
async def equal_seeds_give_equal_answers(client: Client) -> None:
    texts = []
    for seed in (1, 1, 2):
        async with client.talk() as talk:
            await talk.say("tell me a story")
            done = (await talk.answer(seed=seed, temperature=2, max_output_tokens=24))[-1]
            texts.append(text_of(done["response"]))
            assert done["response"]["seed"] == seed
    assert texts[0] == texts[1] != texts[2]


@flow
async def ignore_eos_goes_on_to_max_output_tokens(client: Client) -> None:
    async with client.talk() as talk:
        done = await talk.ask("hello", ignore_eos=True, max_output_tokens=150)
        assert done["ignore_eos"] is True
        assert done["usage"]["output_tokens"] == 150
        await talk.usable()


@flow
async def usage_says_where_the_time_went(client: Client) -> None:
    async with client.talk() as talk:
        first = (await talk.ask("hello", max_output_tokens=4))["usage"]
        assert set(first["timing"]) == {"queued_s", "prefill_s", "model_s"}
        assert first["timing"]["prefill_s"] > 0
        assert first["timing"]["model_s"] > 0
        assert (await talk.ask("hello", max_output_tokens=4))["usage"]["residency"] == "hot"


@flow
async def max_output_tokens_ends_incomplete(client: Client) -> None:
    async with client.talk() as talk:
        await talk.say("tell me a story")
        events = await talk.answer(max_output_tokens=3)
        done = events[-1]["response"]
        assert done["status"] == "incomplete"
        assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert done["output"][0]["status"] == "incomplete"
        assert done["usage"]["output_tokens"] == 3
        await talk.usable()


# ---------------------------------------------------------------- words as they come


@flow
async def input_text_buffer_is_prefilled_as_it_comes(client: Client) -> None:
    async with client.talk() as talk:
        await talk.ask("hello", max_output_tokens=8)
        said = ""
        for heard in ("tell me", " a story", " about the", " old", " lighthouse", " keeper"):
            said += heard
            await talk.send(type="input_text_buffer.append", text=heard)
            appended = await talk.expect("input_text_buffer.appended")
            assert appended["length"] == len(said)
        await asyncio.sleep(1)
        await talk.send(type="input_text_buffer.commit")
        committed = await talk.expect("input_text_buffer.committed")
        added = await talk.expect("conversation.item.added")
        assert committed["item_id"] == added["item"]["id"]
        assert committed["previous_item_id"] == added["previous_item_id"]
        assert added["item"]["role"] == "user"
        assert added["item"]["content"] == [{"type": "input_text", "text": said}]
        await talk.expect("conversation.item.done")
        usage = (await talk.answer(max_output_tokens=4))[-1]["response"]["usage"]
        cached = usage["input_token_details"]["cached_tokens"]
        assert usage["input_tokens"] - cached <= 8, usage


@flow
async def input_text_buffer_is_replaced_and_cleared(client: Client) -> None:
    async with client.talk() as talk:
        await talk.send(type="input_text_buffer.append", text="wreck a nice")
        await talk.send(type="input_text_buffer.replace", text="recognise")
        await talk.expect("input_text_buffer.appended")
        assert (await talk.expect("input_text_buffer.appended"))["length"] == len("recognise")
        await talk.send(type="input_text_buffer.clear")
        await talk.expect("input_text_buffer.cleared")
        await talk.send(type="input_text_buffer.commit", event_id="c1")
        error = (await talk.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("input_text_buffer_commit_empty", "c1")
        await talk.usable()


# ---------------------------------------------------------------- cancel


@flow
async def cancel_in_the_middle_of_an_answer(client: Client) -> None:
    async with client.talk() as talk:
        await talk.say("tell me a story")
        await talk.connection.response.create()
        events = await talk.until("response.output_text.delta")
        await talk.connection.response.cancel()
        events += await talk.until("response.done")
        done = events[-1]["response"]
        assert done["status"] == "cancelled", done
        assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        assert kinds(events)[-5:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "conversation.item.done",
            "response.done",
        ]
        item = done["output"][0]
        assert item["status"] == "incomplete"
        said = "".join(event.get("delta", "") for event in events)
        assert text_of(done) == said
        await talk.expect("rate_limits.updated")
        following = await talk.ask("hello", max_output_tokens=4)
        spent = done["usage"]["total_tokens"]
        assert following["usage"]["input_tokens"] > spent, "what was said stays in the history"


@flow
async def cancel_by_a_wrong_id(client: Client) -> None:
    async with client.talk() as talk:
        await talk.say("tell me a story")
        await talk.connection.response.create()
        await talk.until("response.output_text.delta")
        await talk.send(type="response.cancel", response_id="resp_unknown", event_id="c1")
        error = None
        while error is None:
            event = await talk.recv()
            assert event["type"] != "response.done"
            error = event.get("error")
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "c1")
        await talk.send(type="response.cancel")
        assert (await talk.until("response.done"))[-1]["response"]["status"] == "cancelled"


@flow
async def cancel_when_nothing_runs(client: Client) -> None:
    async with client.talk() as talk:
        await talk.send(type="response.cancel", event_id="c1")
        error = (await talk.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "c1")
        assert error["message"].startswith("Cancellation failed")
        await talk.usable()


@flow
async def a_second_response_is_refused(client: Client) -> None:
    async with client.talk() as talk:
        await talk.say("tell me a story")
        await talk.connection.response.create()
        await talk.until("response.output_text.delta")
        await talk.send(type="response.create", event_id="second")
        event = await talk.recv()
        while event["type"] != "error":
            assert event["type"] != "response.done"
            event = await talk.recv()
        assert event["error"]["code"] == "conversation_already_has_active_response"
        assert event["error"]["event_id"] == "second"
        await talk.send(type="response.cancel")
        await talk.until("rate_limits.updated")
        await talk.usable()


# ---------------------------------------------------------------- items


@flow
async def items_keep_their_ids_and_places(client: Client) -> None:
    async with client.talk() as talk:
        assert (await talk.say("two", id="item_two"))["previous_item_id"] is None
        for after, name, previous in [
            ("root", "item_one", None),
            (None, "item_four", "item_two"),
            ("item_two", "item_three", "item_two"),
        ]:
            await talk.send(
                type="conversation.item.create",
                item=user(name, id=name),
                **({"previous_item_id": after} if after else {}),
            )
            added = await talk.expect("conversation.item.added")
            assert (added["item"]["id"], added["previous_item_id"]) == (name, previous)
            await talk.expect("conversation.item.done")
        await talk.connection.conversation.item.retrieve(item_id="item_three")
        retrieved = await talk.expect("conversation.item.retrieved")
        assert retrieved["item"]["content"] == [{"type": "input_text", "text": "item_three"}]
        await talk.connection.conversation.item.delete(item_id="item_one")
        assert (await talk.expect("conversation.item.deleted"))["item_id"] == "item_one"
        await talk.send(type="conversation.item.retrieve", item_id="item_one", event_id="r1")
        error = (await talk.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("item_retrieve_invalid_item_id", "r1")
        await talk.usable()


@flow
async def an_item_sent_twice_is_there_once(client: Client) -> None:
    async with client.talk() as talk:
        first = await talk.say("hello", id="item_a")
        again = await talk.say("hello", id="item_a")
        assert first["item"] == again["item"]
        await talk.send(
            type="conversation.item.create", item=user("other", id="item_a"), event_id="e1"
        )
        error = (await talk.expect("error"))["error"]
        assert error["code"] == "item_create_duplicate_item_id"
        assert (error["param"], error["event_id"]) == ("item.id", "e1")
        await talk.send(
            type="conversation.item.create", item=user("x"), previous_item_id="item_none"
        )
        assert (await talk.expect("error"))["error"]["param"] == "previous_item_id"
        await talk.usable()


@flow
async def an_item_sent_during_an_answer_follows_it(client: Client) -> None:
    async with client.talk() as talk:
        first = await talk.say("tell me a story")
        await talk.connection.response.create()
        events = await talk.until("response.output_text.delta")
        await talk.send(type="conversation.item.create", item=user("more", id="item_more"))
        while events[-1].get("item", {}).get("id") != "item_more":
            events.append(await talk.recv())
        added = [event for event in events if event["type"] == "conversation.item.added"]
        assert [event["previous_item_id"] for event in added] == [
            first["item"]["id"],
            added[0]["item"]["id"],
        ]
        await talk.send(type="response.cancel")
        await talk.until("rate_limits.updated")
        done = (await talk.answer(max_output_tokens=2))[-1]["response"]
        assert done["usage"]["input_tokens"] > 0


@flow
async def a_truncated_item_is_acknowledged(client: Client) -> None:
    async with client.talk() as talk:
        done = await talk.ask("hello", max_output_tokens=4)
        item_id = done["output"][0]["id"]
        await talk.connection.conversation.item.truncate(
            item_id=item_id, content_index=0, audio_end_ms=100
        )
        truncated = await talk.expect("conversation.item.truncated")
        assert (truncated["item_id"], truncated["audio_end_ms"]) == (item_id, 100)
        await talk.usable()


@flow
async def barge_in_keeps_what_was_heard(client: Client) -> None:
    async with client.talk() as talk:
        await talk.ask("hello", max_output_tokens=8)
        await talk.say("tell me a long story")
        await talk.connection.response.create(response={"ignore_eos": True})
        events = await talk.until("response.output_text.delta")
        while sum(len(event.get("delta", "")) for event in events) < 40:
            events.append(await talk.recv())
        item_id = events[-1]["item_id"]
        await talk.send(type="response.cancel")
        await talk.send(
            type="conversation.item.truncate", item_id=item_id, content_index=0, text_end=17
        )
        events += await talk.until("rate_limits.updated")
        truncated = await talk.expect("conversation.item.truncated")
        assert (truncated["text_end"], truncated["audio_end_ms"]) == (17, 0)
        await talk.connection.conversation.item.retrieve(item_id=item_id)
        item = (await talk.expect("conversation.item.retrieved"))["item"]
        said = "".join(event.get("delta", "") for event in events)
        assert item["content"] == [{"type": "output_text", "text": said[:17]}]
        usage = (await talk.ask("stop", max_output_tokens=4))["usage"]
        cached = usage["input_token_details"]["cached_tokens"]
        assert usage["input_tokens"] - cached < 24, "only what is new, and the end of what was cut"


@flow
async def truncate_needs_to_say_where(client: Client) -> None:
    async with client.talk() as talk:
        item_id = (await talk.ask("hello", max_output_tokens=4))["output"][0]["id"]
        for where, code, param in [
            ({}, "missing_required_parameter", "audio_end_ms"),
            ({"text_end": 10_000}, "invalid_value", "text_end"),
            ({"text_end": -1}, "integer_below_min_value", "text_end"),
        ]:
            await talk.send(
                type="conversation.item.truncate", item_id=item_id, content_index=0, **where
            )
            error = (await talk.expect("error"))["error"]
            assert (error["code"], error["param"]) == (code, param), error
        await talk.usable()


@flow
async def a_conversation_longer_than_the_context_goes_on(client: Client) -> None:
    async with client.talk() as talk:
        first = await talk.say("the first thing of all")
        total = 0
        while total < 2500:
            text = "all work and no play makes a dull day " * 12
            usage = (await talk.ask(text, max_output_tokens=4))["usage"]
            assert usage["input_tokens"] < 2048
            total += usage["input_tokens"] - usage["input_token_details"]["cached_tokens"]
        await talk.connection.conversation.item.retrieve(item_id=first["item"]["id"])
        assert (await talk.expect("conversation.item.retrieved"))["item"] == first["item"]


@flow
async def truncation_disabled_is_an_error(client: Client) -> None:
    async with client.talk() as talk:
        await talk.send(
            type="session.update", session={"type": "realtime", "truncation": "disabled"}
        )
        assert (await talk.expect("session.updated"))["session"]["truncation"] == "disabled"
        error = None
        while error is None:
            await talk.send(
                type="conversation.item.create", item=user("all work and no play " * 60)
            )
            error = (await talk.recv()).get("error")
            if error is None:
                await talk.expect("conversation.item.done")
        assert error["code"] == "context_length_exceeded"
        assert "max_model_len" in error["message"]
        await talk.send(type="session.update", session={"type": "realtime", "truncation": "auto"})
        await talk.expect("session.updated")
        await talk.usable()


@flow
async def a_call_and_its_result_are_history(client: Client) -> None:
    async with client.talk() as talk:
        tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
        await talk.connection.session.update(session={"type": "realtime", "tools": [tool]})
        session = (await talk.expect("session.updated"))["session"]
        assert session["tools"] == [tool]
        await talk.say("what is the weather in Rome?")
        call = {
            "type": "function_call",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"city": "Rome"}',
        }
        for item in (call, {"type": "function_call_output", "call_id": "call_1", "output": "sun"}):
            await talk.send(type="conversation.item.create", item=item)
            added = await talk.expect("conversation.item.added")
            assert {key: added["item"][key] for key in item} == item
            await talk.expect("conversation.item.done")
        done = (await talk.answer(max_output_tokens=4))[-1]["response"]
        assert done["status"] in ("completed", "incomplete")


@flow
async def a_tool_is_called_and_its_result_used(client: Client) -> None:
    async with client.talk() as talk:
        tool = {
            "type": "function",
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        }
        await talk.connection.session.update(session={"type": "realtime", "tools": [tool]})
        await talk.expect("session.updated")
        await talk.say("What is the weather in Rome?")
        events = await talk.answer()
        assert kinds(events) == [
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "conversation.item.done",
            "response.done",
        ], kinds(events)
        (call,) = events[-1]["response"]["output"]
        arguments = "".join(event.get("delta", "") for event in events)
        assert (call["name"], call["arguments"]) == ("get_weather", arguments)
        assert json.loads(arguments) == {"city": "Rome"}
        output = json.dumps({"condition": "sunny", "temperature": 21})
        item = {"type": "function_call_output", "call_id": call["call_id"], "output": output}
        await talk.send(type="conversation.item.create", item=item)
        await talk.expect("conversation.item.added", "conversation.item.done")
        done = (await talk.answer())[-1]["response"]
        assert "21" in text_of(done) or "sunny" in text_of(done), text_of(done)


# ---------------------------------------------------------------- responses of other kinds


@flow
async def a_response_beside_the_conversation(client: Client) -> None:
    async with client.talk() as talk:
        await talk.say("hello")
        events = await talk.answer(
            conversation="none",
            input=[user("what is this about?")],
            metadata={"purpose": "label"},
            max_output_tokens=4,
        )
        assert not any(event["type"].startswith("conversation.") for event in events)
        done = events[-1]["response"]
        assert done["conversation_id"] is None
        assert done["metadata"] == {"purpose": "label"}
        item_id = done["output"][0]["id"]
        await talk.send(type="conversation.item.retrieve", item_id=item_id)
        assert (await talk.expect("error"))["error"]["code"] == "item_retrieve_invalid_item_id"
        empty = (await talk.answer(conversation="none", input=[], max_output_tokens=2))[-1]
        both = (await talk.answer(conversation="none", max_output_tokens=2))[-1]
        tokens = [event["response"]["usage"]["input_tokens"] for event in (empty, both)]
        assert tokens[0] < tokens[1], "an empty input is an empty context"


@flow
async def responses_beside_the_conversation_share_its_kv(client: Client) -> None:
    async with client.talk() as talk:
        spent = (await talk.ask("tell me a story", max_output_tokens=40))["usage"]["total_tokens"]
        references = [
            {"type": "item_reference", "id": event["item"]["id"]}
            for event in [await talk.say("and now?")]
        ]
        beside = (await talk.answer(conversation="none", max_output_tokens=2))[-1]["response"]
        assert beside["usage"]["input_token_details"]["cached_tokens"] >= spent - 1
        alone = await talk.answer(conversation="none", input=references, max_output_tokens=2)
        assert alone[-1]["response"]["usage"]["input_tokens"] < spent
        for n in range(3):
            await talk.connection.response.create(
                response={"conversation": "none", "metadata": {"n": str(n)}, "max_output_tokens": 2}
            )
        seen = set()
        while len(seen) < 3:
            response = (await talk.until("response.done"))[-1]["response"]
            seen.add(response["metadata"]["n"])
        await talk.expect("rate_limits.updated")
        await talk.usable()


@flow
async def a_response_beside_a_running_one(client: Client) -> None:
    async with client.talk() as talk:
        await talk.say("tell me a story")
        await talk.connection.response.create()
        main = (await talk.until("response.output_text.delta"))[0]["response"]["id"]
        await talk.connection.response.create(
            response={"conversation": "none", "input": [user("hi")], "max_output_tokens": 2}
        )
        ended = (await talk.until("response.done"))[-1]["response"]
        if ended["id"] != main:
            await talk.send(type="response.cancel")
            while ended["id"] != main:
                ended = (await talk.until("response.done"))[-1]["response"]
        assert ended["id"] == main


@flow
async def instructions_of_one_response(client: Client) -> None:
    async with client.talk() as talk:
        plain = await talk.ask("hello", max_output_tokens=2)
        told = await talk.ask("hello", instructions="word " * 20, max_output_tokens=2)
        after = await talk.ask("hello", max_output_tokens=2)
        tokens = [response["usage"]["input_tokens"] for response in (plain, told, after)]
        assert tokens[0] < tokens[2] < tokens[1], "they are of that response alone"


@flow
async def changed_instructions_change_the_history(client: Client) -> None:
    async with client.talk() as talk:
        await talk.ask("hello", max_output_tokens=2)
        await talk.connection.session.update(
            session={"type": "realtime", "instructions": "word " * 20}
        )
        await talk.expect("session.updated")
        longer = await talk.ask("hello", max_output_tokens=2)
        await talk.connection.session.update(session={"type": "realtime", "instructions": ""})
        await talk.expect("session.updated")
        shorter = await talk.ask("hello", max_output_tokens=2)
        assert longer["usage"]["input_tokens"] > shorter["usage"]["input_tokens"]


@flow
async def audio_events_are_answered(client: Client) -> None:
    async with client.talk() as talk:
        await talk.connection.input_audio_buffer.append(audio="AAAA")
        await talk.connection.input_audio_buffer.clear()
        await talk.expect("input_audio_buffer.cleared")
        await talk.send(type="input_audio_buffer.commit", event_id="a1")
        error = (await talk.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "a1")
        await talk.connection.output_audio_buffer.clear()
        await talk.usable()


@flow
async def what_clients_send_unasked_is_accepted(client: Client) -> None:
    async with client.talk() as talk:
        await talk.send(
            type="session.update",
            session={
                "type": "realtime",
                "model": "gpt-realtime-2.1",
                "output_modalities": ["audio"],
                "audio": {
                    "input": {"turn_detection": {"type": "server_vad", "interrupt_response": True}},
                    "output": {"voice": "marin", "speed": 1.2},
                },
                "tracing": "auto",
                "truncation": {"type": "retention_ratio", "retention_ratio": 0.8},
                "prompt": None,
                "include": [],
                "reasoning": {"effort": "low"},
                "tool_choice": "auto",
                "parallel_tool_calls": False,
                "max_output_tokens": "inf",
                "a_key_of_tomorrow": {"deep": [1, 2]},
            },
        )
        session = (await talk.expect("session.updated"))["session"]
        assert session["audio"]["input"]["turn_detection"] is None
        assert session["audio"]["input"]["transcription"] is None
        assert session["audio"]["output"]["voice"] == "marin"
        assert session["output_modalities"] == ["text"]
        assert session["parallel_tool_calls"] is False
        assert session["truncation"] == {"type": "retention_ratio", "retention_ratio": 0.8}
        assert session["model"] == "demo"
        await talk.usable()


# ---------------------------------------------------------------- bad input

BAD: dict[str, tuple[str, str, str | None]] = {
    "not_json": ('{"event_id": "bad", "type": ', "invalid_json", None),
    "not_an_object": ('["event_id", "bad"]', "invalid_type", None),
    "unknown_event": ('{"event_id": "bad", "type": "session.destroy"}', "invalid_value", "type"),
    "no_type": ('{"event_id": "bad"}', "missing_required_parameter", "type"),
    "missing_field": (
        '{"event_id": "bad", "type": "conversation.item.create"}',
        "missing_required_parameter",
        "item",
    ),
    "missing_field_inside": (
        '{"event_id": "bad", "type": "session.update", "session": {}}',
        "missing_required_parameter",
        "session.type",
    ),
    "wrong_type": (
        '{"event_id": "bad", "type": "session.update", '
        '"session": {"type": "realtime", "instructions": 7}}',
        "invalid_type",
        "session.instructions",
    ),
    "temperature_above": (
        '{"event_id": "bad", "type": "response.create", "response": {"temperature": 2.5}}',
        "decimal_above_max_value",
        "response.temperature",
    ),
    "top_p_zero": (
        '{"event_id": "bad", "type": "response.create", "response": {"top_p": 0}}',
        "decimal_below_min_value",
        "response.top_p",
    ),
    "no_tokens": (
        '{"event_id": "bad", "type": "response.create", "response": {"max_output_tokens": 0}}',
        "integer_below_min_value",
        "response.max_output_tokens",
    ),
    "image": (
        '{"event_id": "bad", "type": "conversation.item.create", "item": {"type": "message", '
        '"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}}',
        "invalid_value",
        "item.content[0].type",
    ),
    "too_deep": (
        '{"event_id": "bad", "type": "response.cancel", "x": ' + "[" * 50_000,
        "invalid_json",
        None,
    ),
    "too_large": (
        json.dumps({"event_id": "bad", "type": "response.cancel", "x": "x" * 1_100_000}),
        "frame_too_large",
        None,
    ),
    "over_the_context": (
        json.dumps(
            {
                "event_id": "bad",
                "type": "conversation.item.create",
                "item": user("all work and no play " * 2_000),
            }
        ),
        "context_length_exceeded",
        "item",
    ),
    "instructions_over_the_context": (
        json.dumps(
            {
                "event_id": "bad",
                "type": "session.update",
                "session": {"type": "realtime", "instructions": "all work and no play " * 2_000},
            }
        ),
        "context_length_exceeded",
        "session.instructions",
    ),
}


def bad_input(frame: str, code: str, param: str | None) -> Callable[[Client], Awaitable[None]]:
    async def run(client: Client) -> None:
        async with client.talk() as talk:
            await talk.say("hello")
            await talk.send_raw(frame)
            error = (await talk.expect("error"))["error"]
            assert (error["code"], error["param"]) == (code, param), error
            if code != "invalid_type" or param is not None:
                assert error["event_id"] == "bad", error
            await talk.usable()

    return run


for name, (frame, code, param) in BAD.items():
    FLOWS[f"bad_input_{name}"] = bad_input(frame, code, param)


@flow
async def a_frame_over_twice_the_limit_closes(client: Client) -> None:
    async with client.talk() as talk:
        with suppress(ConnectionClosed):  # hung up on in the middle of it
            await talk.send_raw("x" * 2_200_000)
        assert await talk.closed() in (1009, 1006), "1006: a reset has overtaken the code"


@flow
async def frames_that_are_never_json_close(client: Client) -> None:
    async with client.talk() as talk:
        for _ in range(32):
            await talk.send_raw("hello?")
        await talk.expect(*["error"] * 32)
        assert await talk.closed() == 1007


@flow
async def an_unknown_model(client: Client) -> None:
    api = AsyncOpenAI(base_url=client.url, api_key=client.key)
    async with api.realtime.connect(model="gpt-9") as connection:
        talk = Talk(connection)
        error = (await talk.expect("error"))["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'demo'" in error["message"]
        assert await talk.closed() == 1008


@flow
async def client_secrets_open_sessions(client: Client) -> None:
    api = AsyncOpenAI(base_url=client.url, api_key=client.key)
    secret = await api.realtime.client_secrets.create(
        expires_after={"anchor": "created_at", "seconds": 60},
        session={"type": "realtime", "instructions": "Be kind.", "max_output_tokens": 3},
    )
    assert secret.value.startswith("ek_")
    assert secret.session.id.startswith("sess_")
    async with client.talk(key=secret.value) as talk:
        await talk.send(type="session.update", session={"type": "realtime"})
        session = (await talk.expect("session.updated"))["session"]
        assert session["instructions"] == "Be kind."
        assert (await talk.ask("hello"))["usage"]["output_tokens"] <= 3
    code = None
    try:
        browser = AsyncOpenAI(base_url=client.url, api_key=secret.value)
        await browser.realtime.client_secrets.create()
    except PermissionDeniedError as denied:
        code = denied.code
    assert code == "ephemeral_key", "a secret makes no secrets"


@flow
async def session_close_ends_the_session(client: Client) -> None:
    async with client.talk() as talk:
        await talk.ask("hello", max_output_tokens=2)
        await talk.send(type="session.close")
        assert (await talk.expect("session.closed"))["reason"] == "client_request"
        assert await talk.closed() == 1000


@flow
async def a_wrong_key(client: Client) -> None:
    status = None
    try:
        async with client.talk(key="sk-wrong"):
            pass
    except InvalidStatus as refused:
        status = refused.response.status_code
    assert status == 401


@flow
async def models_are_listed(client: Client) -> None:
    api = AsyncOpenAI(base_url=client.url, api_key=client.key)
    models = [model.id async for model in api.models.list()]
    assert models == ["demo"]
    assert (await api.models.retrieve("demo")).id == "demo"


async def main(url: str, key: str) -> None:
    client, problems = Client(url, key), dict[str, str | None]()
    for name, run in FLOWS.items():
        try:
            await asyncio.wait_for(run(client), 120)
            problems[name] = None
        except Exception:
            problems[name] = traceback.format_exc(limit=-4)
    print(json.dumps(problems))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
