"""Real stores that refuse writes: a locked SQLite file, and settings of Redis with which it replies
but refuses writes, or all commands."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from continuo.realtime.store import Store, StoreUnavailable
from tests.support.redis_process import RedisProcess
from tests.support.waiting import wait_until

RedisCommand = tuple[str, ...]


class StoreFailure(NamedTuple):
    name: str
    logged_cause: str
    """Text expected in the one log line about the failure."""
    start_commands: tuple[RedisCommand, ...]
    stop_commands: tuple[RedisCommand, ...]


_RIGHTS = ("+@all", "allkeys")
_DISCONNECT = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

STORE_FAILURES = (
    StoreFailure(
        "out of memory",
        "maxmemory",
        (("CONFIG", "SET", "maxmemory", "1mb"),),
        (("CONFIG", "SET", "maxmemory", "0"),),
    ),
    StoreFailure(
        "read-only replica",
        "read only replica",
        (("REPLICAOF", "127.0.0.1", "1"),),
        (("REPLICAOF", "NO", "ONE"),),
    ),
    StoreFailure(
        "too few replicas",
        "NOREPLICAS",
        (("CONFIG", "SET", "min-replicas-to-write", "1"),),
        (("CONFIG", "SET", "min-replicas-to-write", "0"),),
    ),
    StoreFailure(
        "another password",
        "refuses access",
        (("ACL", "SETUSER", "gate", "<pw", ">other"), _DISCONNECT),
        (("ACL", "SETUSER", "gate", "<other", ">pw"),),
    ),
    StoreFailure(
        "a disabled user",
        "refuses access",
        (("ACL", "SETUSER", "gate", "off"), _DISCONNECT),
        (("ACL", "SETUSER", "gate", "on"),),
    ),
    StoreFailure(
        "no right to scripts",
        "evalsha",
        (("ACL", "SETUSER", "gate", "-eval", "-evalsha"),),
        (("ACL", "SETUSER", "gate", *_RIGHTS),),
    ),
    StoreFailure(
        "no right to a class of commands with scripts",
        "no permissions",
        (("ACL", "SETUSER", "gate", "-@scripting"),),
        (("ACL", "SETUSER", "gate", *_RIGHTS),),
    ),
    StoreFailure(
        "no right to write",
        "can't run this command",
        (("ACL", "SETUSER", "gate", "-@write"),),
        (("ACL", "SETUSER", "gate", *_RIGHTS),),
    ),
    StoreFailure(
        "no right to the keys",
        "no permissions",
        (("ACL", "SETUSER", "gate", "resetkeys", "~other:*"),),
        (("ACL", "SETUSER", "gate", *_RIGHTS),),
    ),
    StoreFailure(
        "eviction",
        "allkeys-lru",
        (("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),),
        (("CONFIG", "SET", "maxmemory-policy", "noeviction"),),
    ),
)


async def create_acl_user(redis: RedisProcess) -> str:
    """Create the ACL user `gate` with all rights, so that a test can change rights and password.

    Returns the Redis URL with the credentials of that user.
    """
    async with redis.client() as admin:
        await admin.execute_command("ACL", "SETUSER", "gate", "on", ">pw", *_RIGHTS)
    return redis.url.replace("redis://", "redis://gate:pw@")


@contextlib.asynccontextmanager
async def password_required(redis: RedisProcess) -> AsyncIterator[None]:
    """Require a password of the default user while in this context. Open connections are closed on
    entry."""
    async with redis.client() as admin:
        await admin.execute_command("CONFIG", "SET", "requirepass", "secret")
        await admin.execute_command(*_DISCONNECT)
        try:
            yield
        finally:
            await admin.execute_command("CONFIG", "SET", "requirepass", "")


async def run_commands(redis: RedisProcess, commands: tuple[RedisCommand, ...]) -> None:
    async with redis.client() as admin:
        for command in commands:
            await admin.execute_command(*command)


@contextlib.asynccontextmanager
async def locked_sqlite(file: Path, store: Store) -> AsyncIterator[None]:
    """While entered, the store in `file` accepts no writes, because another connection locks it."""
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable):
        await store.sweep(1)  # which finds the lock sooner than the next health probe
    assert not store.is_available
    yield
    other.close()
    await wait_until(lambda: store.is_available)
