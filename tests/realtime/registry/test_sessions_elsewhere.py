"""A session is looked at, ended and forked at a gateway that does not have it: another has, or
nobody but the store."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from continuo.engine import EngineClient
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.protocol.commands import AddItem
from continuo.realtime.protocol.events import ItemAdded
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import Credentials, ForkRequest, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.session.status import SessionStatus
from continuo.realtime.store import Store, open_store
from tests.engine.server.test_several_gateways import front
from tests.realtime.server.auth.test_tenants import ONE, TWO, answer, ask, opened, say
from tests.support.digest_runner import oracle
from tests.support.engines import Bench
from tests.support.resuming import Client, resumed
from tests.support.sessions import Ears, Talk, message
from tests.support.web_servers import Running, closed, first, serving

NEVER_S = 3600.0
"""Between two looks whether a session is still ours: it is learnt in another way."""


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return request.getfixturevalue("redis").url


@pytest.fixture
async def stores(url: str) -> AsyncIterator[tuple[Store, Store]]:
    """As two gateways see one."""
    one, two = await open_store(url), await open_store(url)
    yield one, two
    await one.aclose()
    await two.aclose()


@pytest.fixture
async def engines(bench: Bench) -> AsyncIterator[tuple[EngineClient, EngineClient]]:
    """As two gateways see one."""
    port = await bench.listen()
    async with front(port) as one, front(port) as two:
        yield one, two
        await is_empty(bench)
        stats = await one.stats()
        assert stats.pages_free + stats.pages_tree == stats.pages_total, "nothing is left behind"


Gates = tuple[Registry, Registry]


@pytest.fixture
async def gates(
    stores: tuple[Store, Store], engines: tuple[EngineClient, EngineClient]
) -> AsyncIterator[Gates]:
    """Neither looks by itself."""
    one, two = (gate(engine, store) for engine, store in zip(engines, stores, strict=True))
    async with one.running(), two.running():
        yield one, two


def gate(engine: EngineClient, store: Store) -> Registry:
    template = engine.text.template
    assert template is not None
    return Registry(engine, template, GenerationSettings(), Limits(sweep_interval_s=NEVER_S), store)


async def is_empty(bench: Bench) -> None:
    """In the end, no session is open in the engine."""
    async with asyncio.timeout(20):
        while await bench.engine.list_sessions():
            await asyncio.sleep(0.005)


async def talked(registry: Registry) -> Client:
    """Somebody who has had an answer of five ids."""
    client = Client(registry)
    client.connect()
    client.say("u1", "hello")
    client.respond(5)
    await client.socket.until("rate_limits.updated")
    client.take()
    return client


def of(status: SessionStatus | None) -> tuple[int, int, str]:
    assert status is not None
    return status.items, status.tokens, status.kv.place


async def test_it_is_looked_at(gates: Gates) -> None:
    client = await talked(gates[0])
    here = of(await gates[0].status(client.session_id, ""))
    assert here[::2] == (2, "device")
    assert of(await gates[1].status(client.session_id, "")) == here
    await client.drop()
    await gates[0].aclose()
    alone = await gates[1].status(client.session_id, "")
    assert of(alone) == (*here[:2], "none"), "it is in the store alone"
    assert len(gates[0].list_sessions("")) == len(gates[1].list_sessions("")) == 0, (
        "looking takes nothing over"
    )
    assert await gates[1].delete(client.session_id, "")


async def test_what_went_away_is_not_seen_as_it_was(gates: Gates) -> None:
    client = await talked(gates[0])
    client.registry = gates[1]
    client.resume()
    await client.socket.until("session.updated")
    client.say("u2", "more")
    await client.socket.until("conversation.item.done")
    for registry in gates:
        assert of(await registry.status(client.session_id, ""))[0] == 3
    await client.drop()
    assert await gates[1].delete(client.session_id, "")


async def test_an_answer_is_seen_at_the_other(gates: Gates, bench: Bench) -> None:
    bench.runner.step_s = 0.005
    client = await talked(gates[0])
    client.respond(60)
    await client.socket.until("response.created", 2)
    for registry in gates:
        status = await registry.status(client.session_id, "")
        assert status is not None
        assert status.state == "answering"
    assert await gates[1].delete(client.session_id, "")
    await client.gone()


async def is_nowhere(gates: Gates, name: str) -> None:
    for registry in gates:
        assert registry.find(name) is None
        assert await registry.status(name, "") is None
        assert not await registry.delete(name, "")
        with pytest.raises(Refusal) as caught:
            await registry.resume(
                ResumeRequest(name), Ears(), Credentials(), lambda code, reason: None
            )
        assert caught.value.code == "session_not_found"


@pytest.mark.parametrize("tokens", [0, 200])
async def test_it_is_ended_while_another_gateway_has_it(
    gates: Gates, bench: Bench, tokens: int
) -> None:
    """Idle, or within an answer, which stops."""
    bench.runner.step_s = 0.002
    client = await talked(gates[0])
    if tokens:
        client.respond(tokens)
        await client.socket.until("response.created", 2)
    assert await gates[1].delete(client.session_id, "")
    if not tokens:
        client.say("u2", "is anybody there?")  # nothing else tells it: it does not look
    await client.gone()
    assert client.socket.closed is not None
    assert client.socket.closed[0] is CloseCode.CLOSED_BY_OPERATOR
    assert "is anybody there?" not in json.dumps(client.socket.sent)
    await is_nowhere(gates, client.session_id)


async def test_what_was_ended_does_not_come_back(gates: Gates, bench: Bench) -> None:
    """Whoever still has it writes late, and its engine has lost it: it would be given again to a
    store that had lost it too."""
    ears = Ears()
    session = await gates[0].open(ears)
    talk = Talk(session, ears, bench)
    await session.execute(AddItem(message("u1", "hello")))
    assert await gates[1].delete(session.id, "")
    await is_empty(bench)
    for name in ("u2", "u3"):
        with pytest.raises(Refusal) as caught:
            await session.execute(AddItem(message(name, "late")))
        assert caught.value.code == "session_ended"
    with pytest.raises(Refusal):
        await talk.respond()
    await session.unload()
    await is_nowhere(gates, session.id)


async def test_it_is_ended_in_the_store_alone(gates: Gates) -> None:
    client = await talked(gates[0])
    await client.drop()
    await gates[0].aclose()
    assert not await gates[1].delete(client.session_id, "umbrella")
    assert await gates[1].delete(client.session_id, "")
    await is_nowhere(gates, client.session_id)


async def test_a_fork_of_what_another_gateway_has(gates: Gates, bench: Bench) -> None:
    bench.runner.step_s = 0.002
    client = await talked(gates[0])
    client.respond(100)
    await client.socket.until("response.output_text.delta", 10)
    names = [item.id for item in _conversation(gates[0], client).items()]
    for at, kept in ((None, 2), ("u1", 1)):
        ears = Ears()
        fork = ForkRequest(client.session_id, at)
        talk = Talk(await gates[1].open(ears, fork=fork), ears, bench)
        added = [tell.item.id for tell in ears.heard if isinstance(tell, ItemAdded)]
        assert added == names[:kept]
        await talk.turn()
        await gates[1].close(talk.session)
    await client.socket.until("rate_limits.updated", 2)
    spans = _conversation(gates[0], client).spans
    asked, header = _conversation(gates[0], client).up_to_item(names[1]).render_header()
    assert spans[-1].sampled_ids == tuple(oracle(asked.ids() + header, 100, stop_ids=[0]))
    for stranger in (ForkRequest("sess_x"), ForkRequest(client.session_id)):
        guest = Credentials("umbrella" if stranger.session_id != "sess_x" else "")
        with pytest.raises(Refusal) as caught:
            await gates[1].open(Ears(), credentials=guest, fork=stranger)
        assert caught.value.code == "session_not_found"
    with pytest.raises(Refusal) as caught:
        await gates[1].open(Ears(), fork=ForkRequest(client.session_id, "nobody"))
    assert caught.value.code == "item_fork_invalid_item_id"
    await client.drop()
    client.resume(client.socket.sent[-1]["event_id"])
    await client.socket.until("session.updated")
    assert resumed(client.socket)["resumed"] == "exact", "it was not disturbed"
    await client.drop()
    await gates[0].delete(client.session_id, "")


def _conversation(registry: Registry, client: Client) -> Conversation:
    session = registry.find(client.session_id)
    assert session is not None
    return session.conversation


# ---------------------------------------------------------------- over the wire


@pytest.fixture
async def servers(
    stores: tuple[Store, Store], engines: tuple[EngineClient, EngineClient]
) -> AsyncIterator[tuple[Running, Running]]:
    tenants = {"key-one": "acme", "key-two": "umbrella"}
    names, limits = ("demo",), Limits(sweep_interval_s=NEVER_S)
    settings = GatewaySettings(tenants=tenants, served_model_name=names, limits=limits)
    async with (
        serving(engines[0], settings, stores[0]) as one,
        serving(engines[1], settings, stores[1]) as two,
    ):
        yield one, two


async def test_over_http(servers: tuple[Running, Running]) -> None:
    """An idle one, too, hears at once that it was ended."""
    one, two = servers
    async with connect(one.url, additional_headers=ONE) as socket:
        name = (await opened(socket))["id"]
        await say(socket, "hello")
        await answer(socket)
        path = f"/v1/realtime/sessions/{name}"
        for running in servers:
            status, found = await ask(running, "GET", path)
            assert (status, found["id"], found["items"]) == (200, name, 2)
            assert (found["state"], found["kv"]["place"]) == ("idle", "device")
        for method in ("GET", "DELETE"):
            theirs = await ask(two, method, path, headers=TWO)
            unknown = await ask(two, method, "/v1/realtime/sessions/sess_x", headers=TWO)
            assert theirs[0] == unknown[0] == 404
            assert json.dumps(theirs[1]).replace(name, "sess_x") == json.dumps(unknown[1])
        async with connect(f"{two.url}?fork={name}", additional_headers=ONE) as fork:
            forked = (await opened(fork))["id"]
            added: Any = await first(fork)
            assert added["item"]["content"][0]["text"] == "hello"
        status, deleted = await ask(two, "DELETE", path)
        assert (status, deleted["deleted"]) == (200, True)
        assert await closed(socket) == 4003
    for running in servers:
        assert (await ask(running, "GET", path))[0] == 404
        assert (await ask(running, "DELETE", path))[0] == 404
    assert (await ask(one, "DELETE", f"/v1/realtime/sessions/{forked}"))[0] == 200


async def test_a_response_goes_on_at_another_gateway(servers: tuple[Running, Running]) -> None:
    """What was answered at one is gone on from at the other, as it would be at the first."""
    one, two = servers

    async def respond(running: Running, said: str, previous: str | None) -> Any:
        body = {"model": "demo", "input": said, "max_output_tokens": 8, "temperature": 0}
        status, made = await ask(
            running, "POST", "/v1/responses", body | {"previous_response_id": previous}
        )
        assert status == 200, made
        return made

    begun = await respond(one, "hello", None)
    ways = [await respond(running, "and then?", begun["id"]) for running in (two, one)]
    texts = [made["output"][0]["content"][0]["text"] for made in ways]
    assert texts[0] == texts[1]
    assert ways[0]["usage"]["input_tokens"] == ways[1]["usage"]["input_tokens"]
    third = [await respond(running, "and?", ways[0]["id"]) for running in (one, two)]
    texts = [made["output"][0]["content"][0]["text"] for made in third]
    assert texts[0] == texts[1]
    body = {"model": "demo", "input": "x", "previous_response_id": begun["id"]}
    status, denied = await ask(two, "POST", "/v1/responses", body, headers=TWO)
    assert (status, denied["error"]["code"]) == (400, "previous_response_not_found")
    for running in servers:
        app: Any = running.server.config.app
        await app.state.responses.close()
