"""Calls and their results."""

import json

from tests.clients.flows.talk import Client, flow, kinds, text_of


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
