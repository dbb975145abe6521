"""Responses beside the conversation."""

from tests.clients.flows.talk import LONG, Client, flow, user


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
        await talk.send(type="response.create", response=LONG)
        main = (await talk.until("response.output_text.delta"))[0]["response"]["id"]
        await talk.connection.response.create(
            response={"conversation": "none", "input": [user("hi")], "max_output_tokens": 2}
        )
        ended = (await talk.until("response.done"))[-1]["response"]
        assert ended["id"] != main
        await talk.send(type="response.cancel")
        ended = (await talk.until("response.done"))[-1]["response"]
        assert (ended["id"], ended["status"]) == (main, "cancelled")
