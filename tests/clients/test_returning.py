"""Resuming with the unmodified openai SDK: cut connections and a killed server."""

import asyncio
import random
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.clients.conftest import KEY, SDK, Server, start, stop
from tests.clients.cutting import CuttingProxy, Event, received_text, run_client
from tests.support.ports import free_port

SCRIPT = Path(__file__).with_name("returning.py")


async def receive_response(
    url: str, seed: int, on_event: Callable[[Event], None] = lambda event: None
) -> list[Event]:
    return await run_client(SDK, SCRIPT, url, KEY, str(seed), on_event=on_event)


@pytest.mark.timeout(200)
async def test_response_survives_repeated_disconnects(server: Server) -> None:
    """The same seed gives the same text, with and without cuts."""
    port = urlsplit(server.url).port
    assert port is not None
    expected = received_text(await receive_response(server.url, 7))
    chance = random.Random(7)
    proxy = CuttingProxy(port, [chance.randrange(200, 2500) for _ in range(8)])
    async with proxy.open() as proxy_port:
        assert (
            received_text(await receive_response(f"http://127.0.0.1:{proxy_port}/v1", 7))
            == expected
        )
    assert proxy.cut_count >= 4, "the connection was cut"


@pytest.mark.timeout(200)
async def test_response_survives_a_killed_server(
    tmp_path: Path, server: Server, model: str
) -> None:
    """Server and engine are killed during a response; the conversation is in SQLite."""
    expected = received_text(await receive_response(server.url, 7))
    options = ("--model", model, "--served-model-name", "demo", "--port", str(free_port()))
    env = {"CONTINUO_API_KEY": KEY, "CONTINUO_STORE": f"sqlite:///{tmp_path / 'store.db'}"}
    running = await asyncio.to_thread(start, *options, env=env)
    delta_count = 0

    def kill(event: Event) -> None:
        nonlocal delta_count
        delta_count += event["type"] == "response.output_text.delta"
        if delta_count == 20 and running.process.poll() is None:
            running.process.send_signal(signal.SIGKILL)

    receiving = asyncio.create_task(receive_response(running.url, 7, kill))
    while running.process.poll() is None:
        await asyncio.sleep(0.01)
    restarted = await asyncio.to_thread(start, *options, env=env)
    try:
        assert received_text(await receiving) == expected
    finally:
        status = await asyncio.to_thread(stop, restarted)
    assert status == 0
