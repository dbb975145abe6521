"""Reasoning with the OpenAI SDK for Python, over Realtime, Responses and chat completions, and with
openai-node, LiteLLM, LangChain, openai-agents and pydantic-ai.

The bundled model does not reason, so the engine's device is scripted. The flows are in
`flows/reasoning.py`, and validate each frame against the types of the SDK."""

import ast
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from continuo.engine.batch import Geometry
from continuo.engine.text.tool_writer import write_calls
from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from tests.clients.conftest import KEY, NODE, ROOT, SDK, FlowResult
from tests.support.checkpoints import family_folder, family_template, family_text
from tests.support.engines import running_engine
from tests.support.reasoning_outputs import reasoning_output
from tests.support.scripted_runner import ScriptedRunner
from tests.support.web_servers import serve_harness

FAMILY = "qwen3_0_6b"
THOUGHT, ANSWER, LATER = "Rome is warm.", "It is sunny.", "It will be sunny."
SOURCE = Path(__file__).with_name("flows") / "reasoning.py"
NAMES = [
    node.name
    for node in ast.parse(SOURCE.read_text()).body
    if isinstance(node, ast.AsyncFunctionDef)
]


@contextlib.asynccontextmanager
async def thinking_server(*outputs: str) -> AsyncIterator[str]:
    """Serve a model that thinks before each of `outputs`. Yields the base URL of its API."""
    text = family_text(FAMILY)
    scripted = [reasoning_output(FAMILY, THOUGHT, output) for output in outputs or (ANSWER,)]
    device = ScriptedRunner(Geometry(800, 4, 3200, text.vocab_size, 256, 0), text, scripted)
    limits = Limits(requests_per_minute=1_000_000, tokens_per_minute=1_000_000_000)
    settings = GatewaySettings(tenants={KEY: "default"}, served_model_name=("demo",), limits=limits)
    async with (
        running_engine(family_folder(FAMILY), lambda: device) as harness,
        serve_harness(harness, settings) as running,
    ):
        yield f"http://127.0.0.1:{running.port}/v1"


async def run_program(*command: str | Path, cwd: Path = ROOT) -> Any:
    """Run a client. Returns what it prints as JSON."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def results() -> dict[str, FlowResult]:
    async with thinking_server() as url:
        return await run_program(SDK, "-m", "tests.clients.flows", KEY, f"reasoning={url}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_flow_succeeds(name: str, results: dict[str, FlowResult]) -> None:
    assert results[name]["problem"] is None, results[name]["problem"]


@pytest.mark.timeout(300)
async def test_litellm_and_langchain_read_reasoning_apart_from_text(middleware: Path) -> None:
    """ChatOpenAI reads reasoning only from whole responses: it leaves out `reasoning_content` of
    chat completions, and the deltas of a stream. Its text has none of it either way."""
    async with thinking_server() as url:
        program = "tests.clients.middleware_reasoning"
        found = await run_program(middleware, "-m", program, KEY, url)
    assert found == {
        "litellm": [[THOUGHT, ANSWER]] * 3,
        "langchain": [["", ANSWER]] * 3,
        "langchain responses": [[THOUGHT, ANSWER], ["", ANSWER], [THOUGHT, ANSWER]],
    }


@pytest.mark.timeout(300)
async def test_agents_read_reasoning_as_parts_of_its_own_class(middleware: Path) -> None:
    """pydantic-ai keeps the content of reasoning items among the details of its part, because the
    content of the part is for summaries."""
    tool_format = family_template(FAMILY).tool_format
    assert tool_format is not None
    call = write_calls(tool_format, [("get_weather", {"city": "Rome"})])
    async with thinking_server(call, ANSWER, LATER) as url:
        found = await run_program(middleware, "-m", "tests.clients.middleware_agents", KEY, url)

    def expect(reasoning: str, call: str, result: str, text: str) -> list[list[str]]:
        called = [[reasoning, THOUGHT], [call, '{"city": "Rome"}'], [result, "cloudless in Rome"]]
        answered = [[[reasoning, THOUGHT], [text, it], ["output", it]] for it in (ANSWER, LATER)]
        return [*called, *answered[0], *answered[1]]

    openai_agents = ("ToolCallItem", "ToolCallOutputItem", "MessageOutputItem")
    pydantic_ai = ("ToolCallPart", "ToolReturnPart", "TextPart")
    assert found == {
        f"{name}{how}": expected
        for how in ("", " streamed")
        for name, expected in {
            "openai-agents responses": expect("ReasoningItem", *openai_agents),
            "openai-agents chat": expect("ReasoningItem", *openai_agents),
            "pydantic-ai responses": expect("ThinkingPart raw_content", *pydantic_ai),
            "pydantic-ai chat": expect("ThinkingPart", *pydantic_ai),
        }.items()
    }


@pytest.mark.timeout(600)
async def test_openai_node_reads_reasoning_apart_from_text(node: list[str]) -> None:
    async with thinking_server() as url:
        found = await run_program(*node, "reasoning.mjs", KEY, url, cwd=NODE)
    assert found == [[THOUGHT, ANSWER]] * 6
