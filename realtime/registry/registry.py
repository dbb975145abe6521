"""The sessions of this process, by id: whose they are, who listens, which wait for their client.

open ──▶ attached ──drop──▶ parked ──resume──▶ attached        in memory, and in the store
             │                │ window over, or too many
             └─end─▶ gone ◀───┴──▶ in the store alone ──resume──▶ attached
"""

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from functools import partial
from weakref import WeakValueDictionary

import msgspec

from continuo.engine import ChatTemplate
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import chars_of_head
from continuo.realtime.conversation.text_limits import TextBounds, named
from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_log import Listener
from continuo.realtime.generation.engine_port import Door
from continuo.realtime.generation.error_mapping import not_kept
from continuo.realtime.generation.tokenizer_threads import LayoutThreads
from continuo.realtime.ids import fresh
from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import State, pack_state
from continuo.realtime.persistence.token_journal import Scribe
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.events import Resume
from continuo.realtime.protocol.settings import Settings
from continuo.realtime.rate_limit import Rates
from continuo.realtime.registry.access import (
    Access,
    Fork,
    Guest,
    Owner,
    Return,
    admit,
    admits,
    position_of,
    secret_of,
    unknown,
)
from continuo.realtime.registry.factory import House, loaded, made
from continuo.realtime.registry.remote_sessions import Elsewhere
from continuo.realtime.session.session import Session
from continuo.realtime.session.status import Status
from continuo.realtime.session.unit_of_work import Origin, Saved
from continuo.realtime.store import (
    NewSession,
    SessionBehind,
    SessionEnded,
    StaleFence,
    Store,
    StoreError,
    StoreLost,
    StoreUnavailable,
    UnknownSession,
    sweep_overdue,
)

log = logging.getLogger(__name__)


LOOKS_MAX = 32
"""Sessions of which we look whether they are still ours, at once."""
EXPIRED_MAX = 10_000
"""Of those whose time is over, how many are remembered as such."""

DELETED = "the session was deleted"

WHOLE_TENANT = Access()
"""Access to every session of a tenant."""

HangUp = Callable[[CloseCode, str], None]
There = Callable[[], Awaitable[bool]]


async def _is_there() -> bool:
    return True


def _at_another(code: CloseCode, reason: str) -> None:
    """Hangs up at another gateway: that finds out by itself."""


class _Held(msgspec.Struct, frozen=True):
    """Who has a session."""

    fence: int
    hang_up: HangUp | None
    """None: it waits for its client."""


class _Open(msgspec.Struct):
    session: Session
    owner: Owner
    hang_up: HangUp | None
    """None: parked."""
    timers: tuple[asyncio.TimerHandle, ...] = ()
    """Of a parked one: when what it makes pauses, and when its window is over."""
    leaving: "asyncio.Task[None] | None" = None

    @property
    def held(self) -> _Held:
        return _Held(self.session.fence, self.hang_up)

    def unpark(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers = ()


class Registry:
    def __init__(
        self,
        door: Door,
        template: ChatTemplate,
        settings: Settings,
        limits: Limits,
        store: Store,
        secret: bytes = b"",
    ) -> None:
        """`settings` are those of a session that sets nothing; `secret` is what gateways of the
        same engines know, so that they share a tenant's KV."""
        self.settings = settings
        self.rates = Rates(limits)
        self.layout = LayoutThreads(limits.off_loop_chars)
        self.texts = TextBounds.of(door.ready, template)
        self._house = House(door, template, limits, store, Scribe(store), self.rates, self.layout)
        self._elsewhere = Elsewhere(self._house)
        self._limits = limits
        self._store = store
        self._owner = fresh("gate")
        self._secret = secret or secrets.token_bytes(32)
        self._sessions: dict[str, _Open] = {}
        self._parked: dict[str, None] = {}
        """Ids, the oldest first."""
        self._expired: dict[str, Owner] = {}
        """Owners of expired sessions by session id, the oldest first."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._unlooked: list[str] = []
        """Of which we have not looked whether they are still ours."""
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Of sessions that are let go of, or ended."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Sessions with a client."""
        return len(self._sessions) - len(self._parked)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Removes what is over, as long as this lasts; then lets go of all sessions."""
        sweeping = asyncio.create_task(self._sweep(), name="sweep")
        try:
            yield
        finally:
            sweeping.cancel()
            await self.aclose()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._limits.sweep_s)
            try:
                async for _ in sweep_overdue(self._store):
                    pass
                await self._look_around()
            except StoreError as error:
                log.debug("sweep: %s", error)

    async def _look_around(self) -> None:
        """Whether other gateways have taken sessions over: some at a time. One that is busy notices
        by itself. Raises StoreError."""
        for name in self._unlooked[:LOOKS_MAX]:
            if (entry := self._sessions.get(name)) is not None and await self._is_ours(entry):
                await self._give_again(entry)
        self._unlooked = self._unlooked[LOOKS_MAX:] or list(self._sessions)

    async def _give_again(self, entry: _Open) -> None:
        """Write a session again to a store that has lost it, before its next change: the process
        may end before that. Not to a shared one: the session may be at another gateway by now,
        whose copy is newer and would be kept out."""
        if self._store.shared or not entry.session.lost:
            return
        try:
            await entry.session.give_again()
            if entry.hang_up is None:
                await entry.session.hold(self._limits.resume_window_s, parked=True)
        except StoreError as error:
            log.debug("%s is not given again yet: %s", entry.session.id, error)

    async def _is_ours(self, entry: _Open) -> bool:
        """Whether no other gateway has taken it over or ended it; if so, it is let go of. Raises
        StoreUnavailable."""
        try:
            await entry.session.confirm()
        except StaleFence as error:
            self._gone(entry, error)
            return False
        except (UnknownSession, StoreLost, SessionBehind):
            pass  # the store has lost it; it is given it again with the next change
        return self._sessions.get(entry.session.id) is entry

    # ------------------------------------------------------------ coming

    async def open(
        self,
        listener: Listener,
        session_id: str | None = None,
        guest: Guest | None = None,
        hang_up: HangUp = lambda code, reason: None,
        fork: Fork | None = None,
    ) -> Session:
        """`hang_up` ends the connection of the session. Raises Refusal when there are too many,
        nothing to fork, or no store."""
        self._check_room()
        guest = guest or Guest()
        settings = guest.settings or self.settings
        if fork is not None:
            origin = await self._origin(fork, guest)
        else:
            origin = await self._beginning(guest, settings)
        saved, parent = Saved(origin.settings, origin.conversation), origin.strand
        token = secrets.token_urlsafe(24)
        new = NewSession(
            id=session_id or fresh("sess"),
            owner=self._owner,
            tenant=guest.tenant,
            secret=secret_of(token, guest),
            state=pack_state(State(settings=saved.settings, model=self._house.digest)),
            hold_s=self._held_s,
        )
        try:
            lease = await self._store.create(new)
        except StoreError as error:
            raise not_kept(error) from error
        session = made(self._house, lease, new, saved, self.scope(guest.tenant), parent)
        self._add(session, Owner(guest.tenant, new.secret), hang_up)
        await session.start(listener, self._resume_of(session, token))
        return session

    async def resume(
        self,
        wish: Return,
        listener: Listener,
        guest: Guest,
        hang_up: HangUp,
        there: There = _is_there,
    ) -> Session:
        """Takes a session over from whoever has it; what was missed is said to `listener`. `there`
        asks the client whether it still waits for it. Raises Refusal where it cannot be.

        A client may have given up meanwhile, and have the session at another gateway: this process
        may have slept. So who has a session is looked at first, then the client is asked, then it
        is taken, if the same still has it. Of one that waits for its client nobody is asked."""
        self._check_room()
        since = position_of(wish)
        lock = self._locks.setdefault(wish.session_id, asyncio.Lock())
        while True:
            held = await self._held(wish, guest)
            if held.hang_up is not None and not await there():
                raise _nobody_there()
            async with lock:
                entry = await self._take(wish, guest, held)
                if entry is None:
                    continue
                self._replace(entry, hang_up)
                session = entry.session
                try:
                    await session.resume(listener, since, self._resume_of(session))
                except BaseException:
                    await self.park(session, hang_up)
                    raise
                return session

    async def bearer(self, wish: Return) -> Guest:
        """The guest that the token of a wish makes without any key: of the session's own tenant,
        with access to this session alone. Raises Refusal."""
        owner, _ = await self._find(wish, None)
        return Guest(owner.tenant, ephemeral=True)

    async def _held(self, wish: Return, guest: Guest) -> _Held:
        """Raises Refusal."""
        _, held = await self._find(wish, guest)
        return held

    async def _find(self, wish: Return, guest: Guest | None) -> tuple[Owner, _Held]:
        """A session, here or in the store. `guest` None: the client shows no key. Raises
        Refusal."""
        entry = self._sessions.get(wish.session_id)
        if entry is not None:
            admit(wish, guest, entry.owner)
            return entry.owner, entry.held
        with self._told(wish, guest):
            card = await self._store.find(wish.session_id)
            if card is None:
                raise UnknownSession(wish.session_id)
            owner = Owner(card.tenant, card.secret)
            admit(wish, guest, owner)
            return owner, _Held(card.fence, None if card.parked else _at_another)

    async def _take(self, wish: Return, guest: Guest, held: _Held) -> _Open | None:
        """None: somebody else has it now. Raises Refusal."""
        entry = self._sessions.get(wish.session_id)
        with self._told(wish, guest):
            if entry is None:
                with contextlib.suppress(StaleFence):
                    return await self._from_store(wish.session_id, held)
                return None
            if entry.held != held:
                return None
            try:
                await entry.session.take()
            except StaleFence as error:
                await asyncio.shield(self._gone(entry, error))
            except (UnknownSession, StoreLost, SessionBehind):
                await self._is_ours(entry)  # it was ended, or is given again with the next change
        return entry if self._sessions.get(wish.session_id) is entry else None

    async def _from_store(self, name: str, held: _Held) -> _Open:
        """Raises StoreError; StaleFence, if somebody else has it now."""
        if leaving := self._leaving.get(name):
            await asyncio.shield(leaving)
        lease = await self._store.claim(name, self._owner, hold_s=self._held_s, seen=held.fence)
        found = await self._store.load(name)
        if found is None:
            raise UnknownSession(name)
        card = found.card
        new = NewSession(
            id=name,
            owner=self._owner,
            tenant=card.tenant,
            secret=card.secret,
            state=found.state,
            hold_s=self._held_s,
        )
        try:
            session = await loaded(self._house, lease, new, found, self.scope(card.tenant))
        except Refusal:  # it stays in the store as it is, and waits for its client
            with contextlib.suppress(StoreError):
                await self._store.hold(lease, self._limits.resume_window_s, parked=True)
            raise
        return self._add(session, Owner(card.tenant, card.secret), None)

    @contextlib.contextmanager
    def _told(self, wish: Return, guest: Guest | None) -> Generator[None]:
        """What the store says of a session, as an answer to who wishes for it."""
        try:
            yield
        except (UnknownSession, StoreLost) as error:
            raise self._unknown(wish, guest) from error
        except StoreUnavailable as error:
            raise not_kept(error) from error

    def _unknown(self, wish: Return, guest: Guest | None) -> Refusal:
        owner = self._expired.get(wish.session_id)
        if owner is None or not admits(wish, guest, owner):
            return unknown(wish)
        return Refusal(
            f"The session with id '{wish.session_id}' has waited for its client for longer than "
            f"{self._limits.resume_window_s:,g} seconds, and is gone.",
            code="session_expired",
            param="session_id",
        )

    def _replace(self, entry: _Open, hang_up: HangUp) -> None:
        """The connection that had it, if there is one, is told so."""
        before, entry.hang_up = entry.hang_up, hang_up
        self._parked.pop(entry.session.id, None)
        entry.unpark()
        entry.session.detach()
        _hang_up_replaced(before)

    def _add(self, session: Session, owner: Owner, hang_up: HangUp | None) -> _Open:
        entry = _Open(session, owner, hang_up)
        self._sessions[session.id] = entry
        if hang_up is None:
            self._parked[session.id] = None
        session.watch(partial(self._replaced, entry), partial(self._again, entry))
        return entry

    def _again(self, entry: _Open) -> None:
        """What the client has seen is not what is said here: it comes back for everything."""
        if entry.hang_up is not None:
            entry.hang_up(CloseCode.RESTART, "the last answer is not what it was: come back")

    def superseded(self, name: str) -> None:
        """Another gateway holds an engine's session of this name, and so perhaps ours."""
        if (entry := self._sessions.get(name.partition(".")[0])) is not None:
            self._later(self._look_at(entry))

    async def _look_at(self, entry: _Open) -> None:
        with contextlib.suppress(StoreError):
            await self._is_ours(entry)

    def _replaced(self, entry: _Open) -> None:
        """Another gateway owns the session now, or has ended it."""
        self._later(self._let_go(entry))

    async def _let_go(self, entry: _Open) -> None:
        await self._look_at(entry)
        if self._sessions.get(entry.session.id) is entry:
            self._gone(entry, StaleFence(entry.session.id, "another"))

    def _gone(self, entry: _Open, error: StaleFence) -> "asyncio.Task[None]":
        """It is not ours any more. The task ends when it is let go of."""
        ended = isinstance(error, SessionEnded)
        if entry.hang_up is not None:
            (_hang_up_ended if ended else _hang_up_replaced)(entry.hang_up)
        return self._leave(entry, taken=not ended)

    def _check_room(self) -> None:
        if len(self) >= self._limits.sessions_max:
            raise Refusal(
                f"This server has {self._limits.sessions_max:,} open sessions, its limit.",
                code="rate_limit_exceeded",
                kind="server_error",
            )

    @property
    def _held_s(self) -> float:
        """While a client is there, and then for its window, should this process die."""
        return self._limits.session_s_max + self._limits.resume_window_s

    def _resume_of(self, session: Session, token: str | None = None) -> Resume:
        return Resume(
            session_id=session.id,
            epoch=session.epoch,
            window_s=self._limits.resume_window_s,
            expires_at=int(time.time() + self._limits.session_s_max),
            token=token,
        )

    # ------------------------------------------------------------ going

    def find(self, session_id: str, tenant: str = "") -> Session | None:
        """None, too, if it is another tenant's."""
        found = self._sessions.get(session_id)
        return found.session if found is not None and found.owner.tenant == tenant else None

    async def status(
        self, session_id: str, tenant: str, access: Access = WHOLE_TENANT
    ) -> Status | None:
        """Of a tenant's session, wherever it is. None: there is none. Raises Refusal."""
        entry = await self._here_still(session_id, tenant, access)
        if entry is not None:
            return await entry.session.status()
        return await self._elsewhere.status(session_id, tenant, access)

    async def _beginning(self, guest: Guest, settings: Settings) -> Origin:
        """Of a new session. What its guest's key begins with is charged as a session.update would
        be. Raises Refusal."""
        allowance, chars = self.rates.of(guest.tenant), chars_of_head(settings)
        self.texts.check_head(settings, "session.")
        bounds = self.texts
        with named("session.instructions", bounds.limit), allowance.text(chars, bounds.tokens_max):
            conversation = await self.layout.run(
                chars, lambda: Conversation.start(self._house.template, settings)
            )
        if guest.settings is not None and chars:
            allowance.charge(len(conversation.head.ids))
        return Origin(settings, conversation)

    async def _origin(self, fork: Fork, guest: Guest) -> Origin:
        """Raises Refusal."""
        access = Access.of(guest, fork.token)
        entry = await self._here_still(fork.session_id, guest.tenant, access)
        if entry is not None:
            session = entry.session
            return await self.layout.run(session.conversation.length, lambda: session.fork(fork.at))
        return await self._elsewhere.origin(fork, guest.tenant, access)

    async def _here_still(self, session_id: str, tenant: str, access: Access) -> _Open | None:
        """None, too, if it went to another gateway. With the store away it is as we know it."""
        entry = self._opened(session_id, tenant, access)
        if entry is None:
            return None
        with contextlib.suppress(StoreUnavailable):
            return entry if await self._is_ours(entry) else None
        return entry

    def _opened(self, session_id: str, tenant: str, access: Access) -> _Open | None:
        """A session of this process. None, too, if it is another tenant's, or `access` does not
        open it."""
        entry = self._sessions.get(session_id)
        if entry is None or entry.owner.tenant != tenant or not access.opens(entry.owner.secret):
            return None
        return entry

    def of(self, tenant: str, access: Access = WHOLE_TENANT) -> list[Session]:
        """A tenant's sessions that `access` opens, the oldest first."""
        return [
            one.session
            for one in self._sessions.values()
            if one.owner.tenant == tenant and access.opens(one.owner.secret)
        ]

    async def end(self, session: Session, code: CloseCode, reason: str) -> None:
        """Ends it. If it has a connection, that closes with this code, one that says so, and the
        session with it."""
        entry = self._sessions.get(session.id)
        if entry is not None and entry.hang_up is not None:
            entry.hang_up(code, reason)
        else:
            await self.close(session)

    async def delete(self, session_id: str, tenant: str, access: Access = WHOLE_TENANT) -> bool:
        """Ends a tenant's session, wherever it is. A connection that it has closes with a code that
        says so. False: there is none. Raises Refusal."""
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            entry = self._opened(session_id, tenant, access)
            ended = await self._elsewhere.end(session_id, tenant, access)
            if entry is not None:
                await self.end(entry.session, CloseCode.ENDED_BY_OPERATOR, DELETED)
            if ended is not None and ended.fence is not None and ended.owner != self._owner:
                scope = self.scope(tenant)
                self._later(self._elsewhere.free(session_id, ended.fence, scope))
            return entry is not None or ended is not None

    async def close(self, session: Session) -> None:
        """It was never there."""
        self._drop(session)
        await asyncio.shield(self._letting_go(session.id, session.close()))

    async def park(self, session: Session, hang_up: HangUp) -> None:
        """Its connection has ended; it waits for the next one, unless that is there already."""
        entry = self._sessions.get(session.id)
        if entry is None or entry.session is not session or entry.hang_up != hang_up:
            return
        session.detach()
        entry.hang_up = None
        self._parked[session.id] = None
        window_s, grace_s = self._limits.resume_window_s, self._limits.detach_grace_s
        loop = asyncio.get_running_loop()
        entry.timers = (
            loop.call_later(grace_s, lambda: self._later(session.pause())),
            loop.call_later(window_s, lambda: self._later(self._over(entry))),
        )
        if len(self._parked) > self._limits.sessions_max:
            oldest = self._sessions[next(iter(self._parked))]
            self._leave(oldest)
        with contextlib.suppress(StoreError):  # then it is held for longer
            await session.hold(window_s, parked=True)

    def send_away(self) -> None:
        """Clients shall go elsewhere: now, or when what is being made for them has ended."""
        for entry in self._sessions.values():
            entry.session.when_quiet(partial(self._send_away, entry))

    def _send_away(self, entry: _Open) -> None:
        if entry.hang_up is not None:
            entry.hang_up(CloseCode.RESTART, "the server stops: come back")

    async def aclose(self) -> None:
        """Lets go of all sessions: they go on from the store."""
        entries = list(self._sessions.values())
        await asyncio.gather(*(self._forget(entry) for entry in entries))
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _over(self, entry: _Open) -> None:
        if entry.hang_up is None:
            self._expired[entry.session.id] = entry.owner
            if len(self._expired) > EXPIRED_MAX:
                del self._expired[next(iter(self._expired))]
            await self.close(entry.session)

    async def _forget(self, entry: _Open) -> None:
        """It goes on from the store, here or elsewhere."""
        await asyncio.shield(self._leave(entry))

    def _leave(self, entry: _Open, *, taken: bool = False) -> "asyncio.Task[None]":
        """Begins to let go of it, once. Until that is over the session cannot come back here: what
        the old one still tells the engine would be taken for the new one's word."""
        name = entry.session.id
        self._drop(entry.session)
        if entry.leaving is None:
            entry.leaving = self._letting_go(name, entry.session.leave(taken=taken))
        return entry.leaving

    def _letting_go(self, name: str, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = self._later(work)
        self._leaving.setdefault(name, task)
        task.add_done_callback(lambda task: self._left(name, task))
        return task

    def _left(self, name: str, task: "asyncio.Task[None]") -> None:
        if self._leaving.get(name) is task:
            del self._leaving[name]

    def _drop(self, session: Session) -> None:
        entry = self._sessions.get(session.id)
        if entry is None or entry.session is not session:
            return
        del self._sessions[session.id]
        self._parked.pop(session.id, None)
        entry.unpark()
        session.unwatch()

    def _later(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def scope(self, tenant: str) -> str:
        """KV is shared within it; who knows only the tenant's name cannot make it."""
        return hmac.digest(self._secret, tenant.encode(), "sha256").hex()


def _hang_up_replaced(hang_up: HangUp | None) -> None:
    if hang_up is not None:
        hang_up(CloseCode.REPLACED, "a newer connection has taken this session over")


def _hang_up_ended(hang_up: HangUp) -> None:
    hang_up(CloseCode.ENDED_BY_OPERATOR, DELETED)


def _nobody_there() -> Refusal:
    return Refusal(
        "The session was not taken over: the connection did not answer a ping.",
        code="connection_lost",
        kind="server_error",
    )
