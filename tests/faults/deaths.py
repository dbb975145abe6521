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
from tests.faults.caller import ReconnectingClient
from tests.faults.cluster import TIMEOUT_FACTOR, Cluster, continue_and_close, running_cluster
from tests.faults.deployment import ExpectedConversation
from tests.faults.row import FaultRow
from tests.support.clients import JsonEvent
from tests.support.frames import upgrade_request
from tests.support.processes import wait_ready
from tests.support.web_servers import API_KEY

LONG_RESPONSE_TOKENS = 300
"""Length of a response that outlasts the fault."""
PROMPT_CHARS_MAX = 1500
"""Length of a prompt that is prefilled in at most 24 steps, at one id per character."""
STOP_DURATIONS_S = (30.0, 5.0)


def response_settings(tokens: int) -> dict[str, object]:
    return {"max_output_tokens": tokens, "ignore_eos": True}


async def start_expected_response(
    client: ReconnectingClient, expected: ExpectedConversation, tokens: int = LONG_RESPONSE_TOKENS
) -> tuple[str, str]:
    """Start a response. Returns its id and the expected text."""
    return await client.start_response(**response_settings(tokens)), expected.compute_response(
        tokens, ignore_eos=True
    )


# ---------------------------------------------------------------- engine killed


async def kill_engine(cluster: Cluster, rng: Random) -> None:
    """Kill the engine during a response, the prefill of a long prompt, and an idle session."""
    conversations = [await cluster.open_conversation() for _ in range(3)]
    (decoding, _), (prefilling, long_conversation), (idle, idle_conversation) = conversations
    for client, _ in conversations:
        include = {"type": "realtime", "include": ["response.interrupted"]}
        await client.send(type="session.update", session=include)
        await client.wait_for("session.updated")
    responses = [(decoding, *await start_expected_response(*conversations[0]))]
    await decoding.wait_deltas(rng.randrange(30))
    prompt = "".join(rng.choices("abcdefgh ", k=rng.randrange(1, PROMPT_CHARS_MAX)))
    await prefilling.add_message(prompt)
    long_conversation.add_user_message(prompt)
    responses.append(
        (prefilling, *await start_expected_response(prefilling, long_conversation, 60))
    )
    await asyncio.sleep(rng.uniform(0, 0.1))
    (child,) = cluster.engines[0].children()
    os.kill(child, signal.SIGKILL)
    async with asyncio.timeout(2 * TIMEOUT_FACTOR):
        await wait_ready(cluster.urls[0], 503)
        for client, response, _ in responses:
            await expect_interruption(client, response)
    for client, response, text in responses:
        assert await client.wait_response(response) == text, (
            "text lost or repeated after the restart"
        )
    await wait_ready(cluster.urls[0])
    await idle.add_message("and me?")
    idle_conversation.add_user_message("and me?")
    assert await idle.complete_response(max_output_tokens=20) == idle_conversation.compute_response(
        20
    )
    for client, expected in conversations:
        await continue_and_close(client, expected)
    await cluster.assert_balanced()


async def expect_interruption(client: ReconnectingClient, response: str) -> None:
    """Expect `response.interrupted` with the right offset, unless the response has ended."""
    if response in client.ended_responses:
        return
    event = await client.wait_for("response.interrupted", "response.done")
    if event["type"] == "response.interrupted":
        assert event["response_id"] == response
        assert event["upto"] == len(client.response_texts.get(response, ""))


# ---------------------------------------------------------------- engine stopped


async def stop_engines(cluster: Cluster, rng: Random) -> None:
    """Stop one or both of two engines for some seconds.

    With one stopped, its sessions continue on the other. With both stopped, new requests are
    refused and open responses continue once the engines run again.
    """
    stop_s = rng.choice(STOP_DURATIONS_S)
    stopped = rng.sample(cluster.engines, rng.randrange(1, 3))
    conversations = [await cluster.open_conversation() for _ in range(4)]
    idle, _ = conversations[3]
    responses = [
        (client, *await start_expected_response(client, expected))
        for client, expected in conversations[:3]
    ]
    await responses[0][0].wait_deltas(rng.randrange(20))
    children = [child for engine in stopped for child in engine.children()]
    for child in children:
        os.kill(child, signal.SIGSTOP)
    began_s = time.monotonic()
    try:
        if len(stopped) == len(cluster.engines):
            for url in cluster.urls:
                await wait_ready(url, 503, within_s=5 * TIMEOUT_FACTOR)
            error = await expect_refusal(idle)
            assert (error["code"], error["type"]) == ("engine_unavailable", "server_error")
        else:
            for client, response, text in responses:
                assert await client.wait_response(response) == text
        await asyncio.sleep(began_s + stop_s - time.monotonic())
    finally:
        for child in children:
            os.kill(child, signal.SIGCONT)
    for client, response, text in responses:
        assert await client.wait_response(response) == text, "text lost or repeated after SIGCONT"
    await cluster.wait_ready()
    for client, expected in conversations:
        await continue_and_close(client, expected)
    await cluster.assert_balanced()


async def expect_refusal(client: ReconnectingClient) -> JsonEvent:
    """Request a response, which must be refused at once. Returns the error."""
    await client.send(type="response.create", response=response_settings(6))
    async with asyncio.timeout(2 * TIMEOUT_FACTOR):
        while (event := await client.receive())["type"] != "error":
            assert event["type"] != "response.created", event
    return event["error"]


# ---------------------------------------------------------------- gateway killed


async def kill_gateway(cluster: Cluster, rng: Random) -> None:
    """Kill a gateway during responses and appends.

    In three of ten trials the gateway is first stopped. Its clients try in vain to reconnect, and
    resume on the other gateway; then the stopped gateway runs again without its sessions.
    """
    victim = rng.randrange(2)
    conversations = [await cluster.open_conversation(victim) for _ in range(4)]
    responses = [
        (client, *await start_expected_response(client, expected))
        for client, expected in conversations[:3]
    ]
    await responses[0][0].wait_deltas(rng.randrange(30))
    appending = asyncio.create_task(append_lines(*conversations[3]))
    await asyncio.sleep(rng.uniform(0, 0.05))
    gateway = cluster.gateways[victim]
    if rng.random() < 0.3:
        gateway.send_signal(signal.SIGSTOP)
        abandoned = [
            await abandon_resume(cluster.urls[victim], client, rng)
            for client, _ in conversations[:3]
        ]
        for client, _ in conversations[:3]:
            await client.reconnect()
        gateway.send_signal(signal.SIGCONT)
        await asyncio.sleep(rng.uniform(0, 1.0))
        for writer in abandoned:
            writer.close()
    gateway.send_signal(signal.SIGKILL)
    for client, response, text in responses:
        assert await client.wait_response(response) == text, (
            "text lost or repeated after the takeover"
        )
    await appending
    store = await open_store(cluster.redis.url, "normal")
    for client, expected in conversations:
        assert set(client.resume_outcomes) <= {"exact"}
        assert CloseCode.SUPERSEDED not in client.close_codes, "superseded without a newer link"
        assert await store.find(client.session_id) is not None
        await continue_and_close(client, expected)
    await store.aclose()
    await cluster.restart_gateway(victim)
    await cluster.wait_ready()
    await cluster.assert_balanced()


async def abandon_resume(url: str, client: ReconnectingClient, rng: Random) -> asyncio.StreamWriter:
    """Send a resume request to the stopped gateway; close the connection or leave it open."""
    target = urlsplit(url)
    _, writer = await asyncio.open_connection(target.hostname, target.port)
    path = f"{target.path}?session_id={client.session_id}&last_event_id={client.last_event_id}"
    writer.write(upgrade_request(path, Authorization=f"Bearer {API_KEY}"))
    await writer.drain()
    if rng.random() < 0.5:
        writer.close()
    return writer


async def append_lines(client: ReconnectingClient, expected: ExpectedConversation) -> None:
    for n in range(8):
        await client.add_message(f"line {n}")
        expected.add_user_message(f"line {n}")


def cluster_of_two_engines(folder: Path) -> AbstractAsyncContextManager[Cluster]:
    return running_cluster(folder, engines=2)


def cluster_of_two_gateways(folder: Path) -> AbstractAsyncContextManager[Cluster]:
    return running_cluster(folder, gateways=2)


ROWS = (
    FaultRow(
        id="F1",
        fault="kill -9 of the engine during the decode of one session and the prefill of another",
        expectation="the clients are notified, /ready is 503; the responses continue to the "
        "same end; no page leaks",
        environment=running_cluster,
        trial=kill_engine,
        full_trials=200,
        quick_trials=3,
    ),
    FaultRow(
        id="F2",
        fault="SIGSTOP of one or both engines for 5 or 30 s, then SIGCONT",
        expectation="with no engine left /ready is 503 and new responses are refused; no stale "
        "event is sent",
        environment=cluster_of_two_engines,
        trial=stop_engines,
        full_trials=20,
        quick_trials=1,
    ),
    FaultRow(
        id="F3",
        fault="kill -9 of a gateway during responses and appends, in some trials after SIGSTOP",
        expectation="on another gateway every client gets each event once; the responses continue",
        environment=cluster_of_two_gateways,
        trial=kill_gateway,
        full_trials=200,
        quick_trials=3,
    ),
)
