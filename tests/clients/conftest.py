"""A real server process, and the real OpenAI SDK in a virtual environment of its own."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypedDict

import pytest

ROOT = Path(__file__).parents[2]
SDK = ROOT / ".venv-openai/bin/python"
KEY = "sk-test-1234"
ENVIRON = {"CONTINUO_API_KEY": KEY}
LIMITS = ("--requests-per-minute", "1000000", "--tokens-per-minute", "1000000000")
"""Never reached, but told."""


class Server(NamedTuple):
    url: str
    process: subprocess.Popen[str]


def start(*options: str, env: dict[str, str] | None = None) -> Server:
    """Starts `continuo serve` and returns when it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "realtime.server.cli", "serve", "--port", "0", *options],
        cwd=ROOT,
        env={"CONTINUO_STORE": "memory", **os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        text=True,
    )
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
    """Another one than the bundled runs all but what only that can do."""
    return os.environ.get("CONTINUO_TEST_MODEL", "demo")


@pytest.fixture(scope="session")
def server(model: str) -> Iterator[Server]:
    running = start(*("--model", model, "--served-model-name", "demo", *LIMITS), env=ENVIRON)
    yield running
    assert stop(running) == 0


class Told(TypedDict):
    """Of one flow: what went wrong, and the frames, each with the number of its connection and who
    sent it, C or S."""

    problem: str | None
    transcript: list[tuple[int, str, str]]


@pytest.fixture(scope="session")
def flows(server: Server) -> dict[str, Told]:
    assert SDK.exists(), "make test prepares .venv-openai"
    run = subprocess.run(
        [SDK, "-m", "tests.clients.flows", server.url, KEY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
