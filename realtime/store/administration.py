"""Administration of a store: backup, restore, vacuum and stats, beside the gateways that use it."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import msgspec

from continuo.realtime.store.backup_file import (
    BackupEnd,
    BackupRecord,
    read_backup,
    verify_backup,
    writing_backup,
)
from continuo.realtime.store.durability import Durability
from continuo.realtime.store.errors import StoreUnusable
from continuo.realtime.store.factory import find_sqlite_file, is_redis_url, redact_password
from continuo.realtime.store.sqlite.administration import SqliteAdministration, check_sqlite
from continuo.realtime.store.stats import StoreStats, VacuumResult


class StoreAdministration(Protocol):
    """Each call raises StoreUnavailable if the store does not respond, StoreUnusable if it cannot
    be used."""

    async def compute_stats(self) -> StoreStats: ...

    def export(self, scratch: Path) -> AsyncIterator[BackupRecord]:
        """Yield all sessions and stored responses, each as it is at one moment after the call.
        `scratch`: an empty folder for temporary files."""
        ...

    async def add(self, record: BackupRecord) -> bool:
        """Add a record of a backup. Returns False, without a change, if the store has a session,
        the tombstone of one, or a response with the same id."""
        ...

    async def vacuum(self) -> VacuumResult:
        """Remove what has expired, and return unused space to the system."""
        ...

    async def aclose(self) -> None: ...


class RestoreResult(msgspec.Struct, frozen=True):
    restored: int
    skipped: int
    """Records whose ids were in the store."""


def open_administration(url: str, *, create: bool = False) -> StoreAdministration:
    """Open a store by its URL. `create`: whether to create a SQLite file that does not exist.
    Raises StoreUnusable."""
    if is_redis_url(url):
        from continuo.realtime.store.redis.administration import (  # noqa: PLC0415 - slow to import
            RedisAdministration,
        )

        return RedisAdministration(url)
    file = find_sqlite_file(url)
    if file is None:
        raise StoreUnusable(f"'{redact_password(url)}' is neither a SQLite file nor a Redis")
    return SqliteAdministration(file, create=create)


async def check_store(url: str, durability: Durability) -> str:
    """Check that a server could use a store, without a change of it. Returns a description of the
    store. Raises StoreUnavailable if it does not respond, StoreUnusable for other problems."""
    if is_redis_url(url):
        from continuo.realtime.store.redis.administration import (  # noqa: PLC0415 - slow to import
            check_redis,
        )

        return await check_redis(url, durability)
    if (file := find_sqlite_file(url)) is None:
        raise StoreUnusable(f"'{redact_password(url)}' is not the URL of a store")
    return check_sqlite(file)


async def back_up(store: StoreAdministration, file: Path) -> BackupEnd:
    """Write all that the store holds to `file`. What was acknowledged before the call is in it,
    also while gateways use the store. Raises StoreError."""
    try:
        with (
            tempfile.TemporaryDirectory(dir=file.parent, prefix=".backup-") as scratch,
            writing_backup(file) as writer,
        ):
            async for record in store.export(Path(scratch)):
                writer.write(record)
            return writer.finish()
    except OSError as error:
        raise StoreUnusable(f"the backup {file} cannot be written: {error}") from error


async def restore(store: StoreAdministration, file: Path) -> RestoreResult:
    """Add all of a backup to a store. What is in the store stays. Raises StoreError, for a damaged
    file before anything is added; a call that failed may be repeated."""
    verify_backup(file)
    added = [await store.add(record) for record in read_backup(file)]
    return RestoreResult(sum(added), len(added) - sum(added))
