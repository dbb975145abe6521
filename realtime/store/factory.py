"""Selection of a store by its URL.

sqlite:///FILE          a file below the working folder; sqlite:////FILE for one from the root
sqlite://:memory:       for tests
redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]                          rediss:// over TLS
redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST…]/SERVICE[/DB]
"""

import os
from pathlib import Path

from continuo.realtime.store.base import Store
from continuo.realtime.store.durability import Durability
from continuo.realtime.store.errors import StoreUnusable
from continuo.realtime.store.sqlite.store import SqliteStore

REDIS_SCHEMES = ("redis", "rediss", "redis+sentinel")
_IN_MEMORY_URLS = ("sqlite://:memory:", "sqlite:///:memory:")


def is_redis_url(url: str) -> bool:
    """Whether a store URL names a Redis, in which engines can also be announced to gateways."""
    return url.partition("://")[0] in REDIS_SCHEMES


def find_sqlite_file(url: str) -> Path | None:
    """Return the file of a store URL. Returns None if the URL names no SQLite file."""
    path = url.removeprefix("sqlite:///")
    return Path(path) if path not in ("", url) and url not in _IN_MEMORY_URLS else None


def default_store_url() -> str:
    """URL of a SQLite file in the user's state folder."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return f"sqlite:///{Path(home) / 'continuo' / 'store.db'}"


async def open_store(url: str, durability: Durability = "normal") -> Store:
    """Open a store. Raises StoreUnusable for a bad URL or an unsuitable store, StoreUnavailable for
    a store that does not respond (yet)."""
    if url in _IN_MEMORY_URLS:
        return await SqliteStore.open(None, durability)
    if (file := find_sqlite_file(url)) is not None:
        return await SqliteStore.open(file, durability)
    if "://" in url and is_redis_url(url):
        # The client of Redis is slow to import, and SQLite the default.
        from continuo.realtime.store.redis.store import RedisStore  # noqa: PLC0415

        return await RedisStore.open(url, durability)
    if url.startswith("rediss+sentinel://"):
        raise StoreUnusable(
            "TLS is not supported together with Sentinel: use redis+sentinel:// on a network where "
            "nobody else reads, or rediss:// with one Redis"
        )
    raise StoreUnusable(
        f"'{redact_password(url)}' is not the URL of a store: expected sqlite:///FILE, "
        "redis://HOST, rediss://HOST or redis+sentinel://HOST,HOST/SERVICE"
    )


def redact_password(url: str) -> str:
    """Return a URL without its user and password."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://…@{tail}" if at else url
