"""The real openai SDK on a connection that has lasted as long as one may."""

import asyncio
import json
from pathlib import Path

import pytest

from realtime.limits import Limits
from realtime.server.settings import Settings
from tests.clients.conftest import SDK
from tests.realtime.conftest import chat_folder
from tests.realtime.served import serve
from tests.support.engines import digest_engine

SCRIPT = Path(__file__).with_name("lasting.py")


@pytest.mark.timeout(120)
async def test_websocket_connection_limit_reached(tmp_path: Path) -> None:
    settings = Settings(limits=Limits(session_s_max=0.5))
    async with digest_engine(chat_folder(tmp_path)) as bench, serve(bench, settings) as running:
        client = await asyncio.create_subprocess_exec(
            *(SDK, SCRIPT, f"http://127.0.0.1:{running.port}/v1"), stdout=asyncio.subprocess.PIPE
        )
        told, _ = await client.communicate()
    event, code = told.decode().splitlines()
    error = json.loads(event)
    assert (error["type"], error["status"]) == ("error", 400)
    assert error["error"]["code"] == "websocket_connection_limit_reached"
    assert code == "1000"
