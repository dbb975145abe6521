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
from tests.support.engines import EngineHarness
from tests.support.sessions import EventRecorder, SessionDriver, create_registry
from tests.support.web_servers import receive_event, serve_harness, wait_close_code


async def open_session(
    bench: EngineHarness, registry: Registry, fork_request: ForkRequest | None = None
) -> SessionDriver:
    ears = EventRecorder()
    session = await registry.open(ears, fork=fork_request)
    return SessionDriver(session, ears, bench)


async def test_fork_shares_history_and_kv_with_its_parent(bench: EngineHarness) -> None:
    registry = await create_registry(bench)
    parent = await open_session(bench, registry)
    await parent.session.execute(ConfigureSession(GenerationSettings(instructions="be kind")))
    for n in range(3):
        await parent.add_message(f"some words of turn {n}")
        await parent.run_turn()
    item_ids = [item.id for item in parent.session.conversation.items()]
    fork = await open_session(bench, registry, ForkRequest(parent.session.id, item_ids[3]))
    added_ids = [event.item.id for event in fork.recorder.events if isinstance(event, ItemAdded)]
    assert added_ids == item_ids[:4]
    assert fork.session.settings.instructions == "be kind"
    shared = fork.session.conversation.length
    computed = bench.runner.token_count
    await fork.add_message("x", name="x1")
    await fork.run_turn(1)
    assert bench.runner.token_count - computed < shared / 2, "the history was not computed again"
    await parent.add_message("the first goes on its own way")
    await parent.run_turn()
    await fork.run_turn()
    await parent.session.close()
    await fork.add_message("and lives longer", name="x2")
    await fork.run_turn()
    await fork.session.close()
    assert await bench.engine.list_sessions() == []


async def test_fork_during_a_response_does_not_disturb_the_response(bench: EngineHarness) -> None:
    registry = await create_registry(bench)
    parent = await open_session(bench, registry)
    await parent.add_message("hello")
    expected = parent.expected_ids(60)
    await parent.create_response(60)
    await parent.recorder.wait_for(TextDelta)
    fork = await open_session(bench, registry, ForkRequest(parent.session.id))
    await fork.run_turn()
    assert parent.sampled_ids(await parent.wait_response()) == expected
    for talk in (parent, fork):
        await talk.session.close()


async def test_fork_of_unknown_session_or_item_is_refused(bench: EngineHarness) -> None:
    registry = await create_registry(bench)
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
    return (await receive_event(socket))["session"]


async def test_fork_over_websocket_copies_items_within_one_tenant(bench: EngineHarness) -> None:
    settings = GatewaySettings(tenants={"key-one": "acme", "key-two": "umbrella"})
    owner_key, other_key = ({"Authorization": f"Bearer key-{name}"} for name in ("one", "two"))
    async with (
        serve_harness(bench, settings) as running,
        connect(running.url, additional_headers=owner_key) as socket,
    ):
        session_id = (await created_session(socket))["id"]
        content = [{"type": "input_text", "text": "hello"}]
        item = {"id": "item_a", "type": "message", "role": "user", "content": content}
        await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        url = f"{running.url}?fork={session_id}&at=item_a"
        await receive_event(socket)
        await asyncio.wait_for(socket.recv(), 20)
        async with connect(url, additional_headers=owner_key) as forked:
            assert (await created_session(forked))["id"] != session_id
            added: Any = await receive_event(forked)
            assert (added["type"], added["item"]["id"]) == (
                "conversation.item.added",
                "item_a",
            )
            assert (await receive_event(forked))["type"] == "conversation.item.done"
        async with connect(url, additional_headers=other_key) as stranger:
            error: Any = (await receive_event(stranger))["error"]
            assert error["code"] == "session_not_found"
            assert await wait_close_code(stranger) == 1008
