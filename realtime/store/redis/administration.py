"""Administration of a Redis store, in another process than the gateways that use it."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from continuo.realtime.store import keys
from continuo.realtime.store.backup_file import BackupRecord, ResponseRecord, SessionRecord
from continuo.realtime.store.base import StoredEvents
from continuo.realtime.store.codec import pack_ids
from continuo.realtime.store.durability import Durability
from continuo.realtime.store.errors import StoreUnusable, UnknownLayout
from continuo.realtime.store.keys import response_key, session_keys
from continuo.realtime.store.redis.client import RedisClient
from continuo.realtime.store.redis.store import (
    check_layout,
    decode_response,
    encode_for_lua,
    parse_metadata,
    parse_running_responses,
)
from continuo.realtime.store.redis.tenants import RedisTenants
from continuo.realtime.store.stats import StoreStats, VacuumResult

TIMEOUT_S = 30.0
"""Time limit of one call, longer than that of gateways: no client waits for it."""
SCAN_COUNT = 500
"""Keys that Redis examines in one step of a scan."""
RESTORED_OWNER = "restored"
"""Owner of restored sessions: no gateway, so that any may claim them."""


async def check_redis(url: str, durability: Durability) -> str:
    """Check that a Redis can be the store, by a write that leaves nothing behind. Returns a
    description of it. Raises StoreError."""
    client = RedisClient(url, durability)
    try:
        async with client.opening():
            await client.examine()
            await client.run_script("probe", keys.PROBE_KEYS)
            layout = int(await client.execute("GET", keys.LAYOUT_KEY) or keys.LAYOUT)
            info = await client.execute("INFO", "server")
    finally:
        await client.aclose()
    if layout > keys.LAYOUT:
        raise StoreUnusable(str(UnknownLayout("the data in Redis", layout)))
    return f"Redis {info['redis_version']}, {durability} durability"


class RedisAdministration:
    """Statistics, backup, restore and vacuum of the sessions and responses in a Redis.

    Owns a client of its own, beside those of the gateways. Called by `continuo store`, in its own
    process. Always: a session is read at one point in time, and written whole or not at all; only
    expired sessions are removed.
    """

    def __init__(self, url: str) -> None:
        """Raises StoreUnusable for a malformed URL."""
        self._client = RedisClient(url, timeout_s=TIMEOUT_S)
        self._tenants = RedisTenants(self._client)

    async def aclose(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def _calling(self) -> AsyncGenerator[None]:
        async with self._client.opening():
            yield

    async def compute_stats(self) -> StoreStats:
        async with self._calling():
            layout = await self._client.execute("GET", keys.LAYOUT_KEY)
            epoch = await self._client.execute("GET", keys.EPOCH_KEY)
            memory = await self._client.execute("INFO", "memory")
        stats = StoreStats(
            layout=int(layout or keys.LAYOUT),
            epoch=(epoch or b"").decode(),
            size_bytes=memory["used_memory"],
        )
        async for sessions in self._scan("meta"):
            async with self._calling():
                names = map(session_keys, sessions)
                calls = (((each.meta, each.log), ()) for each in names)
                replies = await self._client.run_script_batch("find", calls)
            for session, reply in zip(sessions, replies, strict=True):
                if reply[0] == b"ok":
                    found = parse_metadata(session, reply[1], reply[2])
                    stats.add_session(found.tenant, reply[2], is_parked=found.is_parked)
        async for sessions in self._scan("running"):
            for session in sessions:
                async with self._calling():
                    fields = await self._client.execute("HKEYS", session_keys(session).running)
                stats.running_responses += sum(field.endswith(b"#") for field in fields)
        async for responses in self._scan("response"):
            stats.stored_responses += len(responses)
        return stats

    # ------------------------------------------------------------ backup

    async def export(self, scratch: Any) -> AsyncIterator[BackupRecord]:  # noqa: ARG002 - as SQLite
        async for sessions in self._scan("meta"):
            for session in sessions:
                if (record := await self._export_session(session)) is not None:
                    yield record
        exported, parents = set[str](), set[str]()
        async for responses in self._scan("response"):
            for response_id in responses:
                if (record := await self._export_response(response_id)) is not None:
                    exported.add(response_id)
                    parents |= {record.response.parent or response_id}
                    yield record
        # A scan may miss a response that was stored meanwhile, but not its continuation.
        while missing := parents - exported:
            response_id = missing.pop()
            exported.add(response_id)
            if (record := await self._export_response(response_id)) is not None:
                parents |= {record.response.parent or response_id}
                yield record

    async def _export_session(self, session: str) -> SessionRecord | None:
        async with self._calling():
            reply = await self._client.run_script("export", session_keys(session))
        if reply[0] == b"unknown":
            return None
        check_layout(session, reply)
        _, now_ms, next_event, fields, state, log, running, events, records = reply
        metadata = parse_metadata(session, fields, len(log))
        return SessionRecord(
            id=session,
            tenant=metadata.tenant,
            secret=metadata.secret,
            fence=metadata.fence,
            epoch=metadata.epoch,
            created_ms=metadata.created_ms,
            remaining_ms=metadata.deadline_ms - int(now_ms),
            state=state,
            entries=tuple(log),
            running_responses=parse_running_responses(running),
            events=StoredEvents(int(next_event) - len(events), tuple(events)),
            requests=tuple((key, content, result) for _, key, content, result in sorted(records)),
        )

    async def _export_response(self, response_id: str) -> ResponseRecord | None:
        key = response_key(response_id)
        async with self._calling():
            stored = await self._client.execute("GET", key)
            remaining_ms = await self._client.execute("PTTL", key)
        if stored is None or remaining_ms <= 0:
            return None
        response = decode_response(response_id, stored)
        return ResponseRecord(response=response, remaining_ms=remaining_ms)

    async def _scan(self, name: str) -> AsyncIterator[list[str]]:
        """Yield the ids of all sessions or responses with a key called `name`, in batches, each id
        once."""
        cursor, seen = 0, set[str]()
        while True:
            async with self._calling():
                args = (cursor, "MATCH", keys.scan_pattern(name), "COUNT", SCAN_COUNT)
                cursor, found = await self._client.execute("SCAN", *args)
            ids = {keys.id_in_key(key.decode()) for key in found}
            yield sorted(ids - seen)
            seen |= ids
            if not int(cursor):
                return

    # ------------------------------------------------------------ restore

    async def add(self, record: BackupRecord) -> bool:
        if isinstance(record, ResponseRecord):
            return await self._add_response(record)
        async with self._calling():
            args = (record.id, record.remaining_ms)
            await self._client.run_script("index_deadline", (keys.DEADLINES_KEY,), args)
            encoded = encode_for_lua(_encode_session(record))
            reply = await self._client.run_script("restore", session_keys(record.id), (encoded,))
            return reply[0] == b"ok"

    async def _add_response(self, record: ResponseRecord) -> bool:
        stored = msgspec.msgpack.encode(record.response)
        key, remaining_ms = response_key(record.response.id), record.remaining_ms
        response = record.response
        async with self._calling():
            await self._tenants.index_response(response.tenant, response.id, remaining_ms)
            reply = await self._client.execute("SET", key, stored, "PX", remaining_ms, "NX")
            return reply is not None

    async def vacuum(self) -> VacuumResult:
        async with self._calling():
            before = await self._client.execute("INFO", "memory")
        expired = 0
        async for sessions in self._scan("meta"):
            async with self._calling():
                calls = ((session_keys(session), ()) for session in sessions)
                replies = await self._client.run_script_batch("expire", calls)
                removed = [
                    session
                    for session, reply in zip(sessions, replies, strict=True)
                    if reply[0] != b"later"
                ]
                if removed:
                    await self._client.execute("ZREM", keys.DEADLINES_KEY, *removed)
            expired += sum(reply[0] == b"expired" for reply in replies)
        async with self._calling():
            await self._client.execute("MEMORY", "PURGE")
            after = await self._client.execute("INFO", "memory")
        return VacuumResult(expired, before["used_memory"], after["used_memory"])


def _encode_session(record: SessionRecord) -> dict[str, Any]:
    """Return the last argument of restore.lua."""
    running = [
        field
        for response in record.running_responses
        for field in (
            (response.checkpoint.id, msgspec.msgpack.encode(response.checkpoint)),
            (f"{response.checkpoint.id}#", str(len(response.ids))),
            *([(f"{response.checkpoint.id}:0", pack_ids(response.ids))] if response.ids else []),
        )
    ]
    return {
        "owner": RESTORED_OWNER,
        "tenant": record.tenant,
        "secret": record.secret,
        "fence": record.fence,
        "epoch": record.epoch,
        "created_ms": record.created_ms,
        "remaining_ms": record.remaining_ms,
        "state": record.state,
        "entries": record.entries,
        "running": running,
        "requests": record.requests,
        "request_bytes": sum(
            keys.IDEMPOTENCY_OVERHEAD_BYTES + len(result) for _, _, result in record.requests
        ),
        "events": record.events.bodies,
        "event_bytes": sum(map(len, record.events.bodies)),
        "next_event": record.events.next_offset,
    }
