"""WS /v1/realtime?fork=SESSION&at=ITEM: a session that begins as another one was."""

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import ConfigureSession
from continuo.realtime.protocol.events import ItemAdded, TextDelta
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import ForkRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.engines import Bench
from tests.support.sessions import Ears, Talk, registry_of
from tests.support.web_servers import closed, first, serve


async def begin(bench: Bench, registry: Registry, fork: ForkRequest | None = None) -> Talk:
    ears = Ears()
    session = await registry.open(ears, fork=fork)
    return Talk(session, ears, bench)


async def test_a_fork_shares_history_and_kv(bench: Bench) -> None:
    registry = await registry_of(bench)
    one = await begin(bench, registry)
    await one.session.execute(ConfigureSession(GenerationSettings(instructions="be kind")))
    for n in range(3):
        await one.say(f"some words of turn {n}")
        await one.turn()
    names = [item.id for item in one.session.conversation.items()]
    two = await begin(bench, registry, ForkRequest(one.session.id, names[3]))
    told = [tell.item.id for tell in two.ears.heard if isinstance(tell, ItemAdded)]
    assert told == names[:4]
    assert two.session.settings.instructions == "be kind"
    shared = two.session.conversation.length
    computed = bench.runner.tokens_run
    await two.say("x", name="x1")
    await two.turn(1)
    assert bench.runner.tokens_run - computed < shared / 2, "the history was not computed again"
    await one.say("the first goes on its own way")
    await one.turn()
    await two.turn()
    await one.session.close()
    await two.say("and lives longer", name="x2")
    await two.turn()
    await two.session.close()
    assert await bench.engine.list_sessions() == []


async def test_a_fork_while_an_answer_is_made(bench: Bench) -> None:
    registry = await registry_of(bench)
    one = await begin(bench, registry)
    await one.say("hello")
    expected = one.expected(60)
    await one.respond(60)
    await one.ears.until(TextDelta)
    two = await begin(bench, registry, ForkRequest(one.session.id))
    await two.turn()
    assert one.sampled(await one.ended()) == expected
    for talk in (one, two):
        await talk.session.close()


async def test_what_cannot_be_forked(bench: Bench) -> None:
    registry = await registry_of(bench)
    one = await begin(bench, registry)
    for fork, code in (
        (ForkRequest("sess_x"), "session_not_found"),
        (ForkRequest(one.session.id, "nobody"), "item_fork_invalid_item_id"),
    ):
        with pytest.raises(Refusal) as caught:
            await begin(bench, registry, fork)
        assert caught.value.code == code
    assert len(registry) == 1
    await one.session.close()


async def opened(socket: ClientConnection) -> Any:
    return (await first(socket))["session"]


async def test_a_fork_over_the_wire(bench: Bench) -> None:
    settings = GatewaySettings(tenants={"key-one": "acme", "key-two": "umbrella"})
    one, two = ({"Authorization": f"Bearer key-{name}"} for name in ("one", "two"))
    async with (
        serve(bench, settings) as running,
        connect(running.url, additional_headers=one) as socket,
    ):
        name = (await opened(socket))["id"]
        content = [{"type": "input_text", "text": "hello"}]
        item = {"id": "item_a", "type": "message", "role": "user", "content": content}
        await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        url = f"{running.url}?fork={name}&at=item_a"
        await first(socket)
        await asyncio.wait_for(socket.recv(), 20)
        async with connect(url, additional_headers=one) as fork:
            assert (await opened(fork))["id"] != name
            added: Any = await first(fork)
            assert (added["type"], added["item"]["id"]) == (
                "conversation.item.added",
                "item_a",
            )
            assert (await first(fork))["type"] == "conversation.item.done"
        async with connect(url, additional_headers=two) as stranger:
            error: Any = (await first(stranger))["error"]
            assert error["code"] == "session_not_found"
            assert await closed(stranger) == 1008
