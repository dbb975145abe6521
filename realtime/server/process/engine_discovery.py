"""The engines of a gateway: those it was told of, and those that are announced in Redis.

An engine knows no Redis: the process it was started by announces it. Which engine a session goes to
is decided by what the engines say on their links; here they are only found.
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
"""How often an engine is announced, and how often gateways look."""


class Announcement(msgspec.Struct, frozen=True):
    """What is said of an engine, for people who look."""

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
    """While an engine of ours is ready, gateways find it. Raises SetupError."""
    if store is None:
        yield
        return
    redis = _open_redis(store)
    announcing = asyncio.create_task(_announce(engine, address, redis), name="announce")
    try:
        yield
    finally:
        announcing.cancel()
        await _withdraw(address, redis)
        await redis.aclose()


@asynccontextmanager
async def discover_engines(
    configured: Iterable[Address], security: LinkSecurity, store: str | None
) -> AsyncGenerator[EngineClient]:
    """Engines that run apart, ready or not. Raises SetupError."""
    engine = EngineClient()
    fixed = set(configured)
    for address in fixed:
        engine.add_engine(address.host, address.port, security)
    redis = _open_redis(store) if store is not None else None
    looking = None
    if redis is not None:
        looking = asyncio.create_task(_discover(engine, fixed, security, redis), name="engines")
    try:
        yield engine
    finally:
        if looking is not None:
            looking.cancel()
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
        loads = engine.loads()
        for incarnation, load in loads.items():
            said = Announcement(
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
                args = (str(address), msgspec.json.encode(said), keys.ENGINE_EXPIRY_MS)
                await _try_call(redis, partial(redis.run_script, "announce", names, args))
        await asyncio.sleep(ANNOUNCE_INTERVAL_S)


async def _withdraw(address: Address, redis: RedisClient) -> None:
    await _try_call(redis, partial(redis.execute, "ZREM", keys.ENGINES_KEY, str(address)))
    await _try_call(redis, partial(redis.execute, "DEL", keys.engine_key(str(address))))


async def _discover(
    engine: EngineClient, configured: set[Address], security: LinkSecurity, redis: RedisClient
) -> None:
    """While Redis does not answer, those that were found stay."""
    known: set[Address] = set()
    while True:
        found = await _try_call(redis, partial(redis.run_script, "engines", (keys.ENGINES_KEY,)))
        if found is not None:
            now = {Address.parse(name.decode()) for name in found} - configured
            for address in now - known:
                engine.add_engine(address.host, address.port, security)
            gone = {address for address in known - now if not engine.is_responsive_at(*address)}
            for address in gone:
                engine.remove_engine(address.host, address.port)
            known = (known | now) - gone
        await asyncio.sleep(ANNOUNCE_INTERVAL_S)


async def _try_call(redis: RedisClient, call: Callable[[], Awaitable[Any]]) -> Any:
    """The reply of Redis. Returns None if there is none, which is logged once (`pulse`)."""
    try:
        async with redis.bounded():
            return await call()
    except StoreError as error:
        log.debug("engines in Redis: %s", error)
        return None
