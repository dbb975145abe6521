"""Elsewhere: a tenant's sessions that are not here, looked at, forked and ended without taking them
over: another gateway has them, or nobody but the store."""

import asyncio
import contextlib
from collections.abc import Generator

import msgspec

from continuo.engine import EngineError
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.error_mapping import not_kept
from continuo.realtime.registry.access import Access, Fork
from continuo.realtime.registry.factory import House, origin_in, status_in
from continuo.realtime.session.status import Status
from continuo.realtime.session.unit_of_work import Origin
from continuo.realtime.store import Card, Snapshot, StoreError, StoreLost, UnknownSession


class Ended(msgspec.Struct, frozen=True):
    """A session that has just been ended."""

    owner: str
    fence: int | None
    """Above all of its own. None: somebody else was faster."""


class Elsewhere:
    def __init__(self, house: House) -> None:
        self._house = house

    async def status(self, session_id: str, tenant: str, access: Access) -> Status | None:
        """None: there is none. Raises Refusal."""
        found = await self._load(session_id, tenant, access)
        if found is None:
            return None
        info = await self._house.door.look(session_id)
        return status_in(found, info, self._house.template)

    async def origin(self, fork: Fork, tenant: str, access: Access) -> Origin:
        """Raises Refusal."""
        found = await self._load(fork.session_id, tenant, access)
        if found is None:
            raise Refusal(
                f"The session with id '{fork.session_id[:200]}' does not exist.",
                code="session_not_found",
                param="fork",
            )
        return await origin_in(self._house, found, fork.at)

    async def end(self, session_id: str, tenant: str, access: Access) -> Ended | None:
        """Whoever has it learns of it from the store, or from its engine (`free`). None: there is
        none. Raises Refusal."""
        with _as_refusals():
            card = await self._find(session_id, tenant, access)
            if card is None:
                return None
            try:
                return Ended(card.owner, await self._house.store.end(session_id))
            except UnknownSession:
                return Ended(card.owner, None)

    async def free(self, session_id: str, fence: int, scope: str) -> None:
        """The engine that has it lets go of it, and says so to the gateway it did it for. `scope`:
        of its tenant's KV. Never raises."""
        door = self._house.door
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(self._house.limits.close_s_max):
                await door.attach(session_id, [], cache_scope=scope, fence=fence)
                await door.close(session_id)

    async def _load(self, session_id: str, tenant: str, access: Access) -> Snapshot | None:
        """Raises Refusal."""
        with _as_refusals():
            card = await self._find(session_id, tenant, access)
            return None if card is None else await self._house.store.load(session_id)

    async def _find(self, session_id: str, tenant: str, access: Access) -> Card | None:
        """The card of a session. Returns None for that of another tenant, and for one that
        `access` does not open. Raises StoreError."""
        try:
            card = await self._house.store.find(session_id)
        except StoreLost:
            return None
        if card is None or card.tenant != tenant or not access.opens(card.secret):
            return None
        return card


@contextlib.contextmanager
def _as_refusals() -> Generator[None]:
    """What the store says, as an answer to who asked."""
    try:
        yield
    except StoreError as error:
        raise not_kept(error) from error
