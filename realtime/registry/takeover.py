"""Takeovers: a session is taken over from its holder, here, at another gateway or in the store."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator

from continuo.engine import SessionGroup
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.error_mapping import map_store_error
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.access import (
    Credentials,
    Owner,
    ResumeRequest,
    check_may_resume,
    may_resume,
    session_not_found,
)
from continuo.realtime.registry.factory import SessionFactory, load
from continuo.realtime.registry.open_sessions import (
    Holder,
    OpenSession,
    OpenSessions,
    SessionObserver,
)
from continuo.realtime.registry.ownership import OwnershipChecks
from continuo.realtime.registry.recovery import Recovery
from continuo.realtime.store import (
    LeaseLost,
    NewSession,
    SessionDataLost,
    SessionNotFound,
    StoreError,
    StoreReplaced,
    StoreUnavailable,
)

log = logging.getLogger(__name__)


def hold_s(limits: Limits, resume_window_s: float) -> float:
    """Time from a claim to the session's deadline, in seconds: the lifetime of a connection, and
    the resume window after it, so that the session can still be resumed if this process dies."""
    return limits.connection_lifetime_s + resume_window_s


def _close_at_other_gateway(code: CloseCode, reason: str) -> None:
    """Do nothing. Used as `close_connection` of a holder on another gateway, which detects the
    takeover itself and closes the connection."""


class Takeovers:
    """Finds the holder of a session, and takes the session over from it, which a fence decides.

    Called by the registry alone, which lets resumes of one session run one after the other.
    """

    def __init__(
        self,
        factory: SessionFactory,
        open_sessions: OpenSessions,
        ownership: OwnershipChecks,
        recovery: Recovery,
        gateway_id: str,
        observe: Callable[[str], SessionObserver],
        group_of: Callable[[str], SessionGroup],
        resume_window_of: Callable[[str], float],
    ) -> None:
        """Args:
        factory: loads sessions from the store.
        open_sessions: those of this gateway; a session that is loaded is added.
        ownership: checks whether a session here is still this gateway's.
        recovery: knows whether a session that the store does not have may be another gateway's.
        gateway_id: owner of the leases.
        observe: makes the observer of a session, by its id.
        group_of: returns the group of a tenant.
        resume_window_of: returns the seconds for which a session of a tenant stays parked.
        """
        self._factory = factory
        self._open_sessions = open_sessions
        self._ownership = ownership
        self._recovery = recovery
        self._gateway_id = gateway_id
        self._observe = observe
        self._group_of = group_of
        self._resume_window_of = resume_window_of
        self._store = factory.store
        self._limits = factory.limits

    async def find_holder(self, resume_request: ResumeRequest, credentials: Credentials) -> Holder:
        """Find the holder of a session, here or in the store. Raises Refusal."""
        _, holder = await self.find(resume_request, credentials)
        return holder

    async def find(
        self, resume_request: ResumeRequest, credentials: Credentials | None
    ) -> tuple[Owner, Holder]:
        """Find owner and holder of a session, here or in the store. `credentials` None: the client
        shows only a resume token. Raises Refusal."""
        entry = self._open_sessions.get(resume_request.session_id)
        if entry is not None:
            check_may_resume(resume_request, credentials, entry.owner)
            return entry.owner, entry.holder
        with self._refusing_store_errors(resume_request, credentials):
            metadata = await self._store.find(resume_request.session_id)
            if metadata is None:
                raise SessionNotFound(resume_request.session_id)
            owner = Owner(metadata.tenant, metadata.secret)
            check_may_resume(resume_request, credentials, owner)
            return owner, Holder(
                metadata.fence, None if metadata.is_parked else _close_at_other_gateway
            )

    async def take_over(
        self, resume_request: ResumeRequest, credentials: Credentials, holder: Holder
    ) -> OpenSession | None:
        """Take a session over from `holder`. Returns None if the holder has changed. Raises
        Refusal."""
        entry = self._open_sessions.get(resume_request.session_id)
        with self._refusing_store_errors(resume_request, credentials):
            if entry is None:
                with contextlib.suppress(LeaseLost):
                    return await self._load_from_store(
                        resume_request.session_id, credentials.tenant, holder
                    )
                return None
            if entry.holder != holder:
                return None
            # The session is here, but while this process was suspended another gateway may have
            # taken it; a claim decides. Without one, both would run it until the next write.
            try:
                await entry.session.stored.claim()
            except LeaseLost as error:
                await asyncio.shield(self._ownership.unload_lost(entry, error))
            except (SessionNotFound, StoreReplaced, SessionDataLost):
                # Deleted, or lost in the store: then the next change writes it again.
                await self._ownership.check(entry)
        return entry if entry in self._open_sessions else None

    async def _load_from_store(self, session_id: str, tenant: str, holder: Holder) -> OpenSession:
        """Claim and load a session. Raises Refusal and StoreError; LeaseLost if `holder` does
        not hold the session any more."""
        await self._open_sessions.wait_until_unloaded(session_id)
        window_s = self._resume_window_of(tenant)
        ttl_s = hold_s(self._limits, window_s)
        lease = await self._store.claim(
            session_id, self._gateway_id, ttl_s=ttl_s, expected_fence=holder.fence
        )
        snapshot = await self._store.load(session_id)
        if snapshot is None:
            raise SessionNotFound(session_id)
        metadata = snapshot.metadata
        new = NewSession(
            id=session_id,
            owner=self._gateway_id,
            tenant=metadata.tenant,
            secret=metadata.secret,
            state=snapshot.state,
            ttl_s=ttl_s,
        )
        try:
            observer, group = self._observe(session_id), self._group_of(metadata.tenant)
            session = await load(self._factory, lease, new, snapshot, group, observer)
        except Refusal:  # the session stays in the store, unchanged and parked
            with contextlib.suppress(StoreError):
                await self._store.extend_deadline(lease, window_s, is_parked=True)
            raise
        entry = OpenSession(
            session,
            Owner(metadata.tenant, metadata.secret),
            observer,
            None,
            created_s=metadata.created_ms / 1000,
        )
        self._open_sessions.add(entry)
        log.debug("session loaded from the store", extra={"fields": {"fence": lease.fence}})
        return entry

    @contextlib.contextmanager
    def _refusing_store_errors(
        self, resume_request: ResumeRequest, credentials: Credentials | None
    ) -> Generator[None]:
        """Turn errors of the store into refusals of a request to resume."""
        try:
            yield
        except (SessionNotFound, StoreReplaced) as error:
            raise self._unknown_or_expired(resume_request, credentials, error) from error
        except StoreUnavailable as error:
            raise map_store_error(error) from error

    def _unknown_or_expired(
        self, resume_request: ResumeRequest, credentials: Credentials | None, error: StoreError
    ) -> Refusal:
        owner = self._open_sessions.owner_of_expired(resume_request.session_id)
        if owner is None or not may_resume(resume_request, credentials, owner):
            if self._recovery.may_be_elsewhere:
                return map_store_error(error)
            return session_not_found(resume_request)
        return Refusal(
            f"The session with id '{resume_request.session_id}' has expired: it was without a "
            f"connection for longer than {self._resume_window_of(owner.tenant):,g} seconds.",
            code="session_expired",
            param="session_id",
        )
