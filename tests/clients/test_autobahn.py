"""Autobahn's test suite against the WebSocket of the web server.

Its cases require an echo server, which runs behind the same uvicorn, protocol and limits. The suite
requires Python 2.7: CONTINUO_AUTOBAHN names one with autobahntestsuite 0.8.2.

Excluded: 9 (messages of up to 16 MiB; the limit is 2 MiB), 12 and 13 (compression, not supported).
"""

import asyncio
import json
import os
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.process.web_server import WebServer, bind

PYTHON = os.environ.get("CONTINUO_AUTOBAHN")
RUN = """
import site, sys
for folder in sys.argv[2:]:
    site.addsitedir(folder)
sys.argv = ["wstest", "-m", "fuzzingclient", "-s", sys.argv[1]]
from autobahntestsuite.wstest import run
run()
"""
CASES = 247
ALLOWED = {"OK", "INFORMATIONAL", "NON-STRICT"}
"""The suite allows non-strict behaviour: in 3, 4 and 5.15 a message that arrives together with a
later violation is not answered; in 6.4 invalid UTF-8 is detected when the message is complete."""
EXPLAINED = {
    "7.1.5": "a close frame inside a fragmented message is answered with 1002 instead of an echo",
}
"""Cases that fail, with the reason."""


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    while (message := await websocket.receive())["type"] == "websocket.receive":
        if message.get("text") is not None:
            await websocket.send_text(message["text"])
        else:
            await websocket.send_bytes(message["bytes"])


@pytest.mark.timeout(600)
async def test_autobahn_cases_pass(tmp_path: Path) -> None:
    if not PYTHON:
        pytest.skip("CONTINUO_AUTOBAHN names no Python 2.7 with autobahntestsuite 0.8.2")
    listening = asyncio.Event()
    with bind("127.0.0.1", 0) as sock:
        app = Starlette(routes=[WebSocketRoute("/", echo)])
        server = WebServer(app, GatewaySettings(), listening.set)
        serving = asyncio.create_task(server.serve([sock]))
        await listening.wait()
        url = f"ws://127.0.0.1:{sock.getsockname()[1]}"
        report = await asyncio.wait_for(_run(tmp_path, url), 500)
        server.should_exit = True
        await asyncio.wait_for(serving, 20)
    deviations = {
        name: f"{case['behavior']}, close {case['behaviorClose']}"
        for name, case in report.items()
        if {case["behavior"], case["behaviorClose"]} - ALLOWED
    }
    assert {name: how for name, how in deviations.items() if name not in EXPLAINED} == {}
    assert len(report) == CASES


async def _run(folder: Path, url: str) -> dict[str, dict[str, str]]:
    specification = {
        "outdir": str(folder / "report"),
        "servers": [{"agent": "continuo", "url": url}],
        "cases": ["*"],
        "exclude-cases": ["9.*", "12.*", "13.*"],
        "exclude-agent-cases": {},
    }
    file = folder / "fuzzingclient.json"
    file.write_text(json.dumps(specification))
    assert PYTHON is not None
    python, *folders = PYTHON.split(os.pathsep)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = await asyncio.create_subprocess_exec(
        *(python, "-c", RUN, str(file), *folders),
        cwd=folder,
        env=environ,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    return json.loads((folder / "report/index.json").read_text())["continuo"]
