"""The shared store: one Redis for many gateways. The clock is Redis's.

Each atomic step is a script in `scripts/`, whose header lists keys, arguments and replies.
"""

import logging
import secrets
from collections.abc import Sequence
from itertools import compress
from typing import Any, Self, cast

import msgspec

from continuo.realtime.store import keys
from continuo.realtime.store.base import (
    DuplicateWrite,
    IdempotentRequest,
    LogEnd,
    NewSession,
    ResponseCheckpoint,
    RunningResponse,
    SessionLease,
    SessionMetadata,
    Snapshot,
    StoredEvents,
    StoredResponse,
    SweepResult,
    TokenBatch,
    WriteBatch,
    WriteResult,
)
from continuo.realtime.store.codec import digest, join_ids, pack_ids
from continuo.realtime.store.durability import Durability
from continuo.realtime.store.errors import (
    IdempotencyConflict,
    LeaseLost,
    ResponseNotFound,
    SessionDataLost,
    SessionEnded,
    SessionExists,
    SessionNotFound,
    StoreReplaced,
    StoreUnusable,
    UnknownLayout,
)
from continuo.realtime.store.keys import response_key, session_keys
from continuo.realtime.store.observed_calls import observe_calls
from continuo.realtime.store.redis.client import RedisClient
from continuo.realtime.store.redis.tenants import RedisTenants

log = logging.getLogger(__name__)


@observe_calls
class RedisStore:
    """A `Store` in Redis, for the gateways of any number of processes. It owns the client, with its
    connections and health probe, and the epoch of the Redis that it has opened. Any task of the
    event loop may call it. Each step that must be atomic is one script, which refuses a lease that
    does not hold, and which keeps the set of the tenant's sessions. The index of deadlines is
    written in steps of its own, before a session is created and after it is removed, so that it may
    list too much, never too little."""

    @classmethod
    async def open(cls, url: str, durability: Durability = "normal") -> Self:
        """Connect to Redis. Raises StoreUnusable if Redis could lose acknowledged data, refuses
        access, or has data of a newer layout; StoreUnavailable if it does not respond."""
        store = cls(RedisClient(url, durability))
        try:
            async with store._client.opening():
                await store._client.examine()
                await store._record_layout()
                store._epoch = await store._read_epoch()
                store._server_id = await store._client.read_server_id()
        except BaseException:
            await store.aclose()
            raise
        store._client.needs_examination = False
        store._client.start_probing()
        return store

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._epoch = ""
        self._server_id = ""
        self._tenants = RedisTenants(client)

    @property
    def epoch(self) -> str:
        return self._epoch

    @property
    def server_id(self) -> str:
        return self._server_id

    @property
    def is_available(self) -> bool:
        return self._client.is_available

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def tenants(self) -> RedisTenants:
        return self._tenants

    async def aclose(self) -> None:
        await self._client.aclose()

    async def check(self) -> None:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            await self._verify_epoch()

    # ------------------------------------------------------------ sessions

    async def create(self, new: NewSession) -> SessionLease:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            names = session_keys(new.id)
            deadline = await self._index_deadline(new)
            args = (new.owner, new.tenant, new.secret, deadline, new.state)
            reply = await self._client.run_script("create", (names.meta, names.state), args)
            if reply[0] == b"ended":
                raise SessionEnded(new.id)
            if reply[0] == b"exists":
                raise SessionExists(new.id)
            return SessionLease(new.id, new.owner, int(reply[1]), self._epoch)

    async def _index_deadline(self, new: NewSession) -> int:
        """Add a session to the index of deadlines before it is created. Returns its deadline in
        ms."""
        args = (new.id, int(new.ttl_s * 1000))
        return await self._client.run_script("index_deadline", (keys.DEADLINES_KEY,), args)

    async def find(self, session: str) -> SessionMetadata | None:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            names = session_keys(session)
            reply = await self._client.run_script("find", (names.meta, names.log))
            if reply[0] == b"unknown":
                await self._verify_epoch()
                return None
            return parse_metadata(session, reply[1], reply[2])

    async def load(self, session: str) -> Snapshot | None:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            names = session_keys(session)
            keys_read = (names.meta, names.state, names.log, names.running, names.events)
            reply = await self._client.run_script("load", keys_read)
            if reply[0] == b"unknown":
                await self._verify_epoch()
                return None
        check_layout(session, reply)
        _, fields, entry_count, state, next_event, log, running, events = reply
        return Snapshot(
            metadata=parse_metadata(session, fields, entry_count),
            state=state,
            entries=tuple(log),
            running_responses=parse_running_responses(running),
            events=StoredEvents(int(next_event) - len(events), tuple(events)),
        )

    async def claim(
        self,
        session: str,
        owner: str,
        *,
        ttl_s: float,
        expected_fence: int | None = None,
    ) -> SessionLease:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            expected = "" if expected_fence is None else expected_fence
            args = (owner, int(ttl_s * 1000), expected)
            reply = await self._client.run_script("claim", session_keys(session), args)
            if reply[0] == b"unknown":
                await self._verify_epoch()
                raise SessionNotFound(session)
            if reply[0] == b"stale":
                raise LeaseLost(session, reply[1].decode())
            check_layout(session, reply)
            return SessionLease(session, owner, int(reply[1]), self._epoch)

    async def confirm(self, lease: SessionLease, end: LogEnd | None = None) -> None:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            names = session_keys(lease.session)
            await self._run_fenced("confirm", lease, (names.meta, names.log), end or ("", ""))

    async def extend_deadline(self, lease: SessionLease, ttl_s: float, *, is_parked: bool) -> None:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            names = session_keys(lease.session)
            args = (int(ttl_s * 1000), int(is_parked))
            reply = await self._run_fenced("extend_deadline", lease, names, args)
            await self._client.execute("ZADD", keys.DEADLINES_KEY, reply[1], lease.session)

    async def delete(self, lease: SessionLease) -> None:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            args = (int(keys.TOMBSTONE_S * 1000),)
            try:
                reply = await self._run_fenced("delete", lease, session_keys(lease.session), args)
            except (SessionNotFound, SessionEnded):
                return
            await self._client.execute("ZADD", keys.DEADLINES_KEY, reply[2], lease.session)

    async def force_delete(self, session: str) -> int:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            args = (int(keys.TOMBSTONE_S * 1000),)
            reply = await self._client.run_script("force_delete", session_keys(session), args)
            if reply[0] == b"unknown":
                await self._verify_epoch()
                raise SessionNotFound(session)
            await self._client.execute("ZADD", keys.DEADLINES_KEY, reply[2], session)
            return int(reply[1])

    async def sweep(self, limit: int) -> SweepResult:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            self._server_id = await self._client.read_server_id()
            limit = min(limit, keys.SWEEP_MAX)
            due = await self._client.run_script("list_due", (keys.DEADLINES_KEY,), (limit,))
            sessions = [session.decode() for session in due]
            calls = ((session_keys(session), ()) for session in sessions)
            replies = await self._client.run_script_batch("expire", calls)
            # The index may have an earlier deadline, or list a deleted session: the deadline in the
            # hash of the session decides.
            removed, later, expired = list[str](), list[str](), list[str]()
            for session, reply in zip(sessions, replies, strict=True):
                match reply[0]:
                    case b"later":
                        later += [reply[1].decode(), session]
                    case b"expired":
                        expired.append(session)
                        removed.append(session)
                    case _:
                        removed.append(session)
            if later:
                await self._client.execute("ZADD", keys.DEADLINES_KEY, *later)
            if removed:
                await self._client.execute("ZREM", keys.DEADLINES_KEY, *removed)
        return SweepResult(len(sessions), expired)

    # ------------------------------------------------------------ writing

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        names = session_keys(lease.session)
        args = (_encode_batch(batch),)
        async with self._client.bounded():
            await self._reexamine_after_outage()
            reply = await self._run_fenced("write", lease, names, args)
        if reply[0] == b"repeated":
            return DuplicateWrite(reply[1])
        if reply[0] == b"conflict":
            assert batch.request is not None, "only a request conflicts"
            raise IdempotencyConflict(batch.request.key)
        return WriteResult(int(reply[1]), int(reply[2]))

    async def recreate(
        self, lease: SessionLease, new: NewSession, batch: WriteBatch, *, expected_fence: int
    ) -> SessionLease:
        assert batch.is_whole, "a part of a session"
        session, encoded = lease.session, _encode_batch(batch)
        async with self._client.bounded():
            await self._reexamine_after_outage()
            deadline = await self._index_deadline(new)
            args = (lease.owner, lease.fence, encoded, expected_fence)
            reply = await self._client.run_script(
                "recreate", session_keys(session), (*args, new.tenant, new.secret, deadline)
            )
        match reply[0]:
            case b"ended":
                raise SessionEnded(session)
            case b"stale":
                raise LeaseLost(session, reply[1].decode())
            case b"changed":
                is_there = reply[1] != b"0"
                raise SessionExists(session) if is_there else SessionNotFound(session)
            case _:
                return SessionLease(session, lease.owner, int(reply[3]), self._epoch)

    async def find_result(self, lease: SessionLease, request: IdempotentRequest) -> bytes | None:
        names = session_keys(lease.session)
        args = (digest(request.key.encode()), request.content_digest)
        async with self._client.bounded():
            await self._reexamine_after_outage()
            reply = await self._run_fenced(
                "find_result", lease, (names.meta, names.idempotency_keys), args
            )
        if reply[0] == b"conflict":
            raise IdempotencyConflict(request.key)
        return reply[1] if reply[0] == b"repeated" else None

    async def journal(
        self, lease: SessionLease, response_id: str, first: int, ids: tuple[int, ...]
    ) -> int:
        names, args = _make_journal_args(TokenBatch(lease, response_id, first, ids))
        async with self._client.bounded():
            await self._reexamine_after_outage()
            reply = await self._run_fenced("journal", lease, names, args)
        if reply[0] == b"no response":
            raise ResponseNotFound(response_id)
        return int(reply[1])

    async def journal_all(self, batches: Sequence[TokenBatch]) -> list[int | None]:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            is_current = [batch.lease.store_epoch == self._epoch for batch in batches]
            calls = (
                (names, (batch.lease.owner, batch.lease.fence, *args))
                for batch in compress(batches, is_current)
                for names, args in (_make_journal_args(batch),)
            )
            replies = iter(await self._client.run_script_batch("journal", calls))
        return [_parse_journal_reply(next(replies)) if current else None for current in is_current]

    # ------------------------------------------------------------ responses

    async def put_response(self, response: StoredResponse, ttl_s: float) -> None:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            for_ms = max(1, int(ttl_s * 1000))
            await self._tenants.index_response(response.tenant, response.id, for_ms)
            key = response_key(response.id)
            if ttl_s <= 0:  # a key that expires could still be read for a millisecond
                await self._client.execute("DEL", key)
                return
            await self._client.execute("SET", key, msgspec.msgpack.encode(response), "PX", for_ms)

    async def find_response(self, response_id: str) -> StoredResponse | None:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            stored = await self._client.execute("GET", response_key(response_id))
            if stored is None:
                await self._verify_epoch()
                return None
            return decode_response(response_id, stored)

    async def has_response(self, response_id: str) -> bool:
        async with self._client.bounded():
            await self._reexamine_after_outage()
            if await self._client.execute("EXISTS", response_key(response_id)):
                return True
            await self._verify_epoch()
            return False

    # ------------------------------------------------------------ internals

    async def _run_fenced(
        self, script: str, lease: SessionLease, names: Sequence[str], args: Sequence[Any]
    ) -> Any:
        self._check_store_epoch(lease)
        reply = await self._client.run_script(script, names, (lease.owner, lease.fence, *args))
        match reply[0]:
            case b"unknown":
                await self._verify_epoch()
                self._check_store_epoch(lease)  # another call may have seen the new epoch first
                raise SessionNotFound(lease.session)
            case b"ended":
                raise SessionEnded(lease.session)
            case b"stale":
                raise LeaseLost(lease.session, reply[1].decode())
            case b"behind":
                raise SessionDataLost(lease.session, reply[1].decode())
            case _:
                return reply

    def _check_store_epoch(self, lease: SessionLease) -> None:
        if lease.store_epoch != self._epoch:
            raise StoreReplaced(f"the lease of session {lease.session} is of another store")

    async def _reexamine_after_outage(self) -> None:
        """Check settings and epoch again if Redis has failed: it may be another Redis now, or
        empty."""
        if self._client.needs_examination:
            await self._client.examine()
            self._client.needs_examination = False
            await self._verify_epoch()

    async def _verify_epoch(self) -> None:
        found = await self._read_epoch()
        if found != self._epoch:
            self._epoch = found
            raise StoreReplaced("the store was replaced by another one")

    async def _record_layout(self) -> None:
        newest = await self._client.run_script("record_layout", (keys.LAYOUT_KEY,))
        if newest > keys.LAYOUT:
            raise StoreUnusable(str(UnknownLayout("the data in Redis", newest)))

    async def _read_epoch(self) -> str:
        found = await self._client.execute("GET", keys.EPOCH_KEY)
        if found is None:
            await self._client.execute("SET", keys.EPOCH_KEY, secrets.token_hex(16), "NX")
            found = await self._client.execute("GET", keys.EPOCH_KEY)
        return found.decode()


def parse_metadata(session: str, fields: Sequence[bytes], entry_count: int) -> SessionMetadata:
    tenant, secret, owner, fence, epoch, parked, created_ms, deadline_ms = fields
    return SessionMetadata(
        id=session,
        tenant=tenant.decode(),
        secret=secret,
        owner=owner.decode(),
        fence=int(fence),
        epoch=int(epoch),
        entry_count=entry_count,
        is_parked=parked == b"1",
        created_ms=int(created_ms),
        deadline_ms=int(deadline_ms),
    )


def parse_running_responses(running: Sequence[bytes]) -> tuple[RunningResponse, ...]:
    """Parse the hash `SessionKeys.running`, as alternating fields and values. Fields that end in
    `#` are ignored: only scripts use them."""
    checkpoints: dict[str, ResponseCheckpoint] = {}
    chunks: dict[str, list[tuple[int, bytes]]] = {}
    for field, value in zip(running[::2], running[1::2], strict=True):
        name, colon, first = field.decode().partition(":")
        if colon:
            chunks.setdefault(name, []).append((int(first), value))
        elif not name.endswith("#"):
            checkpoints[name] = msgspec.msgpack.decode(value, type=ResponseCheckpoint)
    return tuple(
        RunningResponse(checkpoints[name], join_ids(chunks.get(name, [])))
        for name in sorted(checkpoints)
    )


def _make_journal_args(batch: TokenBatch) -> tuple[Sequence[str], Sequence[Any]]:
    """Return the keys of journal.lua, and its arguments without the first two (owner and fence)."""
    names, ids = session_keys(batch.lease.session), batch.ids
    args = (batch.response_id, batch.first, len(ids), pack_ids(ids))
    return (names.meta, names.running), args


def _parse_journal_reply(reply: Sequence[Any]) -> int | None:
    return int(reply[1]) if reply[0] == b"ok" else None


def check_layout(session: str, reply: Sequence[Any]) -> None:
    if reply[0] == b"other layout":
        raise _make_unknown_layout(f"session {session}", int(reply[1]))


def _make_unknown_layout(name: str, layout: int) -> UnknownLayout:
    error = UnknownLayout(name, layout)
    log.warning("%s", error)
    return error


_response_decoder = msgspec.msgpack.Decoder(StoredResponse)


def decode_response(response_id: str, stored: bytes) -> StoredResponse:
    try:
        return _response_decoder.decode(stored)
    except msgspec.ValidationError:
        match msgspec.msgpack.decode(stored):
            case [int(layout), *_] if layout != keys.LAYOUT:
                raise _make_unknown_layout(f"response {response_id}", layout) from None
            case _:
                raise


def _encode_batch(batch: WriteBatch) -> bytes:
    """Encode the last argument of write.lua."""
    request = None if batch.request is None else _encode_request(batch.request)
    restored = [_encode_request(each) for each in batch.restored_requests]
    events = batch.events or StoredEvents()
    return encode_for_lua(
        {
            "kept_entries": batch.kept_entries,
            "entries": batch.entries,
            "epoch": batch.epoch,
            "state": batch.state,
            "request": request,
            "requests": restored if request is None else [*restored, request],
            "revoked_keys": [
                *(digest(key.encode()) for key in batch.revoked_keys),
                *(each["key"] for each in restored),
            ],
            "request_bytes_max": keys.IDEMPOTENCY_BYTES_MAX,
            "ended_responses": batch.ended_responses,
            "started_responses": [
                (checkpoint.id, msgspec.msgpack.encode(checkpoint))
                for checkpoint in batch.started_responses
            ],
            "first_event": None if batch.events is None else events.first_offset,
            "events": events.bodies,
            "events_max": keys.EVENTS_MAX,
            "events_bytes_max": keys.EVENTS_BYTES_MAX,
        }
    )


def _encode_request(request: IdempotentRequest) -> dict[str, bytes]:
    assert len(request.result) <= keys.IDEMPOTENCY_RESULT_BYTES_MAX, "a result is short"
    return {
        "key": digest(request.key.encode()),
        "content": request.content_digest,
        "result": request.result,
    }


def encode_for_lua(value: Any) -> bytes:
    return msgspec.msgpack.encode(_without_bin(value))


def _without_bin(value: Any) -> Any:
    """Return a value whose bytes are encoded as MessagePack of type str, because the decoder of
    Redis does not know the type bin."""
    match value:
        case bytes():
            return msgspec.Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)
        case list() | tuple():
            return [_without_bin(each) for each in cast(Sequence[Any], value)]
        case dict():
            return {key: _without_bin(each) for key, each in cast(dict[str, Any], value).items()}
        case _:
            return value
