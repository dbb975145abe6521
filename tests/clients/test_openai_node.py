"""The real OpenAI SDK for Node against a real server with TLS: one test per flow of
`node/realtime.mjs` and `node/responses.mjs`.

The SDK connects only with `wss:`, so the server has a certificate made for the run.
"""

import json
import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.clients import node_types, transcripts
from tests.clients.conftest import KEY, NODE, FlowResult, Server, start, stop
from tests.clients.cutting import CuttingProxy, received_text, run_client
from tests.clients.error_rows import errors_of
from tests.clients.parallel_rows import PARALLEL

SOURCE = "".join((NODE / name).read_text() for name in ("realtime.mjs", "responses.mjs"))
NAMES = re.findall(r"^  async (\w+)\(client\)", SOURCE, re.MULTILINE)
BUNDLED_ONLY = {
    "a_response_calls_a_tool",
    "a_tool_is_called_and_its_result_used",
    "steering_waits_for_what_a_call_gives",
    "what_cannot_steer_comes_back",
}
NOT_RECORDED = {"a_wrong_key", "lanes_have_a_bound", "what_cannot_steer_comes_back"}
"""Flows without frames, or with frames that differ from run to run."""
RECORDED = [name for name in NAMES if name not in NOT_RECORDED]
STREAMS = {"lanes_beside_each_other"}
"""Flows with concurrent responses."""


@pytest.fixture(scope="module")
def secure(model: str, certificate: tuple[Path, Path]) -> Iterator[Server]:
    files = ("--ssl-certfile", str(certificate[0]), "--ssl-keyfile", str(certificate[1]))
    environ = {"CONTINUO_API_KEY": KEY}
    running = start("--model", model, "--served-model-name", "demo", *files, env=environ)
    yield running
    assert stop(running) == 0


@pytest.fixture(scope="module")
def node_flows(
    node: list[str], secure: Server, certificate: tuple[Path, Path]
) -> dict[str, FlowResult]:
    assert secure.url.startswith("https://")
    run = subprocess.run(
        [*node, "flows.mjs", KEY, f"main={secure.url}"],
        cwd=NODE,
        env={**os.environ, "NODE_EXTRA_CA_CERTS": str(certificate[0])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_flow_succeeds(name: str, node_flows: dict[str, FlowResult], model: str) -> None:
    if model != "demo" and name in BUNDLED_ONLY:
        pytest.skip("only the bundled model passes this flow")
    assert node_flows[name]["problem"] is None, node_flows[name]["problem"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RECORDED)
def test_transcript_matches_the_recorded_one(
    name: str, node_flows: dict[str, FlowResult], model: str, record: bool
) -> None:
    if model != "demo":
        pytest.skip("the recorded transcripts are of the bundled model")
    transcript = node_flows[name]["transcript"]
    if name in STREAMS:
        transcript = transcripts.by_stream(transcript)
    transcripts.check("node", name, transcript, record=record)


@pytest.mark.timeout(600)
def test_every_frame_matches_the_types_of_the_sdk(
    node: list[str], node_flows: dict[str, FlowResult], tmp_path: Path
) -> None:
    assert node_types.check(node, node_flows, tmp_path) > 300


def test_every_flow_is_run(node_flows: dict[str, FlowResult]) -> None:
    assert sorted(node_flows) == sorted(NAMES)
    recorded = {path.stem for path in (transcripts.GOLDEN / "node").iterdir()}
    assert recorded == {*RECORDED, *errors_of("node").values(), *PARALLEL}


@pytest.mark.timeout(200)
async def test_response_survives_repeated_disconnects_over_tls(
    node: list[str], secure: Server, certificate: tuple[Path, Path]
) -> None:
    """The same seed gives the same text, with and without cuts."""

    async def receive_response(port: int) -> str:
        url = f"https://127.0.0.1:{port}/v1"
        environ = {"NODE_EXTRA_CA_CERTS": str(certificate[0])}
        return received_text(
            await run_client(*node, NODE / "returning.mjs", url, KEY, "7", env=environ)
        )

    port = urlsplit(secure.url).port
    assert port is not None
    expected = await receive_response(port)
    chance = random.Random(7)
    proxy = CuttingProxy(port, [chance.randrange(2500, 5000) for _ in range(8)])
    async with proxy.open() as proxy_port:
        assert await receive_response(proxy_port) == expected
    assert proxy.cut_count >= 4, "the connection was cut"
