"""Run agents of openai-agents and pydantic-ai with a model that reasons before it calls a tool.

    .venv-middleware/bin/python -m tests.clients.middleware_agents KEY URL

Each agent answers a question with a tool, and a second one with the conversation sent back. Prints,
as JSON, the class and the text of each part that the library read, by library, API, and whether it
was streamed.
"""
# pyright: reportMissingImports=false

import asyncio
import json
import sys
from typing import Any

import agents
import pydantic_ai
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic_ai.models import openai as pydantic_models
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION, NEXT = "The weather in Rome? ({})", "And tomorrow?"
Part = tuple[str, str]
"""The class of a part, and its text."""


def get_weather(city: str) -> str:
    """Look up the weather."""
    return f"cloudless in {city}"


async def run_openai_agent(model: Any, name: str, *, is_streamed: bool) -> list[Part]:
    agent = agents.Agent(
        name="Assistant",
        model=model,
        model_settings=agents.ModelSettings(reasoning=Reasoning(effort="low")),
        tools=[agents.function_tool(get_weather)],
    )
    parts: list[Part] = []
    history: list[Any] = []
    for question in (QUESTION.format(name), NEXT):
        asked = [*history, {"role": "user", "content": question}]
        if is_streamed:
            result: Any = agents.Runner.run_streamed(agent, asked)
            async for _ in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, asked)
        history = result.to_input_list()
        parts += [*map(_read_item, result.new_items), ("output", result.final_output)]
    return parts


def _read_item(item: Any) -> Part:
    kind, raw = type(item).__name__, item.raw_item
    if kind == "ReasoningItem":
        return kind, "".join(part.text for part in [*raw.summary, *(raw.content or ())])
    if kind == "ToolCallItem":
        return kind, raw.arguments
    return kind, item.output if kind == "ToolCallOutputItem" else raw.content[0].text


async def run_pydantic_agent(model: Any, name: str, *, is_streamed: bool) -> list[Part]:
    settings: Any = {"openai_reasoning_effort": "low"}
    agent = pydantic_ai.Agent(model, tools=[get_weather], model_settings=settings)
    parts: list[Part] = []
    history: list[Any] = []
    for question in (QUESTION.format(name), NEXT):
        if is_streamed:
            async with agent.run_stream(question, message_history=history) as result:
                output: str = await result.get_output()
        else:
            result = await agent.run(question, message_history=history)
            output = result.output
        history = result.all_messages()
        read = [part for message in result.new_messages() for part in message.parts]
        parts += [*map(_read_part, read[1:]), ("output", output)]  # without the question
    return parts


def _read_part(part: Any) -> Part:
    kind, details = type(part).__name__, getattr(part, "provider_details", None) or {}
    if "raw_content" in details:
        return f"{kind} raw_content", "".join(details["raw_content"])
    return kind, part.args if kind == "ToolCallPart" else part.content


async def main(key: str, url: str) -> None:
    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key=key, max_retries=0)
    provider = OpenAIProvider(openai_client=client)
    models = {
        "openai-agents responses": agents.OpenAIResponsesModel("demo", client),
        "openai-agents chat": agents.OpenAIChatCompletionsModel("demo", client),
        "pydantic-ai responses": pydantic_models.OpenAIResponsesModel("demo", provider=provider),
        "pydantic-ai chat": pydantic_models.OpenAIChatModel("demo", provider=provider),
    }
    found: dict[str, list[Part]] = {}
    for name, model in models.items():
        run = run_openai_agent if name.startswith("openai-agents") else run_pydantic_agent
        found[name] = await run(model, name, is_streamed=False)
        found[f"{name} streamed"] = await run(model, f"{name} streamed", is_streamed=True)
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
