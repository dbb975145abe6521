"""Flows of items, their ids and positions."""

from tests.clients.flows.connections import LONG, Client, flow, user


@flow
async def items_keep_their_ids_and_places(client: Client) -> None:
    async with client.connect_realtime() as connection:
        assert (await connection.add_message("two", id="item_two"))["previous_item_id"] is None
        for after, name, previous in [
            ("root", "item_one", None),
            (None, "item_four", "item_two"),
            ("item_two", "item_three", "item_two"),
        ]:
            await connection.send(
                type="conversation.item.create",
                item=user(name, id=name),
                **({"previous_item_id": after} if after else {}),
            )
            added = await connection.expect("conversation.item.added")
            assert (added["item"]["id"], added["previous_item_id"]) == (name, previous)
            await connection.expect("conversation.item.done")
        await connection.sdk.conversation.item.retrieve(item_id="item_three")
        retrieved = await connection.expect("conversation.item.retrieved")
        assert retrieved["item"]["content"] == [{"type": "input_text", "text": "item_three"}]
        await connection.sdk.conversation.item.delete(item_id="item_one")
        assert (await connection.expect("conversation.item.deleted"))["item_id"] == "item_one"
        await connection.send(type="conversation.item.retrieve", item_id="item_one", event_id="r1")
        error = (await connection.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("item_retrieve_invalid_item_id", "r1")
        await connection.check_usable()


@flow
async def an_item_sent_twice_is_there_once(client: Client) -> None:
    async with client.connect_realtime() as connection:
        first = await connection.add_message("hello", id="item_a")
        repeated = await connection.add_message("hello", id="item_a")
        assert first["item"] == repeated["item"]
        await connection.send(
            type="conversation.item.create", item=user("other", id="item_a"), event_id="e1"
        )
        error = (await connection.expect("error"))["error"]
        assert error["code"] == "item_create_duplicate_item_id"
        assert (error["param"], error["event_id"]) == ("item.id", "e1")
        await connection.send(
            type="conversation.item.create", item=user("x"), previous_item_id="item_none"
        )
        assert (await connection.expect("error"))["error"]["param"] == "previous_item_id"
        await connection.check_usable()


@flow
async def an_item_sent_during_an_answer_follows_it(client: Client) -> None:
    async with client.connect_realtime() as connection:
        first = await connection.add_message("tell me a story")
        await connection.send(type="response.create", response=LONG)
        events = await connection.receive_until("response.output_text.delta")
        await connection.send(type="conversation.item.create", item=user("more", id="item_more"))
        while events[-1].get("item", {}).get("id") != "item_more":
            events.append(await connection.recv())
        added = [event for event in events if event["type"] == "conversation.item.added"]
        assert [event["previous_item_id"] for event in added] == [
            first["item"]["id"],
            added[0]["item"]["id"],
        ]
        await connection.send(type="response.cancel")
        await connection.receive_until("rate_limits.updated")
        done = (await connection.create_response(max_output_tokens=2))[-1]["response"]
        assert done["usage"]["input_tokens"] > 0
