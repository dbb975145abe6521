"""Resume after a lost connection: the client gets the same events, each once, from any cut."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.access import Credentials, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.state import SessionState
from tests.support.clients import JsonEvent
from tests.support.engines import EngineHarness
from tests.support.in_process_client import (
    InProcessClient,
    connect_client,
    normalized_events,
    resume_result,
)
from tests.support.sessions import SLOW_STEP_S, create_registry

pytestmark = pytest.mark.slow


@pytest.fixture
async def registry(harness: EngineHarness) -> AsyncIterator[Registry]:
    registry = await create_registry(harness)
    yield registry
    await registry.aclose()
    assert await harness.engine.fleet.list_sessions() == [], "no session is left open in the engine"


async def uninterrupted(registry: Registry) -> InProcessClient:
    """A client after two turns on one connection."""
    client = await connect_client(registry)
    for turn in (1, 2):
        client.send_message("hello", f"u{turn}")
        client.start_response(20)
        await client.socket.wait_for("rate_limits.updated", turn)
    await client.disconnect()
    return client


async def test_resume_after_any_event_replays_exactly_the_missed_events(registry: Registry) -> None:
    """After a cut at each event of two turns, the client has all events of an uncut connection."""
    client = await uninterrupted(registry)
    events = client.socket.sent
    for cut in range(1, len(events)):
        client.received = events[:cut]
        client.resume()
        await client.socket.wait_for("session.updated")
        await client.disconnect()
        assert resume_result(client.socket)["resumed"] == "exact"
        assert normalized_events(events[:cut] + client.socket.sent) == normalized_events(events), (
            events[cut - 1]
        )


async def test_item_added_during_a_response_keeps_its_place_after_resume(
    registry: Registry, harness: EngineHarness
) -> None:
    """The item stands after the response, which was open when the item was added."""
    harness.runner.step_s = SLOW_STEP_S
    client = await connect_client(registry)
    client.send_message("hello", "u1")
    client.start_response(400)
    client.send_message("and now?", "u2")
    await client.socket.wait_for("rate_limits.updated")
    await client.disconnect()
    events = client.socket.sent
    kinds = [event["type"] for event in events]
    (meanwhile,) = (n for n, e in enumerate(events) if _added_item_id(e) == "u2")
    assert meanwhile < kinds.index("response.done"), "the item was added during the response"
    for cut in range(1, len(events)):
        client.received = events[:cut]
        client.resume()
        await client.socket.wait_for("session.updated")
        await client.disconnect()
        places: list[str | None] = [None]
        for event in events[:cut] + client.socket.sent:
            if (item := _added_item_id(event)) is not None:
                places.insert(places.index(event["previous_item_id"]) + 1, item)
        assert places[1::2] == ["u1", "u2"], f"{places}, cut after {events[cut - 1]}"


def _added_item_id(event: JsonEvent) -> str | None:
    return event["item"]["id"] if event["type"] == "conversation.item.added" else None


async def test_repeated_resumes_deliver_each_event_once(registry: Registry) -> None:
    """The client receives only the first one to five events of each connection."""
    client = await uninterrupted(registry)
    events = client.socket.sent
    for seed in range(20):
        rng = random.Random(seed)
        client.received = events[: rng.randrange(1, 6)]
        while normalized_events(client.received) != normalized_events(events):
            client.resume()
            await client.socket.wait_for("session.updated")
            await client.disconnect()
            client.receive(rng.randrange(1, 6))
        ids = [event["event_id"] for event in client.received]
        assert len({*ids}) == len(ids), f"seed {seed}"


async def test_repeated_resumes_within_a_response_deliver_its_whole_text(
    registry: Registry,
) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        client = await connect_client(registry)
        client.send_message("hello", "u1")
        client.start_response(60)
        while not any(event["type"] == "response.done" for event in client.received):
            for _ in range(rng.randrange(40)):
                await asyncio.sleep(0)
            await client.disconnect()
            client.receive(rng.randrange(1, 12))
            if client.received:
                client.resume()
            else:
                client.connect()
                client.send_message("hello", "u1")
                client.start_response(60)
        await client.disconnect()
        deltas = [e["delta"] for e in client.received if e["type"] == "response.output_text.delta"]
        (done,) = (e for e in client.received if e["type"] == "response.output_text.done")
        assert "".join(deltas) == done["text"], f"seed {seed}"


@pytest.mark.parametrize("change", ["old epoch", "future", "future answer", "nothing"])
async def test_resume_from_an_unknown_event_id_sends_a_snapshot(
    registry: Registry, change: str
) -> None:
    client = await uninterrupted(registry)
    last = client.socket.sent[-1]["event_id"]
    client.receive(1)
    match change:
        case "old epoch":
            last = last.replace("event_", "event_f")
        case "future":
            last = "_".join(last.split("_")[:2]) + "_999-.1"
        case "future answer":
            last = last.partition("-")[0] + "_999.0.0.0"
        case _:
            last = None
    client.connect(ResumeRequest(client.session_id, last))
    await client.socket.wait_for("conversation.item.done", 4)
    resume = resume_result(client.socket)
    assert resume["resumed"] == "snapshot"
    assert resume["epoch"] != client.received[0]["session"]["resume"]["epoch"]
    kinds = [event["type"] for event in client.socket.sent[1:]]
    assert kinds == ["conversation.item.added", "conversation.item.done"] * 4
    await client.disconnect()
    client.resume(client.socket.sent[3]["event_id"])
    await client.socket.wait_for("conversation.item.done", 4)
    assert resume_result(client.socket)["resumed"] == "snapshot", "a cut snapshot is sent again"
    await client.disconnect()


async def test_cursor_of_another_session_gets_a_snapshot(registry: Registry) -> None:
    """Both sessions have the same events, at the same offsets."""
    client, other = await uninterrupted(registry), await uninterrupted(registry)
    tags = {client.socket.sent[-1]["event_id"].rpartition("~")[2] for client in (client, other)}
    assert len(tags) == 2
    own, foreign = (each.socket.sent[-4]["event_id"] for each in (client, other))
    client.receive()
    for last_event_id, resumed in ((own, "exact"), (foreign, "snapshot")):
        client.connect(ResumeRequest(client.session_id, last_event_id))
        await client.socket.wait_for("session.updated")
        assert resume_result(client.socket)["resumed"] == resumed
        await client.disconnect()


@pytest.mark.parametrize(
    ("resume_request", "code"),
    [
        (ResumeRequest("sess_nobody", "event_x"), "resume_gap"),
        (ResumeRequest("sess_nobody"), "session_not_found"),
    ],
)
async def test_resume_of_an_unknown_session_is_refused(
    registry: Registry, resume_request: ResumeRequest, code: str
) -> None:
    client = InProcessClient(registry)
    client.connect(resume_request)
    await client.wait_closed()
    assert [event["error"]["code"] for event in client.socket.sent] == [code]
    assert client.socket.closed is not None
    assert client.socket.closed[0] is CloseCode.POLICY_VIOLATION


async def test_one_of_a_hundred_concurrent_resumes_owns_the_session(registry: Registry) -> None:
    client = await uninterrupted(registry)
    client.receive()
    racers: list[InProcessClient] = []
    for _ in range(100):
        racer = InProcessClient(registry)
        racer.received = client.received[:]
        racer.resume()
        racers.append(racer)
    _, running = await asyncio.wait([r.run_task for r in racers if r.run_task], timeout=20)
    while len(running) > 1:
        await asyncio.sleep(0.01)
        running = {r.run_task for r in racers if r.run_task and not r.run_task.done()}
    (winner,) = (racer for racer in racers if racer.run_task in running)
    losers = [racer for racer in racers if racer is not winner]
    assert {r.socket.closed[0] for r in losers if r.socket.closed} == {CloseCode.SUPERSEDED}
    winner.send_message("still there?", "u9")
    await winner.socket.wait_for("conversation.item.done")
    assert len(registry) == 1
    await winner.disconnect()


@pytest.mark.parametrize("token", ["right", "wrong", "none"])
@pytest.mark.parametrize("tenant", ["", "somebody else"])
async def test_resume_needs_the_right_token_and_tenant(
    registry: Registry, token: str, tenant: str
) -> None:
    client = await uninterrupted(registry)
    client.receive()
    secret = client.received[0]["session"]["resume"]["token"]
    shown = {"right": secret, "wrong": "x" * 32, "none": None}[token]
    last = client.received[-1]["event_id"]
    client.connect(ResumeRequest(client.session_id, last, shown), Credentials(tenant=tenant))
    if token == "wrong" or tenant:
        await client.wait_closed()
        assert [e["error"]["code"] for e in client.socket.sent] == ["session_not_found"]
    else:
        await client.socket.wait_for("session.updated")
        await client.disconnect()


async def test_response_pauses_while_detached_and_continues_on_resume(
    harness: EngineHarness,
) -> None:
    harness.runner.step_s = 0.005
    registry = await create_registry(harness, Limits(detach_grace_s=0))
    client = await connect_client(registry)
    client.send_message("hello", "u1")
    client.start_response(200)
    await client.socket.wait_for("response.output_text.delta")
    await client.disconnect()
    client.receive()
    session = registry.find(client.session_id)
    assert session is not None
    await asyncio.sleep(0.1)
    tokens_drawn = (await harness.engine.fleet.stats()).tokens_drawn
    await asyncio.sleep(0.1)
    assert (await harness.engine.fleet.stats()).tokens_drawn == tokens_drawn, "generation is paused"
    assert session.state is SessionState.RESPONDING
    client.resume()
    await client.socket.wait_for("rate_limits.updated")
    assert resume_result(client.socket)["kv"] == "hot"
    client.receive()
    deltas = [e["delta"] for e in client.received if e["type"] == "response.output_text.delta"]
    (done,) = (e for e in client.received if e["type"] == "response.output_text.done")
    assert "".join(deltas) == done["text"]
    await client.disconnect()
    await registry.aclose()
