"""Responses and resumes while another write of the session is in flight to the store."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import StoredRequest
from continuo.realtime.protocol.commands import CancelResponse
from continuo.realtime.protocol.events import (
    ItemAdded,
    OutputItemEnded,
    ResponseEnded,
    ResponseStarted,
    TextDelta,
)
from continuo.realtime.protocol.items import ContentPart, MessageItem
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.store import (
    DuplicateWrite,
    SessionLease,
    StoreUnavailable,
    WriteBatch,
    WriteResult,
)
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.engine.server.test_several_gateways import front
from tests.realtime.conftest import chat_folder
from tests.realtime.registry.test_takeover import deltas, done, make_registry
from tests.support.digest_runner import VOCABULARY
from tests.support.engines import EngineHarness, digest_engine
from tests.support.in_process_client import InProcessClient, connect_client, resume_result
from tests.support.sessions import SessionDriver, open_session
from tests.support.waiting import wait_until


class BlockingStore(SqliteStore):
    """A store whose calls of one kind can be held up and then executed or refused."""

    unblocked: asyncio.Event
    blocked: asyncio.Event
    fails = False
    blocked_call = "write"

    def block_calls(self, call: str = "write") -> None:
        self.blocked_call = call
        self.unblocked.clear()
        self.blocked.clear()

    def unblock(self, *, refuse: bool = False) -> None:
        self.fails = refuse
        self.unblocked.set()

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        await self._pass("write")
        return await super().write(lease, batch)

    async def extend_deadline(self, lease: SessionLease, ttl_s: float, *, is_parked: bool) -> None:
        await self._pass("hold")
        await super().extend_deadline(lease, ttl_s, is_parked=is_parked)

    async def _pass(self, call: str) -> None:
        if call == self.blocked_call and not self.unblocked.is_set():
            self.blocked.set()
            await self.unblocked.wait()
            if self.fails:
                raise StoreUnavailable("unavailable")


@pytest.fixture
async def store() -> AsyncIterator[BlockingStore]:
    store = await BlockingStore.open(None)
    assert isinstance(store, BlockingStore)
    store.unblocked, store.blocked = asyncio.Event(), asyncio.Event()
    store.unblocked.set()
    yield store
    await store.aclose()


@pytest.fixture
async def driver(harness: EngineHarness, store: BlockingStore) -> AsyncIterator[SessionDriver]:
    template = harness.engine.text.template
    assert template is not None
    registry = Registry(harness.engine, template, GenerationSettings(), Limits(), store)
    yield await open_session(harness, registry)
    await registry.aclose()


async def test_open_response_updated_during_an_out_of_band_write_keeps_its_items(
    driver: SessionDriver, store: BlockingStore
) -> None:
    """The writes are those that begin and end the out-of-band response."""
    unit_of_work, settings = driver.session._unit_of_work, driver.session.settings
    await driver.add_message("hello")
    main = Response(id="resp_main", conversation=driver.session.id, settings=settings)
    out_of_band = Response(id="resp_beside", conversation=None, settings=settings)
    await unit_of_work.begin_response(main, StoredRequest(), 1, 1)

    async def check_update_during(write: Coroutine[None, None, None], text: str) -> None:
        store.block_calls()
        writing = asyncio.create_task(write)
        await asyncio.wait_for(store.blocked.wait(), 20)
        part = ContentPart("output_text", text)
        item = MessageItem(id="a1", role="assistant", parts=(part,))
        conversation = unit_of_work.conversation
        unit_of_work.conversation = conversation.update_open_response(main.id, (item,))
        store.unblock()
        await asyncio.wait_for(writing, 20)
        assert unit_of_work.conversation.find("a1") == item

    begin = unit_of_work.begin_response(out_of_band, StoredRequest(), 1, 1)
    await check_update_during(begin, "so")
    await check_update_during(unit_of_work.end_response(out_of_band, ()), "so far")
    await driver.add_message("while you speak")
    added = await driver.recorder.wait_for(ItemAdded, 2)
    assert isinstance(added, ItemAdded)
    assert added.previous_item_id == "a1"
    await unit_of_work.end_response(main, ())


async def test_turn_whose_end_was_refused_leaves_no_ids_in_the_next_prompt(
    driver: SessionDriver, store: BlockingStore
) -> None:
    """The end of the turn arrives after the next turn was requested."""
    harness = driver.engine_harness
    await driver.add_message("hello")
    prompt, header = driver.session.conversation.render_header()
    length = prompt.length + len(header) + len(driver.expected_ids(3))
    store.block_calls()
    responding = asyncio.create_task(driver.create_response(3))
    await asyncio.wait_for(store.blocked.wait(), 20)
    async with asyncio.timeout(20):
        while (
            await harness.engine.info(driver.session.id)
        ).length < length or harness.engine.fleet.active_turns:
            await asyncio.sleep(0)
    harness.launch_allowed.clear()
    harness.kill()
    while harness.engine.fleet.is_available:
        await asyncio.sleep(0)
    store.unblock(refuse=True)
    await asyncio.sleep(0.05)  # the turn is being stopped without an engine
    responding.cancel()
    await asyncio.wait([responding])
    turn = asyncio.create_task(driver.run_turn(5))
    await driver.recorder.wait_for(ResponseStarted)
    harness.launch_allowed.set()
    await asyncio.wait_for(turn, 20)
    await driver.add_message("and more")
    await driver.run_turn()


async def test_item_of_a_cancelled_response_ends_when_its_end_is_stored(
    driver: SessionDriver, store: BlockingStore
) -> None:
    """A gateway that takes the session over before generates the response on, and its client must
    not have received that the item has ended."""
    await driver.add_message("hello")
    await driver.create_response(None)
    await driver.recorder.wait_for(TextDelta)
    store.block_calls()
    cancelling = asyncio.create_task(driver.session.execute(CancelResponse()))
    (generation,) = driver.session._active_responses
    await wait_until(lambda: generation.response.status == "cancelled" and store.blocked.is_set())
    assert OutputItemEnded not in map(type, driver.recorder.events)
    store.unblock()
    await cancelling
    assert (await driver.wait_response()).status == "cancelled"
    assert [type(event) for event in driver.recorder.events[-2:]] == [
        OutputItemEnded,
        ResponseEnded,
    ]


async def test_response_whose_cancel_is_being_stored_resumes_exactly_elsewhere(
    tmp_path: Path, store: BlockingStore
) -> None:
    """The gateway that takes it over generates it on: nothing of the end that the other one has
    made, and that no store has, may have been sent."""
    async with (
        # steps that take time: the response must not end before its cancel arrives
        digest_engine(
            chat_folder(tmp_path, endless=True),
            pages=256,
            max_model_len=400,
            vocabulary=VOCABULARY + 2,
            step_s=0.02,
        ) as harness,
        front(port := await harness.listen()) as one,
        front(port) as two,
    ):
        old, new = make_registry(one, store), make_registry(two, store)
        client = await connect_client(old)
        client.send_message("hello", "u1")
        client.start_response(60)
        await client.socket.wait_for("response.output_text.delta")
        store.block_calls()
        client.socket.push_event(type="response.cancel")
        await store.blocked.wait()
        store.blocked_call = "none"  # the writes of the other gateway pass
        client.receive()
        client.registry = new
        client.resume()
        await client.socket.wait_for("session.updated")
        assert resume_result(client.socket)["resumed"] == "exact"
        store.unblock()
        await client.socket.wait_for("response.done")
        await client.disconnect()
        client.receive()
        assert deltas(client) == done(client)
        assert client.received[-1]["type"] == "rate_limits.updated"
        await new.aclose()
        await old.aclose()


async def test_session_resumed_while_being_parked_is_not_marked_as_parked(
    harness: EngineHarness, store: BlockingStore
) -> None:
    template = harness.engine.text.template
    assert template is not None
    registry = Registry(harness.engine, template, GenerationSettings(), Limits(), store)
    client = await connect_client(registry)
    client.send_message("hello", "u1")
    await client.socket.wait_for("conversation.item.done")
    client.receive()
    store.block_calls("hold")
    dropping = asyncio.create_task(client.disconnect())
    await store.blocked.wait()
    resumer = InProcessClient(registry)
    resumer.connect(ResumeRequest(client.session_id))
    await resumer.socket.wait_for("session.updated")
    store.unblock()
    await dropping
    metadata = await store.find(client.session_id)
    assert metadata is not None
    assert not metadata.is_parked
    await resumer.disconnect()
    metadata = await store.find(client.session_id)
    assert metadata is not None
    assert metadata.is_parked
    await registry.aclose()
