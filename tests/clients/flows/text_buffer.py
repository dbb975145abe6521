"""Flows of the input text buffer."""

import asyncio

from tests.clients.flows.connections import Client, flow


@flow
async def input_text_buffer_is_prefilled_as_it_comes(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.run_turn("hello", max_output_tokens=8)
        text = ""
        for piece in ("tell me", " a story", " about the", " old", " lighthouse", " keeper"):
            text += piece
            await connection.send(type="input_text_buffer.append", text=piece)
            appended = await connection.expect("input_text_buffer.appended")
            assert appended["length"] == len(text)
        await asyncio.sleep(1)
        await connection.send(type="input_text_buffer.commit")
        committed = await connection.expect("input_text_buffer.committed")
        added = await connection.expect("conversation.item.added")
        assert committed["item_id"] == added["item"]["id"]
        assert committed["previous_item_id"] == added["previous_item_id"]
        assert added["item"]["role"] == "user"
        assert added["item"]["content"] == [{"type": "input_text", "text": text}]
        await connection.expect("conversation.item.done")
        usage = (await connection.create_response(max_output_tokens=4))[-1]["response"]["usage"]
        details = usage["input_token_details"]
        assert details["prefilled_after_commit"] <= 8, usage
        assert usage["input_tokens"] - details["cached_tokens"] > 8, usage


@flow
async def input_text_buffer_is_replaced_and_cleared(client: Client) -> None:
    async with client.connect_realtime() as connection:
        await connection.send(type="input_text_buffer.append", text="wreck a nice")
        await connection.send(type="input_text_buffer.replace", text="recognise")
        await connection.expect("input_text_buffer.appended")
        assert (await connection.expect("input_text_buffer.appended"))["length"] == len("recognise")
        await connection.send(type="input_text_buffer.clear")
        await connection.expect("input_text_buffer.cleared")
        await connection.send(type="input_text_buffer.commit", event_id="c1")
        error = (await connection.expect("error"))["error"]
        assert (error["code"], error["event_id"]) == ("input_text_buffer_commit_empty", "c1")
        await connection.check_usable()
