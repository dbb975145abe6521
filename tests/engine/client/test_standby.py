import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine import EngineClient, EngineConfig
from continuo.engine.client import engine_process
from continuo.engine.client.engine_process import EngineProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def use_simulated_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "ENGINE_MODULE", "tests.support.deadly_boot")
    monkeypatch.setattr(engine_process, "STANDBY_DELAY_S", 0.0)
    monkeypatch.setenv("DEADLY_IDS", "9")


@contextlib.asynccontextmanager
async def engine_with_standby(letters: Path) -> AsyncIterator[tuple[EngineClient, EngineProcess]]:
    engine = await EngineClient.start(EngineConfig(model=str(letters), standby_engine=True))
    process = engine._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    try:
        await wait_until(lambda: process.standby_pid is not None)
        yield engine, process
    finally:
        await engine.stop()


def is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def kill(engine: EngineClient) -> None:
    """Kill the engine and wait for the next one."""
    killed = engine.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await wait_until(lambda: engine.pid != killed and engine.fleet.is_available)


async def test_standby_replaces_an_engine_that_dies(letters: Path) -> None:
    async with engine_with_standby(letters) as (engine, process):
        for _ in range(2):
            standby = process.standby_pid
            await kill(engine)
            assert engine.pid == standby
            session = await engine.open()
            assert await engine.append(session, [1, 2]) == 2
            await wait_until(lambda: process.standby_pid not in (None, engine.pid))
        pids = [engine.pid, process.standby_pid]
    assert not any(pid is not None and is_running(pid) for pid in pids)


async def test_engine_is_restarted_although_the_standby_died(letters: Path) -> None:
    async with engine_with_standby(letters) as (engine, process):
        standby = process.standby_pid
        assert standby is not None
        os.kill(standby, signal.SIGKILL)
        await asyncio.sleep(0.1)
        await kill(engine)
        assert engine.pid != standby
