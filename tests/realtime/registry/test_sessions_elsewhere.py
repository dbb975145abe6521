"""Remote sessions: status, deletion and fork on a gateway that does not hold the session.

The session is held by another gateway, or by the store alone.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

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
from tests.support.clients import connect_realtime, open_realtime_session
from tests.support.digest_runner import oracle
from tests.support.engines import EngineHarness
from tests.support.in_process_client import InProcessClient, connect_client, resume_result
from tests.support.sessions import EventRecorder, open_session, user_message
from tests.support.web_servers import TENANTS, UMBRELLA, RunningServer, serve_engine

pytestmark = pytest.mark.slow

NEVER_S = 3600.0
"""Interval between sweeps that look for lost sessions: the loss is detected in another way."""


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return request.getfixturevalue("redis").url


@pytest.fixture
async def stores(url: str) -> AsyncIterator[tuple[Store, Store]]:
    """Two connections to one store, one for each gateway."""
    one, two = await open_store(url), await open_store(url)
    yield one, two
    await one.aclose()
    await two.aclose()


@pytest.fixture
async def engines(harness: EngineHarness) -> AsyncIterator[tuple[EngineClient, EngineClient]]:
    """Two clients of one engine process, one for each gateway."""
    port = await harness.listen()
    async with front(port) as one, front(port) as two:
        yield one, two
        await harness.wait_until_empty()
        stats = await one.fleet.stats()
        assert stats.pages_free + stats.pages_tree == stats.pages_total, "no page is leaked"


Registries = tuple[Registry, Registry]


@pytest.fixture
async def registries(
    stores: tuple[Store, Store], engines: tuple[EngineClient, EngineClient]
) -> AsyncIterator[Registries]:
    """Two gateways that never sweep."""
    one, two = (make_registry(engine, store) for engine, store in zip(engines, stores, strict=True))
    async with one.running(), two.running():
        yield one, two


def make_registry(engine: EngineClient, store: Store) -> Registry:
    template = engine.text.template
    assert template is not None
    return Registry(engine, template, GenerationSettings(), Limits(sweep_interval_s=NEVER_S), store)


async def session_with_response(registry: Registry) -> InProcessClient:
    """A client whose session has one response of five ids."""
    client = await connect_client(registry)
    client.send_message("hello", "u1")
    client.start_response(5)
    await client.socket.wait_for("rate_limits.updated")
    client.receive()
    return client


def summary_of(status: SessionStatus | None) -> tuple[int, int, str]:
    assert status is not None
    return status.items, status.tokens, status.kv.place


async def test_status_of_a_remote_session_is_that_of_its_owner(registries: Registries) -> None:
    client = await session_with_response(registries[0])
    local = summary_of(await registries[0].status(client.session_id, ""))
    assert local[::2] == (2, "device")
    assert summary_of(await registries[1].status(client.session_id, "")) == local
    await client.disconnect()
    await registries[0].aclose()
    stored = await registries[1].status(client.session_id, "")
    assert summary_of(stored) == (*local[:2], "none"), "only the store has the session"
    loaded = [len(each.open_sessions.of_tenant("")) for each in registries]
    assert loaded == [0, 0], "a status request takes nothing over"
    assert await registries[1].delete(client.session_id, "")


async def test_status_after_a_takeover_is_current_on_both_gateways(registries: Registries) -> None:
    client = await session_with_response(registries[0])
    client.registry = registries[1]
    client.resume()
    await client.socket.wait_for("session.updated")
    client.send_message("more", "u2")
    await client.socket.wait_for("conversation.item.done")
    for registry in registries:
        assert summary_of(await registry.status(client.session_id, ""))[0] == 3
    await client.disconnect()
    assert await registries[1].delete(client.session_id, "")


async def test_status_of_a_remote_session_shows_an_open_response(
    registries: Registries, harness: EngineHarness
) -> None:
    harness.runner.step_s = 0.005
    client = await session_with_response(registries[0])
    client.start_response(60)
    await client.socket.wait_for("response.created", 2)
    for registry in registries:
        status = await registry.status(client.session_id, "")
        assert status is not None
        assert status.state == "responding"
    assert await registries[1].delete(client.session_id, "")
    await client.wait_closed()


async def check_is_deleted(registries: Registries, session_id: str) -> None:
    for registry in registries:
        assert registry.find(session_id) is None
        assert await registry.status(session_id, "") is None
        assert not await registry.delete(session_id, "")
        with pytest.raises(Refusal) as caught:
            await registry.resume(
                ResumeRequest(session_id), EventRecorder(), Credentials(), lambda code, reason: None
            )
        assert caught.value.code == "session_not_found"


@pytest.mark.parametrize("tokens", [0, 200])
async def test_remote_session_with_a_connection_is_deleted(
    registries: Registries, harness: EngineHarness, tokens: int
) -> None:
    """The session is idle, or has an open response, which stops."""
    harness.runner.step_s = 0.002
    client = await session_with_response(registries[0])
    if tokens:
        client.start_response(tokens)
        await client.socket.wait_for("response.created", 2)
    assert await registries[1].delete(client.session_id, "")
    if not tokens:
        # The owner does not sweep, so only a refused write shows the deletion.
        client.send_message("is anybody there?", "u2")
    await client.wait_closed()
    assert client.socket.closed is not None
    assert client.socket.closed[0] is CloseCode.CLOSED_BY_OPERATOR
    assert "is anybody there?" not in json.dumps(client.socket.sent)
    await check_is_deleted(registries, client.session_id)


async def test_late_write_does_not_restore_a_deleted_session(
    registries: Registries, harness: EngineHarness
) -> None:
    """The former owner writes late, when engine and store have both deleted the session.

    The owner must not take this for a loss of data and write the session again.
    """
    driver = await open_session(harness, registries[0])
    session = driver.session
    await session.execute(AddItem(user_message("u1", "hello")))
    assert await registries[1].delete(session.id, "")
    await harness.wait_until_empty()
    for name in ("u2", "u3"):
        with pytest.raises(Refusal) as caught:
            await session.execute(AddItem(user_message(name, "late")))
        assert caught.value.code == "session_ended"
    with pytest.raises(Refusal):
        await driver.create_response()
    await session.unload()
    await check_is_deleted(registries, session.id)


async def test_session_held_only_by_the_store_is_deleted(registries: Registries) -> None:
    client = await session_with_response(registries[0])
    await client.disconnect()
    await registries[0].aclose()
    assert not await registries[1].delete(client.session_id, "umbrella")
    assert await registries[1].delete(client.session_id, "")
    await check_is_deleted(registries, client.session_id)


async def test_fork_of_a_remote_session_does_not_disturb_it(
    registries: Registries, harness: EngineHarness
) -> None:
    harness.runner.step_s = 0.002
    client = await session_with_response(registries[0])
    client.start_response(100)
    await client.socket.wait_for("response.output_text.delta", 10)
    item_ids = [item.id for item in _conversation(registries[0], client).items()]
    for at, kept in ((None, 2), ("u1", 1)):
        driver = await open_session(harness, registries[1], fork=ForkRequest(client.session_id, at))
        added = [event.item.id for event in driver.recorder.events if isinstance(event, ItemAdded)]
        assert added == item_ids[:kept]
        await driver.run_turn()
        await registries[1].close(driver.session)
    await client.socket.wait_for("rate_limits.updated", 2)
    spans = _conversation(registries[0], client).spans
    prompt, header = _conversation(registries[0], client).up_to_item(item_ids[1]).render_header()
    assert spans[-1].sampled_ids == tuple(oracle(prompt.ids() + header, 100, stop_ids=[0]))
    for unknown in (ForkRequest("sess_x"), ForkRequest(client.session_id)):
        credentials = Credentials("umbrella" if unknown.session_id != "sess_x" else "")
        with pytest.raises(Refusal) as caught:
            await registries[1].open(EventRecorder(), credentials=credentials, fork=unknown)
        assert caught.value.code == "session_not_found"
    with pytest.raises(Refusal) as caught:
        await registries[1].open(EventRecorder(), fork=ForkRequest(client.session_id, "nobody"))
    assert caught.value.code == "item_fork_invalid_item_id"
    await client.disconnect()
    client.resume(client.socket.sent[-1]["event_id"])
    await client.socket.wait_for("session.updated")
    assert resume_result(client.socket)["resumed"] == "exact", "the fork did not disturb its parent"
    await client.disconnect()
    await registries[0].delete(client.session_id, "")


def _conversation(registry: Registry, client: InProcessClient) -> Conversation:
    session = registry.find(client.session_id)
    assert session is not None
    return session.conversation


# ---------------------------------------------------------------- over the wire


@pytest.fixture
async def servers(
    stores: tuple[Store, Store], engines: tuple[EngineClient, EngineClient]
) -> AsyncIterator[tuple[RunningServer, RunningServer]]:
    names, limits = ("demo",), Limits(sweep_interval_s=NEVER_S)
    settings = GatewaySettings(tenants=TENANTS, served_model_name=names, limits=limits)
    async with (
        serve_engine(engines[0], settings, stores[0]) as one,
        serve_engine(engines[1], settings, stores[1]) as two,
    ):
        yield one, two


async def test_remote_session_is_shown_and_deleted_over_http(
    servers: tuple[RunningServer, RunningServer],
) -> None:
    """An idle connection is closed as soon as its session is deleted on the other gateway."""
    one, two = servers
    async with open_realtime_session(one.url) as client:
        session_id = client.session_id
        await client.add_message("hello")
        await client.complete_response(max_output_tokens=1)
        path = f"/v1/realtime/sessions/{session_id}"
        for server in servers:
            status, found = await server.request("GET", path)
            assert (status, found["id"], found["items"]) == (200, session_id, 2)
            assert (found["state"], found["kv"]["place"]) == ("idle", "device")
        for method in ("GET", "DELETE"):
            foreign = await two.request(method, path, headers=UMBRELLA)
            unknown = await two.request(method, "/v1/realtime/sessions/sess_x", headers=UMBRELLA)
            assert foreign[0] == unknown[0] == 404
            assert json.dumps(foreign[1]).replace(session_id, "sess_x") == json.dumps(unknown[1])
        async with open_realtime_session(f"{two.url}?fork={session_id}") as fork:
            added = await fork.receive()
            assert added["item"]["content"][0]["text"] == "hello"
        status, deleted = await two.request("DELETE", path)
        assert (status, deleted["deleted"]) == (200, True)
        assert await client.wait_close_code() == 4003
    for server in servers:
        assert (await server.request("GET", path))[0] == 404
        assert (await server.request("DELETE", path))[0] == 404
    assert (await one.request("DELETE", f"/v1/realtime/sessions/{fork.session_id}"))[0] == 200


@pytest.mark.parametrize("place", ["connected", "responding", "parked", "stored"])
async def test_reading_a_conversation_elsewhere_takes_nothing_over(
    servers: tuple[RunningServer, RunningServer],
    stores: tuple[Store, Store],
    harness: EngineHarness,
    place: str,
) -> None:
    """The client, if any, stays connected, and its response goes on to the same end."""
    one, two = servers
    created = {"items": [{"role": "user", "content": "hello"}], "metadata": {"topic": "a"}}
    _, conversation = await one.request("POST", "/v1/conversations", created)
    path = f"/v1/conversations/{conversation['id']}"
    harness.runner.step_s = 0.005
    async with contextlib.AsyncExitStack() as stack:
        client = None
        if place in ("connected", "responding"):
            url = f"{one.url}?session_id={conversation['id']}"
            client = await stack.enter_async_context(connect_realtime(url))
            await client.wait_for("conversation.item.added")
        response = ""
        if client is not None and place == "responding":
            response = await client.start_response(max_output_tokens=60, ignore_eos=True)
            await client.wait_deltas(1)
        if place == "stored":
            await one.registry.aclose()
        before = await stores[1].find(conversation["id"])
        _, page = await two.request("GET", f"{path}/items?order=asc")
        item = page["data"][0]
        assert item["content"] == [{"type": "input_text", "text": "hello"}]
        assert await two.request("GET", f"{path}/items/{item['id']}") == (200, item)
        assert await two.request("GET", path) == (200, conversation)
        prompt = {"model": "demo", "input": "and?", "conversation": conversation["id"]}
        counted, tokens = await two.request("POST", "/v1/responses/input_tokens", prompt)
        assert counted == 200, tokens
        assert await two.request("GET", path, headers=UMBRELLA) != (200, conversation)
        assert await stores[1].find(conversation["id"]) == before
        assert two.registry.find(conversation["id"], "acme") is None
        if client is not None:
            if response:
                assert await client.wait_response(response)
            await client.add_message("still here", "item_here")
    _, page = await two.request("GET", f"{path}/items")
    assert client is None or page["data"][0]["id"] == "item_here"
    assert (await two.request("DELETE", path))[0] == 200


async def test_response_in_a_conversation_begins_without_closing_its_client_elsewhere(
    servers: tuple[RunningServer, RunningServer],
) -> None:
    """A response that is refused, and so adds nothing, leaves the client connected."""
    one, two = servers
    async with open_realtime_session(one.url) as client:
        await client.add_message("hello")
        body = {"model": "demo", "input": "x" * 500, "conversation": client.session_id}
        status, refused = await two.request("POST", "/v1/responses", body)
        assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")
        await client.add_message("still here")
    assert (await one.request("DELETE", f"/v1/realtime/sessions/{client.session_id}"))[0] == 200


async def test_response_extends_the_expiry_of_its_conversation(
    servers: tuple[RunningServer, RunningServer], stores: tuple[Store, Store]
) -> None:
    """Otherwise a conversation could expire before the response is added to it."""
    one, two = servers
    _, conversation = await one.request("POST", "/v1/conversations", {})
    for server in (one, two):
        before = await stores[1].find(conversation["id"])
        body = {"model": "demo", "input": "x" * 500, "conversation": conversation["id"]}
        assert (await server.request("POST", "/v1/responses", body))[0] == 400
        after = await stores[1].find(conversation["id"])
        assert before is not None
        assert after is not None
        assert after.deadline_ms > before.deadline_ms
        assert after.is_parked
    assert (await one.request("DELETE", f"/v1/conversations/{conversation['id']}"))[0] == 200


async def test_response_continues_a_response_of_another_gateway(
    servers: tuple[RunningServer, RunningServer],
) -> None:
    """Each gateway continues a response of the other exactly as the other one does."""
    one, two = servers

    async def respond(server: RunningServer, text: str, previous: str | None) -> Any:
        body = {"model": "demo", "input": text, "max_output_tokens": 8, "temperature": 0}
        status, response = await server.request(
            "POST", "/v1/responses", body | {"previous_response_id": previous}
        )
        assert status == 200, response
        return response

    first_response = await respond(one, "hello", None)
    second = [await respond(server, "and then?", first_response["id"]) for server in (two, one)]
    texts = [each["output"][0]["content"][0]["text"] for each in second]
    assert texts[0] == texts[1]
    assert second[0]["usage"]["input_tokens"] == second[1]["usage"]["input_tokens"]
    third = [await respond(server, "and?", second[0]["id"]) for server in (one, two)]
    texts = [each["output"][0]["content"][0]["text"] for each in third]
    assert texts[0] == texts[1]
    body = {"model": "demo", "input": "x", "previous_response_id": first_response["id"]}
    status, denied = await two.request("POST", "/v1/responses", body, headers=UMBRELLA)
    assert (status, denied["error"]["code"]) == (400, "previous_response_not_found")
    for server in servers:
        await server.app.state.responses.close()
