"""Flows of tool calls and their results."""

import json

from tests.clients.flows.connections import Client, flow, kinds, text_of


@flow
async def a_call_and_its_result_are_history(client: Client) -> None:
    async with client.connect_realtime() as connection:
        tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
        await connection.sdk.session.update(session={"type": "realtime", "tools": [tool]})
        session = (await connection.expect("session.updated"))["session"]
        assert session["tools"] == [tool]
        await connection.add_message("what is the weather in Rome?")
        call = {
            "type": "function_call",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"city": "Rome"}',
        }
        for item in (call, {"type": "function_call_output", "call_id": "call_1", "output": "sun"}):
            await connection.send(type="conversation.item.create", item=item)
            added = await connection.expect("conversation.item.added")
            assert {key: added["item"][key] for key in item} == item
            await connection.expect("conversation.item.done")
        done = (await connection.create_response(max_output_tokens=4))[-1]["response"]
        assert done["status"] in ("completed", "incomplete")


@flow
async def a_tool_is_called_and_its_result_used(client: Client) -> None:
    async with client.connect_realtime() as connection:
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
        await connection.sdk.session.update(session={"type": "realtime", "tools": [tool]})
        await connection.expect("session.updated")
        await connection.add_message("What is the weather in Rome?")
        events = await connection.create_response()
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
        await connection.send(type="conversation.item.create", item=item)
        await connection.expect("conversation.item.added", "conversation.item.done")
        done = (await connection.create_response())[-1]["response"]
        assert "21" in text_of(done) or "sunny" in text_of(done), text_of(done)
