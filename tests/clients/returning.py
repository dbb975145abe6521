"""Receive one response with the unmodified openai SDK, resuming the session after each disconnect.

Runs in .venv-openai: python returning.py URL KEY SEED. Prints each event as a line of JSON when it
arrives.
"""
# pyright: reportMissingImports=false

import asyncio
import contextlib
import sys
from typing import Any

from openai import AsyncOpenAI

RESEND_S = 15
"""Seconds until what is not acknowledged is sent again, if the connection seems to last."""


async def main(url: str, key: str, seed: int) -> None:
    client = AsyncOpenAI(base_url=url, api_key=key)
    session_id = last = ""
    reconnecting = asyncio.Event()
    content = [{"type": "input_text", "text": "Tell me a short story."}]
    item = {"type": "message", "role": "user", "content": content}
    response = {"max_output_tokens": 200, "ignore_eos": True, "temperature": 0.8, "seed": seed}
    unacknowledged: dict[str, Any] = {
        "mine-1": {"type": "conversation.item.create", "item": item},
        "mine-2": {"type": "response.create", "response": response},
    }

    def resume(event: Any) -> Any:
        reconnecting.set()
        return {"extra_query": {"model": "demo", "session_id": session_id, "last_event_id": last}}

    async def send(connection: Any) -> None:
        """Send what a cut may have lost again, with the same ids."""
        while unacknowledged:
            with contextlib.suppress(Exception):
                for event_id, event in list(unacknowledged.items()):
                    await connection.send({**event, "event_id": event_id})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reconnecting.wait(), RESEND_S)
                await asyncio.sleep(1)
            reconnecting.clear()

    async with client.realtime.connect(
        model="demo", on_reconnecting=resume, max_retries=100, initial_delay=0.05, max_delay=0.5
    ) as connection:
        async for event in connection:
            print(event.to_json(indent=None), flush=True)
            last = event.event_id
            match event.type:
                case "session.created":
                    session_id = event.session.id
                    sending = asyncio.create_task(send(connection))
                case "conversation.item.added" if event.item.role == "user":
                    unacknowledged.pop("mine-1", None)
                case "response.created":
                    unacknowledged.pop("mine-2", None)
                case "response.done":
                    sending.cancel()
                    return
                case _:
                    pass


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
