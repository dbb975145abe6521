"""A SQLite file that is deleted under a running gateway, which is restarted afterwards."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.store import open_store
from tests.support.engines import EngineHarness
from tests.support.in_process_client import InProcessClient, connect_client


@contextlib.asynccontextmanager
async def gateway(harness: EngineHarness, file: Path) -> AsyncIterator[Registry]:
    store = await open_store(f"sqlite:///{file}")
    template = harness.engine.text.template
    assert template is not None
    registry = Registry(
        harness.engine, template, GenerationSettings(), Limits(sweep_interval_s=0.05), store
    )
    async with registry.running():
        yield registry
    await store.aclose()


async def append_items(client: InProcessClient, *names: str) -> None:
    """Append items one by one; returns when the last is acknowledged."""
    for name in names:
        client.send_message("hello", name)
        while not any(
            event["type"] == "conversation.item.done" and event["item"]["id"] == name
            for event in client.socket.sent
        ):
            assert not any(event["type"] == "error" for event in client.socket.sent)
            await asyncio.sleep(0.01)


async def items_after_restart(
    harness: EngineHarness, file: Path, client: InProcessClient
) -> list[str]:
    async with gateway(harness, file) as registry:
        client.registry = registry
        client.resume()
        await client.socket.wait_for("session.updated")
        session = registry.find(client.session_id)
        assert session is not None
        found = [item.id for item in session.conversation.items()]
        await client.disconnect()
    return found


@pytest.mark.parametrize("endings", [("",), ("", "-wal", "-shm"), ("-wal",), ("-shm",)])
async def test_acknowledged_items_survive_deletion_of_the_file(
    harness: EngineHarness,
    tmp_path: Path,
    endings: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Some items are acknowledged before the deletion, and some after."""
    file = tmp_path / "store.db"
    async with asyncio.timeout(60), gateway(harness, file) as registry:
        client = await connect_client(registry)
        await append_items(client, "a1", "a2", "a3", "a4")
        for ending in endings:
            file.with_name(file.name + ending).unlink()
        await append_items(client, "b1", "b2", "b3", "b4")
        client.receive()
        await client.disconnect()
    items = ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4"]
    assert await items_after_restart(harness, file, client) == items
    unnoticed = endings == ("-shm",)
    logged = any("was deleted" in record.getMessage() for record in caplog.records)
    assert unnoticed or logged


@pytest.mark.parametrize("parked", [False, True])
async def test_unchanged_session_survives_deletion_of_the_file(
    harness: EngineHarness, tmp_path: Path, parked: bool
) -> None:
    """Another session changes after the deletion; the unchanged one is connected or parked."""
    file = tmp_path / "store.db"
    async with asyncio.timeout(60), gateway(harness, file) as registry:
        client, other = await connect_client(registry), await connect_client(registry)
        await append_items(client, "a1", "a2")
        client.receive()
        if parked:
            await client.disconnect()
        file.unlink()
        await append_items(other, "c1")
        async with asyncio.timeout(20):
            while (metadata := await registry._store.find(client.session_id)) is None or (
                metadata.is_parked is not parked
            ):
                await asyncio.sleep(0.02)
        if not parked:
            await client.disconnect()
        await other.disconnect()
    assert await items_after_restart(harness, file, client) == ["a1", "a2"]
