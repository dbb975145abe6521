"""Registry: opens, resumes, takes over, forks, parks and deletes sessions.

open ──▶ connected ──disconnect──▶ parked ──resume──▶ connected     in memory, and in the store
             │                       │ window over, or too many parked
             └─close──▶ deleted ◀────┴──▶ in the store only ──resume──▶ connected
"""

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from weakref import WeakValueDictionary

from continuo.engine import ChatTemplate, EngineClient, SessionGroup
from continuo.realtime import metrics
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import count_head_chars
from continuo.realtime.conversation.text_limits import TextLimits, refuse_if_too_long
from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_log import EventListener
from continuo.realtime.generation.error_mapping import map_store_error
from continuo.realtime.generation.tokenizer_threads import TokenizerThreads
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import StoredState, encode_state
from continuo.realtime.persistence.token_journal import JournalFlusher
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.commands import ConfigureSession
from continuo.realtime.protocol.events import ResumeInfo
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import (
    TENANT_SCOPES,
    Access,
    Credentials,
    ForkRequest,
    Owner,
    ResumeRequest,
    key_id_of,
    make_secret,
    parse_resume_cursor,
)
from continuo.realtime.registry.factory import SessionFactory, create
from continuo.realtime.registry.open_sessions import (
    CloseConnection,
    OpenSession,
    OpenSessions,
    SessionObserver,
)
from continuo.realtime.registry.ownership import DELETED, OwnershipChecks, close_replaced
from continuo.realtime.registry.recovery import Recovery
from continuo.realtime.registry.remote_sessions import RemoteSessions
from continuo.realtime.registry.takeover import Takeovers, hold_s
from continuo.realtime.session.session import Session
from continuo.realtime.session.status import SessionStatus
from continuo.realtime.session.unit_of_work import InitialState, SessionOrigin
from continuo.realtime.store import (
    NewSession,
    Store,
    StoreError,
    StoreUnavailable,
)
from continuo.realtime.tenants.tenants import Tenants

log = logging.getLogger(__name__)


WHOLE_TENANT = Access()
"""Access to every session of a tenant."""

_INSPECTION_TIMEOUT_S = 0.5
"""Limit for the engines to report where the KV of a resumed session is."""

PingClient = Callable[[], Awaitable[bool]]


async def assume_alive() -> bool:
    return True


class _Observer:
    """Reports the events of one session to the registry.

    It knows the session by its id alone, so that an unloaded session is in no reference cycle."""

    def __init__(self, registry: "Registry", session_id: str) -> None:
        self._registry = registry
        self._session_id = session_id

    def on_replaced(self) -> None:
        self._registry.on_replaced(self._session_id, self)

    def on_gap(self) -> None:
        self._registry.on_gap(self._session_id, self)


class Registry:
    """The sessions of this gateway, and the ways by which they reach and leave it.

    Owns the open sessions, connected or parked, and the lease of each in the store. Called by the
    routes and connections of the server, on the event loop of the gateway. Always: one gateway
    executes the requests of a session, the one whose fence is the highest in the store; a session
    here has at most one connection; and resumes of one session run one after the other.
    """

    def __init__(
        self,
        engine: EngineClient,
        template: ChatTemplate,
        settings: GenerationSettings,
        limits: Limits,
        store: Store,
        secret: bytes = b"",
        tenants: Tenants | None = None,
    ) -> None:
        """Args:
        engine: all engines of the gateway, shared with ResponseService; the caller closes it.
        template: renders the conversations; that of the engine's model.
        settings: the default settings of new sessions.
        limits: the same for all sessions; those per tenant come from `tenants`.
        store: where sessions are kept; the caller closes it, after the registry.
        secret: common to the gateways of the same engines, so that they share a tenant's KV. Empty:
            a random one, and KV is shared within this gateway alone.
        tenants: limits and usage by tenant, shared with ResponseService. None: tenants with the
            limits per minute of `limits`.
        """
        self.settings = settings
        self.tenants = tenants or Tenants(limits)
        self.tokenizer_threads = TokenizerThreads(limits.off_loop_chars_min)
        self.text_limits = TextLimits.for_model(engine.ready, template)
        self._factory = SessionFactory(
            engine,
            template,
            limits,
            store,
            JournalFlusher(store),
            self.tenants,
            self.tokenizer_threads,
        )
        self._limits = limits
        self._store = store
        self._gateway_id = generate_id("gate")
        self._secret = secret or secrets.token_bytes(32)
        self.open_sessions = OpenSessions(limits, self._resume_window_of)
        self._ownership = OwnershipChecks(self.open_sessions)
        self.recovery = Recovery(
            self.open_sessions, self._ownership, limits, store, self._resume_window_of
        )
        self._remote_sessions = RemoteSessions(self._factory, self.recovery)
        self._takeovers = Takeovers(
            self._factory,
            self.open_sessions,
            self._ownership,
            self.recovery,
            self._gateway_id,
            lambda session_id: _Observer(self, session_id),
            self.group_of,
            self._resume_window_of,
        )
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        """Number of sessions with a connection."""
        return self.open_sessions.connected_count

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Context manager of the running registry. Removes expired sessions from the store
        periodically, checks that the sessions here still belong to this gateway, and writes them
        again to a store that has lost them; unloads all sessions at the end."""
        sweeping = asyncio.create_task(self.recovery.run(), name="sweep")
        try:
            yield
        finally:
            sweeping.cancel()
            await self.recovery.finish()
            await self.aclose()

    # ------------------------------------------------------------ opening and resuming

    async def open(
        self,
        listener: EventListener,
        session_id: str | None = None,
        credentials: Credentials | None = None,
        close_connection: CloseConnection = lambda _code, _reason: None,
        fork: ForkRequest | None = None,
    ) -> Session:
        """Open a session, new or as a fork. `close_connection` closes the client's connection with
        a code and a reason. Raises Refusal if there are too many sessions, if the session to fork
        does not exist, or if the store is not available."""
        self._check_capacity()
        credentials = credentials or Credentials()
        settings = credentials.settings or self.settings
        if fork is not None:
            origin = await self._fork_origin(fork, credentials)
        else:
            origin = await self._new_origin(credentials, settings)
        initial, parent = InitialState(origin.settings, origin.conversation), origin.engine_session
        token = secrets.token_urlsafe(24)
        new = NewSession(
            id=session_id or generate_id("sess"),
            owner=self._gateway_id,
            tenant=credentials.tenant,
            secret=make_secret(token, credentials),
            state=encode_state(
                StoredState(settings=initial.settings, model=self._factory.model_digest)
            ),
            ttl_s=hold_s(self._limits, self._resume_window_of(credentials.tenant)),
        )
        tenant = self.tenants.of(credentials.tenant)
        try:
            if tenant.limits.sessions_max:
                async with tenant.opening:
                    count = await self._store.tenants.count_sessions(tenant.name)
                    tenant.ledger.check_session_count(count)
                    lease = await self._store.create(new)
            else:
                lease = await self._store.create(new)
        except StoreError as error:
            raise map_store_error(error) from error
        observer = _Observer(self, new.id)
        group = self.group_of(credentials.tenant)
        session = create(self._factory, lease, new, initial, group, parent, observer)
        owner = Owner(credentials.tenant, new.secret)
        self.open_sessions.add(OpenSession(session, owner, observer, close_connection))
        metrics.sessions_opened.inc()
        log.debug("session opened", extra={"fields": {"fork_of": fork and fork.session_id}})
        await session.start(listener, self._resume_of(session, owner, token))
        return session

    async def resume(
        self,
        resume_request: ResumeRequest,
        listener: EventListener,
        credentials: Credentials,
        close_connection: CloseConnection,
        ping_client: PingClient = assume_alive,
    ) -> Session:
        """Take a session over from its current holder, and send the missed events to `listener`.
        `ping_client` returns whether the client still responds. Raises Refusal.

        If this process was suspended, the client may have resumed at another gateway meanwhile. So
        the holder is read first, then the client is pinged, then the session is taken over if its
        holder is still the same. A parked session needs no ping."""
        self._check_capacity()
        since = parse_resume_cursor(resume_request)
        lock = self._locks.setdefault(resume_request.session_id, asyncio.Lock())
        while True:
            holder = await self._takeovers.find_holder(resume_request, credentials)
            if holder.close_connection is not None and not await ping_client():
                raise _connection_lost()
            async with lock:
                inspecting = asyncio.create_task(
                    self._factory.engine.fleet.inspect(
                        resume_request.session_id, within_s=_INSPECTION_TIMEOUT_S
                    )
                )
                try:
                    # Not in a task of its own, to which an error of the store would refer.
                    entry = await self._takeovers.take_over(resume_request, credentials, holder)
                    if entry is None:
                        continue
                    session = entry.session
                    replaced = self.open_sessions.connect(entry, close_connection)
                    close_replaced(replaced)
                    log.debug(
                        "session resumed",
                        extra={"fields": {"replaces_connection": replaced is not None}},
                    )
                    try:
                        resume = self._resume_of(session, entry.owner)
                        await session.resume(listener, since, resume, await inspecting)
                    except BaseException:
                        await self.park(session, close_connection)
                        raise
                    return session
                finally:
                    inspecting.cancel()

    async def credentials_of_token(self, resume_request: ResumeRequest) -> Credentials:
        """Make the credentials of a client that shows only a resume token: of the session's tenant
        and API key, with access to this session alone. Raises Refusal."""
        owner, _ = await self._takeovers.find(resume_request, None)
        key_id = key_id_of(owner.secret)
        return Credentials(owner.tenant, is_ephemeral=True, scopes=TENANT_SCOPES, key_id=key_id)

    def on_replaced(self, session_id: str, observer: SessionObserver) -> None:
        """Unload a session that another gateway owns now, or has deleted."""
        if (entry := self.open_sessions.find_observed(session_id, observer)) is not None:
            self.open_sessions.spawn(self._ownership.unload_replaced(entry))

    def on_gap(self, session_id: str, observer: SessionObserver) -> None:
        """Close the connection of a client that has received different output from what this
        gateway now generates again. The client reconnects and gets a snapshot."""
        entry = self.open_sessions.find_observed(session_id, observer)
        if entry is not None and entry.close_connection is not None:
            entry.close_connection(
                CloseCode.SERVICE_RESTART, "the last response has changed: reconnect"
            )

    def on_superseded(self, engine_session_id: str) -> None:
        """Check the ownership of a session whose engine session another gateway has taken over."""
        entry = self.open_sessions.get(engine_session_id.partition(".")[0])
        if entry is not None:
            self.open_sessions.spawn(self._ownership.recheck(entry))

    def _check_capacity(self) -> None:
        if len(self) >= self._limits.connected_sessions_max:
            raise Refusal(
                f"This server has {self._limits.connected_sessions_max:,} open sessions, its "
                "limit.",
                code="rate_limit_exceeded",
                kind="server_error",
            )

    def _resume_of(self, session: Session, owner: Owner, token: str | None = None) -> ResumeInfo:
        return ResumeInfo(
            session_id=session.id,
            epoch=session.epoch,
            window_s=self._resume_window_of(owner.tenant),
            expires_at=int(time.time() + self._limits.connection_lifetime_s),
            token=token,
        )

    # ------------------------------------------------------------ looking up and closing

    def find(self, session_id: str, tenant: str = "") -> Session | None:
        """Find a session of this process. Returns None also for a session of another tenant."""
        found = self.open_sessions.get(session_id)
        return found.session if found is not None and found.owner.tenant == tenant else None

    def find_connected(self, session_id: str, tenant: str) -> Session | None:
        """Find a session of this process that has a connection. Returns None if it is parked,
        elsewhere, unknown or another tenant's."""
        entry = self._find_accessible(session_id, tenant, WHOLE_TENANT)
        is_connected = entry is not None and entry.close_connection is not None
        return entry.session if entry is not None and is_connected else None

    async def status(
        self, session_id: str, tenant: str, access: Access = WHOLE_TENANT
    ) -> SessionStatus | None:
        """Status of a tenant's session, here or remote. Returns None if it does not exist. Raises
        Refusal."""
        entry = await self._find_owned(session_id, tenant, access)
        if entry is not None:
            return await entry.session.status()
        return await self._remote_sessions.status(session_id, tenant, access)

    async def read(
        self, session_id: str, tenant: str, access: Access = WHOLE_TENANT
    ) -> SessionOrigin:
        """Return the settings and the conversation of a tenant's session, here or remote, without a
        takeover. A remote session has no items of an open response. Raises Refusal."""
        entry = await self._find_owned(session_id, tenant, access)
        if entry is not None:
            return SessionOrigin(entry.session.settings, entry.session.conversation)
        return await self._remote_sessions.fork_origin(ForkRequest(session_id), tenant, access)

    async def _new_origin(
        self, credentials: Credentials, settings: GenerationSettings
    ) -> SessionOrigin:
        """Make the origin (initial content) of a new session. If the settings are from a client
        secret, the tokens of their instructions and tools are charged to the tenant's rate limits,
        as for a session.update. Raises Refusal."""
        rate_limits = self.tenants.of(credentials.tenant).rate_limits
        chars = count_head_chars(settings)
        self.text_limits.check_head(settings, ConfigureSession.field_names)
        bounds = self.text_limits
        with (
            refuse_if_too_long(ConfigureSession.field_names.instructions, bounds.context_tokens),
            rate_limits.charge_text(chars, bounds.request_tokens_max),
        ):
            conversation = await self.tokenizer_threads.run(
                chars, lambda: Conversation.start(self._factory.template, settings)
            )
        if credentials.settings is not None and chars:
            rate_limits.charge_tokens(len(conversation.head.ids))
        return SessionOrigin(settings, conversation)

    async def _fork_origin(self, fork: ForkRequest, credentials: Credentials) -> SessionOrigin:
        """Make the origin (initial content) of a fork of a session, here or remote. Raises
        Refusal."""
        access = Access.of(credentials, fork.token)
        entry = await self._find_owned(fork.session_id, credentials.tenant, access)
        if entry is not None:
            session = entry.session
            return await self.tokenizer_threads.run(
                session.conversation.length, lambda: session.fork(fork.item_id)
            )
        return await self._remote_sessions.fork_origin(fork, credentials.tenant, access)

    async def _find_owned(self, session_id: str, tenant: str, access: Access) -> OpenSession | None:
        """Find a session of this process, and check that this gateway still owns it; the check is
        skipped while the store is unavailable. Returns None if the session is not found, or no
        longer owned."""
        entry = self._find_accessible(session_id, tenant, access)
        if entry is None:
            return None
        with contextlib.suppress(StoreUnavailable):
            return entry if await self._ownership.check(entry) else None
        return entry

    def _find_accessible(self, session_id: str, tenant: str, access: Access) -> OpenSession | None:
        """Find a session of this process. Returns None also for a session of another tenant, and
        for one that `access` does not permit."""
        entry = self.open_sessions.get(session_id)
        if entry is None or entry.owner.tenant != tenant or not access.permits(entry.owner.secret):
            return None
        return entry

    async def terminate(self, session: Session, code: CloseCode, reason: str) -> None:
        """Close a session and its connection. If the session has a connection, only the connection
        is closed here, with `code`; the session is then closed when the connection has ended, so
        `code` must be one that ends the session."""
        entry = self.open_sessions.get(session.id)
        if entry is not None and entry.close_connection is not None:
            entry.close_connection(code, reason)
        else:
            await self.close(session)

    async def delete(self, session_id: str, tenant: str, access: Access = WHOLE_TENANT) -> bool:
        """Delete a tenant's session, here or remote. Its connection, if any, is closed with
        CLOSED_BY_OPERATOR. Returns False if the session does not exist. Raises Refusal."""
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            entry = self._find_accessible(session_id, tenant, access)
            deleted = None
            if entry is None or not entry.session.stored.is_of_other_store:
                deleted = await self._remote_sessions.delete(session_id, tenant, access)
            if entry is not None:
                await self.terminate(entry.session, CloseCode.CLOSED_BY_OPERATOR, DELETED)
            if (
                deleted is not None
                and deleted.fence is not None
                and deleted.owner != self._gateway_id
            ):
                group = self.group_of(tenant)
                self.open_sessions.spawn(
                    self._remote_sessions.release_engine_session(session_id, deleted.fence, group)
                )
            return entry is not None or deleted is not None

    async def evict(self, session_id: str) -> bool:
        """Unload a session from memory; its copy in the store stays valid, and its client
        reconnects and resumes it. Returns False if it is not in this process."""
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            entry = self.open_sessions.get(session_id)
            if entry is None:
                return False
            close_connection = entry.close_connection
            if close_connection is not None:
                await self.park(entry.session, close_connection)
                close_connection(CloseCode.SERVICE_RESTART, "the session was evicted: reconnect")
            if entry in self.open_sessions:
                await asyncio.shield(self.open_sessions.unload(entry))
            return True

    def close_tenant(self, tenant: str) -> None:
        """Close the sessions of a deleted tenant, and their connections."""
        for entry in self.open_sessions:
            if entry.owner.tenant == tenant:
                work = self.terminate(entry.session, CloseCode.CLOSED_BY_OPERATOR, DELETED)
                self.open_sessions.spawn(work)

    async def close(self, session: Session) -> None:
        """Close the session and delete it from the store."""
        await self.open_sessions.close(session)

    async def park(self, session: Session, close_connection: CloseConnection) -> None:
        """Park a session whose connection has ended, unless it has a newer connection already."""
        await self.open_sessions.park(session, close_connection)

    def drain(self) -> None:
        """Close each connection, at once or when its responses have ended, so that clients
        reconnect to another gateway."""
        for entry in self.open_sessions:
            self.open_sessions.spawn(self._close_for_restart(entry))

    async def _close_for_restart(self, entry: OpenSession) -> None:
        await entry.session.wait_until_idle()
        if entry in self.open_sessions and entry.close_connection is not None:
            entry.close_connection(CloseCode.SERVICE_RESTART, "the server is stopping: reconnect")

    async def aclose(self) -> None:
        """Unload all sessions; their copies in the store stay valid."""
        await self.open_sessions.unload_all()

    def _resume_window_of(self, tenant: str) -> float:
        """Return the seconds for which a session of a tenant stays parked; then it expires."""
        return self.tenants.of(tenant).retained_s(self._limits.resume_window_s)

    def group_of(self, tenant: str) -> SessionGroup:
        """Return the group of a tenant, within which KV is shared, with the tenant's weight. Its id
        is an HMAC, which cannot be computed from the tenant's name alone. A deleted tenant gets
        another one: the KV of the old one is never matched again, and is evicted."""
        deleted_ms = self.tenants.deleted_ms(tenant)
        name = f"{tenant}\0{deleted_ms}" if deleted_ms else tenant
        id = hmac.digest(self._secret, name.encode(), "sha256").hex()
        return SessionGroup(id, self.tenants.of(tenant).limits.weight)


def _connection_lost() -> Refusal:
    return Refusal(
        "The session was not taken over: the connection did not answer a ping.",
        code="connection_lost",
        kind="server_error",
    )
