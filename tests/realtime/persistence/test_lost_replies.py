"""A store that executes a write and loses the reply: a refused change is rolled back."""

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
from tests.support.engines import EngineHarness
from tests.support.in_process_client import connect_client


class ReplyLosingStore(SqliteStore):
    loses_replies = False

    async def write(self, lease: SessionLease, batch: WriteBatch) -> WriteResult | DuplicateWrite:
        written = await super().write(lease, batch)
        if self.loses_replies:
            raise StoreUnavailable("no reply")
        return written


async def test_refused_settings_are_rolled_back_in_the_store(harness: EngineHarness) -> None:
    store = await ReplyLosingStore.open(None)
    template = harness.engine.text.template
    assert template is not None
    registry = Registry(harness.engine, template, GenerationSettings(), Limits(), store)
    client = await connect_client(registry)
    client.receive()
    store.loses_replies = True
    session = {"type": "realtime", "instructions": "be kind"}
    client.socket.push_event(type="session.update", session=session)
    assert (await client.socket.wait_for("error"))["error"]["code"] == "store_unavailable"
    store.loses_replies = False
    client.send_message("hello", "u1")
    await client.socket.wait_for("conversation.item.done")
    found = await store.load(client.session_id)
    assert found is not None
    assert decode_state(found.state).settings == GenerationSettings()
    await client.disconnect()
    await registry.aclose()
    await store.aclose()
