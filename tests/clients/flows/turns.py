"""Flows of one turn and of many."""

from tests.clients.flows.connections import Client, flow, kinds, text_of


@flow
async def text_turn_in_canonical_order(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.sdk.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "instructions": "Be kind."}
        )
        updated = await connection.expect("session.updated")
        assert updated["session"]["instructions"] == "Be kind."
        assert updated["session"]["audio"]["input"]["turn_detection"] is None
        item = await connection.add_message("hello there")
        events = await connection.create_response(
            max_output_tokens=20, metadata={"topic": "greeting"}
        )
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
    async with client.connect_realtime() as connection:
        before = 0
        for turn in range(10):
            usage = (await connection.run_turn(f"count to {turn}", max_output_tokens=8))["usage"]
            cached = usage["input_token_details"]["cached_tokens"]
            assert usage["input_tokens"] > before, "the history is in the prompt"
            assert before - 1 <= cached < usage["input_tokens"], (
                "the history was not computed again"
            )
            before = usage["total_tokens"]


@flow
async def a_name_is_recalled_ten_turns_later(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.run_turn("My name is Mira.")
        for question in ["hello", "how are you?", "count from one to five", "what are you?"] * 2:
            await connection.run_turn(question, max_output_tokens=80)
        assert "Mira" in text_of(
            await connection.run_turn("What is my name?", max_output_tokens=80)
        )


@flow
async def equal_seeds_give_equal_answers(client: Client) -> None:
    texts = []
    for seed in (1, 1, 2):
        async with client.connect_realtime() as connection:
            await connection.add_message("tell me a story")
            done = (
                await connection.create_response(seed=seed, temperature=2, max_output_tokens=24)
            )[-1]
            texts.append(text_of(done["response"]))
            assert done["response"]["seed"] == seed
    assert texts[0] == texts[1] != texts[2]


@flow
async def ignore_eos_goes_on_to_max_output_tokens(client: Client) -> None:
    async with client.connect_realtime() as connection:
        done = await connection.run_turn("hello", ignore_eos=True, max_output_tokens=150)
        assert done["ignore_eos"] is True
        assert done["usage"]["output_tokens"] == 150
        await connection.check_usable()


@flow
async def usage_says_where_the_time_went(client: Client) -> None:
    async with client.connect_realtime() as connection:
        first = (await connection.run_turn("hello", max_output_tokens=4))["usage"]
        assert set(first["timing"]) == {"queued_s", "prefill_s", "model_s"}
        assert first["timing"]["prefill_s"] > 0
        assert first["timing"]["model_s"] > 0
        second = (await connection.run_turn("hello", max_output_tokens=4))["usage"]
        assert second["residency"] == "hot"


@flow
async def max_output_tokens_ends_incomplete(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.add_message("tell me a story")
        events = await connection.create_response(max_output_tokens=3)
        done = events[-1]["response"]
        assert done["status"] == "incomplete"
        assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert done["output"][0]["status"] == "incomplete"
        assert done["usage"]["output_tokens"] == 3
        await connection.check_usable()
