"""Flows of out-of-band responses."""

from tests.clients.flows.connections import LONG, Client, flow, user


@flow
async def a_response_beside_the_conversation(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.add_message("hello")
        events = await connection.create_response(
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
        await connection.send(type="conversation.item.retrieve", item_id=item_id)
        error = (await connection.expect("error"))["error"]
        assert error["code"] == "item_retrieve_invalid_item_id"
        empty = (
            await connection.create_response(conversation="none", input=[], max_output_tokens=2)
        )[-1]
        both = (await connection.create_response(conversation="none", max_output_tokens=2))[-1]
        tokens = [event["response"]["usage"]["input_tokens"] for event in (empty, both)]
        assert tokens[0] < tokens[1], "an empty input is an empty context"


@flow
async def responses_beside_the_conversation_share_its_kv(client: Client) -> None:
    async with client.connect_realtime() as connection:
        story = await connection.run_turn("tell me a story", max_output_tokens=40)
        spent = story["usage"]["total_tokens"]
        references = [
            {"type": "item_reference", "id": event["item"]["id"]}
            for event in [await connection.add_message("and now?")]
        ]
        out_of_band = (await connection.create_response(conversation="none", max_output_tokens=2))[
            -1
        ]["response"]
        assert out_of_band["usage"]["input_token_details"]["cached_tokens"] >= spent - 1
        alone = await connection.create_response(
            conversation="none", input=references, max_output_tokens=2
        )
        assert alone[-1]["response"]["usage"]["input_tokens"] < spent
        for n in range(3):
            await connection.sdk.response.create(
                response={"conversation": "none", "metadata": {"n": str(n)}, "max_output_tokens": 2}
            )
        ended = set()
        while len(ended) < 3:
            response = (await connection.receive_until("response.done"))[-1]["response"]
            ended.add(response["metadata"]["n"])
        await connection.expect("rate_limits.updated")
        await connection.check_usable()


@flow
async def a_response_beside_a_running_one(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.add_message("tell me a story")
        await connection.send(type="response.create", response=LONG)
        main = (await connection.receive_until("response.output_text.delta"))[0]["response"]["id"]
        await connection.sdk.response.create(
            response={"conversation": "none", "input": [user("hi")], "max_output_tokens": 2}
        )
        ended = (await connection.receive_until("response.done"))[-1]["response"]
        assert ended["id"] != main
        await connection.send(type="response.cancel")
        ended = (await connection.receive_until("response.done"))[-1]["response"]
        assert (ended["id"], ended["status"]) == (main, "cancelled")
