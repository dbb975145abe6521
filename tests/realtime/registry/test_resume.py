"""A session goes on after its connection: the same events, each once, wherever it was cut."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.access import Credentials, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.state import SessionState
from tests.support.engines import Bench
from tests.support.resuming import Client, Event, resumed, told
from tests.support.sessions import SLOW_S, registry_of


@pytest.fixture
async def registry(bench: Bench) -> AsyncIterator[Registry]:
    registry = await registry_of(bench)
    yield registry
    await registry.aclose()
    assert await bench.engine.list_sessions() == [], "nothing is left behind"


async def whole(registry: Registry) -> Client:
    """Two turns, uninterrupted."""
    client = Client(registry)
    client.connect()
    for turn in (1, 2):
        client.say(f"u{turn}", "hello")
        client.respond(20)
        await client.socket.until("rate_limits.updated", turn)
    await client.drop()
    return client


async def test_every_cut_is_mended(registry: Registry) -> None:
    """After each single event of two turns: what follows is what an uncut connection was told."""
    client = await whole(registry)
    events = client.socket.sent
    for cut in range(1, len(events)):
        client.seen = events[:cut]
        client.resume()
        await client.socket.until("session.updated")
        await client.drop()
        assert resumed(client.socket)["resumed"] == "exact"
        assert told(events[:cut] + client.socket.sent) == told(events), events[cut - 1]


async def test_what_is_said_meanwhile_keeps_its_place(registry: Registry, bench: Bench) -> None:
    """Behind the answer that was being made, which is told before it, wherever it was cut."""
    bench.runner.step_s = SLOW_S
    client = Client(registry)
    client.connect()
    client.say("u1", "hello")
    client.respond(400)
    client.say("u2", "and now?")
    await client.socket.until("rate_limits.updated")
    await client.drop()
    events = client.socket.sent
    kinds = [event["type"] for event in events]
    (meanwhile,) = (n for n, e in enumerate(events) if _adds(e) == "u2")
    assert meanwhile < kinds.index("response.done"), "it came while the answer was made"
    for cut in range(1, len(events)):
        client.seen = events[:cut]
        client.resume()
        await client.socket.until("session.updated")
        await client.drop()
        places: list[str | None] = [None]
        for event in events[:cut] + client.socket.sent:
            if (item := _adds(event)) is not None:
                places.insert(places.index(event["previous_item_id"]) + 1, item)
        assert places[1::2] == ["u1", "u2"], f"{places}, cut behind {events[cut - 1]}"


def _adds(event: Event) -> str | None:
    return event["item"]["id"] if event["type"] == "conversation.item.added" else None


async def test_cut_again_and_again(registry: Registry) -> None:
    """Of what each connection is told the client sees a part, down to nothing but the first."""
    client = await whole(registry)
    events = client.socket.sent
    for seed in range(20):
        chance = random.Random(seed)
        client.seen = events[: chance.randrange(1, 6)]
        while told(client.seen) != told(events):
            client.resume()
            await client.socket.until("session.updated")
            await client.drop()
            client.take(chance.randrange(1, 6))
        ids = [event["event_id"] for event in client.seen]
        assert len({*ids}) == len(ids), f"seed {seed}"


async def test_cut_within_an_answer(registry: Registry) -> None:
    for seed in range(6):
        chance = random.Random(seed)
        client = Client(registry)
        client.connect()
        client.say("u1", "hello")
        client.respond(60)
        while not any(event["type"] == "response.done" for event in client.seen):
            for _ in range(chance.randrange(40)):
                await asyncio.sleep(0)
            await client.drop()
            client.take(chance.randrange(1, 12))
            if client.seen:
                client.resume()
            else:
                client.connect()
                client.say("u1", "hello")
                client.respond(60)
        await client.drop()
        deltas = [e["delta"] for e in client.seen if e["type"] == "response.output_text.delta"]
        (done,) = (e for e in client.seen if e["type"] == "response.output_text.done")
        assert "".join(deltas) == done["text"], f"seed {seed}"


@pytest.mark.parametrize("change", ["old epoch", "future", "future answer", "nothing"])
async def test_what_cannot_be_told_exactly_is_a_snapshot(registry: Registry, change: str) -> None:
    client = await whole(registry)
    last = client.socket.sent[-1]["event_id"]
    client.take(1)
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
    await client.socket.until("conversation.item.done", 4)
    how = resumed(client.socket)
    assert how["resumed"] == "snapshot"
    assert how["epoch"] != client.seen[0]["session"]["resume"]["epoch"]
    kinds = [event["type"] for event in client.socket.sent[1:]]
    assert kinds == ["conversation.item.added", "conversation.item.done"] * 4
    await client.drop()
    client.resume(client.socket.sent[3]["event_id"])
    await client.socket.until("conversation.item.done", 4)
    assert resumed(client.socket)["resumed"] == "snapshot", "half of it was not all of it"
    await client.drop()


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (ResumeRequest("sess_nobody", "event_x"), "resume_gap"),
        (ResumeRequest("sess_nobody"), "session_not_found"),
    ],
)
async def test_nothing_to_come_back_to(registry: Registry, wish: ResumeRequest, code: str) -> None:
    client = Client(registry)
    client.connect(wish)
    await client.gone()
    assert [event["error"]["code"] for event in client.socket.sent] == [code]
    assert client.socket.closed is not None
    assert client.socket.closed[0] is CloseCode.POLICY_VIOLATION


async def test_a_hundred_racers_and_one_owner(registry: Registry) -> None:
    client = await whole(registry)
    client.take()
    racers: list[Client] = []
    for _ in range(100):
        racer = Client(registry)
        racer.seen = client.seen[:]
        racer.resume()
        racers.append(racer)
    _, left = await asyncio.wait([r.running for r in racers if r.running], timeout=20)
    while len(left) > 1:
        await asyncio.sleep(0.01)
        left = {r.running for r in racers if r.running and not r.running.done()}
    (winner,) = (racer for racer in racers if racer.running in left)
    losers = [racer for racer in racers if racer is not winner]
    assert {r.socket.closed[0] for r in losers if r.socket.closed} == {CloseCode.SUPERSEDED}
    winner.say("u9", "still there?")
    await winner.socket.until("conversation.item.done")
    assert len(registry) == 1
    await winner.drop()


@pytest.mark.parametrize("token", ["right", "wrong", "none"])
@pytest.mark.parametrize("tenant", ["", "somebody else"])
async def test_who_may_come_back(registry: Registry, token: str, tenant: str) -> None:
    client = await whole(registry)
    client.take()
    secret = client.seen[0]["session"]["resume"]["token"]
    shown = {"right": secret, "wrong": "x" * 32, "none": None}[token]
    last = client.seen[-1]["event_id"]
    client.connect(ResumeRequest(client.session_id, last, shown), Credentials(tenant=tenant))
    if token == "wrong" or tenant:
        await client.gone()
        assert [e["error"]["code"] for e in client.socket.sent] == ["session_not_found"]
    else:
        await client.socket.until("session.updated")
        await client.drop()


async def test_an_answer_pauses_and_goes_on(bench: Bench) -> None:
    bench.runner.step_s = 0.005
    registry = await registry_of(bench, Limits(detach_grace_s=0))
    client = Client(registry)
    client.connect()
    client.say("u1", "hello")
    client.respond(200)
    await client.socket.until("response.output_text.delta")
    await client.drop()
    client.take()
    session = registry.find(client.session_id)
    assert session is not None
    await asyncio.sleep(0.1)
    drawn = (await bench.engine.stats()).tokens_drawn
    await asyncio.sleep(0.1)
    assert (await bench.engine.stats()).tokens_drawn == drawn, "it pauses"
    assert session.state is SessionState.RESPONDING
    client.resume()
    await client.socket.until("rate_limits.updated")
    assert resumed(client.socket)["kv"] == "hot"
    client.take()
    deltas = [e["delta"] for e in client.seen if e["type"] == "response.output_text.delta"]
    (done,) = (e for e in client.seen if e["type"] == "response.output_text.done")
    assert "".join(deltas) == done["text"]
    await client.drop()
    await registry.aclose()
