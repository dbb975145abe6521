"""RemoteSessions: the sessions of a tenant on another gateway, or in the store only. They are
inspected, read, forked and deleted without a takeover."""

import asyncio
import contextlib
from collections.abc import Generator

import msgspec

from continuo.engine import EngineError, SessionGroup
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.error_mapping import map_store_error
from continuo.realtime.registry.access import Access, ForkRequest
from continuo.realtime.registry.factory import SessionFactory, fork_origin, stored_status
from continuo.realtime.registry.recovery import Recovery
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
    """A session that was just deleted."""

    owner: str
    """Id of the gateway that owned the session."""
    fence: int | None
    """A fence higher than any that the session had; None if another request deleted it first."""


class RemoteSessions:
    def __init__(self, factory: SessionFactory, recovery: Recovery) -> None:
        """`recovery`: knows whether a session that the store does not have may be another
        gateway's."""
        self._factory = factory
        self._recovery = recovery

    async def status(self, session_id: str, tenant: str, access: Access) -> SessionStatus | None:
        """Return the status of a remote session, or None if the session does not exist. Raises
        Refusal."""
        snapshot = await self._load(session_id, tenant, access)
        if snapshot is None:
            return None
        info = await self._factory.engine.fleet.inspect(session_id)
        return stored_status(snapshot, info, self._factory.template)

    async def fork_origin(self, fork: ForkRequest, tenant: str, access: Access) -> SessionOrigin:
        """Make the origin (initial content) of a fork of a remote session. Raises Refusal."""
        snapshot = await self._load(fork.session_id, tenant, access)
        if snapshot is None:
            raise Refusal(
                f"The session with id '{fork.session_id[:200]}' does not exist.",
                code="session_not_found",
                param="fork",
            )
        return await fork_origin(self._factory, snapshot, fork.item_id)

    async def delete(self, session_id: str, tenant: str, access: Access) -> DeletedSession | None:
        """Delete a session from the store. The gateway that owned the session detects this when it
        next uses the store, or by a message from the engine (`release_engine_session`). Returns
        None if the session does not exist. Raises Refusal."""
        with _refusing_store_errors():
            metadata = await self._find(session_id, tenant, access)
            if metadata is None:
                return None
            try:
                return DeletedSession(
                    metadata.owner, await self._factory.store.force_delete(session_id)
                )
            except SessionNotFound:
                return DeletedSession(metadata.owner, None)

    async def release_engine_session(
        self, session_id: str, fence: int, group: SessionGroup
    ) -> None:
        """Close the session in the engine that holds it, under a higher fence, so that the engine
        reports the session as superseded to the gateway that owned it. Never raises."""
        engine = self._factory.engine
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(self._factory.limits.close_timeout_s):
                await engine.attach(session_id, [], group=group, fence=fence)
                await engine.close(session_id)

    async def _load(self, session_id: str, tenant: str, access: Access) -> Snapshot | None:
        """Load a session. Returns None if there is no such session, if it belongs to another
        tenant, or if `access` does not permit it. Raises Refusal."""
        with _refusing_store_errors():
            metadata = await self._find(session_id, tenant, access)
            return None if metadata is None else await self._factory.store.load(session_id)

    async def _find(self, session_id: str, tenant: str, access: Access) -> SessionMetadata | None:
        """Find the metadata of a session. Returns None also for a session of another tenant, and
        for one that `access` does not permit. Raises StoreError."""
        metadata = None
        with contextlib.suppress(StoreReplaced):
            metadata = await self._factory.store.find(session_id)
        if metadata is None and self._recovery.may_be_elsewhere:
            raise SessionNotFound(session_id)
        if metadata is None or metadata.tenant != tenant or not access.permits(metadata.secret):
            return None
        return metadata


@contextlib.contextmanager
def _refusing_store_errors() -> Generator[None]:
    """Turn errors of the store into refusals."""
    try:
        yield
    except StoreError as error:
        raise map_store_error(error) from error
