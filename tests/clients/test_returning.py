"""The real openai SDK, unmodified, cut off in the middle of an answer; and its server killed."""

import asyncio
import random
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.clients.conftest import KEY, SDK, Server, start, stop
from tests.clients.cutting import Event, Wire, heard_by, text
from tests.support.redis_process import free_port

SCRIPT = Path(__file__).with_name("returning.py")


async def hear(
    url: str, seed: int, on_event: Callable[[Event], None] = lambda event: None
) -> list[Event]:
    return await heard_by(SDK, SCRIPT, url, KEY, str(seed), on_event=on_event)


@pytest.mark.timeout(200)
async def test_cut_again_and_again(server: Server) -> None:
    """The same seed gives the same text, cut or not."""
    port = urlsplit(server.url).port
    assert port is not None
    whole = text(await hear(server.url, 7))
    chance = random.Random(7)
    wire = Wire(port, [chance.randrange(800, 8000) for _ in range(8)])
    async with wire.open() as through:
        assert text(await hear(f"http://127.0.0.1:{through}/v1", 7)) == whole
    assert wire.cut >= 4, "it was cut"


@pytest.mark.timeout(200)
async def test_killed_and_started_again(tmp_path: Path, server: Server, model: str) -> None:
    """With its engine, in the middle of an answer: the conversation is in the file."""
    whole = text(await hear(server.url, 7))
    options = ("--model", model, "--served-model-name", "demo", "--port", str(free_port()))
    env = {"CONTINUO_API_KEY": KEY, "CONTINUO_STORE": f"sqlite:///{tmp_path / 'store.db'}"}
    running = await asyncio.to_thread(start, *options, env=env)
    heard = 0

    def kill(event: Event) -> None:
        nonlocal heard
        heard += event["type"] == "response.output_text.delta"
        if heard == 20 and running.process.poll() is None:
            running.process.send_signal(signal.SIGKILL)

    hearing = asyncio.create_task(hear(running.url, 7, kill))
    while running.process.poll() is None:
        await asyncio.sleep(0.01)
    again = await asyncio.to_thread(start, *options, env=env)
    assert text(await hearing) == whole
    assert await asyncio.to_thread(stop, again) == 0
