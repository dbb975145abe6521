"""Tests of what operators do to running servers: start them in any order, back up their store."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.caller import ReconnectingClient
from tests.faults.cluster import continue_and_close, running_cluster
from tests.support import processes
from tests.support.processes import CLI_MODULE, ROOT, read_gateway_url, wait_ready
from tests.support.redis_process import RedisProcess, needs_redis
from tests.support.web_servers import API_KEY

pytestmark = [pytest.mark.timeout(240), pytest.mark.process]


async def run_cli(*arguments: str) -> str:
    """Run `continuo` to its end. Returns its output."""
    command = (sys.executable, "-m", CLI_MODULE, *arguments)
    done = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await done.communicate()
    assert done.returncode == 0, output.decode()
    return output.decode()


@needs_redis
async def test_gateway_started_before_redis_waits_for_it(tmp_path: Path) -> None:
    redis = RedisProcess(tmp_path)
    options = ("--store", redis.url, "--engine", "127.0.0.1:1")
    with processes.running_engine() as engine:
        address = await asyncio.to_thread(processes.read_engine_address, engine)
        options = ("--store", redis.url, "--engine", address)
        with processes.running_gateway(*options) as gateway:
            waiting = r"Waiting for the store: (Redis does not answer)"
            await asyncio.to_thread(gateway.wait_for_output, waiting)
            await asyncio.sleep(1)
            assert not gateway.has_exited
            assert gateway.output.count("Waiting for the store") == 1
            await redis.start()
            try:
                url = await asyncio.to_thread(read_gateway_url, gateway)
                await wait_ready(url)
            finally:
                redis.kill()
        with processes.running_gateway(*options) as gateway:
            await asyncio.to_thread(gateway.wait_for_output, waiting)
            gateway.send_signal(signal.SIGTERM)
            assert await gateway.wait_exit() == 0


APPEND_INTERVAL_S = 0.02
"""Pause between appends, so that all of them fit into the context of the model: the expected text
is that of the whole conversation."""


@asynccontextmanager
async def appending(client: ReconnectingClient, ids: list[str]) -> AsyncIterator[None]:
    """Append items until the end of the block; `ids` has those that were acknowledged."""
    is_ending = False

    async def append() -> None:
        while not is_ending:
            ids.append(await client.add_message(f"line {len(ids)}"))
            await asyncio.sleep(APPEND_INTERVAL_S)

    task = asyncio.create_task(append())
    try:
        yield
    finally:
        is_ending = True
        await task


async def back_up_while_appending(client: ReconnectingClient, back_up: Awaitable[str]) -> list[str]:
    """Back up during appends. Returns the ids that were acknowledged before the backup began."""
    ids: list[str] = []
    async with appending(client, ids):
        while len(ids) < 20:
            await asyncio.sleep(0.01)
        before = list(ids)
        assert "1 sessions" in await back_up
        assert len(ids) > len(before), "the server was not in use during the backup"
    await client.disconnect()
    return before


async def check_restored(
    client: ReconnectingClient, url: str, before: list[str], *, resumed: Callable[[], None]
) -> None:
    """Resume at the server of the restored store: a snapshot has every acknowledged item."""
    client.urls, client.gateway_index = [url], 0
    await client.reconnect()
    assert client.resume_outcomes[-1] == "snapshot"
    assert client.item_ids[: len(before)] == before
    resumed()


async def test_backup_of_a_running_sqlite_server_has_every_acknowledged_item(
    tmp_path: Path,
) -> None:
    source, target = (f"sqlite:///{tmp_path / name}.db" for name in ("source", "target"))
    backup = str(tmp_path / "backup")
    options = ("serve", "--port", "0", "--no-web", "--threads", "1", "--store")
    env = {"CONTINUO_API_KEY": API_KEY}
    with processes.running_process(*options, source, env=env) as server:
        client = ReconnectingClient(await asyncio.to_thread(read_gateway_url, server))
        await client.connect()
        backing_up = run_cli("store", "backup", backup, "--store", source)
        before = await back_up_while_appending(client, backing_up)
    assert re.search(
        r"[1-9]\d* sessions", await run_cli("store", "restore", backup, "--store", target)
    )
    with processes.running_process(*options, target, env=env) as server:
        url = await asyncio.to_thread(read_gateway_url, server)
        await check_restored(client, url, before, resumed=lambda: None)
        await client.add_message("after")
        await client.close_session()


@needs_redis
async def test_backup_of_running_gateways_is_restored_into_another_redis(tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    async with running_cluster(tmp_path / "source") as cluster:
        client = cluster.create_client()
        await client.connect()
        backing_up = run_cli("store", "backup", backup, "--store", cluster.redis.url)
        before = await back_up_while_appending(client, backing_up)
    async with running_cluster(tmp_path / "target") as cluster:
        await run_cli("store", "restore", backup, "--store", cluster.redis.url)
        expected = cluster.expected_conversation()

        def expect_restored_items() -> None:
            for n in range(len(client.item_ids)):
                expected.add_user_message(f"line {n}")

        await check_restored(client, cluster.urls[0], before, resumed=expect_restored_items)
        await continue_and_close(client, expected)
        stats = await run_cli("store", "stats", "--store", cluster.redis.url)
        assert re.search(r"^sessions +0$", stats, re.MULTILINE)
