"""Tools of the client library: schemas of functions, checked arguments, and the loop of calls."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from continuo.client import RealtimeClient, Tool, ToolError, connect
from continuo.engine.batch import Geometry
from continuo.realtime.client.settings import ToolSetting
from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.checkpoints import family_folder, family_text
from tests.support.engines import running_engine
from tests.support.scripted_runner import ScriptedRunner
from tests.support.web_servers import serve_harness

pytestmark = pytest.mark.slow

CALL = '<tool_call>\n{{"name": "get_weather", "arguments": {}}}\n</tool_call>'
ROME, OSLO = CALL.format('{"city": "Rome"}'), CALL.format('{"city": "Oslo"}')
ANSWER = "It is sunny there."


async def get_weather(city: str) -> dict[str, Any]:
    """Get the weather of a city.

    Only the first paragraph is shown to the model.
    """
    return {"city": city, "condition": "sunny"}


@dataclass
class Place:
    city: str
    country: str = "Italy"


def book(
    place: Place,
    nights: Annotated[int, Meta(ge=1, le=14, description="how many")],
    *,
    room: Literal["single", "double"] = "single",
) -> str:
    return f"{room} in {place.city}, {place.country}, {nights} nights"


def test_schema_is_that_of_the_annotations() -> None:
    declaration = Tool(get_weather, strict=True).declaration
    assert declaration == {
        "type": "function",
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
        "strict": True,
    }
    parameters = Tool(book, name="book_room").declaration["parameters"]
    assert parameters["required"] == ["place", "nights"]
    nights = parameters["properties"]["nights"]
    assert nights == {"type": "integer", "minimum": 1, "maximum": 14, "description": "how many"}
    assert parameters["$defs"]["Place"]["required"] == ["city"]


async def test_arguments_are_checked_and_converted() -> None:
    tool = Tool(book)
    assert await tool.call('{"place": {"city": "Rome"}, "nights": 3}') == (
        "single in Rome, Italy, 3 nights"
    )
    assert await Tool(get_weather).call('{"city": "Oslo"}') == '{"city":"Oslo","condition":"sunny"}'
    for arguments in ('{"place": {"city": "Rome"}}', '{"place": {}, "nights": 3}', "{", "[]"):
        with pytest.raises(ToolError, match="arguments of book"):
            await tool.call(arguments)
    with pytest.raises(ToolError, match=r"<= 14 - at `\$.nights`"):
        await tool.call('{"place": {"city": "Rome"}, "nights": 15}')


def test_functions_without_a_schema_are_refused() -> None:
    def untyped(city) -> None: ...  # type: ignore[no-untyped-def]
    def variadic(*cities: str) -> None: ...
    def unknown(socket: asyncio.Transport) -> None: ...

    for function in (untyped, variadic, unknown):
        with pytest.raises(TypeError, match=f"tool {function.__name__}"):
            Tool(function)


@contextlib.asynccontextmanager
async def scripted_client(*texts: str, tools: list[ToolSetting]) -> AsyncIterator[RealtimeClient]:
    """A client of a server whose model generates `texts` in order."""
    text = family_text("qwen3")
    device = ScriptedRunner(Geometry(800, 4, 3200, text.vocab_size, 256, 0), text, texts)
    async with (
        running_engine(family_folder("qwen3"), lambda: device) as harness,
        serve_harness(harness, GatewaySettings(served_model_name=("demo",))) as server,
        connect(f"127.0.0.1:{server.port}", tools=tools) as client,
    ):
        yield client


def kinds(client: RealtimeClient) -> list[str]:
    return [type(item).__name__ for item in client.conversation.items]


async def test_model_is_asked_again_with_the_results() -> None:
    async with scripted_client(f"{ROME}\n{OSLO}", ANSWER, tools=[get_weather]) as client:
        stream = client.ask("What is the weather?")
        assert [delta async for delta in stream][-1:] != []
        assert await stream == ANSWER
        assert [call.arguments for call in stream.calls] == ['{"city": "Rome"}', '{"city": "Oslo"}']
        outputs = ["FunctionCallOutput"] * 2
        assert kinds(client) == ["Message", *["FunctionCall"] * 2, *outputs, "Message"]
        assert "sunny" in client.conversation.items[3].output  # type: ignore[union-attr]


async def test_tool_error_is_read_by_the_model_and_other_errors_are_raised() -> None:
    async def fail(city: str) -> str:
        if city == "Rome":
            raise ToolError("Rome is closed.")
        raise ZeroDivisionError

    tool = Tool(fail, name="get_weather")
    async with scripted_client(ROME, ANSWER, OSLO, ANSWER, tools=[tool]) as client:
        assert await client.ask("Rome?") == ANSWER
        assert client.conversation.items[2].output == "Rome is closed."  # type: ignore[union-attr]
        with pytest.raises(ZeroDivisionError):
            await client.ask("Oslo?")
        assert kinds(client)[-2:] == ["FunctionCall", "FunctionCallOutput"]
        assert await client.respond() == ANSWER, "the conversation goes on"


async def test_cancelling_cancels_the_calls() -> None:
    started = asyncio.Event()

    async def wait(city: str) -> str:
        started.set()
        await asyncio.sleep(60)
        return city

    async with scripted_client(ROME, ANSWER, tools=[Tool(wait, name="get_weather")]) as client:
        stream = client.ask("What is the weather?")
        await started.wait()
        assert await stream.cancel() == ""
        assert kinds(client) == ["Message", "FunctionCall", "FunctionCallOutput"]
        assert await client.ask("And now?") == ANSWER


async def test_calls_of_a_declared_tool_are_left_to_the_program() -> None:
    declaration = Tool(get_weather).declaration
    async with scripted_client(ROME, ANSWER, tools=[declaration]) as client:
        stream = client.ask("What is the weather?")
        assert await stream == ""
        (call,) = stream.calls
        await client.add_tool_output(call.call_id, "sunny")
        assert await client.respond() == ANSWER
