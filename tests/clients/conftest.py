"""Fixtures: a real server process, and the real OpenAI SDKs in environments of their own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

import pytest

from tests.clients.flows import OTHER_KEY

ROOT = Path(__file__).parents[2]
SDK = ROOT / ".venv-openai/bin/python"
CONTINUO = (sys.executable, "-m", "continuo.realtime.server.cli")
KEY = "sk-test-1234"
ENVIRON = {"CONTINUO_API_KEY": KEY}
NODE = Path(__file__).with_name("node")
NODE_MIN = 20
LIMITS = ("--requests-per-minute", "1000000", "--tokens-per-minute", "1000000000")
"""Rate limits that are reported and never reached."""


class Server(NamedTuple):
    url: str
    process: subprocess.Popen[str]


def start(
    *options: str,
    env: dict[str, str] | None = None,
    command: Sequence[str] = CONTINUO,
    cwd: Path = ROOT,
) -> Server:
    """Start `continuo serve`. Returns when the server listens."""
    environ = {"CONTINUO_STORE": "memory", **os.environ, **(env or {})}
    return start_command([*command, "serve", "--port", "0", *options], cwd, environ)


def start_command(command: Sequence[str], cwd: Path, environ: dict[str, str]) -> Server:
    """Start a server by any command. Returns when the server listens."""
    process = subprocess.Popen(command, cwd=cwd, env=environ, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"ws(s?)://(\S+)/v1/realtime", line):
            return Server(f"http{found[1]}://{found[2]}/v1", process)
    raise AssertionError(f"the server ended with status {process.wait()} before it listened")


def stop(server: Server) -> int:
    server.process.send_signal(signal.SIGTERM)
    return server.process.wait(30)


@pytest.fixture(scope="session")
def model() -> str:
    """The model under test; tests that only the bundled model can pass skip others."""
    return os.environ.get("CONTINUO_TEST_MODEL", "demo")


@pytest.fixture(scope="session")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server with two tenants."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"# another tenant\n{OTHER_KEY} = other\n")
    options = ("--model", model, "--served-model-name", "demo", "--api-keys-file", str(keys))
    running = start(*options, *LIMITS, env=ENVIRON)
    yield running
    assert stop(running) == 0


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Create a self-signed certificate for localhost. Returns (certificate, key)."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
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


class FlowResult(TypedDict):
    """Error and frames of one flow; each frame with the number of its connection and its sender, C
    for client or S for server."""

    problem: str | None
    transcript: list[tuple[int, str, str]]


@pytest.fixture(scope="session")
def flows(server: Server) -> dict[str, FlowResult]:
    assert SDK.exists(), "make test prepares .venv-openai"
    run = subprocess.run(
        [SDK, "-m", "tests.clients.flows", KEY, f"main={server.url}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="session")
def middleware() -> Path:
    """Return the Python that has the packages of middleware-requirements.txt."""
    if not (ROOT / ".venv-middleware/ready").exists():
        pytest.skip("`make test` could not install tests/clients/middleware-requirements.txt")
    return ROOT / ".venv-middleware/bin/python"


@pytest.fixture(scope="session")
def node() -> list[str]:
    """Return the command that runs Node, with the packages of the Node flows installed."""
    program = shutil.which("node")
    if program is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    major = int(version.stdout.removeprefix("v").partition(".")[0])
    if major < NODE_MIN:
        pytest.skip(f"the SDK needs Node {NODE_MIN}, and this is {version.stdout.strip()}")
    if not (NODE / "node_modules/ready").exists():
        pytest.skip("`make test` could not install the packages of tests/clients/node")
    # Node 22 and later have the WebSocket of browsers by default.
    return [program, *(["--experimental-websocket"] if major < 22 else [])]


@pytest.fixture(scope="session")
def record(request: pytest.FixtureRequest) -> bool:
    """Whether transcripts are written instead of compared."""
    return bool(request.config.getoption("--record"))
