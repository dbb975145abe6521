"""Two calls in one response, before both SDKs: over Realtime, Responses and as a chat's stream.

No small model would make them, so the engine's device says what such a model says: two calls to who
asks, and an answer to who brings their results. The flows are in `flows/parallel_calls.py` and
`node/parallel.mjs`; openai-node speaks Realtime over TLS alone.
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
from tests.clients.conftest import KEY, NODE, ROOT, SDK, Told
from tests.clients.parallel_rows import PARALLEL
from tests.clients.rows import CLIENTS
from tests.support.checkpoints import family, family_folder
from tests.support.engines import engine_on
from tests.support.scripted_runner import ScriptedRunner
from tests.support.sessions import store_of
from tests.support.web_servers import listening

FAMILY = "qwen2_5"
CALL = '<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{}"}}}}\n</tool_call>'
SAYS = (f"{CALL.format('Rome')}\n{CALL.format('Oslo')}", "It is sunny in Rome.")
TRUST = "NODE_EXTRA_CA_CERTS"


def trusted(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=CLIENTS)
async def heard(request: pytest.FixtureRequest) -> tuple[str, dict[str, Told]]:
    """Which client, and what it says of each flow."""
    client: str = request.param
    command, tls, environ = [SDK, "-m", "tests.clients.flows"], None, dict(os.environ)
    if client == "node":
        files: tuple[Path, Path] = request.getfixturevalue("certificate")
        command = [*request.getfixturevalue("node"), NODE / "flows.mjs"]
        tls, environ[TRUST] = trusted(*files), str(files[0])
    text = family(FAMILY)
    device = ScriptedRunner(Geometry(800, 4, 3200, text.vocab_size, 256, 0), text, SAYS)
    limits = Limits(requests_per_minute=1_000_000, tokens_per_minute=1_000_000_000)
    settings = GatewaySettings(tenants={KEY: "default"}, served_model_name=("demo",), limits=limits)
    async with engine_on(family_folder(FAMILY), lambda: device) as bench:
        app = build_app(bench.engine, settings, await store_of(bench))
        async with listening(app, app.state.registry, settings, tls=tls) as running:
            url = f"http{'s' if tls else ''}://127.0.0.1:{running.port}/v1"
            process = await asyncio.create_subprocess_exec(
                *command,
                KEY,
                f"two_calls={url}",
                cwd=ROOT,
                env=environ,
                stdout=asyncio.subprocess.PIPE,
            )
            told, _ = await process.communicate()
    assert process.returncode == 0
    return client, json.loads(told)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PARALLEL)
def test_flow(name: str, heard: tuple[str, dict[str, Told]], record: bool) -> None:
    client, told = heard
    assert told[name]["problem"] is None, told[name]["problem"]
    transcripts.check(client, name, told[name]["transcript"], record=record)


@pytest.mark.timeout(300)
def test_every_frame_is_of_the_sdks_own_types(
    heard: tuple[str, dict[str, Told]], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client, told = heard
    if client == "python":
        pytest.skip("its flows do that themselves")
    assert node_types.check(request.getfixturevalue("node"), told, tmp_path) > 50


@pytest.mark.timeout(300)
def test_no_flow_is_forgotten(heard: tuple[str, dict[str, Told]]) -> None:
    _, told = heard
    assert sorted(told) == sorted(PARALLEL)
