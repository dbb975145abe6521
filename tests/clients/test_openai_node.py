"""The real OpenAI SDK for Node against a real server with TLS: one test a flow of `node/flows.mjs`.

It connects with `wss:` alone, so the server has a certificate made for the run.
"""

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.clients import transcripts
from tests.clients.conftest import KEY, Server, Told, start, stop
from tests.clients.cutting import Wire, heard_by, text

FOLDER = Path(__file__).with_name("node")
NAMES = re.findall(r"^  async (\w+)\(client\)", (FOLDER / "flows.mjs").read_text(), re.MULTILINE)
BUNDLED_ONLY = {"a_tool_is_called_and_its_result_used"}
NO_FRAMES = {"a_chat_completion", "a_response_over_http", "a_wrong_key", "models_are_listed"}
RECORDED = [name for name in NAMES if name not in NO_FRAMES]
STREAMS = {"lanes_beside_each_other"}
"""Flows with responses that are made beside each other."""
NODE_MIN = 20


@pytest.fixture(scope="module")
def node() -> list[str]:
    """How Node is run here, the packages being in place."""
    program = shutil.which("node")
    if program is None or shutil.which("npm") is None:
        pytest.skip("there is no Node here (node and npm)")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    major = int(version.stdout.removeprefix("v").partition(".")[0])
    if major < NODE_MIN:
        pytest.skip(f"Node is {version.stdout.strip()} here; the SDK needs {NODE_MIN}")
    lock, installed = FOLDER / "package-lock.json", FOLDER / "node_modules/.package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        install = ["npm", "ci", "--ignore-scripts"]
        run = subprocess.run(install, cwd=FOLDER, capture_output=True, text=True, timeout=300)
        if run.returncode:
            pytest.skip(f"npm could not install the SDK: {run.stderr.strip()[-300:]}")
    # From 22 on the WebSocket of browsers is there by itself.
    return [program, *(["--experimental-websocket"] if major < 22 else [])]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Its own authority, for localhost: (certificate, key)."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


@pytest.fixture(scope="module")
def secure(model: str, certificate: tuple[Path, Path]) -> Iterator[Server]:
    files = ("--ssl-certfile", str(certificate[0]), "--ssl-keyfile", str(certificate[1]))
    environ = {"CONTINUO_API_KEY": KEY}
    running = start("--model", model, "--served-model-name", "demo", *files, env=environ)
    yield running
    assert stop(running) == 0


@pytest.fixture(scope="module")
def node_flows(node: list[str], secure: Server, certificate: tuple[Path, Path]) -> dict[str, Told]:
    assert secure.url.startswith("https://")
    run = subprocess.run(
        [*node, "flows.mjs", secure.url, KEY],
        cwd=FOLDER,
        env={**os.environ, "NODE_EXTRA_CA_CERTS": str(certificate[0])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_flow(name: str, node_flows: dict[str, Told], model: str) -> None:
    if model != "demo" and name in BUNDLED_ONLY:
        pytest.skip("only the bundled model can")
    assert node_flows[name]["problem"] is None, node_flows[name]["problem"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RECORDED)
def test_transcript(
    name: str, node_flows: dict[str, Told], model: str, request: pytest.FixtureRequest
) -> None:
    if model != "demo":
        pytest.skip("the recorded transcripts are of the bundled model")
    record = bool(request.config.getoption("--record"))
    transcript = node_flows[name]["transcript"]
    if name in STREAMS:
        transcript = transcripts.by_stream(transcript)
    transcripts.check("node", name, transcript, record=record)


def test_no_flow_is_forgotten(node_flows: dict[str, Told]) -> None:
    assert sorted(node_flows) == sorted(NAMES)
    recorded = {path.stem for path in (transcripts.GOLDEN / "node").iterdir()}
    assert recorded == set(RECORDED)


@pytest.mark.timeout(200)
async def test_cut_again_and_again_over_tls(
    node: list[str], secure: Server, certificate: tuple[Path, Path]
) -> None:
    """The same seed gives the same text, cut or not."""

    async def hear(port: int) -> str:
        url = f"https://127.0.0.1:{port}/v1"
        trust = {"NODE_EXTRA_CA_CERTS": str(certificate[0])}
        return text(await heard_by(*node, FOLDER / "returning.mjs", url, KEY, "7", env=trust))

    port = urlsplit(secure.url).port
    assert port is not None
    whole = await hear(port)
    chance = random.Random(7)
    wire = Wire(port, [chance.randrange(4000, 11000) for _ in range(8)])
    async with wire.open() as through:
        assert await hear(through) == whole
    assert wire.cut >= 4, "it was cut"
