"""Somebody talks in a terminal, and what answers is killed in the middle of a word."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from tests.clients.terminal import Terminal
from tests.faults.cluster import Town, town
from tests.faults.proxy import Proxy
from tests.support.processes import until_ready
from tests.support.redis_process import needs_redis
from tests.support.web_servers import KEY

pytestmark = pytest.mark.timeout(300)

LONG_CHARS = 250
STEP_S = 0.01


def asked(world: Town) -> tuple[str, str]:
    """A question with a long answer, and that, as a terminal shows it."""
    for n in range(1000):
        expected = world.expected()
        expected.say(f"question {n}")
        answer = expected.answer(1000)
        if len(answer) >= LONG_CHARS:
            return f"question {n}", answer.replace("\n", "\r\n")
    raise AssertionError("every answer is short")


@needs_redis
async def test_the_text_goes_on_when_the_engine_and_then_the_gateway_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One Redis, one engine, two gateways. What is shown is, to the letter, what is answered when
    nothing is killed."""
    monkeypatch.setenv("DIGEST_STEP_S", str(STEP_S))
    async with (
        town(tmp_path, gateways=2) as world,
        Proxy(world.gateway_ports[0]).running() as entry,
    ):
        question, answer = asked(world)
        terminal = Terminal("--url", entry.url(""), "--api-key", KEY, "--temperature", "0")
        shown = 0

        async def shows(text: str) -> None:
            """Next, and nothing before it."""
            await asyncio.to_thread(terminal.until, "^" + re.escape(text))

        async def goes_on(chars: int) -> None:
            nonlocal shown
            await shows(answer[shown : shown + chars])
            shown += chars
            assert len(terminal.shown) < len(answer) - shown, "it is in the middle of the answer"

        await asyncio.to_thread(terminal.until, "you> ")
        terminal.type(question + "\n")
        await asyncio.to_thread(terminal.until, re.escape(question) + "\r\n")
        await goes_on(20)
        (child,) = world.engines[0].children()
        os.kill(child, signal.SIGKILL)
        await goes_on(60)
        world.gateways[0].send(signal.SIGKILL)
        entry.target = world.gateway_ports[1]
        await shows(answer[shown:] + "\r\nyou> ")
        await until_ready(world.urls[1])
        terminal.type("\x04")
        assert await asyncio.to_thread(terminal.close) == 0
