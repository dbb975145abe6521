"""F5, F6, F8 and F10: Redis is stopped, killed, flushed or paused during a conversation."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

from tests.faults.caller import Caller, Refused, item
from tests.faults.cluster import goes_on
from tests.faults.deployment import Expected, House, house
from tests.faults.row import Row

LONG = 300
"""Length of a response that outlasts the fault."""
SLACK = 5
"""Multiple of every time bound that the tests allow, for a busy machine."""
HELD_S_MAX = 0.05 * SLACK
SCHEDULED = Path("/proc/thread-self/schedstat")
AWAY_S, AWAY_WEIGHTS = (5.0, 60.0, 0.5), (12, 1, 12)


@contextmanager
def longer_than(deployment: House, fault_s: float) -> Iterator[None]:
    """Slow the steps down so that a long response outlasts the fault; afterwards at full speed."""
    deployment.bench.runner.step_s = (fault_s + SLACK) / LONG
    try:
        yield
    finally:
        deployment.bench.runner.step_s = 0


async def away(deployment: House, rng: Random) -> None:
    """Stop or pause Redis for a while: the response continues, appends are refused in time."""
    (outage_s,) = rng.choices(AWAY_S, AWAY_WEIGHTS)
    client, expected = await talking(deployment, rng.randrange(2))
    with longer_than(deployment, outage_s):
        response = await client.begin(max_output_tokens=LONG, ignore_eos=True)
        text = expected.answer(LONG, ignore_eos=True)
        await client.deltas(rng.randrange(1, 10))
        await _outage(deployment, client, response, outage_s, paused=rng.random() < 0.5)
        assert response not in client.ended, "the response ended before the fault"
    assert await client.end(response) == text
    expected.say("are you there?")
    await goes_on(client, expected)


async def _outage(
    deployment: House, client: Caller, response: str, outage_s: float, *, paused: bool
) -> None:
    if paused:
        deployment.redis.pause()
    else:
        deployment.redis.stop()
    began_s = time.monotonic()
    try:
        assert await refusal(client, item("item_away", "are you there?")) == "store_unavailable"
        assert time.monotonic() - began_s < 1.0 * SLACK
        await _receive_more(client, response)
        await asyncio.sleep(began_s + outage_s - time.monotonic())
        await _receive_more(client, response)
    finally:
        if paused:
            deployment.redis.go_on()
        else:
            await deployment.redis.start()
    began_s = time.monotonic()
    await client.say("are you there?", "item_away")
    assert time.monotonic() - began_s < 2.0 * SLACK


async def _receive_more(client: Caller, response: str) -> None:
    """Receive text of the response that was generated after this call."""
    await client.settle()
    before = len(client.said[response])
    while len(client.said[response]) == before:
        await client.hear()


async def died(deployments: tuple[House, House], rng: Random) -> None:
    """Kill Redis during appends: every accepted item is seen through the other gateway."""
    deployment = rng.choice(deployments)
    if deployment is deployments[0] and rng.random() < 0.5:
        await _lose_log_end(deployment, rng)
        return
    conversations = [await talking(deployment, n % 2) for n in range(3)]
    restarting = asyncio.create_task(_kill_and_restart(deployment, rng.uniform(0, 0.1)))

    async def append_lines(client: Caller, expected: Expected) -> None:
        for n in range(6):
            await client.say(f"line {n}")
            expected.say(f"line {n}")

    await asyncio.gather(*(append_lines(*conversation) for conversation in conversations))
    await restarting
    for client, expected in conversations:
        await client.come_back()
        await goes_on(client, expected)


async def _lose_log_end(deployment: House, rng: Random) -> None:
    """Kill Redis and truncate its append-only file, as when its machine crashes.

    The end of the log is lost, with appends that it had confirmed. A client that resumes at another
    gateway gets a snapshot of the remaining items; a client that stays connected loses nothing.
    """
    conversations = [await talking(deployment, n % 2) for n in range(3)]
    written = deployment.redis.written
    texts_by_item: list[dict[str, str]] = []
    for client, _ in conversations:
        lines = [f"line {n}" for n in range(rng.randrange(1, 6))]
        texts = {client.items[0]: "hello"} | {await client.say(line): line for line in lines}
        texts_by_item.append(texts)
    assert deployment.redis.written > written
    deployment.redis.kill()
    deployment.redis.lose(rng.randrange(written, deployment.redis.written))
    await deployment.redis.start()
    for (client, _), texts in zip(conversations, texts_by_item, strict=True):
        stays_connected = rng.random() < 0.5
        if stays_connected:
            texts[await client.say("still here")] = "still here"
        await client.come_back()
        assert client.items == [*texts][: len(client.items)], "the items are no prefix"
        if stays_connected or client.resumed[-1] == "exact":
            assert client.items == [*texts], "an item is missing"
        else:
            assert client.resumed[-1] == "snapshot", "items are missing without a snapshot"
        expected = deployment.expected()
        for item_id in client.items:
            expected.say(texts[item_id])
        await goes_on(client, expected)


async def _kill_and_restart(deployment: House, after_s: float) -> None:
    await asyncio.sleep(after_s)
    deployment.redis.kill()
    await deployment.redis.start()


async def forgot(deployment: House, rng: Random) -> None:
    """FLUSHALL: a loaded session is written again; a parked one gets a snapshot or an error."""
    client, expected = await talking(deployment, rng.randrange(2))
    parked, _ = await talking(deployment, 0)
    await parked.drop()
    response, text = None, ""
    if rng.random() < 0.7:
        response = await client.begin(max_output_tokens=60)
        text = expected.answer(60)
        await client.deltas(rng.randrange(1, 10))
    async with deployment.redis.client() as admin:
        await admin.flushall()
    if response is not None:
        assert await client.end(response) == text
    await client.say("and now?")
    expected.say("and now?")
    assert await client.answer(max_output_tokens=6) == expected.answer(6)
    await client.come_back()
    assert set(client.resumed) <= {"exact", "snapshot"}
    await goes_on(client, expected)
    parked.turn = 1
    event = await parked.connect()
    if event["type"] == "error":
        assert event["error"]["code"] == "session_not_found"
        assert await parked.close_code() == 1008
    await parked.drop()


async def slow(deployment: House, rng: Random) -> None:
    """Pause the commands of Redis for a while: calls time out, the event loop is not blocked."""
    client, expected = await talking(deployment, rng.randrange(2))
    pause_s = rng.uniform(2 * HELD_S_MAX, 2.0)
    with longer_than(deployment, pause_s):
        response = await client.begin(max_output_tokens=LONG, ignore_eos=True)
        text = expected.answer(LONG, ignore_eos=True)
        blocked_s = asyncio.create_task(_measure_blocked_s(pause_s))
        async with deployment.redis.client() as admin:
            await admin.execute_command("CLIENT", "PAUSE", int(pause_s * 1000), "ALL")
        await client.say("slow?", "item_slow")
        expected.say("slow?")
        assert await blocked_s < HELD_S_MAX, "Redis blocked the event loop"
        assert response not in client.ended, "the response ended before the fault"
    assert await client.end(response) == text
    await goes_on(client, expected)


async def _measure_blocked_s(during_s: float) -> float:
    """Longest time between two rounds of the event loop, less the time without a processor."""
    longest_s = 0.0
    began_s = last_s = time.monotonic()
    last_runnable_s = _read_runnable_s()
    while last_s < began_s + during_s:
        await asyncio.sleep(0.001)
        now_s, runnable_s = time.monotonic(), _read_runnable_s()
        longest_s = max(longest_s, now_s - last_s - (runnable_s - last_runnable_s))
        last_s, last_runnable_s = now_s, runnable_s
    return longest_s


def _read_runnable_s() -> float:
    """Seconds that this thread has waited for a processor since it started."""
    return int(SCHEDULED.read_text().split()[1]) / 1e9


async def talking(deployment: House, first: int) -> tuple[Caller, Expected]:
    client, expected = deployment.caller(first), deployment.expected()
    await client.connect()
    await client.say("hello")
    expected.say("hello")
    return client, expected


async def refusal(client: Caller, message: dict[str, object]) -> str:
    """Append an item. Returns the code of the error, or "accepted"."""
    await client.send(type="conversation.item.create", item=message)
    try:
        await client.until("conversation.item.added")
    except Refused as error:
        return error.code
    return "accepted"


@asynccontextmanager
async def both_durabilities(folder: Path) -> AsyncIterator[tuple[House, House]]:
    always = ("--appendonly", "yes", "--appendfsync", "always")
    async with (
        house(folder / "normal") as normal,
        house(folder / "strict", redis=always, durability="strict") as strict,
    ):
        yield normal, strict


@asynccontextmanager
async def beside_its_device(folder: Path) -> AsyncIterator[House]:
    async with house(folder, steps_ahead=1) as deployment:
        yield deployment


ROWS = (
    Row(
        id="F5",
        fault="Redis stopped, or asleep, for 0.5 to 60 s of an answer that takes longer",
        passes="the answer goes on; appends are refused in time, none is lost; it recovers",
        world=beside_its_device,
        trial=away,
        full=50,
        few=2,
    ),
    Row(
        id="F6",
        fault="Redis killed while three sessions append, everysec and always; with everysec the "
        "end of its log is lost as well, or not; started again",
        passes="all that was accepted is there, once, seen from another gateway; what its log has "
        "lost is given again by its gateway, or a snapshot says what is left, without a hole",
        world=both_durabilities,
        trial=died,
        full=100,
        few=3,
    ),
    Row(
        id="F8",
        fault="FLUSHALL during an answer and between answers",
        passes="who is there goes on; who comes back is told a snapshot, or that it is gone",
        world=house,
        trial=forgot,
        full=20,
        few=3,
    ),
    Row(
        id="F10",
        fault="Redis answers nobody for up to 2 s (CLIENT PAUSE)",
        passes="the event loop is not held up, the answer goes on, nothing is lost",
        world=beside_its_device,
        trial=slow,
        full=20,
        few=2,
    ),
)
