"""What is in the stores is as frozen, and today's code goes on from what was frozen."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from continuo.realtime.server.auth.client_secrets import SignedSecrets
from tests.frozen import names, store
from tests.frozen.house import Event
from tests.realtime.store.redis_process import RedisProcess, needs_redis


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    asyncio.run(process.start())
    yield process
    process.stop()


def test_sqlite_holds_the_same(tmp_path: Path) -> None:
    known = store.lived(f"sqlite:///{tmp_path / 'store.db'}")
    assert known == store.frozen_told()["known"]
    assert store.sqlite_dump(tmp_path / "store.db") == store.sqlite_dump(store.SQLITE)


@needs_redis
def test_redis_holds_the_same(server: RedisProcess) -> None:
    store.redis_flush(server.port)
    known = store.lived(server.url)
    assert known == store.frozen_told()["known"]
    assert store.masked_redis(store.redis_dump(server.port)) == store.masked_redis(
        store.frozen_redis()
    )


def test_the_frozen_sqlite_file_has_the_frozen_schema() -> None:
    assert names.schema_of(store.SQLITE) == names.frozen()["sqlite"]


def compare(told: Event, frozen: Event) -> None:
    """Session by session, so that the first event that differs is shown."""
    for name, starts in frozen["sessions"].items():
        for after, events in starts.items():
            assert told["sessions"][name][after] == events, f"{name} after {after}"
    assert told["sessions"].keys() == frozen["sessions"].keys()
    assert told["responses"] == frozen["responses"]


def test_the_frozen_sqlite_file_is_gone_on_from(tmp_path: Path) -> None:
    frozen = store.frozen_told()
    compare(store.told(lambda: store.sqlite_copy(tmp_path), frozen["known"]), frozen)


@needs_redis
def test_the_frozen_redis_is_gone_on_from(server: RedisProcess) -> None:
    def fresh() -> str:
        store.redis_load(server.port)
        return server.url

    frozen = store.frozen_told()
    compare(store.told(fresh, frozen["known"]), frozen)


def test_a_frozen_client_secret_is_good() -> None:
    """What it stands for is sealed in it. It expires long after this."""
    frozen = json.loads((store.DATA / "client_secret.json").read_text())
    guest = SignedSecrets(b"the gateways' secret").find(frozen["value"])
    assert guest is not None
    assert guest.tenant == frozen["tenant"]
    assert guest.client_secret_digest.hex() == frozen["digest"]
    assert guest.settings is not None
    assert guest.settings.instructions == frozen["instructions"]
    assert [tool.name for tool in guest.settings.tools] == frozen["tools"]
