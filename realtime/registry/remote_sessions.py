"""Elsewhere: a tenant's sessions that are not here, looked at, forked and ended without taking them
over: another gateway has them, or nobody but the store."""

import asyncio
import contextlib
from collections.abc import Generator

import msgspec

from continuo.engine import EngineError
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.error_mapping import map_store_error
from continuo.realtime.registry.access import Access, ForkRequest
from continuo.realtime.registry.factory import SessionFactory, fork_origin, stored_status
from continuo.realtime.session.status import SessionStatus
from continuo.realtime.session.unit_of_work import SessionOrigin
from continuo.realtime.store import (
    SessionMetadata,
    SessionNotFound,
    Snapshot,
    StoreError,
    StoreReplaced,
)


class DeletedSession(msgspec.Struct, frozen=True):
    """A session that has just been ended."""

    owner: str
    fence: int | None
    """Above all of its own. None: somebody else was faster."""


class RemoteSessions:
    def __init__(self, factory: SessionFactory) -> None:
        self._factory = factory

    async def status(self, session_id: str, tenant: str, access: Access) -> SessionStatus | None:
        """None: there is none. Raises Refusal."""
        found = await self._load(session_id, tenant, access)
        if found is None:
            return None
        info = await self._factory.engine.inspect(session_id)
        return stored_status(found, info, self._factory.template)

    async def fork_origin(self, fork: ForkRequest, tenant: str, access: Access) -> SessionOrigin:
        """Raises Refusal."""
        found = await self._load(fork.session_id, tenant, access)
        if found is None:
            raise Refusal(
                f"The session with id '{fork.session_id[:200]}' does not exist.",
                code="session_not_found",
                param="fork",
            )
        return await fork_origin(self._factory, found, fork.item_id)

    async def delete(self, session_id: str, tenant: str, access: Access) -> DeletedSession | None:
        """Whoever has it learns of it from the store, or from its engine (`free`). None: there is
        none. Raises Refusal."""
        with _refusing_store_errors():
            card = await self._find(session_id, tenant, access)
            if card is None:
                return None
            try:
                return DeletedSession(
                    card.owner, await self._factory.store.force_delete(session_id)
                )
            except SessionNotFound:
                return DeletedSession(card.owner, None)

    async def release_engine_session(self, session_id: str, fence: int, cache_scope: str) -> None:
        """The engine that has it lets go of it, and says so to the gateway it did it for. `scope`:
        of its tenant's KV. Never raises."""
        door = self._factory.engine
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(self._factory.limits.close_timeout_s):
                await door.attach(session_id, [], cache_scope=cache_scope, fence=fence)
                await door.close(session_id)

    async def _load(self, session_id: str, tenant: str, access: Access) -> Snapshot | None:
        """Raises Refusal."""
        with _refusing_store_errors():
            card = await self._find(session_id, tenant, access)
            return None if card is None else await self._factory.store.load(session_id)

    async def _find(self, session_id: str, tenant: str, access: Access) -> SessionMetadata | None:
        """The card of a session. Returns None for that of another tenant, and for one that
        `access` does not open. Raises StoreError."""
        try:
            card = await self._factory.store.find(session_id)
        except StoreReplaced:
            return None
        if card is None or card.tenant != tenant or not access.permits(card.secret):
            return None
        return card


@contextlib.contextmanager
def _refusing_store_errors() -> Generator[None]:
    """What the store says, as an answer to who asked."""
    try:
        yield
    except StoreError as error:
        raise map_store_error(error) from error
