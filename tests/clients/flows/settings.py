"""Flows of settings of sessions and of single responses."""

from tests.clients.flows.connections import Client, flow


@flow
async def instructions_of_one_response(client: Client) -> None:
    async with client.connect_realtime() as connection:
        plain = await connection.run_turn("hello", max_output_tokens=2)
        instructed = await connection.run_turn(
            "hello", instructions="word " * 20, max_output_tokens=2
        )
        after = await connection.run_turn("hello", max_output_tokens=2)
        tokens = [response["usage"]["input_tokens"] for response in (plain, instructed, after)]
        assert tokens[0] < tokens[2] < tokens[1], "the instructions count for that response only"


@flow
async def changed_instructions_change_the_history(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.run_turn("hello", max_output_tokens=2)
        await connection.sdk.session.update(
            session={"type": "realtime", "instructions": "word " * 20}
        )
        await connection.expect("session.updated")
        longer = await connection.run_turn("hello", max_output_tokens=2)
        await connection.sdk.session.update(session={"type": "realtime", "instructions": ""})
        await connection.expect("session.updated")
        shorter = await connection.run_turn("hello", max_output_tokens=2)
        assert longer["usage"]["input_tokens"] > shorter["usage"]["input_tokens"]


@flow
async def audio_events_are_answered(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.sdk.input_audio_buffer.append(audio="AAAA")
        error = (await connection.expect("error"))["error"]
        assert error["code"] == "audio_not_supported"
        await connection.sdk.input_audio_buffer.append(audio="AAAA")
        await connection.sdk.input_audio_buffer.clear()
        await connection.expect("input_audio_buffer.cleared")
        await connection.send(type="input_audio_buffer.commit", event_id="a1")
        error = (await connection.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "a1")
        await connection.sdk.output_audio_buffer.clear()
        await connection.check_usable()


@flow
async def what_clients_send_unasked_is_accepted(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.send(
            type="session.update",
            session={
                "type": "realtime",
                "model": "gpt-realtime-2.1",
                "output_modalities": ["audio"],
                "audio": {
                    "input": {"turn_detection": {"type": "server_vad", "interrupt_response": True}},
                    "output": {"voice": "marin", "speed": 1.2},
                },
                "instructions": "Be kind.",
                "tools": [],
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
        session = (await connection.expect("session.updated"))["session"]
        assert session["audio"]["input"]["turn_detection"] is None
        assert session["audio"]["input"]["transcription"] is None
        assert session["audio"]["output"]["voice"] == "marin"
        assert session["output_modalities"] == ["text"]
        assert session["parallel_tool_calls"] is False
        assert session["truncation"] == {"type": "retention_ratio", "retention_ratio": 0.8}
        assert session["model"] == "demo"
        await connection.check_usable()


@flow
async def what_clients_wish_of_a_response_is_accepted(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.add_message("hello", role="system")
        await connection.add_message("hello")
        done = await connection.create_response(
            conversation="auto",
            instructions=None,
            metadata={"topic": "greeting"},
            output_modalities=["audio"],
            tools=[],
            tool_choice="none",
            max_output_tokens=3,
            parallel_tool_calls=True,
            audio={"output": {"voice": "marin"}},
            prompt=None,
            reasoning={"effort": "low"},
            a_key_of_tomorrow=[1],
        )
        response = done[-1]["response"]
        assert (response["metadata"], response["output_modalities"]) == (
            {"topic": "greeting"},
            ["text"],
        )
        part = {"type": "output_text", "text": "hello there"}
        item = {"type": "message", "role": "assistant", "content": [part]}
        await connection.send(type="conversation.item.create", item=item)
        assert (await connection.expect("conversation.item.added"))["item"]["content"] == [part]
        await connection.expect("conversation.item.done")
        await connection.check_usable()
