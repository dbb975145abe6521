"""An agent with tools, over the Responses WebSocket.

The agent sends only what is new: each request continues from the response before it.
"""

import argparse
import asyncio
import json
import os
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from continuo.client import Tool


async def get_weather(city: str) -> dict[str, object]:
    """Get the weather of a city."""
    return {"condition": "rainy" if city == "Oslo" else "sunny", "temperature": 21}


TOOLS = {"get_weather": Tool(get_weather)}


async def respond(socket: ClientConnection, **request: Any) -> dict[str, Any]:
    """Request one response, and print its text as it arrives. Returns the response."""
    declarations = [tool.declaration for tool in TOOLS.values()]
    await socket.send(json.dumps({"type": "response.create", "tools": declarations, **request}))
    async for frame in socket:
        event = json.loads(frame)
        match event["type"]:
            case "response.output_text.delta":
                print(event["delta"], end="", flush=True)
            case "response.completed":
                return event["response"]
            case "response.incomplete" | "response.failed" | "error":
                raise SystemExit(json.dumps(event, indent=2))
            case _:
                pass
    raise SystemExit("the server closed the connection")


async def main(url: str, question: str) -> None:
    key = os.environ.get("CONTINUO_API_KEY", "none")
    address = url.replace("http", "ws", 1) + "/v1/responses"
    async with connect(address, additional_headers={"Authorization": f"Bearer {key}"}) as socket:
        response = await respond(socket, input=question)
        while calls := [item for item in response["output"] if item["type"] == "function_call"]:
            outputs: list[dict[str, str]] = []
            for call in calls:
                print(f"[{call['name']} {call['arguments']}]")
                output = await TOOLS[call["name"]].call(call["arguments"])
                outputs.append({"type": "function_call_output", "output": output})
                outputs[-1]["call_id"] = call["call_id"]
            response = await respond(socket, input=outputs, previous_response_id=response["id"])
        print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("question", nargs="?", default="What is the weather in Rome?")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.question))
