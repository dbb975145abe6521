"""F12: a client that reads 1 KB a second, whatever it has asked for."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

import msgspec

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.server.hardening.guarded_websocket import GuardedWebSocket
from continuo.realtime.transport.connection import Connection
from continuo.realtime.transport.socket import StarletteSocket
from tests.faults.caller import DISCONNECT_ERRORS, ReconnectingClient
from tests.faults.cluster import TIMEOUT_FACTOR, continue_and_close
from tests.faults.deployment import Deployment, ExpectedConversation, running_deployment
from tests.faults.outages import Outages, counted_outages
from tests.faults.proxy import Proxy
from tests.faults.row import FaultRow
from tests.faults.stopwatch import Stopwatch
from tests.faults.stores import open_conversation
from tests.support.clients import message_item

READ_BYTES_PER_S = 1024
RECEIVE_BUFFER_BYTES = 4096
HELD_BYTES_MAX = 1024 * 1024
"""Bytes that all connections of the deployment together may hold in the gateways."""
SLOW_S_MAX = 4.5
"""How long the client reads slowly, at most; then it reads as fast as it can."""
OTHER_TURN_S_MAX = 2.0 * TIMEOUT_FACTOR
BLOCKED_S_MAX = 5.0 * TIMEOUT_FACTOR
"""Time after which a connection whose send buffer is full is closed or has room again."""


class SlowReading(msgspec.Struct):
    deployment: Deployment
    proxy: Proxy
    """Proxy of the slow client, before the first gateway."""
    outages: Outages
    closes: list[tuple[CloseCode, str]] = []
    """Codes and reasons with which gateways have closed connections."""


async def read_slowly(slow: SlowReading, rng: Random) -> None:
    """Read at 1 KB/s for a while: events are merged, or the connection is closed with 1013."""
    deployment, proxy = slow.deployment, slow.proxy
    proxy.clear_faults()
    slow.closes.clear()
    client = ReconnectingClient(proxy.url(), *deployment.urls)
    expected = deployment.expected_conversation()
    await client.connect()
    other = await open_conversation(deployment, rng.randrange(2))
    proxy.down_bytes_per_s = READ_BYTES_PER_S
    watching = asyncio.create_task(watch_held_bytes(deployment))
    load = rng.choice([ask_for_answer, ask_for_many_answers, ask_for_items, ask_for_snapshot])
    working = asyncio.create_task(load(client, expected, rng))
    slow_until_s = time.monotonic() + rng.uniform(0.5, SLOW_S_MAX)
    stopwatch = Stopwatch()
    await continue_and_close(*other)
    assert stopwatch.elapsed_s < OTHER_TURN_S_MAX
    await asyncio.sleep(slow_until_s - time.monotonic())
    proxy.down_bytes_per_s = float("inf")
    await working
    watching.cancel()
    await asyncio.wait([watching])
    if not watching.cancelled():
        watching.result()
    assert {code for code, _ in slow.closes} <= {
        CloseCode.NORMAL_CLOSURE,
        CloseCode.TRY_AGAIN_LATER,
    }, slow.closes
    assert client.close_codes <= {1006, 1011, 1013}, client.close_codes  # 1011: a late pong
    assert load is ask_for_snapshot or "snapshot" not in client.resume_outcomes
    await continue_and_close(client, expected)
    await deployment.assert_balanced()


async def read_slowly_without_outage(slow: SlowReading, rng: Random) -> None:
    await slow.outages.repeat_disturbed(lambda: read_slowly(slow, rng))


Load = Callable[[ReconnectingClient, ExpectedConversation, Random], Awaitable[None]]


async def ask_for_answer(
    client: ReconnectingClient, expected: ExpectedConversation, rng: Random
) -> None:
    """Request a response, with deltas that can be merged."""
    await client.add_message("hello")
    expected.add_user_message("hello")
    tokens = rng.choice([40, 400, 1700])  # no more, or items would leave the context window
    text = expected.compute_response(tokens, ignore_eos=True)
    response = await client.start_response(max_output_tokens=tokens, ignore_eos=True)
    assert await client.wait_response(response) == text


async def ask_for_many_answers(
    client: ReconnectingClient, expected: ExpectedConversation, rng: Random
) -> None:
    """Request concurrent responses, whose deltas alternate and are not merged."""
    tokens = rng.choice([20, 300, 600])
    settings = {"max_output_tokens": tokens, "ignore_eos": True, "conversation": "none"}
    prompts = [f"question {n}" for n in range(5)]
    texts = [expected_answer(expected, prompt, tokens) for prompt in prompts]
    responses = [
        await client.start_response(**settings, input=[message_item(prompt)]) for prompt in prompts
    ]
    assert [await client.wait_response(response) for response in responses] == texts


def expected_answer(expected: ExpectedConversation, prompt: str, tokens: int) -> str:
    """Compute the text of a response outside of the conversation."""
    ids, expected.ids = expected.ids, []
    expected.add_user_message(prompt)
    text = expected.compute_response(tokens, ignore_eos=True)
    expected.ids = ids
    return text


async def ask_for_items(
    client: ReconnectingClient, expected: ExpectedConversation, rng: Random
) -> None:
    """Retrieve one item many times; request replies again that were lost with a connection."""
    text = "".join(rng.choices("abcdefgh", k=1000))
    item = await client.add_message(text)
    expected.add_user_message(text)
    missing = rng.choice([10, 300, 900])
    while missing:
        try:
            for _ in range(missing):
                await client.send("conversation.item.retrieve", item_id=item)
            while missing:
                reply = await client.wait_for("conversation.item.retrieved")
                assert reply["item"]["content"][0]["text"] == text
                missing -= 1
        except DISCONNECT_ERRORS:
            await client.reconnect()


async def ask_for_snapshot(
    client: ReconnectingClient, expected: ExpectedConversation, rng: Random
) -> None:
    """Resume a conversation of many items at an event id of another epoch."""
    texts = [f"line {n}" for n in range(rng.choice([5, 30]))]
    url, client.urls = client.urls[0], client.urls[1:]
    await client.reconnect()
    for text in texts:
        await client.add_message(text)
        expected.add_user_message(text)
    items = client.item_ids[:]
    await client.disconnect()
    client.urls, client.gateway_index = (url, *client.urls), 0
    _, epoch, position = client.last_event_id.split("_", 2)
    try:
        await client.connect(last=f"event_f{epoch}_{position}")
        await client.synchronize()
    except DISCONNECT_ERRORS:
        await client.reconnect()
    assert client.item_ids == items


async def watch_held_bytes(deployment: Deployment) -> None:
    """Assert again and again that connections hold few bytes, and that none stays blocked."""
    blocked: dict[GuardedWebSocket, Stopwatch] = {}
    while True:
        connections = [
            cast("GuardedWebSocket", connection)
            for gateway in deployment.gateways
            for connection in gateway.web_server.server_state.connections
            if isinstance(connection, GuardedWebSocket)
        ]
        held_bytes = sum(map(count_held_bytes, connections)) + count_backlogs(deployment)
        assert held_bytes < HELD_BYTES_MAX, f"{held_bytes:,} bytes are held"
        blocked = {
            each: blocked.get(each) or Stopwatch()
            for each in connections
            if not each.writable.is_set()
        }
        assert all(stopwatch.elapsed_s < BLOCKED_S_MAX for stopwatch in blocked.values())
        await asyncio.sleep(0.01)


def count_held_bytes(connection: GuardedWebSocket) -> int:
    """Count the bytes that a connection has received or is to send, without the kernel's."""
    incoming = connection._received_bytes + connection._queued_bytes + connection.unread_bytes
    return incoming + connection.transport.get_write_buffer_size() + len(connection._corked_frames)


def count_backlogs(deployment: Deployment) -> int:
    closers = (
        cast("Any", entry.close_connection)
        for gateway in deployment.gateways
        for entry in gateway.registry.open_sessions
        if entry.close_connection is not None
    )
    connections = (cast("Connection", closer.__self__) for closer in closers)
    return sum(connection._outbox._backlog.size_bytes for connection in connections)


@asynccontextmanager
async def deployment_with_slow_link(folder: Path) -> AsyncIterator[SlowReading]:
    close = StarletteSocket.close
    closes: list[tuple[CloseCode, str]] = []

    async def record_close(socket: StarletteSocket, code: CloseCode, reason: str) -> None:
        closes.append((code, reason))
        await close(socket, code, reason)

    with (
        patch.object(StarletteSocket, "close", record_close),
        counted_outages() as outages,
    ):
        async with (
            running_deployment(folder) as deployment,
            Proxy(deployment.gateways[0].port, RECEIVE_BUFFER_BYTES).running() as proxy,
        ):
            yield SlowReading(deployment, proxy, outages, closes)


ROWS = (
    FaultRow(
        id="F12",
        fault="a client reads 1 KB/s of one answer, of five at once, of 900 items or of a snapshot",
        expectation="the gateway holds under 1 MiB; deltas are merged, or the connection is closed "
        "with 1013 within 5 s of its buffers being full and resumed exactly; other clients get "
        "their response",
        environment=deployment_with_slow_link,
        trial=read_slowly_without_outage,
        full_trials=100,
        quick_trials=2,
    ),
)
