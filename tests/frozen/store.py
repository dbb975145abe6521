"""The store after `scenario`, as a SQLite file and a dump of Redis, and the events that
resuming clients receive.

    store.db         the SQLite file, byte for byte
    redis.json       for each key its type, whether it expires, and its value in hex
    replayed.json    for some event ids of each session, the events that a client receives after
                     resuming from them; for each stored response, the HTTP responses when it is
                     retrieved and continued

One replayed.json serves both stores. All values are the same in every run of the scenario except
those from the store's own clock: MASKED, and the epoch of a session with new event ids, which is
its fence. Long values are deflated: a zlib whose output differs from the common one's needs its own
files.
"""

import asyncio
import json
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import redis

from tests.frozen import scenario
from tests.frozen.masking import masked, masked_frame, without_session_tags
from tests.frozen.virtual_server import Event, VirtualServer, run_on_virtual_time
from tests.support.redis_process import RedisProcess

DATA = Path(__file__).parent / "data"
SQLITE, REDIS, REPLAYED = "store.db", "redis.json", "replayed.json"
MASKED = {"fence", "created_ms", "deadline_ms", "created", "deadline"}
"""Columns and hash fields with a time of the store's clock; fences start from one. The dump of the
index of deadlines in Redis has its sessions without their scores."""
CLIENT_SECRET_DIGEST = slice(64, 128)
"""Part of the hex digits of a session's `secret`, masked in a comparison: the digest of a client
secret, which contains a time of the gateway's clock."""
RESUMES_PER_SESSION = 4
"""How many event ids of each session are resumed from."""
HOUR_MS = 3_600_000

Dump = dict[str, Any]


# ---------------------------------------------------------------- SQLite


def sqlite_dump(file: Path) -> Dump:
    """Every row of every table, as JSON."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as db:
        db.row_factory = sqlite3.Row
        tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        return {name: _rows(db, name) for (name,) in tables.fetchall()}


def _rows(db: sqlite3.Connection, table: str) -> list[Dump]:
    rows = [
        {
            key: "masked" if key in MASKED else _without_client_secret(key, _as_json(row[key]))
            for key in row.keys()  # noqa: SIM118
        }
        for row in db.execute(f"SELECT * FROM {table}")
    ]
    return sorted(rows, key=json.dumps)


def _as_json(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _without_client_secret(name: str, value: Any) -> Any:
    digest = value[CLIENT_SECRET_DIGEST] if name == "secret" else ""
    return value.replace(digest, "(client secret)") if digest else value


def unexpired_sqlite_copy(folder: Path) -> str:
    """The URL of a copy of a frozen file with deadlines that have not expired."""
    file = folder / "store.db"
    for suffix in ("", "-wal", "-shm"):
        file.with_name(f"store.db{suffix}").unlink(missing_ok=True)
    shutil.copy(DATA / SQLITE, file)
    with closing(sqlite3.connect(file)) as db:
        until = int(time.time() * 1000) + HOUR_MS
        db.execute("UPDATE sessions SET deadline_ms = ?", (until,))
        db.execute("UPDATE stored_responses SET deadline_ms = ?", (until,))
        db.commit()
    return f"sqlite:///{file}"


# ---------------------------------------------------------------- Redis


def redis_dump(port: int) -> Dump:
    """Every key, with lists in order, and hashes and sorted sets ordered by field."""
    with redis.Redis(port=port) as client:
        return {key.decode(): _redis_value(client, key) for key in sorted(client.scan_iter("*"))}


def _redis_value(client: Any, key: bytes) -> Dump:
    kind = client.type(key).decode()
    match kind:
        case "string":
            value: Any = client.get(key).hex()
        case "list":
            value = [element.hex() for element in client.lrange(key, 0, -1)]
        case "hash":
            fields = sorted(client.hgetall(key).items())
            value = {name.decode("latin-1"): field.hex() for name, field in fields}
        case "set":
            value = sorted(member.decode() for member in client.smembers(key))
        case "zset":
            value = sorted(member.decode() for member in client.zrange(key, 0, -1))
        case _:
            raise AssertionError(f"{key} is a {kind}")
    return {"type": kind, "expires": client.ttl(key) >= 0, "value": value}


def redis_flush(port: int) -> None:
    with redis.Redis(port=port) as client:
        client.flushall()


def frozen_redis() -> Dump:
    return json.loads((DATA / REDIS).read_text())


def masked_redis(dump: Dump) -> Dump:
    """The dump with the MASKED fields of hashes masked."""
    return {
        key: {**entry, "value": _masked_hash(entry["value"])} if entry["type"] == "hash" else entry
        for key, entry in dump.items()
    }


def _masked_hash(fields: Dump) -> Dump:
    return {
        name: "masked" if name in MASKED else _without_client_secret(name, value)
        for name, value in fields.items()
    }


def redis_load(port: int) -> None:
    """Replace the contents of Redis with a frozen dump, with deadlines that have not expired."""
    until = int(time.time() * 1000) + HOUR_MS
    with redis.Redis(port=port) as client:
        client.flushall()
        for key, entry in frozen_redis().items():
            _redis_put(client, key, entry["type"], entry["value"], until)
            if entry["expires"]:
                client.pexpireat(key, until)


def _redis_put(client: Any, key: str, kind: str, value: Any, until: int) -> None:
    match kind:
        case "string":
            client.set(key, bytes.fromhex(value))
        case "list":
            client.rpush(key, *(bytes.fromhex(element) for element in value))
        case "hash":
            fields = {name: bytes.fromhex(field) for name, field in value.items()}
            fields |= {"deadline": str(until).encode()} if "deadline" in fields else {}
            client.hset(key, mapping={n.encode("latin-1"): field for n, field in fields.items()})
        case "set":
            client.sadd(key, *value)
        case _:
            client.zadd(key, dict.fromkeys(value, until))


# ---------------------------------------------------------------- replay


def replay(fresh: Callable[[], str], known: Event) -> Event:
    """Resume every session and continue every response.

    `fresh` returns the URL of a store as frozen; `known` has the ids that clients know.
    """
    events_by_name: Event = {name: {} for name in known["sessions"]}
    for start in range(RESUMES_PER_SESSION):
        for name, events in run_on_virtual_time(
            fresh(),
            start,
            lambda server: _resume_all(server, start, known),  # noqa: B023
        ):
            events_by_name[name].update(events)
    responses = run_on_virtual_time(
        fresh(), RESUMES_PER_SESSION, lambda server: _continue_all(server, known)
    )
    return {"sessions": events_by_name, "responses": responses}


async def _resume_all(server: VirtualServer, start: int, known: Event) -> list[tuple[str, Event]]:
    resumed: list[tuple[str, Event]] = []
    for name, (session, *seen) in known["sessions"].items():
        after = seen[(len(seen) - 1) * start // (RESUMES_PER_SESSION - 1)]
        events = await scenario.resumed(server, session, after)
        lines = [without_session_tags(json.dumps(masked(event))) for event in events]
        resumed.append((name, {after: [_without_fence(line, after) for line in lines]}))
    return resumed


def _without_fence(line: str, after: str) -> str:
    """Mask the fence in the epoch of event ids: 8 digits of the store's epoch and the session's.

    The session's epoch is its fence (a time in ms, in hex) if its event ids are new.
    """
    store = after.removeprefix("event_")[:8]
    return re.sub(rf"{store}[0-9a-f]{{11}}", f"{store}(fence)", line)


async def _continue_all(server: VirtualServer, known: Event) -> Event:
    continued: Event = {}
    for response in known["responses"]:
        parts = await scenario.continued(server, response)
        continued[response] = [_masked_response(part) for part in parts]
    return continued


def _masked_response(response: str) -> str:
    """Mask an HTTP response: its status, and JSON or server-sent events."""
    status, _, body = response.partition(" ")
    return f"{status} {masked_frame(body)}" if body.startswith("{") else response


# ---------------------------------------------------------------- writing


def run_scenario(url: str) -> Event:
    """Run the scenario on an empty store. Returns the ids that clients know afterwards."""
    known = run_on_virtual_time(url, scenario.SEED, scenario.run)
    return json.loads(without_session_tags(json.dumps(known)))


def frozen_replay() -> Event:
    return json.loads((DATA / REPLAYED).read_text())


def write() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = run_scenario(f"sqlite:///{folder / 'made.db'}")
        (DATA / SQLITE).unlink(missing_ok=True)
        with closing(sqlite3.connect(folder / "made.db")) as db:
            db.execute(f"VACUUM INTO '{DATA / SQLITE}'")
        process = RedisProcess(folder / "redis")
        asyncio.run(process.start())
        try:
            assert run_scenario(process.url) == known
            (DATA / REDIS).write_text(json.dumps(redis_dump(process.port), indent=1) + "\n")
        finally:
            process.stop()
        results = replay(lambda: unexpired_sqlite_copy(folder), known)
        (DATA / REPLAYED).write_text(json.dumps({"known": known, **results}, indent=1) + "\n")
