"""Reasoning with the OpenAI SDK for Python, over Realtime, Responses and chat completions.

The bundled model does not reason, so the engine's device is scripted. The flows are in
`flows/reasoning.py`, and validate each frame against the types of the SDK."""

import ast
import asyncio
import json
from pathlib import Path

import pytest
import pytest_asyncio

from continuo.engine.batch import Geometry
from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from tests.clients.conftest import KEY, ROOT, SDK, FlowResult
from tests.support.checkpoints import family_folder, family_text
from tests.support.engines import running_engine
from tests.support.scripted_runner import ScriptedRunner
from tests.support.web_servers import serve_harness

FAMILY = "qwen3_0_6b"
OUTPUT = "<think>\nRome is warm.\n</think>\n\nIt is sunny."
SOURCE = Path(__file__).with_name("flows") / "reasoning.py"
NAMES = [
    node.name
    for node in ast.parse(SOURCE.read_text()).body
    if isinstance(node, ast.AsyncFunctionDef)
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def results() -> dict[str, FlowResult]:
    text = family_text(FAMILY)
    device = ScriptedRunner(Geometry(800, 4, 3200, text.vocab_size, 256, 0), text, [OUTPUT])
    limits = Limits(requests_per_minute=1_000_000, tokens_per_minute=1_000_000_000)
    settings = GatewaySettings(tenants={KEY: "default"}, served_model_name=("demo",), limits=limits)
    async with (
        running_engine(family_folder(FAMILY), lambda: device) as harness,
        serve_harness(harness, settings) as running,
    ):
        process = await asyncio.create_subprocess_exec(
            *(SDK, "-m", "tests.clients.flows", KEY),
            f"reasoning=http://127.0.0.1:{running.port}/v1",
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_flow_succeeds(name: str, results: dict[str, FlowResult]) -> None:
    assert results[name]["problem"] is None, results[name]["problem"]
