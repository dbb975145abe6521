"""Words as they come."""

import asyncio

from tests.clients.flows.talk import Client, flow


@flow
async def input_text_buffer_is_prefilled_as_it_comes(client: Client) -> None:
    async with client.talk() as talk:
        await talk.ask("hello", max_output_tokens=8)
        said = ""
        for heard in ("tell me", " a story", " about the", " old", " lighthouse", " keeper"):
            said += heard
            await talk.send(type="input_text_buffer.append", text=heard)
            appended = await talk.expect("input_text_buffer.appended")
            assert appended["length"] == len(said)
        await asyncio.sleep(1)
        await talk.send(type="input_text_buffer.commit")
        committed = await talk.expect("input_text_buffer.committed")
        added = await talk.expect("conversation.item.added")
        assert committed["item_id"] == added["item"]["id"]
        assert committed["previous_item_id"] == added["previous_item_id"]
        assert added["item"]["role"] == "user"
        assert added["item"]["content"] == [{"type": "input_text", "text": said}]
        await talk.expect("conversation.item.done")
        usage = (await talk.answer(max_output_tokens=4))[-1]["response"]["usage"]
        cached = usage["input_token_details"]["cached_tokens"]
        assert usage["input_tokens"] - cached <= 8, usage


@flow
async def input_text_buffer_is_replaced_and_cleared(client: Client) -> None:
    async with client.talk() as talk:
        await talk.send(type="input_text_buffer.append", text="wreck a nice")
        await talk.send(type="input_text_buffer.replace", text="recognise")
        await talk.expect("input_text_buffer.appended")
        assert (await talk.expect("input_text_buffer.appended"))["length"] == len("recognise")
        await talk.send(type="input_text_buffer.clear")
        await talk.expect("input_text_buffer.cleared")
        await talk.send(type="input_text_buffer.commit", event_id="c1")
        error = (await talk.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("input_text_buffer_commit_empty", "c1")
        await talk.usable()
