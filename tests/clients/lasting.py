"""One connection of the real openai SDK to the Responses API, that asks nothing and hears what it
is told. Runs in .venv-openai: python lasting.py URL.

Prints each event as a line of JSON, then the code it is closed with.
"""
# pyright: reportMissingImports=false

import asyncio
import sys

from openai import AsyncOpenAI
from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed


async def main(url: str) -> None:
    client = AsyncOpenAI(base_url=url, api_key="any")
    async with client.responses.connect() as connection:
        try:
            while True:
                event = await connection.recv_bytes()
                TypeAdapter(ResponsesServerEvent).validate_json(event)
                print(event.decode(), flush=True)
        except ConnectionClosed as end:
            print(end.rcvd.code if end.rcvd else 1006)


asyncio.run(main(sys.argv[1]))
