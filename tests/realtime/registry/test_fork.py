"""Forks: WS /v1/realtime?fork=SESSION&at=ITEM opens a session with the items of another."""

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


async def open_session(
    bench: Bench, registry: Registry, fork_request: ForkRequest | None = None
) -> Talk:
    ears = Ears()
    session = await registry.open(ears, fork=fork_request)
    return Talk(session, ears, bench)


async def test_fork_shares_history_and_kv_with_its_parent(bench: Bench) -> None:
    registry = await registry_of(bench)
    parent = await open_session(bench, registry)
    await parent.session.execute(ConfigureSession(GenerationSettings(instructions="be kind")))
    for n in range(3):
        await parent.say(f"some words of turn {n}")
        await parent.turn()
    item_ids = [item.id for item in parent.session.conversation.items()]
    fork = await open_session(bench, registry, ForkRequest(parent.session.id, item_ids[3]))
    added_ids = [event.item.id for event in fork.ears.heard if isinstance(event, ItemAdded)]
    assert added_ids == item_ids[:4]
    assert fork.session.settings.instructions == "be kind"
    shared = fork.session.conversation.length
    computed = bench.runner.tokens_run
    await fork.say("x", name="x1")
    await fork.turn(1)
    assert bench.runner.tokens_run - computed < shared / 2, "the history was not computed again"
    await parent.say("the first goes on its own way")
    await parent.turn()
    await fork.turn()
    await parent.session.close()
    await fork.say("and lives longer", name="x2")
    await fork.turn()
    await fork.session.close()
    assert await bench.engine.list_sessions() == []


async def test_fork_during_a_response_does_not_disturb_the_response(bench: Bench) -> None:
    registry = await registry_of(bench)
    parent = await open_session(bench, registry)
    await parent.say("hello")
    expected = parent.expected(60)
    await parent.respond(60)
    await parent.ears.until(TextDelta)
    fork = await open_session(bench, registry, ForkRequest(parent.session.id))
    await fork.turn()
    assert parent.sampled(await parent.ended()) == expected
    for talk in (parent, fork):
        await talk.session.close()


async def test_fork_of_unknown_session_or_item_is_refused(bench: Bench) -> None:
    registry = await registry_of(bench)
    parent = await open_session(bench, registry)
    for request, code in (
        (ForkRequest("sess_x"), "session_not_found"),
        (ForkRequest(parent.session.id, "nobody"), "item_fork_invalid_item_id"),
    ):
        with pytest.raises(Refusal) as caught:
            await open_session(bench, registry, request)
        assert caught.value.code == code
    assert len(registry) == 1
    await parent.session.close()


async def created_session(socket: ClientConnection) -> Any:
    return (await first(socket))["session"]


async def test_fork_over_websocket_copies_items_within_one_tenant(bench: Bench) -> None:
    settings = GatewaySettings(tenants={"key-one": "acme", "key-two": "umbrella"})
    owner_key, other_key = ({"Authorization": f"Bearer key-{name}"} for name in ("one", "two"))
    async with (
        serve(bench, settings) as running,
        connect(running.url, additional_headers=owner_key) as socket,
    ):
        session_id = (await created_session(socket))["id"]
        content = [{"type": "input_text", "text": "hello"}]
        item = {"id": "item_a", "type": "message", "role": "user", "content": content}
        await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        url = f"{running.url}?fork={session_id}&at=item_a"
        await first(socket)
        await asyncio.wait_for(socket.recv(), 20)
        async with connect(url, additional_headers=owner_key) as forked:
            assert (await created_session(forked))["id"] != session_id
            added: Any = await first(forked)
            assert (added["type"], added["item"]["id"]) == (
                "conversation.item.added",
                "item_a",
            )
            assert (await first(forked))["type"] == "conversation.item.done"
        async with connect(url, additional_headers=other_key) as stranger:
            error: Any = (await first(stranger))["error"]
            assert error["code"] == "session_not_found"
            assert await closed(stranger) == 1008
