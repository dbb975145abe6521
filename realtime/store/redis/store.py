"""The shared store: one Redis for many gateways. The clock is Redis's.

Each atomic step is a script in `scripts/`, which says what it takes and what it replies.
"""

import secrets
from collections.abc import Sequence
from itertools import compress
from typing import Any, Self

import msgspec

from continuo.realtime.store import keys
from continuo.realtime.store.base import (
    Answer,
    Begun,
    Card,
    Change,
    Events,
    Kept,
    Lease,
    NewSession,
    Once,
    Repeated,
    Snapshot,
    Spoken,
    Swept,
    Written,
)
from continuo.realtime.store.codec import (
    digest,
    join_ids,
    pack,
    pack_entry,
    pack_ids,
    pack_kept,
    unpack,
    unpack_entry,
    unpack_kept,
)
from continuo.realtime.store.durability import Durability
from continuo.realtime.store.errors import (
    Conflict,
    SessionBehind,
    SessionEnded,
    SessionExists,
    StaleFence,
    StoreLost,
    UnknownAnswer,
    UnknownSession,
)
from continuo.realtime.store.keys import kept_key, session_keys
from continuo.realtime.store.redis.client import RedisServer


class RedisStore:
    @classmethod
    async def open(cls, url: str, durability: Durability = "normal") -> Self:
        """Raises StoreRefused for a Redis that could drop what it was given, StoreUnavailable."""
        store = cls(RedisServer(url, durability))
        try:
            async with store._server.opening():
                await store._server.examine()
                store._epoch = await store._read_epoch()
        except BaseException:
            await store.aclose()
            raise
        store._server.doubtful = False
        store._server.watch()
        return store

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._epoch = ""

    @property
    def epoch(self) -> str:
        return self._epoch

    @property
    def there(self) -> bool:
        return self._server.there

    @property
    def shared(self) -> bool:
        return True

    async def aclose(self) -> None:
        await self._server.aclose()

    async def check(self) -> None:
        async with self._server.bounded():
            await self._settle_doubts()
            await self._verify()

    # ------------------------------------------------------------ sessions

    async def create(self, new: NewSession) -> Lease:
        async with self._server.bounded():
            await self._settle_doubts()
            names = session_keys(new.id)
            for_ms = int(new.hold_s * 1000)
            deadline = await self._server.run("index", (keys.DEADLINES,), (new.id, for_ms))
            args = (new.owner, new.tenant, new.secret, deadline, pack(new.state))
            reply = await self._server.run("create", (names.meta, names.state), args)
            if reply[0] == b"ended":
                raise SessionEnded(new.id)
            if reply[0] == b"exists":
                raise SessionExists(new.id)
            return Lease(new.id, new.owner, int(reply[1]), self._epoch)

    async def find(self, session: str) -> Card | None:
        async with self._server.bounded():
            await self._settle_doubts()
            names = session_keys(session)
            reply = await self._server.run("find", (names.meta, names.log))
            if reply[0] == b"unknown":
                await self._verify()
                return None
            return _card(session, reply[1], reply[2])

    async def load(self, session: str) -> Snapshot | None:
        async with self._server.bounded():
            await self._settle_doubts()
            names = session_keys(session)
            which = (names.meta, names.state, names.log, names.running, names.events)
            reply = await self._server.run("load", which)
            if reply[0] == b"unknown":
                await self._verify()
                return None
        _, card, position, state, next_event, log, running, events = reply
        return Snapshot(
            card=_card(session, card, position),
            state=unpack(state),
            log=tuple(unpack_entry(entry) for entry in log),
            answers=_answers(running),
            events=Events(int(next_event) - len(events), tuple(unpack(body) for body in events)),
        )

    async def claim(
        self,
        session: str,
        owner: str,
        *,
        hold_s: float,
        seen: int | None = None,
        secret: bytes | None = None,
    ) -> Lease:
        async with self._server.bounded():
            await self._settle_doubts()
            args = (owner, int(hold_s * 1000), "" if seen is None else seen, secret or b"")
            reply = await self._server.run("claim", (session_keys(session).meta,), args)
            if reply[0] == b"unknown":
                await self._verify()
                raise UnknownSession(session)
            if reply[0] == b"stale":
                raise StaleFence(session, reply[1].decode())
            await self._server.do("ZADD", keys.DEADLINES, reply[2], session)
            return Lease(session, owner, int(reply[1]), self._epoch)

    async def confirm(self, lease: Lease) -> None:
        async with self._server.bounded():
            await self._settle_doubts()
            await self._fenced("confirm", lease, (session_keys(lease.session).meta,), ())

    async def hold(self, lease: Lease, for_s: float, *, parked: bool) -> None:
        async with self._server.bounded():
            await self._settle_doubts()
            names = session_keys(lease.session)
            args = (int(for_s * 1000), int(parked))
            reply = await self._fenced("hold", lease, (names.meta, names.once), args)
            await self._server.do("ZADD", keys.DEADLINES, reply[1], lease.session)

    async def close(self, lease: Lease) -> None:
        async with self._server.bounded():
            await self._settle_doubts()
            args = (int(keys.ENDED_S * 1000),)
            try:
                reply = await self._fenced("close", lease, session_keys(lease.session), args)
            except (UnknownSession, SessionEnded):
                return
            await self._server.do("ZADD", keys.DEADLINES, reply[2], lease.session)

    async def end(self, session: str) -> int:
        async with self._server.bounded():
            await self._settle_doubts()
            args = (int(keys.ENDED_S * 1000),)
            reply = await self._server.run("end", session_keys(session), args)
            if reply[0] == b"unknown":
                await self._verify()
                raise UnknownSession(session)
            await self._server.do("ZADD", keys.DEADLINES, reply[2], session)
            return int(reply[1])

    async def sweep(self, limit: int) -> Swept:
        async with self._server.bounded():
            await self._settle_doubts()
            limit = min(limit, keys.SWEEP_MAX)
            due = await self._server.run("due", (keys.DEADLINES,), (limit,))
            sessions = [session.decode() for session in due]
            calls = ((session_keys(session), ()) for session in sessions)
            replies = await self._server.run_many("expire", calls)
            # The index may be too early, or point to nothing: the session's own deadline counts.
            over, later, expired = list[str](), list[str](), list[str]()
            for session, reply in zip(sessions, replies, strict=True):
                match reply[0]:
                    case b"later":
                        later += [reply[1].decode(), session]
                    case b"expired":
                        expired.append(session)
                        over.append(session)
                    case _:
                        over.append(session)
            if later:
                await self._server.do("ZADD", keys.DEADLINES, *later)
            if over:
                await self._server.do("ZREM", keys.DEADLINES, *over)
        return Swept(len(sessions), expired)

    # ------------------------------------------------------------ writing

    async def write(self, lease: Lease, change: Change) -> Written | Repeated:
        names = session_keys(lease.session)
        args = _change_args(change)
        async with self._server.bounded():
            await self._settle_doubts()
            reply = await self._fenced("write", lease, names, args)
        if reply[0] == b"repeated":
            return Repeated(reply[1])
        if reply[0] == b"conflict":
            assert change.once is not None, "only a key conflicts"
            raise Conflict(change.once.key)
        return Written(int(reply[1]), int(reply[2]))

    async def repeated(self, lease: Lease, once: Once) -> bytes | None:
        names = session_keys(lease.session)
        args = (digest(once.key.encode()), digest(once.content))
        async with self._server.bounded():
            await self._settle_doubts()
            reply = await self._fenced("repeated", lease, (names.meta, names.once), args)
        if reply[0] == b"conflict":
            raise Conflict(once.key)
        return reply[1] if reply[0] == b"repeated" else None

    async def journal(self, lease: Lease, answer: str, first: int, ids: tuple[int, ...]) -> int:
        names, args = _journal(Spoken(lease, answer, first, ids))
        async with self._server.bounded():
            await self._settle_doubts()
            reply = await self._fenced("journal", lease, names, args)
        if reply[0] == b"no answer":
            raise UnknownAnswer(answer)
        return int(reply[1])

    async def journal_all(self, spoken: Sequence[Spoken]) -> list[int | None]:
        async with self._server.bounded():
            await self._settle_doubts()
            ours = [one.lease.store == self._epoch for one in spoken]
            calls = (
                (names, (one.lease.owner, one.lease.fence, *args))
                for one in compress(spoken, ours)
                for names, args in (_journal(one),)
            )
            replies = iter(await self._server.run_many("journal", calls))
        return [_said(next(replies)) if one else None for one in ours]

    # ------------------------------------------------------------ responses

    async def keep(self, kept: Kept, for_s: float) -> None:
        async with self._server.bounded():
            await self._settle_doubts()
            for_ms = max(1, int(for_s * 1000))
            await self._server.do("SET", kept_key(kept.id), pack_kept(kept), "PX", for_ms)

    async def kept(self, response: str) -> Kept | None:
        async with self._server.bounded():
            await self._settle_doubts()
            packed = await self._server.do("GET", kept_key(response))
            if packed is None:
                await self._verify()
                return None
            return unpack_kept(response, packed)

    # ------------------------------------------------------------ inside

    async def _fenced(
        self, script: str, lease: Lease, names: Sequence[str], args: Sequence[Any]
    ) -> Any:
        self._same_store(lease)
        reply = await self._server.run(script, names, (lease.owner, lease.fence, *args))
        match reply[0]:
            case b"unknown":
                await self._verify()
                self._same_store(lease)  # another call may have noticed first
                raise UnknownSession(lease.session)
            case b"ended":
                raise SessionEnded(lease.session)
            case b"stale":
                raise StaleFence(lease.session, reply[1].decode())
            case b"behind":
                raise SessionBehind(lease.session, reply[1].decode())
            case _:
                return reply

    def _same_store(self, lease: Lease) -> None:
        if lease.store != self._epoch:
            raise StoreLost(f"session {lease.session} was in another store")

    async def _settle_doubts(self) -> None:
        """After an outage it may be another Redis, or an empty one."""
        if self._server.doubtful:
            await self._server.examine()
            self._server.doubtful = False
            await self._verify()

    async def _verify(self) -> None:
        found = await self._read_epoch()
        if found != self._epoch:
            lost, self._epoch = self._epoch, found
            raise StoreLost(f"this is not the store it was: {lost} is gone")

    async def _read_epoch(self) -> str:
        found = await self._server.do("GET", keys.EPOCH)
        if found is None:
            await self._server.do("SET", keys.EPOCH, secrets.token_hex(16), "NX")
            found = await self._server.do("GET", keys.EPOCH)
        return found.decode()


def _card(session: str, fields: Sequence[bytes], position: int) -> Card:
    tenant, secret, owner, fence, epoch, parked, created_ms, deadline_ms = fields
    return Card(
        id=session,
        tenant=tenant.decode(),
        secret=secret,
        owner=owner.decode(),
        fence=int(fence),
        epoch=int(epoch),
        position=position,
        parked=parked == b"1",
        created_ms=int(created_ms),
        deadline_ms=int(deadline_ms),
    )


def _answers(running: Sequence[bytes]) -> tuple[Answer, ...]:
    """ID → Begun; ID:FIRST → ids. ID# is the script's own."""
    begun: dict[str, Begun] = {}
    chunks: dict[str, list[tuple[int, bytes]]] = {}
    for field, value in zip(running[::2], running[1::2], strict=True):
        name, colon, first = field.decode().partition(":")
        if colon:
            chunks.setdefault(name, []).append((int(first), value))
        elif not name.endswith("#"):
            begun[name] = msgspec.msgpack.decode(value, type=Begun)
    return tuple(Answer(begun[name], join_ids(chunks.get(name, []))) for name in sorted(begun))


def _journal(spoken: Spoken) -> tuple[Sequence[str], Sequence[Any]]:
    """Its keys, and its arguments behind owner and fence."""
    names, ids = session_keys(spoken.lease.session), spoken.ids
    args = (spoken.answer, spoken.first, len(ids), pack_ids(ids))
    return (names.meta, names.running), args


def _said(reply: Sequence[Any]) -> int | None:
    return int(reply[1]) if reply[0] == b"ok" else None


def _once_record(once: Once) -> bytes:
    assert len(once.result) <= keys.ONCE_RESULT_BYTES_MAX, "a result is a few ids"
    head = digest(once.key.encode()) + digest(once.content)
    return head + bytes([len(once.result)]) + once.result


def _change_args(change: Change) -> list[str | bytes | int]:
    """As write.lua numbers them, from the third on."""
    once, events = change.once, change.events
    forgotten = (*change.undone, *(again.key for again in change.again))
    return [
        b"" if once is None else _once_record(once),
        b"".join(map(_once_record, change.again)),
        b"".join(digest(key.encode()) for key in forgotten),
        keys.ONCE_BYTES_MAX,
        "" if change.at is None else change.at,
        len(change.entries),
        "" if change.epoch is None else change.epoch,
        b"" if change.state is None else pack(change.state),
        len(change.begins),
        " ".join(change.ends),
        events.first if events else "",
        keys.EVENTS_MAX,
        keys.EVENTS_BYTES_MAX,
        *(pack_entry(entry) for entry in change.entries),
        *(each for begun in change.begins for each in (begun.id, msgspec.msgpack.encode(begun))),
        *(pack(body) for body in (events.bodies if events else ())),
    ]
