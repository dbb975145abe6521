"""A conversation by `client.beta.realtime` of openai-python: `python -m tests.clients.beta_client
KEY URL`. Prints the text of the answer, and of its events."""

# pyright: reportMissingImports=false

import asyncio
import json
import sys

from openai import AsyncOpenAI


async def main(key: str, url: str) -> None:
    client = AsyncOpenAI(api_key=key, base_url=url, websocket_base_url=url.replace("http", "ws", 1))
    async with client.beta.realtime.connect(model="demo") as connection:
        await connection.session.update(session={"modalities": ["text"], "temperature": 0.8})
        await connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "hello"}],
            }
        )
        await connection.response.create()
        deltas: list[str] = []
        async for event in connection:
            if event.type == "error":
                raise AssertionError(event.error)
            if event.type == "response.text.delta":
                deltas.append(event.delta)
            elif event.type == "response.done":
                content = (event.response.output or [])[0].content or []
                print(json.dumps([content[0].text, "".join(deltas)]))
                return


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
