"""The configurations of docs/proxies.md, each run by its program in front of a real gateway."""

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.typing import Origin

from continuo.realtime.server.config.settings import GatewaySettings, load_access_policy
from continuo.realtime.server.http.app import build_app
from continuo.realtime.server.http.page import ASSETS_DIR
from continuo.realtime.server.http.readiness import ReadinessGate
from tests.realtime.conftest import chat_folder
from tests.support.clients import RealtimeClient
from tests.support.engines import EngineHarness, digest_engine
from tests.support.fenced_blocks import blocks_in
from tests.support.ports import free_port, wait_until_open
from tests.support.sessions import shared_store
from tests.support.web_servers import ACME, TENANTS, encode_request, serve_app

pytestmark = pytest.mark.process

PAGE = "docs/proxies.md"
NAME = "example.org"
"""Name of the proxy, in its configuration or for all that it cares."""
PROGRAMS = {"nginx": "nginx", "caddy": "caddy", "haproxy": "haproxy"}
"""Program of each language of a block."""
KEEPS_THE_PREFIX = ("haproxy",)
CONFIGURATIONS = [block for block in blocks_in(*PROGRAMS) if block.page == PAGE]
IDS = 400
"""More than the ids of the tokenizer."""
STEP_S = 0.05
STEPS = 200
"""Steps of the streamed response."""

NGINX = """\
daemon off;
master_process off;
pid FOLDER/pid;
error_log stderr;
events {}
http {
  access_log off;
  client_body_temp_path FOLDER/body;
  proxy_temp_path FOLDER/proxy;
  fastcgi_temp_path FOLDER/fastcgi;
  uwsgi_temp_path FOLDER/uwsgi;
  scgi_temp_path FOLDER/scgi;
  BLOCK
}
"""
CADDY = "{\n  admin off\n  auto_https off\n  storage file_system FOLDER\n}\nBLOCK"
AROUND = {"nginx": NGINX, "caddy": CADDY, "haproxy": "BLOCK"}
"""Text around each block, with which its program needs no rights of root."""
LISTENS = {"nginx": "listen 80;", "caddy": "example.org {", "haproxy": "bind :80"}
LISTENS_HERE = {
    "nginx": "listen 127.0.0.1:PORT;",
    "caddy": "http://example.org:PORT {\n  bind 127.0.0.1",
    "haproxy": "bind 127.0.0.1:PORT",
}
COMMANDS = {
    "nginx": ["-p", "FOLDER", "-e", "stderr", "-c"],
    "caddy": ["run", "--adapter", "caddyfile", "--config"],
    "haproxy": ["-db", "-f"],
}


def find_program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(f"/usr/sbin/{name}")


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[EngineHarness]:
    async with digest_engine(
        chat_folder(tmp_path, endless=True),
        pages=256,
        max_model_len=400,
        batched_tokens=256,
        vocabulary=IDS,
    ) as harness:
        yield harness


@pytest.fixture(params=[pytest.param(block, id=block.language) for block in CONFIGURATIONS])
async def port(
    request: pytest.FixtureRequest, harness: EngineHarness, tmp_path: Path
) -> AsyncIterator[int]:
    """Run a gateway and a proxy before it. Yields the port of the proxy."""
    block = request.param
    program = find_program(PROGRAMS[block.language])
    if program is None:
        pytest.skip(f"{PROGRAMS[block.language]} is not installed")
    root_path = "/llm" if block.language in KEEPS_THE_PREFIX else ""
    settings = GatewaySettings(
        tenants=TENANTS, served_model_name=("demo",), root_path=root_path, web=True
    )
    store = await shared_store(harness)
    gate = ReadinessGate(load_access_policy(settings), root_path=root_path)
    app = build_app(harness.engine, settings, store)
    gate.set_app(app, harness.engine.fleet, store, app.state.registry.recovery)
    async with serve_app(gate, gate.state.registry, settings) as server:
        port = free_port()
        assert LISTENS[block.language] in block.text
        text = block.text.replace(LISTENS[block.language], LISTENS_HERE[block.language])
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        text = AROUND[block.language].replace("BLOCK", text)
        file = tmp_path / "configuration"
        file.write_text(text.replace("PORT", str(port)).replace("FOLDER", str(tmp_path)))
        options = [part.replace("FOLDER", str(tmp_path)) for part in COMMANDS[block.language]]
        async with running([program, *options, str(file)], port):
            yield port


@contextlib.asynccontextmanager
async def running(command: list[str], port: int) -> AsyncIterator[None]:
    """Run a proxy. Raises RuntimeError with its output if it ends by itself."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = asyncio.ensure_future(process.communicate())
    opened = asyncio.ensure_future(wait_until_open(port))
    try:
        await asyncio.wait((output, opened), return_when=asyncio.FIRST_COMPLETED)
        if output.done():
            raise RuntimeError(output.result()[0].decode())
        yield
    finally:
        opened.cancel()
        if process.returncode is None:
            process.kill()
        await output


async def send(
    port: int, method: str, path: str, body: object = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send an HTTP request to the proxy, for its public name."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = encode_request(method, path, body)
    writer.write(request.replace(b"Host: x", f"Host: {NAME}:{port}".encode(), 1))
    return reader, writer


async def exchange(
    port: int, method: str, path: str, body: object = None
) -> tuple[int, list[str], bytes]:
    """Send an HTTP request. Returns status, headers and body."""
    reader, writer = await send(port, method, path, body)
    head, _, received = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *headers = head.decode().split("\r\n")
    return int(status.split()[1]), headers, received


async def test_page_of_this_origin_converses_over_a_websocket(port: int) -> None:
    """The proxy keeps `Host`, with which the origin of the page is compared."""
    address = f"{NAME}:{port}"
    async with connect(
        f"ws://{address}/llm/v1/realtime",
        additional_headers=ACME,
        origin=Origin(f"http://{address}"),
        host="127.0.0.1",
        port=port,
    ) as socket:
        client = RealtimeClient(socket)
        await client.expect("session.created")
        await client.add_message("hello")
        assert await client.complete_response(max_output_tokens=8)


async def test_stream_arrives_while_it_is_generated(port: int, harness: EngineHarness) -> None:
    harness.runner.step_s = STEP_S
    body = {
        "model": "demo",
        "stream": True,
        "max_tokens": STEPS,
        "messages": [{"role": "user", "content": "hello"}],
    }
    reader, writer = await send(port, "POST", "/llm/v1/chat/completions", body)
    async for line in reader:
        if line.startswith(b"data: {"):
            (choice,) = json.loads(line.removeprefix(b"data: "))["choices"]
            if choice["delta"].get("content"):
                break
    assert 0 < harness.runner.row_count < STEPS // 2
    writer.close()


async def test_large_body_reaches_the_server(port: int) -> None:
    body = b'{"model": "%s"' % (b"x" * 2_000_000)
    status, _, received = await exchange(port, "POST", "/llm/v1/responses", body)
    assert status == 400
    assert json.loads(received)["error"]["code"] == "invalid_json"


@pytest.mark.skipif(not (ASSETS_DIR / "index.html").exists(), reason="make web has not been run")
async def test_page_is_under_the_prefix(port: int) -> None:
    status, headers, _ = await exchange(port, "GET", "/llm")
    assert status in (301, 302, 307, 308)
    assert [
        one for one in headers if one.lower().startswith("location: ") and one.endswith("/llm/")
    ]
    status, _, page = await exchange(port, "GET", "/llm/")
    assert status == 200
    assert b"<title>Continuo" in page
