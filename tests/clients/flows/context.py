"""Conversations longer than the context."""

from tests.clients.flows.talk import Client, flow, user

TURNS = 25
"""More than the context holds."""


@flow
async def a_conversation_longer_than_the_context_goes_on(client: Client) -> None:
    async with client.talk() as talk:
        first = await talk.say("the first thing of all")
        total = 0
        for _ in range(TURNS):
            text = "all work and no play makes a dull day " * 12
            usage = (await talk.ask(text, max_output_tokens=4))["usage"]
            assert usage["input_tokens"] < 2048
            total += usage["input_tokens"] - usage["input_token_details"]["cached_tokens"]
        assert total > 2500
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
