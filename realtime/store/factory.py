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
from continuo.realtime.store.redis.store import RedisStore
from continuo.realtime.store.sqlite.store import SqliteStore

REDIS_SCHEMES = ("redis", "rediss", "redis+sentinel")


def is_redis_url(url: str) -> bool:
    """Whether a store URL names a Redis, in which engines can also be announced to gateways."""
    return url.partition("://")[0] in REDIS_SCHEMES


def default_store_url() -> str:
    """URL of a SQLite file in the user's state folder."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return f"sqlite:///{Path(home) / 'continuo' / 'store.db'}"


async def open_store(url: str, durability: Durability = "normal") -> Store:
    """Open a store. Raises StoreUnusable for a bad URL or an unsuitable store, StoreUnavailable for
    a store that does not respond (yet)."""
    scheme, slashes, rest = url.partition("://")
    if slashes and scheme == "sqlite":
        if rest in (":memory:", "/:memory:"):
            return await SqliteStore.open(None, durability)
        if len(rest) > 1 and rest.startswith("/"):
            return await SqliteStore.open(Path(rest[1:]), durability)
    if slashes and scheme in REDIS_SCHEMES:
        return await RedisStore.open(url, durability)
    raise StoreUnusable(
        f"'{_redact_password(url)}' is not the URL of a store: expected sqlite:///FILE, "
        "redis://HOST, rediss://HOST or redis+sentinel://HOST,HOST/SERVICE"
    )


def _redact_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://…@{tail}" if at else url
