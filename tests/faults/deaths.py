"""F1 to F3: an engine or a gateway is killed or stopped during several conversations."""

import asyncio
import os
import signal
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.store import open_store
from tests.faults.caller import Caller, Event
from tests.faults.cluster import TIMES, Town, goes_on, town
from tests.faults.deployment import Expected
from tests.faults.row import Row
from tests.support.frames import upgrade
from tests.support.processes import until_ready
from tests.support.web_servers import KEY

LONG = 300
"""Length of a response that outlasts the fault."""
PROMPT_CHARS = 1500
"""Length of a prompt that is prefilled in at most 24 steps, at one id per character."""
STOPS_S = (30.0, 5.0)


def wish(tokens: int) -> dict[str, object]:
    return {"max_output_tokens": tokens, "ignore_eos": True}


async def begun(client: Caller, expected: Expected, tokens: int = LONG) -> tuple[str, str]:
    """Start a response. Returns its id and the expected text."""
    return await client.begin(**wish(tokens)), expected.answer(tokens, ignore_eos=True)


# ---------------------------------------------------------------- engine killed


async def engine_killed(cluster: Town, rng: Random) -> None:
    """Kill the engine during a response, the prefill of a long prompt, and an idle session."""
    conversations = [await cluster.talking() for _ in range(3)]
    (decoding, _), (prefilling, long_conversation), (idle, idle_conversation) = conversations
    for client, _ in conversations:
        include = {"type": "realtime", "include": ["response.interrupted"]}
        await client.send(type="session.update", session=include)
        await client.until("session.updated")
    responses = [(decoding, *await begun(*conversations[0]))]
    await decoding.deltas(rng.randrange(30))
    prompt = "".join(rng.choices("abcdefgh ", k=rng.randrange(1, PROMPT_CHARS)))
    await prefilling.say(prompt)
    long_conversation.say(prompt)
    responses.append((prefilling, *await begun(prefilling, long_conversation, 60)))
    await asyncio.sleep(rng.uniform(0, 0.1))
    (child,) = cluster.engines[0].children()
    os.kill(child, signal.SIGKILL)
    async with asyncio.timeout(2 * TIMES):
        await until_ready(cluster.urls[0], 503)
        for client, response, _ in responses:
            await told(client, response)
    for client, response, text in responses:
        assert await client.end(response) == text, "text lost or repeated after the restart"
    await until_ready(cluster.urls[0])
    await idle.say("and me?")
    idle_conversation.say("and me?")
    assert await idle.answer(max_output_tokens=20) == idle_conversation.answer(20)
    for client, expected in conversations:
        await goes_on(client, expected)
    await cluster.balanced()


async def told(client: Caller, response: str) -> None:
    """Expect `response.interrupted` with the right offset, or the end of the response."""
    event = await client.until("response.interrupted", "response.done")
    if event["type"] == "response.interrupted":
        assert event["response_id"] == response
        assert event["upto"] == len(client.said.get(response, ""))


# ---------------------------------------------------------------- engine stopped


async def engine_stopped(cluster: Town, rng: Random) -> None:
    """Stop one or both of two engines for some seconds.

    With one stopped, its sessions continue on the other. With both stopped, new requests are
    refused and open responses continue once the engines run again.
    """
    stop_s = rng.choice(STOPS_S)
    stopped = rng.sample(cluster.engines, rng.randrange(1, 3))
    conversations = [await cluster.talking() for _ in range(4)]
    idle, _ = conversations[3]
    responses = [(client, *await begun(client, expected)) for client, expected in conversations[:3]]
    await responses[0][0].deltas(rng.randrange(20))
    children = [child for engine in stopped for child in engine.children()]
    for child in children:
        os.kill(child, signal.SIGSTOP)
    began_s = time.monotonic()
    try:
        if len(stopped) == len(cluster.engines):
            for url in cluster.urls:
                await until_ready(url, 503, within_s=5 * TIMES)
            error = await refused(idle)
            assert (error["code"], error["type"]) == ("engine_unavailable", "server_error")
        else:
            for client, response, text in responses:
                assert await client.end(response) == text
        await asyncio.sleep(began_s + stop_s - time.monotonic())
    finally:
        for child in children:
            os.kill(child, signal.SIGCONT)
    for client, response, text in responses:
        assert await client.end(response) == text, "text lost or repeated after SIGCONT"
    await cluster.ready()
    for client, expected in conversations:
        await goes_on(client, expected)
    await cluster.balanced()


async def refused(client: Caller) -> Event:
    """Request a response, which must be refused at once. Returns the error."""
    await client.send(type="response.create", response=wish(6))
    async with asyncio.timeout(2 * TIMES):
        while (event := await client.hear())["type"] != "error":
            assert event["type"] != "response.created", event
    return event["error"]


# ---------------------------------------------------------------- gateway killed


async def gateway_killed(cluster: Town, rng: Random) -> None:
    """Kill a gateway during responses and appends.

    In three of ten trials the gateway is first stopped. Its clients try in vain to reconnect, and
    resume on the other gateway; then the stopped gateway runs again without its sessions.
    """
    victim = rng.randrange(2)
    conversations = [await cluster.talking(victim) for _ in range(4)]
    responses = [(client, *await begun(client, expected)) for client, expected in conversations[:3]]
    await responses[0][0].deltas(rng.randrange(30))
    appending = asyncio.create_task(writes(*conversations[3]))
    await asyncio.sleep(rng.uniform(0, 0.05))
    gateway = cluster.gateways[victim]
    if rng.random() < 0.3:
        gateway.send(signal.SIGSTOP)
        abandoned = [
            await in_vain(cluster.urls[victim], client, rng) for client, _ in conversations[:3]
        ]
        for client, _ in conversations[:3]:
            await client.come_back()
        gateway.send(signal.SIGCONT)
        await asyncio.sleep(rng.uniform(0, 1.0))
        for writer in abandoned:
            writer.close()
    gateway.send(signal.SIGKILL)
    for client, response, text in responses:
        assert await client.end(response) == text, "text lost or repeated after the takeover"
    await appending
    store = await open_store(cluster.redis.url, "normal")
    for client, expected in conversations:
        assert set(client.resumed) <= {"exact"}
        assert CloseCode.SUPERSEDED not in client.codes, "superseded without a newer link"
        assert await store.find(client.session) is not None
        await goes_on(client, expected)
    await store.aclose()
    await cluster.gateway_again(victim)
    await cluster.ready()
    await cluster.balanced()


async def in_vain(url: str, client: Caller, rng: Random) -> asyncio.StreamWriter:
    """Send a resume request to the stopped gateway; close the connection or leave it open."""
    target = urlsplit(url)
    _, writer = await asyncio.open_connection(target.hostname, target.port)
    path = f"{target.path}?session_id={client.session}&last_event_id={client.last}"
    writer.write(upgrade(path, Authorization=f"Bearer {KEY}"))
    await writer.drain()
    if rng.random() < 0.5:
        writer.close()
    return writer


async def writes(client: Caller, expected: Expected) -> None:
    for n in range(8):
        await client.say(f"line {n}")
        expected.say(f"line {n}")


def engines(folder: Path) -> AbstractAsyncContextManager[Town]:
    return town(folder, engines=2)


def gateways(folder: Path) -> AbstractAsyncContextManager[Town]:
    return town(folder, gateways=2)


ROWS = (
    Row(
        id="F1",
        fault="kill -9 of the engine while one is answered and another's prompt is read",
        passes="they are told, /ready says so; the answers go on to the same end; no page is lost",
        world=town,
        trial=engine_killed,
        full=200,
        few=3,
    ),
    Row(
        id="F2",
        fault="SIGSTOP of one or both engines for 5 or 30 s, then SIGCONT",
        passes="with none left /ready says so and nobody new is answered; nothing stale is told",
        world=engines,
        trial=engine_stopped,
        full=20,
        few=1,
    ),
    Row(
        id="F3",
        fault="kill -9 of a gateway in the middle of answers and appends, perhaps after SIGSTOP",
        passes="on another one every client has all of it, once; the answers go on",
        world=gateways,
        trial=gateway_killed,
        full=200,
        few=3,
    ),
)
