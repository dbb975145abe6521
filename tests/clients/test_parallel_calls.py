"""Two calls in one response with both SDKs: over Realtime, Responses and streamed chat completions.

No small model makes such calls, so the engine's device is scripted: two calls after a question, and
an answer after their results. The flows are in `flows/parallel_calls.py` and `node/parallel.mjs`;
openai-node connects to Realtime only over TLS.
"""

import asyncio
import json
import os
import ssl
from pathlib import Path

import pytest
import pytest_asyncio

from continuo.engine.batch import Geometry
from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.app import build_app
from tests.clients import node_types, transcripts
from tests.clients.conftest import KEY, NODE, ROOT, SDK, FlowResult
from tests.clients.parallel_rows import PARALLEL
from tests.clients.rows import CLIENTS
from tests.support.checkpoints import family_folder, family_text
from tests.support.engines import running_engine
from tests.support.scripted_runner import ScriptedRunner
from tests.support.sessions import shared_store
from tests.support.web_servers import serve_app

FAMILY = "qwen2_5"
CALL = '<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{}"}}}}\n</tool_call>'
SCRIPT = (f"{CALL.format('Rome')}\n{CALL.format('Oslo')}", "It is sunny in Rome.")
CERTIFICATE_VARIABLE = "NODE_EXTRA_CA_CERTS"


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=CLIENTS)
async def results_of_client(request: pytest.FixtureRequest) -> tuple[str, dict[str, FlowResult]]:
    """Run the flows of one client. Returns the client and the results of its flows."""
    client: str = request.param
    command, tls, environ = [SDK, "-m", "tests.clients.flows"], None, dict(os.environ)
    if client == "node":
        files: tuple[Path, Path] = request.getfixturevalue("certificate")
        command = [*request.getfixturevalue("node"), NODE / "flows.mjs"]
        tls, environ[CERTIFICATE_VARIABLE] = tls_context(*files), str(files[0])
    text = family_text(FAMILY)
    device = ScriptedRunner(Geometry(800, 4, 3200, text.vocab_size, 256, 0), text, SCRIPT)
    limits = Limits(requests_per_minute=1_000_000, tokens_per_minute=1_000_000_000)
    settings = GatewaySettings(tenants={KEY: "default"}, served_model_name=("demo",), limits=limits)
    async with running_engine(family_folder(FAMILY), lambda: device) as bench:
        app = build_app(bench.engine, settings, await shared_store(bench))
        async with serve_app(app, app.state.registry, settings, tls=tls) as running:
            url = f"http{'s' if tls else ''}://127.0.0.1:{running.port}/v1"
            process = await asyncio.create_subprocess_exec(
                *command,
                KEY,
                f"two_calls={url}",
                cwd=ROOT,
                env=environ,
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await process.communicate()
    assert process.returncode == 0
    return client, json.loads(output)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PARALLEL)
def test_flow_succeeds(
    name: str, results_of_client: tuple[str, dict[str, FlowResult]], record: bool
) -> None:
    client, results = results_of_client
    assert results[name]["problem"] is None, results[name]["problem"]
    transcripts.check(client, name, results[name]["transcript"], record=record)


@pytest.mark.timeout(300)
def test_every_frame_matches_the_types_of_the_sdk(
    results_of_client: tuple[str, dict[str, FlowResult]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    client, results = results_of_client
    if client == "python":
        pytest.skip("the flows of openai-python validate each frame themselves")
    assert node_types.check(request.getfixturevalue("node"), results, tmp_path) > 50


@pytest.mark.timeout(300)
def test_every_flow_is_run(results_of_client: tuple[str, dict[str, FlowResult]]) -> None:
    _, results = results_of_client
    assert sorted(results) == sorted(PARALLEL)
