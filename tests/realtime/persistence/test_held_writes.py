"""What an answer does while another write of its session is on its way to the store."""

import asyncio
from collections.abc import AsyncIterator, Coroutine

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import StoredRequest
from continuo.realtime.protocol.events import ItemAdded, ResponseStarted
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
from tests.support.engines import Bench
from tests.support.resuming import Client
from tests.support.sessions import Ears, Talk


class Held(SqliteStore):
    """`block`: from now on such calls wait, until `let_go` has them done, or refused."""

    going: asyncio.Event
    waiting: asyncio.Event
    refuses = False
    held = "write"

    def block(self, held: str = "write") -> None:
        self.held = held
        self.going.clear()
        self.waiting.clear()

    def let_go(self, *, refuse: bool = False) -> None:
        self.refuses = refuse
        self.going.set()

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        await self._may_go("write")
        return await super().write(lease, batch)

    async def extend_deadline(self, lease: SessionLease, ttl_s: float, *, is_parked: bool) -> None:
        await self._may_go("hold")
        await super().extend_deadline(lease, ttl_s, is_parked=is_parked)

    async def _may_go(self, call: str) -> None:
        if call == self.held and not self.going.is_set():
            self.waiting.set()
            await self.going.wait()
            if self.refuses:
                raise StoreUnavailable("it is away")


@pytest.fixture
async def store() -> AsyncIterator[Held]:
    store = await Held.open(None)
    assert isinstance(store, Held)
    store.going, store.waiting = asyncio.Event(), asyncio.Event()
    store.going.set()
    yield store
    await store.aclose()


@pytest.fixture
async def talk(bench: Bench, store: Held) -> AsyncIterator[Talk]:
    template = bench.engine.text.template
    assert template is not None
    registry = Registry(bench.engine, template, GenerationSettings(), Limits(), store)
    ears = Ears()
    yield Talk(await registry.open(ears), ears, bench)
    await registry.aclose()


async def test_what_is_shown_while_an_answer_beside_it_is_written(talk: Talk, store: Held) -> None:
    """Its beginning, and its end."""
    history, settings = talk.session._unit_of_work, talk.session.settings
    await talk.say("hello")
    main = Response(id="resp_main", conversation=talk.session.id, settings=settings)
    beside = Response(id="resp_beside", conversation=None, settings=settings)
    await history.begin_response(main, StoredRequest(), 1, 1)

    async def shown_during(write: Coroutine[None, None, None], text: str) -> None:
        store.block()
        writing = asyncio.create_task(write)
        await asyncio.wait_for(store.waiting.wait(), 20)
        part = ContentPart("output_text", text)
        item = MessageItem(id="a1", role="assistant", parts=(part,))
        history.conversation = history.conversation.update_open_response(main.id, (item,))
        store.let_go()
        await asyncio.wait_for(writing, 20)
        assert history.conversation.find("a1") == item

    await shown_during(history.begin_response(beside, StoredRequest(), 1, 1), "so")
    await shown_during(history.end_response(beside, ()), "so far")
    await talk.say("while you speak")
    added = await talk.ears.until(ItemAdded, 2)
    assert isinstance(added, ItemAdded)
    assert added.previous_item_id == "a1"
    await history.end_response(main, ())


async def test_what_a_refused_turn_has_said_and_nobody_waited_for(talk: Talk, store: Held) -> None:
    """Its end is heard of when the next one has been asked for already."""
    bench = talk.bench
    await talk.say("hello")
    prompt, header = talk.session.conversation.render_header()
    said = prompt.length + len(header) + len(talk.expected(3))
    store.block()
    asking = asyncio.create_task(talk.respond(3))
    await asyncio.wait_for(store.waiting.wait(), 20)
    async with asyncio.timeout(20):
        while (await bench.engine.info(talk.session.id)).length < said or bench.engine.active_turns:
            await asyncio.sleep(0)
    bench.may_launch.clear()
    bench.kill()
    while bench.engine.is_available:
        await asyncio.sleep(0)
    store.let_go(refuse=True)
    await asyncio.sleep(0.05)  # it is being stopped: the engine is not there
    asking.cancel()
    await asyncio.wait([asking])
    turn = asyncio.create_task(talk.turn(5))
    await talk.ears.until(ResponseStarted)
    bench.may_launch.set()
    await asyncio.wait_for(turn, 20)
    await talk.say("and more")
    await talk.turn()


async def test_who_comes_back_while_it_is_being_parked_has_it(bench: Bench, store: Held) -> None:
    template = bench.engine.text.template
    assert template is not None
    registry = Registry(bench.engine, template, GenerationSettings(), Limits(), store)
    client = Client(registry)
    client.connect()
    client.say("u1", "hello")
    await client.socket.until("conversation.item.done")
    client.take()
    store.block("hold")
    leaving = asyncio.create_task(client.drop())
    await store.waiting.wait()
    back = Client(registry)
    back.connect(ResumeRequest(client.session_id))
    await back.socket.until("session.updated")
    store.let_go()
    await leaving
    card = await store.find(client.session_id)
    assert card is not None
    assert not card.is_parked
    await back.drop()
    card = await store.find(client.session_id)
    assert card is not None
    assert card.is_parked
    await registry.aclose()
