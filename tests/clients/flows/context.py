"""Flows of conversations longer than the context."""

from tests.clients.flows.connections import Client, flow, user

TURNS = 25
"""More turns than the context holds."""


@flow
async def a_conversation_longer_than_the_context_goes_on(client: Client) -> None:
    async with client.connect_realtime() as connection:
        first = await connection.add_message("the first thing of all")
        lengths: list[int] = []
        for _ in range(TURNS):
            text = "all work and no play makes a dull day " * 12
            usage = (await connection.run_turn(text, max_output_tokens=4))["usage"]
            lengths.append(usage["input_tokens"])
        assert max(lengths) <= 2048
        assert (lengths[1] - lengths[0]) * TURNS > 2500, "all turns together exceed the context"
        await connection.sdk.conversation.item.retrieve(item_id=first["item"]["id"])
        assert (await connection.expect("conversation.item.retrieved"))["item"] == first["item"]


@flow
async def five_hundred_turns_just_go_on(client: Client) -> None:
    async with client.connect_realtime() as connection:
        first = await connection.add_message("this is the first turn")
        for turn in range(500):
            await connection.send(
                type="conversation.item.create", item=user(f"this is turn {turn}")
            )
            await connection.send(type="response.create", response={"max_output_tokens": 1})
            *_, done, _ = await connection.receive_until("rate_limits.updated")
            assert 0 < done["response"]["usage"]["total_tokens"] <= 2048
        await connection.sdk.conversation.item.retrieve(item_id=first["item"]["id"])
        assert (await connection.expect("conversation.item.retrieved"))["item"] == first["item"]


@flow
async def the_retention_ratio_says_what_stays(client: Client) -> None:
    async with client.connect_realtime() as connection:
        ratio = {"type": "retention_ratio", "retention_ratio": 0.4}
        ratio["token_limits"] = {"post_instructions": 400}
        await connection.send(
            type="session.update", session={"type": "realtime", "truncation": ratio}
        )
        assert (await connection.expect("session.updated"))["session"]["truncation"] == ratio
        before, dropped = 0, False
        while not dropped:
            done = await connection.run_turn("all work and no play " * 6, max_output_tokens=2)
            spent = done["usage"]["input_tokens"]
            assert spent <= 450, "the limit after the instructions, and a header"
            dropped, before = spent < before, spent
        assert spent < 0.4 * 400 + 60, "the retained part, and a question"


@flow
async def truncation_disabled_is_an_error(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.send(
            type="session.update", session={"type": "realtime", "truncation": "disabled"}
        )
        assert (await connection.expect("session.updated"))["session"]["truncation"] == "disabled"
        error = None
        while error is None:
            await connection.send(
                type="conversation.item.create", item=user("all work and no play " * 60)
            )
            error = (await connection.recv()).get("error")
            if error is None:
                await connection.expect("conversation.item.done")
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is 2048 tokens" in error["message"]
        await connection.send(
            type="session.update", session={"type": "realtime", "truncation": "auto"}
        )
        await connection.expect("session.updated")
        await connection.check_usable()
