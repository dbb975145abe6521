"""The attacks: abuse of a server by a client without a key, or with any one key.

Each function makes one round of one abuse, bounded in bytes and time, and counts in a `Tally` how
the server answered. The bounds that hold against them: docs/reliability.md, "Attacks".
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from random import Random

from tests.attack.peers import (
    HOLD_S,
    RESPONSE_TIMEOUT_S,
    Tally,
    close_code_of,
    connected,
    count_end,
    create_browser_key,
    get_json,
    post,
    read_status,
    refusal_of,
    request,
)
from tests.attack.pieces import small_pieces
from tests.attack.target import BYSTANDER_KEY, TENANT, Address
from tests.support.frames import (
    BINARY,
    CONTINUATION,
    TEXT,
    RawWebSocket,
    encode_frame,
    upgrade_request,
)

Attack = Callable[[Address, Random, Tally], Awaitable[None]]

CHUNK = 64 * 1024
MIB = 1024 * 1024
SUCCEEDED = "succeeded: "
"""Prefix of the tally's key for an attack that gained access."""


# ------------------------------------------------------------------ without a key


async def endless_headers(server: Address, random: Random, tally: Tally) -> None:
    """Four connections send up to 50 MiB of header lines each."""
    start = random.choice([b"GET /health HTTP/1.1\r\nHost: x\r\n", upgrade_request()[:-2]])
    line = b"X-%06d: " % random.randrange(10**6) + b"a" * random.choice([1, 80, 4000]) + b"\r\n"
    await _in_parallel(4, lambda: _flood(server, start, line * (CHUNK // len(line) + 1), 50, tally))


async def endless_request_line(server: Address, random: Random, tally: Tally) -> None:
    """Four connections send one request line of up to 50 MiB each."""
    await _in_parallel(4, lambda: _flood(server, b"GET /", b"a" * CHUNK, 50, tally))


async def dripped_head(server: Address, random: Random, tally: Tally) -> None:
    """A head sent one byte at a time, as fast as the server reads."""
    start = random.choice([b"GET /", b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: "])
    await _in_parallel(8, lambda: _flood(server, start, b"a", 0.08, tally))


async def _flood(server: Address, start: bytes, chunk: bytes, mib_max: float, tally: Tally) -> None:
    async with connected(server) as (reader, writer):
        answer = asyncio.create_task(read_status(reader))
        writer.write(start)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < mib_max * MIB and not answer.done():
                writer.write(chunk)
                sent += len(chunk)
                await writer.drain()
                if len(chunk) < 16:
                    await asyncio.sleep(0)
        tally["bytes"] += sent
        tally[await answer] += 1


# ------------------------------------------------------------------ with any key


async def large_tools(server: Address, random: Random, tally: Tally) -> None:
    """128 tools with descriptions of 100 KB each over HTTP: 12.8 MB of text in one request."""
    body = {"model": "demo", "input": "Hello!", "tools": _tools(random, 128, 100_000)}
    await post(server, "/v1/responses", body, tally)


async def large_input(server: Address, random: Random, tally: Tally) -> None:
    """A long word, or emoji with combining marks, as the text of a request."""
    text = random.choice(["a" * 520_000, "\U0001f600\u0301" * 200_000, "<|end|>" * 70_000])
    if random.random() < 0.5:
        await post(server, "/v1/responses", {"model": "demo", "input": text}, tally)
    else:
        messages = [{"role": "user", "content": text}] * 8
        await post(server, "/v1/chat/completions", {"model": "demo", "messages": messages}, tally)


async def large_session_update(server: Address, random: Random, tally: Tally) -> None:
    """`session.update` with 500 KB of instructions, or 128 tools of 7 KB, by a browser's key."""
    key = await create_browser_key(server)
    peer = await RawWebSocket.connect(server.port, Authorization=f"Bearer {key}")
    with contextlib.suppress(ConnectionError, AssertionError):
        await peer.wait_for("session.created")
        for _ in range(10):
            if random.random() < 0.5:
                session = {"instructions": random.choice(["a", "b ", "\u00e9"]) * 250_000}
            else:
                session = {"tools": _tools(random, 128, 7_000)}
            await peer.send_event(type="session.update", session={"type": "realtime", **session})
            event = await peer.receive_event()
            tally[str(event.get("error", event).get("code", event["type"]))] += 1
    peer.reset()


async def costly_schemas(server: Address, random: Random, tally: Tally) -> None:
    """Strict functions whose schemas would take minutes and gigabytes to compile."""
    multiples = [999_983 - 2 * random.randrange(10_000) for _ in range(5)]
    schema = {"allOf": [{"type": "integer", "multipleOf": multiple} for multiple in multiples]}
    parameters = {"type": "object", "properties": {"count": schema}}
    tool = {"type": "function", "name": "count", "strict": True, "parameters": parameters}
    body = {"model": "demo", "input": "Hello!", "tools": [tool]}
    await _in_parallel(4, lambda: post(server, "/v1/responses", body, tally))


async def unfinished_messages(server: Address, random: Random, tally: Tally) -> None:
    """40 frames of 19 MiB and 40 bodies of 15 MiB without the last byte."""
    await asyncio.gather(
        *(_unfinished_frame(server, tally) for _ in range(40)),
        *(_unfinished_body(server, tally) for _ in range(40)),
    )


async def _unfinished_frame(server: Address, tally: Tally) -> None:
    try:
        bearer = f"Bearer {server.key}"
        async with connected(server) as (reader, writer):
            writer.write(upgrade_request("/v1/responses", Authorization=bearer))
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), RESPONSE_TIMEOUT_S)
            peer = RawWebSocket(reader, writer)
            ended = asyncio.create_task(close_code_of(peer))
            writer.write(encode_frame(b"", BINARY, length=19 * MIB))
            await _send_while_open(writer, b"x", 19 * 16 - 1, ended)
            await count_end(ended, tally)
    except (OSError, asyncio.IncompleteReadError):
        tally["closed"] += 1


async def _unfinished_body(server: Address, tally: Tally) -> None:
    head = (
        f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {15 * MIB}\r\n\r\n"
    )
    async with connected(server) as (reader, writer):
        answer = asyncio.create_task(read_status(reader))
        writer.write(head.encode())
        with contextlib.suppress(ConnectionError):
            await _send_while_open(writer, b" ", 15 * 16 - 1, answer)
        await count_end(answer, tally)


async def _send_while_open(
    writer: asyncio.StreamWriter, byte: bytes, chunks: int, ended: "asyncio.Task[str]"
) -> None:
    """Send chunks until the server ends the connection."""
    for _ in range(chunks):
        if ended.done():
            break
        writer.write(byte * CHUNK)
        await writer.drain()


async def empty_continuations(server: Address, random: Random, tally: Tally) -> None:
    """A message of up to 300,000 empty frames."""
    peer = await RawWebSocket.connect(server.port, Authorization=f"Bearer {server.key}")
    ended = asyncio.create_task(close_code_of(peer))
    many = encode_frame(b"", CONTINUATION, fin=False) * 1000
    with contextlib.suppress(ConnectionError):
        await peer.send(encode_frame(b"{", TEXT, fin=False))
        for _ in range(300):
            if ended.done():
                break
            await peer.send(many)
            await asyncio.sleep(0)
    await count_end(ended, tally)
    peer.reset()


async def foreign_sessions(server: Address, random: Random, tally: Tally) -> None:
    """A browser's key requests the session of another end user of the tenant, by its id."""
    owner_key, other_key = await create_browser_key(server), await create_browser_key(server)
    owner = await RawWebSocket.connect(server.port, Authorization=f"Bearer {owner_key}")
    created = await owner.wait_for("session.created")
    session: str = created["session"]["id"]
    other = {"Authorization": f"Bearer {other_key}"}
    for query in (f"session_id={session}", f"fork={session}"):
        tally[await refusal_of(server, f"/v1/realtime?model=demo&{query}", **other)] += 1
    for method in ("GET", "DELETE"):
        path = f"/v1/realtime/sessions/{session}"
        tally[await request(server, method, path, other_key)] += 1
    tally[await request(server, "GET", "/v1/stats", other_key)] += 1
    await owner.send_event(type="conversation.item.retrieve", item_id="none")
    await owner.wait_for("error")  # the owner is still connected
    owner.reset()


async def foreign_tenants(server: Address, random: Random, tally: Tally) -> None:
    """A tenant requests the session and the stored response of another, by their ids."""
    owner_headers = {"Authorization": f"Bearer {BYSTANDER_KEY}"}
    owner = await RawWebSocket.connect(server.port, **owner_headers)
    created = await owner.wait_for("session.created")
    session: str = created["session"]["id"]
    other = {"Authorization": f"Bearer {server.key}"}
    for query in (f"session_id={session}", f"fork={session}"):
        tally[await refusal_of(server, f"/v1/realtime?model=demo&{query}", **other)] += 1
    for method, path in (
        ("GET", f"/v1/realtime/sessions/{session}"),
        ("DELETE", f"/v1/realtime/sessions/{session}"),
    ):
        status = await request(server, method, path, server.key)
        tally[status if status in ("403", "404") else f"{SUCCEEDED} {method} {path}"] += 1
    stats = await get_json(server, "/v1/stats", server.key)
    shown = [stats.get("object"), *(each["tenant"] for each in stats.get("tenants", ()))]
    is_own = shown == ["tenant.stats", TENANT]
    tally["200" if is_own else f"{SUCCEEDED} GET /v1/stats"] += 1
    await owner.send_event(type="conversation.item.retrieve", item_id="none")
    await owner.wait_for("error")  # the owner is still connected
    owner.reset()


async def spoilt_frames(server: Address, random: Random, tally: Tally) -> None:
    """Frames that are not events, until the server closes the connection."""
    peer = await RawWebSocket.connect(server.port, Authorization=f"Bearer {server.key}")
    ended = asyncio.create_task(close_code_of(peer))
    valid = json.dumps({"type": "conversation.item.create", "item": {"type": "message"}})
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            offset = random.randrange(len(valid))
            insert = random.choice(['"', "{", "\x00", "[" * 20_000, ""])
            malformed = valid[:offset] + insert + valid[offset:]
            await peer.send(encode_frame(malformed.encode(), random.choice([TEXT, BINARY])))
    await count_end(ended, tally)
    peer.reset()


async def many_values(server: Address, random: Random, tally: Tally) -> None:
    """Bodies of many small values, of escapes, or nested deeply."""
    wide = json.dumps({"model": "demo", "input": [{"type": "message"}] * 300_000})
    deep = '{"model": "demo", "input": ' + "[" * 200_000 + "]" * 200_000 + "}"
    escaped = json.dumps({"model": "demo", "input": "\x01" * 900_000})
    body = random.choice([wide, deep, escaped]).encode()
    tally[await request(server, "POST", "/v1/responses", server.key, body)] += 1


async def never_reading(server: Address, random: Random, tally: Tally) -> None:
    """40 clients send up to 4,000 updates each and read no event."""
    await asyncio.gather(*(_send_without_reading(server, tally) for _ in range(40)))


async def _send_without_reading(server: Address, tally: Tally) -> None:
    peer = await RawWebSocket.connect(server.port, Authorization=f"Bearer {server.key}")
    metadata = {"type": "session.update", "session": {"type": "realtime"}}
    event = json.dumps({**metadata, "event_id": "e" * 500}).encode()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(HOLD_S):
            for _ in range(4_000):
                await peer.send(encode_frame(event))
                tally["frames"] += 1
    tally["ended"] += 1
    peer.reset()


async def long_responses(server: Address, random: Random, tally: Tally) -> None:
    """256 responses of 1,500 tokens at the same time."""
    body = {"model": "demo", "input": "Count.", "max_output_tokens": 1500, "ignore_eos": True}

    async def attempt() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                await post(server, "/v1/responses", body, tally)

    await _in_parallel(256, attempt)


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        endless_headers,
        endless_request_line,
        dripped_head,
        large_tools,
        large_input,
        large_session_update,
        costly_schemas,
        unfinished_messages,
        empty_continuations,
        foreign_sessions,
        foreign_tenants,
        spoilt_frames,
        many_values,
        never_reading,
        long_responses,
        small_pieces,
    )
}


async def repeat(name: str, server: Address, seconds: float, seed: int) -> Tally:
    """Run rounds of one attack until the time is over; the last round is completed."""
    random, tally = Random(seed), Tally()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        try:
            await ATTACKS[name](server, random, tally)
        except (OSError, EOFError, TimeoutError):
            tally["connection lost"] += 1
            await asyncio.sleep(0.05)
        except AssertionError as error:
            tally[f"{SUCCEEDED}{error}"] += 1
        tally["rounds"] += 1
    return tally


async def _in_parallel(count: int, attempt: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(*(attempt() for _ in range(count)), return_exceptions=True)


def _tools(random: Random, count: int, chars: int) -> list[dict[str, object]]:
    word = random.choice(["a", "word ", "0123 ", "\u00e9\u0301 "])
    description = (word * (chars // len(word)))[:chars]
    return [
        {"type": "function", "name": f"tool_{n}", "description": description, "parameters": {}}
        for n in range(count)
    ]
