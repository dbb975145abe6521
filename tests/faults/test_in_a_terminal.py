"""Tests of the terminal client while the engine and its gateway are killed during a response."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from tests.clients.terminal import Terminal
from tests.faults.cluster import Cluster, running_cluster
from tests.faults.proxy import Proxy
from tests.support.processes import wait_ready
from tests.support.redis_process import needs_redis
from tests.support.web_servers import API_KEY

pytestmark = pytest.mark.timeout(300)

LONG_CHARS = 250
STEP_S = 0.01


def find_long_response(cluster: Cluster) -> tuple[str, str]:
    """Find a question with a long response. Returns both, the response as a terminal shows it."""
    for n in range(1000):
        expected = cluster.expected_conversation()
        expected.add_user_message(f"question {n}")
        text = expected.compute_response(1000)
        if len(text) >= LONG_CHARS:
            return f"question {n}", text.replace("\n", "\r\n")
    raise AssertionError("every response is short")


@needs_redis
async def test_terminal_text_continues_after_engine_and_gateway_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one Redis, one engine and two gateways: the terminal shows the same text as without the
    kills."""
    monkeypatch.setenv("DIGEST_STEP_S", str(STEP_S))
    async with (
        running_cluster(tmp_path, gateways=2) as cluster,
        Proxy(cluster.gateway_ports[0]).running() as proxy,
    ):
        question, response = find_long_response(cluster)
        terminal = Terminal("--url", proxy.url(""), "--api-key", API_KEY, "--temperature", "0")
        shown_chars = 0

        async def expect_next(text: str) -> None:
            """Wait until the terminal shows `text` next."""
            await asyncio.to_thread(terminal.until, "^" + re.escape(text))

        async def expect_response_chars(count: int) -> None:
            nonlocal shown_chars
            await expect_next(response[shown_chars : shown_chars + count])
            shown_chars += count
            assert len(terminal.shown) < len(response) - shown_chars, "the response has ended"

        await asyncio.to_thread(terminal.until, "you> ")
        terminal.type(question + "\n")
        await asyncio.to_thread(terminal.until, re.escape(question) + "\r\n")
        await expect_response_chars(20)
        (child,) = cluster.engines[0].children()
        os.kill(child, signal.SIGKILL)
        await expect_response_chars(60)
        cluster.gateways[0].send_signal(signal.SIGKILL)
        proxy.target_port = cluster.gateway_ports[1]
        await expect_next(response[shown_chars:] + "\r\nyou> ")
        await wait_ready(cluster.urls[1])
        terminal.type("\x04")
        assert await asyncio.to_thread(terminal.close) == 0
