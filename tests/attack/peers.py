"""Peers of the attacked server: raw connections over HTTP and WebSocket, and how they end."""

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from tests.attack.target import Address
from tests.support.frames import CLOSE, TEXT, RawWebSocket, upgrade_request

Tally = Counter[str]
"""How often the server answered an attack in each way."""
RESPONSE_TIMEOUT_S = 60.0
"""How long an attacker waits for a response."""
HOLD_S = float(os.environ.get("CONTINUO_ATTACK_HOLD_S", 10.0))
"""How long an attacker holds a connection that the server does not end."""


@contextlib.asynccontextmanager
async def connected(
    server: Address,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def read_status(reader: asyncio.StreamReader) -> str:
    """The HTTP status of a response, or how the connection ended without one."""
    try:
        line = await asyncio.wait_for(reader.readuntil(b"\r\n"), RESPONSE_TIMEOUT_S)
        return line.split()[1].decode()
    except asyncio.IncompleteReadError:
        return "closed"
    except TimeoutError:
        return "no answer"
    except ConnectionError:
        return "reset"


async def count_end(ended: "asyncio.Task[str]", tally: Tally) -> None:
    """Count how the server ended a connection, or that the server still holds it after HOLD_S."""
    done, _ = await asyncio.wait([ended], timeout=HOLD_S)
    tally[ended.result() if done else "held"] += 1
    ended.cancel()


async def close_code_of(peer: RawWebSocket) -> str:
    """The close code of a WebSocket."""
    try:
        return str(await peer.wait_close_code())
    except ConnectionError:
        return "reset"


async def request(
    server: Address, method: str, path: str, key: str, body: bytes | None = None
) -> str:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    async with connected(server) as (reader, writer):
        answer = asyncio.create_task(read_status(reader))
        with contextlib.suppress(ConnectionError):
            writer.write(head.encode() + b"\r\n" + (body or b""))
            await writer.drain()
        return await answer


async def get_json(server: Address, path: str, key: str) -> Any:
    """The body of a response, which ends with its connection."""
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    async with connected(server) as (reader, writer):
        writer.write(head.encode() + b"Connection: close\r\n\r\n")
        response = await asyncio.wait_for(reader.read(), RESPONSE_TIMEOUT_S)
    return json.loads(response.partition(b"\r\n\r\n")[2])


async def post(server: Address, path: str, body: object, tally: Tally) -> None:
    tally[await request(server, "POST", path, server.key, json.dumps(body).encode())] += 1


async def refusal_of(server: Address, path: str, **headers: str) -> str:
    """How a WebSocket is refused: its HTTP status or its close code."""
    async with connected(server) as (reader, writer):
        writer.write(upgrade_request(path, **headers))
        status = await read_status(reader)
        if status != "101":
            return status
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), RESPONSE_TIMEOUT_S)
        peer = RawWebSocket(reader, writer)
        while (received := await peer.receive()) is not None:
            if received.opcode == TEXT:
                event = json.loads(received.payload)
                assert event["type"] == "error", f"the session of another: {event['type']}"
            if received.opcode == CLOSE:
                return str(int.from_bytes(received.payload[:2], "big"))
        return "1006"


async def create_browser_key(server: Address) -> str:
    head = (
        f"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Authorization: Bearer {server.key}\r\nContent-Length: 2\r\n\r\n{{}}"
    )
    async with connected(server) as (reader, writer):
        writer.write(head.encode())
        answer = await asyncio.wait_for(reader.read(), RESPONSE_TIMEOUT_S)
        return json.loads(answer.partition(b"\r\n\r\n")[2])["value"]
