"""Tests of a started server: it has loaded no module in vain, and holds no memory in reserve."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import pytest
import torch

pytestmark = [pytest.mark.process, pytest.mark.torch]

UNNEEDED = ("transformers", "huggingface_hub", "redis", "opentelemetry", "torch._dynamo", "sympy")
"""Packages that are slow to import, and that the bundled model with a SQLite store does without."""
ENGINE_BYTES_MAX, GATEWAY_BYTES_MAX = 350_000_000, 100_000_000
"""Resident memory after the first response; 285 and 65 MB were measured."""


class Started(NamedTuple):
    gateway: int
    engine: int
    imported: set[str]
    """Modules that the two processes had imported after the first response."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    log = tmp_path_factory.mktemp("start") / "stderr"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "continuo.realtime.server.cli", "serve", "--port", "0"],
            env=os.environ | {"CONTINUO_STORE": "memory", "PYTHONPROFILEIMPORTTIME": "1"},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            preexec_fn=lower_descriptor_limit,
        )
    assert process.stdout is not None
    lines = (re.search(r"ws://(\S+)/v1/realtime", line) for line in process.stdout)
    address = next(found[1] for found in lines if found)
    try:
        turn = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
        headers = {"Content-Type": "application/json"}
        url = f"http://{address}/v1/chat/completions"
        with urlopen(Request(url, json.dumps(turn).encode(), headers)) as response:
            assert json.load(response)["choices"][0]["message"]["content"]
        modules = re.findall(r"^import time:.*\| +(\S+)$", log.read_text(), re.MULTILINE)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        yield Started(process.pid, int(children), set(modules))
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def lower_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (kib,) = re.findall(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kib) * 1024


def test_bundled_model_is_served_without_slow_imports(started: Started) -> None:
    assert "continuo.engine.device.weights" in started.imported
    assert "continuo.realtime.server.http.app" in started.imported
    assert not started.imported.intersection(UNNEEDED)


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch's build for CUDA is larger")
def test_memory_of_the_bundled_model_is_bounded(started: Started) -> None:
    """The KV pool of the bundled model, 320 MiB, is taken as it is used."""
    assert resident_bytes(started.engine) < ENGINE_BYTES_MAX
    assert resident_bytes(started.gateway) < GATEWAY_BYTES_MAX


def test_soft_limit_of_file_descriptors_is_raised(started: Started) -> None:
    soft, hard = resource.prlimit(started.gateway, resource.RLIMIT_NOFILE)
    assert soft == hard > 512
