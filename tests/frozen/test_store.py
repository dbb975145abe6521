"""The scenario fills the stores as frozen, and sessions resume from the frozen stores."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from continuo.realtime.server.auth.client_secrets import SignedSecrets
from tests.frozen import names, store
from tests.frozen.virtual_server import Event
from tests.support.redis_process import RedisProcess, needs_redis


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    asyncio.run(process.start())
    yield process
    process.stop()


def test_sqlite_holds_the_same(tmp_path: Path) -> None:
    known = store.filled(f"sqlite:///{tmp_path / 'store.db'}")
    assert known == store.frozen_replay()["known"]
    assert store.sqlite_dump(tmp_path / "store.db") == store.sqlite_dump(store.SQLITE)


@needs_redis
def test_redis_holds_the_same(server: RedisProcess) -> None:
    store.redis_flush(server.port)
    known = store.filled(server.url)
    assert known == store.frozen_replay()["known"]
    assert store.masked_redis(store.redis_dump(server.port)) == store.masked_redis(
        store.frozen_redis()
    )


def test_the_frozen_sqlite_file_has_the_frozen_schema() -> None:
    assert names.schema_of(store.SQLITE) == names.frozen()["sqlite"]


def compare(found: Event, frozen: Event) -> None:
    """Session by session, so that the first event that differs is shown."""
    for name, starts in frozen["sessions"].items():
        for after, events in starts.items():
            assert found["sessions"][name][after] == events, f"{name} after {after}"
    assert found["sessions"].keys() == frozen["sessions"].keys()
    assert found["responses"] == frozen["responses"]


def test_the_frozen_sqlite_file_is_resumed_from(tmp_path: Path) -> None:
    frozen = store.frozen_replay()
    compare(store.replayed(lambda: store.sqlite_copy(tmp_path), frozen["known"]), frozen)


@needs_redis
def test_the_frozen_redis_is_resumed_from(server: RedisProcess) -> None:
    def fresh() -> str:
        store.redis_load(server.port)
        return server.url

    frozen = store.frozen_replay()
    compare(store.replayed(fresh, frozen["known"]), frozen)


def test_a_frozen_client_secret_is_valid() -> None:
    """It expires in three centuries."""
    frozen = json.loads((store.DATA / "client_secret.json").read_text())
    guest = SignedSecrets(b"the gateways' secret").find(frozen["value"])
    assert guest is not None
    assert guest.tenant == frozen["tenant"]
    assert guest.client_secret_digest.hex() == frozen["digest"]
    assert guest.settings is not None
    assert guest.settings.instructions == frozen["instructions"]
    assert [tool.name for tool in guest.settings.tools] == frozen["tools"]
