"""Forks: WS /v1/realtime?fork=SESSION&at=ITEM opens a session with the items of another."""

import pytest

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import ConfigureSession
from continuo.realtime.protocol.events import ItemAdded, TextDelta
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import ForkRequest
from tests.support.clients import connect_realtime, open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.sessions import create_registry, open_session
from tests.support.web_servers import UMBRELLA, RunningServer


async def test_fork_shares_history_and_kv_with_its_parent(harness: EngineHarness) -> None:
    registry = await create_registry(harness)
    parent = await open_session(harness, registry)
    await parent.session.execute(ConfigureSession(GenerationSettings(instructions="be kind")))
    for n in range(3):
        await parent.add_message(f"some words of turn {n}")
        await parent.run_turn()
    item_ids = [item.id for item in parent.session.conversation.items()]
    fork = await open_session(harness, registry, fork=ForkRequest(parent.session.id, item_ids[3]))
    added_ids = [event.item.id for event in fork.recorder.events if isinstance(event, ItemAdded)]
    assert added_ids == item_ids[:4]
    assert fork.session.settings.instructions == "be kind"
    shared = fork.session.conversation.length
    computed = harness.runner.token_count
    await fork.add_message("x", name="x1")
    await fork.run_turn(1)
    assert harness.runner.token_count - computed < shared / 2, "the history was not computed again"
    await parent.add_message("the first goes on its own way")
    await parent.run_turn()
    await fork.run_turn()
    await parent.session.close()
    await fork.add_message("and lives longer", name="x2")
    await fork.run_turn()
    await fork.session.close()
    assert await harness.engine.fleet.list_sessions() == []


async def test_fork_during_a_response_does_not_disturb_the_response(harness: EngineHarness) -> None:
    registry = await create_registry(harness)
    parent = await open_session(harness, registry)
    await parent.add_message("hello")
    expected = parent.expected_ids(60)
    await parent.create_response(60)
    await parent.recorder.wait_for(TextDelta)
    fork = await open_session(harness, registry, fork=ForkRequest(parent.session.id))
    await fork.run_turn()
    assert parent.sampled_ids(await parent.wait_response()) == expected
    for driver in (parent, fork):
        await driver.session.close()


async def test_fork_of_unknown_session_or_item_is_refused(harness: EngineHarness) -> None:
    registry = await create_registry(harness)
    parent = await open_session(harness, registry)
    for request, code in (
        (ForkRequest("sess_x"), "session_not_found"),
        (ForkRequest(parent.session.id, "nobody"), "item_fork_invalid_item_id"),
    ):
        with pytest.raises(Refusal) as caught:
            await open_session(harness, registry, fork=request)
        assert caught.value.code == code
    assert len(registry) == 1
    await parent.session.close()


async def test_fork_over_websocket_copies_items_within_one_tenant(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        await client.add_message("hello", "item_a")
        url = f"{server.url}?fork={client.session_id}&at=item_a"
        async with open_realtime_session(url) as fork:
            assert fork.session_id != client.session_id
            assert (await fork.expect("conversation.item.added"))["item"]["id"] == "item_a"
            await fork.expect("conversation.item.done")
        async with connect_realtime(url, UMBRELLA) as stranger:
            error = (await stranger.expect("error"))["error"]
            assert error["code"] == "session_not_found"
            assert await stranger.wait_close_code() == 1008
