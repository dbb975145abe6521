"""Flows of cancelled responses and truncated items."""

from tests.clients.flows.connections import Client, flow, kinds, text_of


@flow
async def cancel_in_the_middle_of_an_answer(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.add_message("tell me a story")
        await connection.sdk.response.create(response={"ignore_eos": True})
        events = await connection.receive_until("response.output_text.delta")
        await connection.sdk.response.cancel()
        events += await connection.receive_until("response.done")
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
        text = "".join(event.get("delta", "") for event in events)
        assert text_of(done) == text
        await connection.expect("rate_limits.updated")
        following = await connection.run_turn("hello", max_output_tokens=4)
        spent = done["usage"]["total_tokens"]
        assert following["usage"]["input_tokens"] > spent, "the cancelled text stays in the history"


@flow
async def cancel_by_a_wrong_id(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.add_message("tell me a story")
        await connection.sdk.response.create(response={"ignore_eos": True})
        await connection.receive_until("response.output_text.delta")
        await connection.send(type="response.cancel", response_id="resp_unknown", event_id="c1")
        error = None
        while error is None:
            event = await connection.recv()
            assert event["type"] != "response.done"
            error = event.get("error")
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "c1")
        await connection.send(type="response.cancel")
        events = await connection.receive_until("response.done")
        assert events[-1]["response"]["status"] == "cancelled"


@flow
async def cancel_when_nothing_runs(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.send(type="response.cancel", event_id="c1")
        error = (await connection.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "c1")
        assert error["message"].startswith("Cancellation failed")
        await connection.check_usable()


@flow
async def a_second_response_is_refused(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.add_message("tell me a story")
        await connection.sdk.response.create(response={"ignore_eos": True})
        await connection.receive_until("response.output_text.delta")
        await connection.send(type="response.create", event_id="second")
        event = await connection.recv()
        while event["type"] != "error":
            assert event["type"] != "response.done"
            event = await connection.recv()
        assert event["error"]["code"] == "conversation_already_has_active_response"
        assert event["error"]["event_id"] == "second"
        await connection.send(type="response.cancel")
        await connection.receive_until("rate_limits.updated")
        await connection.check_usable()


@flow
async def a_truncated_item_is_acknowledged(client: Client) -> None:
    async with client.connect_realtime() as connection:
        done = await connection.run_turn("hello", max_output_tokens=4)
        item_id = done["output"][0]["id"]
        await connection.sdk.conversation.item.truncate(
            item_id=item_id, content_index=0, audio_end_ms=100
        )
        error = (await connection.expect("error"))["error"]
        assert (error["code"], error["param"]) == ("missing_required_parameter", "text_end")
        await connection.send(
            type="conversation.item.truncate",
            item_id=item_id,
            content_index=0,
            audio_end_ms=100,
            text_end=0,
        )
        truncated = await connection.expect("conversation.item.truncated")
        assert (truncated["item_id"], truncated["audio_end_ms"]) == (item_id, 100)
        await connection.check_usable()


@flow
async def barge_in_keeps_what_was_heard(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.run_turn("hello", max_output_tokens=8)
        await connection.add_message("tell me a long story")
        await connection.sdk.response.create(response={"ignore_eos": True})
        events = await connection.receive_until("response.output_text.delta")
        while sum(len(event.get("delta", "")) for event in events) < 40:
            events.append(await connection.recv())
        item_id = events[-1]["item_id"]
        await connection.send(type="response.cancel")
        await connection.send(
            type="conversation.item.truncate", item_id=item_id, content_index=0, text_end=17
        )
        events += await connection.receive_until("rate_limits.updated")
        truncated = await connection.expect("conversation.item.truncated")
        assert (truncated["text_end"], truncated["audio_end_ms"]) == (17, 0)
        await connection.sdk.conversation.item.retrieve(item_id=item_id)
        item = (await connection.expect("conversation.item.retrieved"))["item"]
        text = "".join(event.get("delta", "") for event in events)
        assert item["content"] == [{"type": "output_text", "text": text[:17]}]
        usage = (await connection.run_turn("stop", max_output_tokens=4))["usage"]
        cached = usage["input_token_details"]["cached_tokens"]
        assert usage["input_tokens"] - cached < 24, (
            "only new tokens and the end of the truncated item are computed"
        )


@flow
async def truncate_needs_to_say_where(client: Client) -> None:
    async with client.connect_realtime() as connection:
        item_id = (await connection.run_turn("hello", max_output_tokens=4))["output"][0]["id"]
        for fields, code, param in [
            ({}, "missing_required_parameter", "audio_end_ms"),
            ({"text_end": 10_000}, "invalid_value", "text_end"),
            ({"text_end": -1}, "integer_below_min_value", "text_end"),
        ]:
            await connection.send(
                type="conversation.item.truncate", item_id=item_id, content_index=0, **fields
            )
            error = (await connection.expect("error"))["error"]
            assert (error["code"], error["param"]) == (code, param), error
        await connection.check_usable()
