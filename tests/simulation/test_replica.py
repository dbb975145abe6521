"""Tests of the failover of the simulated store: exactly the lost changes are recorded."""

from collections import Counter

from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.persistence.session_codec import encode_entry, first_item_id
from continuo.realtime.protocol.items import ContentPart, MessageItem
from continuo.realtime.store import IdempotentRequest, NewSession, ResponseCheckpoint, WriteBatch
from continuo.realtime.store.sqlite.file import connect
from continuo.realtime.store.sqlite.tables import Tables
from tests.simulation.replica import Replica, read_facts


def message_batch(name: str, text: str) -> WriteBatch:
    item = MessageItem(id=name, role="user", parts=(ContentPart("input_text", text),))
    return WriteBatch(kept_entries=0, entries=(encode_entry(Span((item,), (1, 2, 3))),))


def new_session(name: str) -> NewSession:
    return NewSession(id=name, owner="gate-1", tenant="", ttl_s=60)


def test_failover_records_every_lost_or_restored_fact() -> None:
    store = connect(None, "normal")
    tables, replica = Tables(store, lambda: 1_800_000_000.0), Replica(store)
    lease = tables.create(new_session("sess_1"))
    tables.write(tables.create(new_session("sess_2")), message_batch("item_9", "kept"))
    tables.write(lease, message_batch("item_1", "hello"))
    tables.write(
        lease, WriteBatch(started_responses=(ResponseCheckpoint(id="resp_1", seed=1, prompt=3),))
    )
    replica.catch_up()
    before = read_facts(store)
    once = IdempotentRequest("event_1", b"", b"resp_2")
    begun = (ResponseCheckpoint(id="resp_2", seed=1, prompt=3),)
    tables.write(
        lease, WriteBatch(ended_responses=("resp_1",), started_responses=begun, request=once)
    )
    tables.write(lease, message_batch("item_1", "hel"))
    lease = tables.claim("sess_1", "gate-2", ttl_s=60)
    assert replica.take_over()
    answers = [(kind, name) for kind in ("answer", "making") for name in ("resp_1", "resp_2")]
    items = [
        ("item", name) for name in ("item_1", first_item_id("resp_1"), first_item_id("resp_2"))
    ]
    assert replica.lost_changes == Counter([*items, ("owner", "sess_1"), *answers])
    assert read_facts(store) == before, "the store differs from the replica"
    tables.create(new_session("sess_3"))
    assert not replica.take_over(), "a whole session would be lost"
    assert ("owner", "sess_3") in read_facts(store)
    assert replica.lost_changes.total() == 8
