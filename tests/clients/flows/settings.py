"""Settings of sessions and of single responses."""

from tests.clients.flows.talk import Client, flow


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
        session = (await talk.expect("session.updated"))["session"]
        assert session["audio"]["input"]["turn_detection"] is None
        assert session["audio"]["input"]["transcription"] is None
        assert session["audio"]["output"]["voice"] == "marin"
        assert session["output_modalities"] == ["text"]
        assert session["parallel_tool_calls"] is False
        assert session["truncation"] == {"type": "retention_ratio", "retention_ratio": 0.8}
        assert session["model"] == "demo"
        await talk.usable()


@flow
async def what_clients_wish_of_a_response_is_accepted(client: Client) -> None:
    async with client.talk() as talk:
        await talk.say("hello", role="system")
        await talk.say("hello")
        done = await talk.answer(
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
        said = {"type": "output_text", "text": "hello there"}
        item = {"type": "message", "role": "assistant", "content": [said]}
        await talk.send(type="conversation.item.create", item=item)
        assert (await talk.expect("conversation.item.added"))["item"]["content"] == [said]
        await talk.expect("conversation.item.done")
        await talk.usable()
