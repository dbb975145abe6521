"""Tests of stored data: written by the scenario as frozen, and resumed from frozen stores."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from continuo.realtime.server.auth.client_secrets import ClientSecrets
from tests.frozen import names, store
from tests.frozen.virtual_server import Event
from tests.support.redis_process import RedisProcess, needs_redis


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    asyncio.run(process.start())
    yield process
    process.stop()


def test_scenario_fills_sqlite_as_frozen(tmp_path: Path) -> None:
    known = store.run_scenario(f"sqlite:///{tmp_path / 'store.db'}")
    assert known == store.frozen_replay()["known"]
    assert store.sqlite_dump(tmp_path / "store.db") == store.sqlite_dump(store.DATA / store.SQLITE)


@needs_redis
def test_scenario_fills_redis_as_frozen(redis: RedisProcess) -> None:
    store.redis_flush(redis.port)
    known = store.run_scenario(redis.url)
    assert known == store.frozen_replay()["known"]
    assert store.masked_redis(store.redis_dump(redis.port)) == store.masked_redis(
        store.frozen_redis()
    )


def test_frozen_sqlite_file_has_the_frozen_schema() -> None:
    assert names.schema_of(store.DATA / store.SQLITE) == names.frozen()["sqlite"]


def assert_equal_replays(replayed: Event, frozen: Event) -> None:
    """Compare session by session, so that a failure shows the first event that differs."""
    for name, starts in frozen["sessions"].items():
        for after, events in starts.items():
            assert replayed["sessions"][name][after] == events, f"{name} after {after}"
    assert replayed["sessions"].keys() == frozen["sessions"].keys()
    assert replayed["responses"] == frozen["responses"]


def test_sessions_resume_from_the_frozen_sqlite_file(tmp_path: Path) -> None:
    frozen = store.frozen_replay()
    assert_equal_replays(
        store.replay(lambda: store.unexpired_sqlite_copy(tmp_path), frozen["known"]), frozen
    )


@needs_redis
def test_sessions_resume_from_the_frozen_redis_dump(redis: RedisProcess) -> None:
    def fresh() -> str:
        store.redis_load(redis.port)
        return redis.url

    frozen = store.frozen_replay()
    assert_equal_replays(store.replay(fresh, frozen["known"]), frozen)


def test_frozen_client_secret_is_valid() -> None:
    """The secret expires in three centuries."""
    frozen = json.loads((store.DATA / "client_secret.json").read_text())
    secret = ClientSecrets(b"the gateways' secret").find(frozen["value"])
    assert secret is not None
    assert secret.tenant == frozen["tenant"]
    assert secret.client_secret_digest.hex() == frozen["digest"]
    assert secret.settings is not None
    assert secret.settings.instructions == frozen["instructions"]
    assert [tool.name for tool in secret.settings.tools] == frozen["tools"]
