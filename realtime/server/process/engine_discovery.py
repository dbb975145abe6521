"""Discovery of the engines of a gateway: those configured, and those announced in Redis.

The engine process does not use Redis: its parent process announces it. Discovery only finds the
engines; the router assigns sessions to them, by the load that they report over their links.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from continuo.engine import EngineClient, LinkSecurity
from continuo.realtime.errors import SetupError
from continuo.realtime.server.config.addresses import Address
from continuo.realtime.store import keys
from continuo.realtime.store.errors import StoreError
from continuo.realtime.store.redis.client import RedisClient

log = logging.getLogger(__name__)

ANNOUNCE_INTERVAL_S = 1.0
"""Interval of announcements by engines, and of lookups by gateways."""


class Announcement(msgspec.Struct, frozen=True):
    """The record of an engine in Redis. Gateways use only its key; its fields are for operators."""

    address: str
    model: str
    incarnation: str
    sessions: int
    turns: int
    pages_leased: int
    pages_total: int


@asynccontextmanager
async def announce(
    engine: EngineClient, address: Address, store: str | None
) -> AsyncGenerator[None]:
    """Announce an engine at `address` to gateways while it is ready and not draining.

    `store`: URL of the Redis; None: no announcement. Raises SetupError.
    """
    if store is None:
        yield
        return
    redis = _open_redis(store)
    announcements = asyncio.create_task(_announce(engine, address, redis), name="announce")
    try:
        yield
    finally:
        announcements.cancel()
        await _withdraw(address, redis)
        await redis.aclose()


@asynccontextmanager
async def discover_engines(
    configured: Iterable[Address], security: LinkSecurity, store: str | None
) -> AsyncGenerator[EngineClient]:
    """Yield a client that connects to the configured and the announced engines; does not wait until
    they are ready.

    `store`: URL of the Redis with announcements; None: configured engines only. Raises SetupError.
    """
    engine = EngineClient()
    fixed = set(configured)
    for address in fixed:
        engine.fleet.add(address.host, address.port, security)
    redis = _open_redis(store) if store is not None else None
    discovery = None
    if redis is not None:
        discovery = asyncio.create_task(_discover(engine, fixed, security, redis), name="engines")
    try:
        yield engine
    finally:
        if discovery is not None:
            discovery.cancel()
        await engine.stop()
        if redis is not None:
            await redis.aclose()


def _open_redis(url: str) -> RedisClient:
    try:
        return RedisClient(url)
    except StoreError as error:
        raise SetupError(str(error)) from None


async def _announce(engine: EngineClient, address: Address, redis: RedisClient) -> None:
    while True:
        loads = engine.fleet.loads()
        for incarnation, load in loads.items():
            announcement = Announcement(
                str(address),
                engine.ready.model,
                incarnation,
                load.sessions,
                load.turns,
                load.pages_leased,
                load.pages_total,
            )
            if not load.draining:
                names = (keys.ENGINES_KEY, keys.engine_key(str(address)))
                args = (str(address), msgspec.json.encode(announcement), keys.ENGINE_EXPIRY_MS)
                await _try_call(redis, partial(redis.run_script, "announce", names, args))
        await asyncio.sleep(ANNOUNCE_INTERVAL_S)


async def _withdraw(address: Address, redis: RedisClient) -> None:
    await _try_call(redis, partial(redis.execute, "ZREM", keys.ENGINES_KEY, str(address)))
    await _try_call(redis, partial(redis.execute, "DEL", keys.engine_key(str(address))))


async def _discover(
    engine: EngineClient, configured: set[Address], security: LinkSecurity, redis: RedisClient
) -> None:
    """Add each announced engine; remove it once it is neither announced nor responsive. While Redis
    is unavailable, nothing changes."""
    known: set[Address] = set()
    while True:
        found = await _try_call(redis, partial(redis.run_script, "engines", (keys.ENGINES_KEY,)))
        if found is not None:
            announced = {Address.parse(name.decode()) for name in found} - configured
            for address in announced - known:
                engine.fleet.add(address.host, address.port, security)
            fleet = engine.fleet
            lost = {each for each in known - announced if not fleet.is_responsive_at(*each)}
            for address in lost:
                engine.fleet.remove(address.host, address.port)
            known = (known | announced) - lost
        await asyncio.sleep(ANNOUNCE_INTERVAL_S)


async def _try_call(redis: RedisClient, call: Callable[[], Awaitable[Any]]) -> Any:
    """Return the reply of Redis. Returns None if Redis is unavailable; logged at debug level only,
    because the health probe logs each outage once."""
    try:
        async with redis.bounded():
            return await call()
    except StoreError as error:
        log.debug("engine discovery in Redis failed: %s", error)
        return None
