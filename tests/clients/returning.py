"""Receive one response with the unmodified openai SDK, resuming the session after each disconnect.

Runs in .venv-openai: python returning.py URL KEY SEED. Prints each event as a line of JSON when it
arrives.
"""
# pyright: reportMissingImports=false

import asyncio
import sys
from typing import Any

from openai import AsyncOpenAI


async def main(url: str, key: str, seed: int) -> None:
    client = AsyncOpenAI(base_url=url, api_key=key)
    session_id = last = ""

    def resume(event: Any) -> Any:
        return {"extra_query": {"model": "demo", "session_id": session_id, "last_event_id": last}}

    async with client.realtime.connect(
        model="demo", on_reconnecting=resume, max_retries=100, initial_delay=0.05, max_delay=0.5
    ) as connection:
        async for event in connection:
            print(event.to_json(indent=None), flush=True)
            last = event.event_id
            match event.type:
                case "session.created":
                    session_id = event.session.id
                    content = [{"type": "input_text", "text": "Tell me a short story."}]
                    item = {"type": "message", "role": "user", "content": content}
                    await connection.conversation.item.create(item=item, event_id="mine-1")
                    response = {"max_output_tokens": 200, "ignore_eos": True}
                    response |= {"temperature": 0.8, "seed": seed}
                    await connection.send(
                        {"type": "response.create", "response": response, "event_id": "mine-2"}
                    )
                case "response.done":
                    return
                case _:
                    pass


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
