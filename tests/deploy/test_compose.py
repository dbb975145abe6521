"""compose.yaml is as it should be, and what it starts holds a conversation, whatever is killed."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.deploy.stack import KEY, ROOT, Stack, missing
from tests.support import processes
from tests.support.processes import Client, until_ready

FILES = ("compose.yaml", "deploy/compose.gpu.yaml")
CHECK = "vendor.compose-spec"


@pytest.mark.parametrize("file", FILES)
def test_it_is_a_compose_file(file: str) -> None:
    """By the schema the Compose specification publishes."""
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", CHECK, ROOT / file]
    checked = subprocess.run(check, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_nobody_is_root_and_everybody_comes_back() -> None:
    services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())[
        "services"
    ]
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service.get("user") or "build" in service, name
        assert "healthcheck" in service, name
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "\nUSER 10001\n" in dockerfile
    grace_s = float(services["gateway-1"]["environment"]["CONTINUO_DRAIN_GRACE_S"])
    assert grace_s < float(services["gateway-1"]["stop_grace_period"].removesuffix("s"))


# ---- as processes --------------------------------------------------------------------------------

pytestmark = pytest.mark.timeout(300)
needs_programs = pytest.mark.skipif(
    bool(missing()), reason=f"not installed (Debian: apt-get install): {', '.join(missing())}"
)
BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"))
    services = [name for name, told in stack.services.items() if "profiles" not in told]
    try:
        for service in services:
            stack.start(service)
        yield stack
    finally:
        stack.close()


@pytest.fixture
def url(stack: Stack) -> str:
    """Of the one entry."""
    return f"ws://127.0.0.1:{stack.port('haproxy', '8000')}/v1/realtime"


@asynccontextmanager
async def talk(url: str) -> AsyncIterator[Client]:
    async with await way_in(url) as socket:
        client = Client(socket)
        await client.created()
        yield client


async def way_in(url: str) -> ClientConnection:
    """As a client that is sent away tries again: the entry looks once a second who is ready."""
    async with asyncio.timeout(processes.READY_S):
        while True:
            try:
                return await connect(url, additional_headers=BEARER)
            except (InvalidStatus, OSError):
                await asyncio.sleep(0.2)


async def holds(url: str) -> None:
    """A conversation that remembers."""
    async with talk(url) as client:
        await client.say("My name is Zorban and I live in Quiltown.")
        assert await client.whole()
        await client.say("What is my name?")
        assert "Zorban" in await client.whole()


async def entered(url: str) -> None:
    """Until there is a way in."""
    async with asyncio.timeout(processes.READY_S):
        while True:
            try:
                await until_ready(url)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                return


@needs_programs
async def test_a_conversation_through_the_one_entry(stack: Stack, url: str) -> None:
    await entered(url)
    await holds(url)


@needs_programs
async def test_who_is_healthy_says_so_and_nobody_else(stack: Stack, url: str) -> None:
    """An engine is as long as its process with the model answers, whoever holds its port; the entry
    as long as there is a gateway."""
    await entered(url)
    entry = ["haproxy"] if shutil.which("wget") else []
    for service in ("engine-1", "gateway-1", "gateway-2", *entry):
        await asyncio.to_thread(becomes, stack, service, True)
    (child,) = stack.children("engine-1")
    os.kill(child, signal.SIGSTOP)
    try:
        await asyncio.to_thread(becomes, stack, "engine-1", False)
        for service in entry:
            await asyncio.to_thread(becomes, stack, service, False)
    finally:
        os.kill(child, signal.SIGCONT)
    await asyncio.to_thread(becomes, stack, "engine-1", True)
    await entered(url)


def becomes(stack: Stack, service: str, healthy: bool) -> None:
    until_s = time.monotonic() + processes.READY_S
    while stack.is_healthy(service) is not healthy:
        assert time.monotonic() < until_s, f"{service} should be {'' if healthy else 'un'}healthy"
        time.sleep(0.1)


@needs_programs
@pytest.mark.parametrize("service", ["redis", "engine-1", "gateway-1", "gateway-2", "haproxy"])
async def test_each_service_killed(stack: Stack, url: str, service: str) -> None:
    """It is started again, as its restart policy says; the conversation goes on."""
    await entered(url)
    for gateway in ("gateway-1", "gateway-2"):
        await entered(f"ws://127.0.0.1:{stack.port(gateway, '8000')}/v1/realtime")
    async with talk(url) as client:
        await client.say("My name is Zorban and I live in Quiltown.")
        assert await client.whole()
        stack.kill(service)
        if service.startswith("gateway"):
            await holds(url)  # with the other one
        stack.start(service)
        await entered(url)
        assert "Zorban" in await goes_on(client, url)
    await entered(url)
    await holds(url)


async def goes_on(client: Client, url: str) -> str:
    """The answer to a question, by a client that comes back, and asks again if it is told to."""
    async with asyncio.timeout(processes.READY_S):
        while True:
            try:
                await client.say("What is my name?")
                return await client.whole()
            except ConnectionClosed:
                client.socket = await way_in(f"{url}?{client.position}")
            except AssertionError:
                assert client.last["error"]["type"] == "server_error", client.last
                await asyncio.sleep(0.2)


@needs_programs
async def test_a_gateway_and_an_engine_are_replaced_in_peace(stack: Stack, url: str) -> None:
    await entered(url)
    for service in ("gateway-1", "engine-1"):
        assert stack.stop(service) == 0
        stack.start(service)
        await entered(url)
        await holds(url)


def test_secrets_are_made_once(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run(["sh", ROOT / "deploy/make_secrets.sh", tmp_path], check=True)
        made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert made.keys() == {"link", "api_keys"}
    assert len(made["link"]) == 64
    key, tenant = made["api_keys"].split(" = ")
    assert key.startswith("sk-")
    assert tenant == "default\n"
    subprocess.run(["sh", ROOT / "deploy/make_secrets.sh", tmp_path], check=True)
    assert (tmp_path / "link").read_text() == made["link"]
