"""F5, F6, F8 and F10: Redis is stopped, killed, flushed or paused during a conversation."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

from tests.faults.caller import ReconnectingClient
from tests.faults.cluster import continue_and_close
from tests.faults.deployment import Deployment, ExpectedConversation, running_deployment
from tests.faults.row import FaultRow
from tests.faults.stopwatch import read_runnable_s
from tests.support.clients import RequestRefused, message_item
from tests.support.waiting import wait_until

LONG_RESPONSE_TOKENS = 300
"""Length of a response that outlasts the fault."""
TIMEOUT_FACTOR = 5
"""Multiple of every time bound that the tests allow, for a busy machine."""
LOOP_BLOCKED_S_MAX = 0.05 * TIMEOUT_FACTOR
OUTAGES_S, OUTAGE_WEIGHTS = (5.0, 60.0, 0.5), (12, 1, 12)


@contextmanager
def steps_outlasting(deployment: Deployment, fault_s: float) -> Iterator[None]:
    """Slow the steps down so that a long response outlasts the fault; afterwards at full speed."""
    deployment.engine_harness.runner.step_s = (fault_s + TIMEOUT_FACTOR) / LONG_RESPONSE_TOKENS
    try:
        yield
    finally:
        deployment.engine_harness.runner.step_s = 0


async def interrupt_redis(deployment: Deployment, rng: Random) -> None:
    """Stop or pause Redis for a while: the response continues, appends are refused in time."""
    (outage_s,) = rng.choices(OUTAGES_S, OUTAGE_WEIGHTS)
    client, expected = await open_conversation(deployment, rng.randrange(2))
    with steps_outlasting(deployment, outage_s):
        response = await client.start_response(
            max_output_tokens=LONG_RESPONSE_TOKENS, ignore_eos=True
        )
        text = expected.compute_response(LONG_RESPONSE_TOKENS, ignore_eos=True)
        await client.wait_deltas(rng.randrange(1, 10))
        await _outage(deployment, client, response, outage_s, paused=rng.random() < 0.5)
        assert response not in client.ended_responses, "the response ended before the fault"
    assert await client.wait_response(response) == text
    expected.add_user_message("are you there?")
    await continue_and_close(client, expected)


async def _outage(
    deployment: Deployment,
    client: ReconnectingClient,
    response: str,
    outage_s: float,
    *,
    paused: bool,
) -> None:
    if paused:
        deployment.redis.pause()
    else:
        deployment.redis.stop()
    began_s = time.monotonic()
    try:
        assert (
            await append_outcome(client, message_item("are you there?", "item_away"))
            == "store_unavailable"
        )
        assert time.monotonic() - began_s < 1.0 * TIMEOUT_FACTOR
        await _receive_more(client, response)
        await asyncio.sleep(began_s + outage_s - time.monotonic())
        await _receive_more(client, response)
    finally:
        if paused:
            deployment.redis.resume()
        else:
            await deployment.redis.start()
    began_s = time.monotonic()
    await client.add_message("are you there?", "item_away")
    assert time.monotonic() - began_s < 2.0 * TIMEOUT_FACTOR


async def _receive_more(client: ReconnectingClient, response: str) -> None:
    """Receive text of the response that was generated after this call."""
    await client.synchronize()
    before = len(client.response_texts[response])
    while len(client.response_texts[response]) == before:
        await client.receive()


async def kill_redis(deployments: tuple[Deployment, Deployment], rng: Random) -> None:
    """Kill Redis during appends: every accepted item is seen through the other gateway."""
    deployment = rng.choice(deployments)
    if deployment is deployments[0] and rng.random() < 0.5:
        await _lose_log_end(deployment, rng)
        return
    conversations = [await open_conversation(deployment, n % 2) for n in range(3)]
    restarting = asyncio.create_task(_kill_and_restart(deployment, rng.uniform(0, 0.1)))

    async def append_lines(client: ReconnectingClient, expected: ExpectedConversation) -> None:
        for n in range(6):
            await client.add_message(f"line {n}")
            expected.add_user_message(f"line {n}")

    await asyncio.gather(*(append_lines(*conversation) for conversation in conversations))
    await restarting
    for client, expected in conversations:
        await client.reconnect()
        await continue_and_close(client, expected)


async def _lose_log_end(deployment: Deployment, rng: Random) -> None:
    """Kill Redis and truncate its append-only file, as when its machine crashes.

    The end of the log is lost, with appends that it had confirmed. A client that resumes at another
    gateway gets a snapshot of the remaining items; a client that stays connected loses nothing.
    """
    conversations = [await open_conversation(deployment, n % 2) for n in range(3)]
    written = deployment.redis.append_log_bytes
    texts_by_item: list[dict[str, str]] = []
    for client, _ in conversations:
        lines = [f"line {n}" for n in range(rng.randrange(1, 6))]
        texts = {client.item_ids[0]: "hello"} | {
            await client.add_message(line): line for line in lines
        }
        texts_by_item.append(texts)
    # Redis replies before it writes its log while an earlier fsync is still in progress.
    await wait_until(lambda: deployment.redis.append_log_bytes > written, 10)
    deployment.redis.kill()
    deployment.redis.truncate_append_log(rng.randrange(written, deployment.redis.append_log_bytes))
    await deployment.redis.start()
    await check_items_after_loss(deployment, conversations, texts_by_item, rng)


async def check_items_after_loss(
    deployment: Deployment,
    conversations: list[tuple[ReconnectingClient, ExpectedConversation]],
    texts_by_item: list[dict[str, str]],
    rng: Random,
    wait_until_back: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Check what is left after the store has lost its last confirmed writes.

    `texts_by_item`: texts of all accepted messages of each conversation, by item id. A client that
    stays connected until the store is back loses nothing; one that resumes at another gateway
    before that has a prefix of its items, by a snapshot. `wait_until_back`: waits until no primary
    is left that a failover has replaced; what such a one still confirms is lost as well."""
    for (client, _), texts in zip(conversations, texts_by_item, strict=True):
        stays_connected = rng.random() < 0.5
        if stays_connected:
            texts[await client.add_message("still here")] = "still here"
            if wait_until_back is not None:
                await wait_until_back()
                texts[await client.add_message("and now")] = "and now"
        await client.reconnect()
        assert client.item_ids == [*texts][: len(client.item_ids)], "the items are no prefix"
        if stays_connected or client.resume_outcomes[-1] == "exact":
            assert client.item_ids == [*texts], "an item is missing"
        else:
            assert client.resume_outcomes[-1] == "snapshot", "items are missing without a snapshot"
        expected = deployment.expected_conversation()
        for item_id in client.item_ids:
            expected.add_user_message(texts[item_id])
        await continue_and_close(client, expected)


async def _kill_and_restart(deployment: Deployment, after_s: float) -> None:
    await asyncio.sleep(after_s)
    deployment.redis.kill()
    await deployment.redis.start()


async def flush_redis(deployment: Deployment, rng: Random) -> None:
    """FLUSHALL: all sessions are written again; a parked one is resumed at another gateway."""
    client, expected = await open_conversation(deployment, rng.randrange(2))
    parked, expected_of_parked = await open_conversation(deployment, 0)
    await parked.disconnect()
    response, text = None, ""
    if rng.random() < 0.7:
        response = await client.start_response(max_output_tokens=60)
        text = expected.compute_response(60)
        await client.wait_deltas(rng.randrange(1, 10))
    async with deployment.redis.client() as admin:
        await admin.flushall()
    if response is not None:
        assert await client.wait_response(response) == text
    await client.add_message("and now?")
    expected.add_user_message("and now?")
    assert await client.complete_response(max_output_tokens=6) == expected.compute_response(6)
    await client.reconnect()
    assert set(client.resume_outcomes) <= {"exact", "snapshot"}
    await continue_and_close(client, expected)
    items, parked.urls = list(parked.item_ids), deployment.urls[1:]
    await parked.reconnect()
    assert parked.refused_with <= {"store_unavailable"}
    assert parked.item_ids == items
    await continue_and_close(parked, expected_of_parked)


async def pause_redis(deployment: Deployment, rng: Random) -> None:
    """Pause the commands of Redis for a while: calls time out, the event loop is not blocked."""
    client, expected = await open_conversation(deployment, rng.randrange(2))
    pause_s = rng.uniform(2 * LOOP_BLOCKED_S_MAX, 2.0)
    with steps_outlasting(deployment, pause_s):
        response = await client.start_response(
            max_output_tokens=LONG_RESPONSE_TOKENS, ignore_eos=True
        )
        text = expected.compute_response(LONG_RESPONSE_TOKENS, ignore_eos=True)
        blocked_s = asyncio.create_task(_measure_blocked_s(pause_s))
        async with deployment.redis.client() as admin:
            await admin.execute_command("CLIENT", "PAUSE", int(pause_s * 1000), "ALL")
        await client.add_message("slow?", "item_slow")
        expected.add_user_message("slow?")
        assert await blocked_s < LOOP_BLOCKED_S_MAX, "Redis blocked the event loop"
        assert response not in client.ended_responses, "the response ended before the fault"
    assert await client.wait_response(response) == text
    await continue_and_close(client, expected)


async def _measure_blocked_s(during_s: float) -> float:
    """Longest time between two rounds of the event loop, less the time without a processor."""
    longest_s = 0.0
    began_s = last_s = time.monotonic()
    last_runnable_s = read_runnable_s()
    while last_s < began_s + during_s:
        await asyncio.sleep(0.001)
        now_s, runnable_s = time.monotonic(), read_runnable_s()
        longest_s = max(longest_s, now_s - last_s - (runnable_s - last_runnable_s))
        last_s, last_runnable_s = now_s, runnable_s
    return longest_s


async def open_conversation(
    deployment: Deployment, first: int
) -> tuple[ReconnectingClient, ExpectedConversation]:
    client, expected = deployment.create_client(first), deployment.expected_conversation()
    await client.connect()
    await client.add_message("hello")
    expected.add_user_message("hello")
    return client, expected


async def append_outcome(client: ReconnectingClient, message: dict[str, object]) -> str:
    """Append an item. Returns the code of the error, or "accepted"."""
    await client.send(type="conversation.item.create", item=message)
    try:
        await client.wait_for("conversation.item.added")
    except RequestRefused as error:
        return error.code
    return "accepted"


@asynccontextmanager
async def deployments_of_both_durabilities(
    folder: Path,
) -> AsyncIterator[tuple[Deployment, Deployment]]:
    always = ("--appendonly", "yes", "--appendfsync", "always")
    async with (
        running_deployment(folder / "normal") as normal,
        running_deployment(folder / "strict", redis=always, durability="strict") as strict,
    ):
        yield normal, strict


@asynccontextmanager
async def deployment_with_device_thread(folder: Path) -> AsyncIterator[Deployment]:
    async with running_deployment(folder, steps_ahead=1) as deployment:
        yield deployment


ROWS = (
    FaultRow(
        id="F5",
        fault="Redis killed, or paused, for 0.5 to 60 s of a response that takes longer",
        expectation="the response continues; appends are refused in time, none is lost; it "
        "recovers",
        environment=deployment_with_device_thread,
        trial=interrupt_redis,
        full_trials=50,
        quick_trials=2,
    ),
    FaultRow(
        id="F6",
        fault="Redis killed while three sessions append, everysec and always; with everysec the "
        "end of its log is lost as well, or not; restarted",
        expectation="everything accepted is stored once, as another gateway sees it; what the "
        "log has "
        "lost is written again by the gateway, or a snapshot has what is left, without a gap",
        environment=deployments_of_both_durabilities,
        trial=kill_redis,
        full_trials=100,
        quick_trials=3,
    ),
    FaultRow(
        id="F8",
        fault="FLUSHALL during a response and between responses",
        expectation="connected sessions continue; a parked one is resumed at another gateway, "
        "exactly or with a snapshot of everything",
        environment=running_deployment,
        trial=flush_redis,
        full_trials=20,
        quick_trials=3,
    ),
    FaultRow(
        id="F10",
        fault="Redis does not reply for up to 2 s (CLIENT PAUSE)",
        expectation="the event loop is not blocked, the response continues, nothing is lost",
        environment=deployment_with_device_thread,
        trial=pause_redis,
        full_trials=20,
        quick_trials=2,
    ),
)
