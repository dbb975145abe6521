"""A store that does what it is asked, and is not heard: what was refused is undone."""

from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import decode_state
from continuo.realtime.protocol.settings import GenerationSettings
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


class Unheard(SqliteStore):
    unheard = False

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        written = await super().write(lease, batch)
        if self.unheard:
            raise StoreUnavailable("no answer")
        return written


async def test_settings_that_were_refused_are_not_found_elsewhere(bench: Bench) -> None:
    store = await Unheard.open(None)
    template = bench.engine.text.template
    assert template is not None
    registry = Registry(bench.engine, template, GenerationSettings(), Limits(), store)
    client = Client(registry)
    client.connect()
    await client.socket.until("session.created")
    client.take()
    store.unheard = True
    session = {"type": "realtime", "instructions": "be kind"}
    client.socket.put(type="session.update", session=session)
    assert (await client.socket.until("error"))["error"]["code"] == "store_unavailable"
    store.unheard = False
    client.say("u1", "hello")
    await client.socket.until("conversation.item.done")
    found = await store.load(client.session_id)
    assert found is not None
    assert decode_state(found.state).settings == GenerationSettings()
    await client.drop()
    await registry.aclose()
    await store.aclose()
