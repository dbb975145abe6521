"""Random lives of sessions in a store, beside a model in plain Python. After every step the store
holds what the model holds."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from continuo.realtime.store import (
    DuplicateWrite,
    Entry,
    IdempotencyConflict,
    IdempotentRequest,
    NewSession,
    OwnershipLost,
    ResponseCheckpoint,
    ResponseNotFound,
    RunningResponse,
    SessionDataLost,
    SessionEnded,
    SessionLease,
    SessionNotFound,
    Snapshot,
    Store,
    StoredEvents,
    WriteBatch,
    WriteResult,
    open_store,
)
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.support.redis_process import RedisProcess
from tests.support.store_records import fresh_session

NAMES = ("resp_1", "resp_2", "resp_12")
ids = st.lists(st.integers(0, 200_000), max_size=5).map(tuple)
entries = st.lists(st.builds(Entry, st.binary(max_size=40), ids), max_size=3).map(tuple)
asked = st.builds(
    IdempotentRequest,
    st.sampled_from("abcdefghijklmnop"),
    st.sampled_from((b"x", b"y")),
    st.binary(max_size=3),
)
answers = st.builds(
    ResponseCheckpoint, id=st.sampled_from(NAMES), seed=st.integers(0, 9), prompt=st.integers(0, 9)
)
begins = st.lists(answers, max_size=2, unique_by=lambda begun: begun.id).map(tuple)


@dataclass
class Model:
    """One session as it should be."""

    new: NewSession
    leases: list[SessionLease]
    over: bool = False
    """Its time is."""
    gone: bool = False
    ended: bool = False
    """And that is remembered."""
    parked: bool = False
    epoch: int = 0
    state: bytes = b""
    log: list[Entry] = field(default_factory=list[Entry])
    once: dict[str, IdempotentRequest] = field(default_factory=dict[str, IdempotentRequest])
    answers: dict[str, RunningResponse] = field(default_factory=dict[str, RunningResponse])
    events: list[bytes] = field(default_factory=list[bytes])

    def fault(self, lease: SessionLease) -> type[Exception] | None:
        if self.gone:
            return SessionEnded if self.ended else SessionNotFound
        return None if lease == self.leases[-1] else OwnershipLost

    def write(self, lease: SessionLease, change: WriteBatch) -> object:
        """What write gives, or the kind of what it raises."""
        fault = self.fault(lease)
        if fault is not None:
            return fault
        once = change.request
        if once is not None and once.key in self.once and once.key not in change.revoked_keys:
            before = self.once[once.key]
            return (
                DuplicateWrite(before.result)
                if before.content == once.content
                else IdempotencyConflict
            )
        if change.kept_entries is not None and change.kept_entries > len(self.log):
            return SessionDataLost
        if change.events is not None and change.events.first_offset > len(self.events):
            return SessionDataLost
        self._apply(change)
        return WriteResult(len(self.log), len(self.events))

    def _apply(self, change: WriteBatch) -> None:
        for key in change.revoked_keys:
            self.once.pop(key, None)
        self.once.update((once.key, once) for once in change.restored_requests)
        if change.request is not None:
            self.once[change.request.key] = change.request
        if change.kept_entries is not None:
            self.log[change.kept_entries :] = change.entries
        if change.events is not None:
            self.events[change.events.first_offset :] = change.events.bodies
        for ended in change.ended_responses:
            self.answers.pop(ended, None)
        for begun in change.started_responses:
            self.answers[begun.id] = RunningResponse(begun)
        self.epoch = self.epoch if change.epoch is None else change.epoch
        self.state = self.state if change.state is None else change.state

    def journal(self, lease: SessionLease, name: str, first: int, said: tuple[int, ...]) -> object:
        fault = self.fault(lease)
        if fault is not None:
            return fault
        if name not in self.answers:
            return ResponseNotFound
        answer = self.answers[name]
        if first > len(answer.ids):
            return SessionDataLost
        whole = (*answer.ids, *said[len(answer.ids) - first :])
        self.answers[name] = RunningResponse(answer.checkpoint, whole)
        return len(whole)

    def check(self, found: Snapshot | None) -> None:
        if self.gone or self.over:
            assert found is None
            return
        assert found is not None
        lease, card = self.leases[-1], found.metadata
        assert (card.owner, card.fence) == (lease.owner, lease.fence)
        assert (card.epoch, card.is_parked) == (self.epoch, self.parked)
        assert card.entry_count == len(self.log)
        assert found.entries == tuple(self.log)
        assert found.state == self.state
        assert found.running_responses == tuple(self.answers[name] for name in sorted(self.answers))
        assert found.events == StoredEvents(0, tuple(self.events))


class StoreMachine(RuleBasedStateMachine):
    url = "sqlite://:memory:"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store: Store = self.runner.run(open_store(self.url))
        self.sessions: list[Model] = []

    def teardown(self) -> None:
        self.runner.run(self.store.aclose())
        self.runner.close()

    def wait(self, call: Any) -> object:
        """What it gives, or the kind of what it raises."""
        try:
            return self.runner.run(call)
        except Exception as error:
            return type(error)

    def pick(self, data: st.DataObject) -> tuple[Model, SessionLease]:
        """One that lives and its last owner, most of the time."""
        models = self.live() if data.draw(st.integers(0, 9), "alive") else self.sessions
        model = data.draw(st.sampled_from(models or self.sessions), "session")
        back = data.draw(st.sampled_from((1, 1, 1, 1, 2)), "lease")
        return model, model.leases[-min(back, len(model.leases))]

    def live(self) -> list[Model]:
        return [model for model in self.sessions if not model.gone]

    @precondition(lambda self: len(self.live()) < 2)
    @rule(state=st.binary(max_size=9))
    def create(self, state: bytes) -> None:
        new = fresh_session(state=state)
        lease = self.runner.run(self.store.create(new))
        self.sessions.append(Model(new, [lease], state=state))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), owner=st.sampled_from(("gate-1", "gate-2")), seen=st.booleans())
    def claim(self, data: st.DataObject, owner: str, seen: bool) -> None:
        """`seen`: only from who had some lease, the last one or one before."""
        model, lease = self.pick(data)
        fence = lease.fence if seen else None
        got = self.wait(self.store.claim(model.new.id, owner, ttl_s=3600, expected_fence=fence))
        if model.gone or model.over:
            assert got is SessionNotFound
            return
        if fence not in (None, model.leases[-1].fence):
            assert got is OwnershipLost
            return
        assert isinstance(got, SessionLease)
        assert got.fence > model.leases[-1].fence
        model.leases.append(got)
        model.parked = False

    @precondition(lambda self: self.sessions)
    @rule(
        data=st.data(),
        entries=entries,
        request=st.none() | asked,
        again=st.just([]) | st.lists(asked, max_size=3, unique_by=lambda once: once.key),
        revoked_keys=st.lists(st.sampled_from("abcdefghijklmnop"), max_size=2).map(tuple),
        started_responses=begins,
        ended_responses=st.lists(st.sampled_from(NAMES), max_size=2).map(tuple),
        state=st.none() | st.binary(max_size=9),
        epoch=st.none() | st.integers(0, 9),
        events=st.none() | st.lists(st.binary(max_size=9), max_size=2).map(tuple),
        twice=st.booleans(),
    )
    def write(
        self,
        data: st.DataObject,
        entries: tuple[Entry, ...],
        events: tuple[bytes, ...] | None,
        again: list[IdempotentRequest],
        twice: bool,
        **rest: Any,
    ) -> None:
        model, lease = self.pick(data)
        change = WriteBatch(**rest)
        known = None if change.request is None else change.request.key
        change = _with(change, restored_requests=tuple(one for one in again if one.key != known))
        if data.draw(st.booleans(), "touch the log"):
            end = len(model.log)
            at = data.draw(st.sampled_from((end, end)) | st.integers(0, end + 1), "at")
            change = _with(change, kept_entries=at, entries=entries)
        if events is not None:
            first = data.draw(st.integers(0, len(model.events) + 1), "first")
            change = _with(change, events=StoredEvents(first, events))
        for _ in range(1 + twice):
            got = self.wait(self.store.write(lease, change))
            assert got == model.write(lease, change)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), name=st.sampled_from(NAMES), said=ids)
    def journal(self, data: st.DataObject, name: str, said: tuple[int, ...]) -> None:
        model, lease = self.pick(data)
        answer = model.answers.get(name)
        first = data.draw(st.integers(0, len(answer.ids) + 1 if answer else 0), "first")
        got = self.wait(self.store.journal(lease, name, first, said))
        assert got == model.journal(lease, name, first, said)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), parked=st.booleans())
    def hold(self, data: st.DataObject, parked: bool) -> None:
        model, lease = self.pick(data)
        over = data.draw(st.integers(0, 4), "not over") == 0
        got = self.wait(self.store.extend_deadline(lease, 0 if over else 3600, is_parked=parked))
        assert got == model.fault(lease)
        if got is None:
            model.over, model.parked = over, parked

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        model, lease = self.pick(data)
        fault = model.fault(lease)
        got = self.wait(self.store.delete(lease))
        assert got == (None if model.gone else fault)
        model.ended = model.ended or (not model.gone and got is None)
        model.gone = model.gone or got is None

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        model, _ = self.pick(data)
        got = self.wait(self.store.force_delete(model.new.id))
        if model.gone or model.over:
            assert got is SessionNotFound
            return
        assert isinstance(got, int)
        assert got > model.leases[-1].fence
        model.gone = model.ended = True

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        model, lease = self.pick(data)
        assert self.wait(self.store.confirm(lease)) == model.fault(lease)

    @rule()
    def sweep(self) -> None:
        swept = self.runner.run(self.store.sweep(1000)).expired
        ended = [model for model in self.sessions if model.over and not model.gone]
        assert {model.new.id for model in ended} <= set(swept)
        live = {model.new.id for model in self.sessions if model.gone or not model.over}
        assert not live & set(swept)
        for model in ended:
            model.gone = True

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        for model in self.sessions:
            model.check(self.runner.run(self.store.load(model.new.id)))


def _with(change: WriteBatch, **changes: Any) -> WriteBatch:
    return msgspec.structs.replace(change, **changes)


def run(url: str, examples: int, *phases: Phase) -> None:
    machine = type("Machine", (StoreMachine,), {"url": url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            phases=phases or tuple(Phase),
        ),
    )


def test_sqlite_is_as_the_model() -> None:
    run("sqlite://:memory:", 50)


def test_redis_is_as_the_model(redis: RedisProcess) -> None:
    run(redis.url, 30)


def test_the_model_would_notice_a_store_that_forgets_an_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine itself is worth something."""
    write = SqliteStore.write

    async def forgetful(
        self: SqliteStore, lease: SessionLease, change: WriteBatch
    ) -> WriteResult | DuplicateWrite:
        return await write(self, lease, _with(change, entries=change.entries[:2]))

    monkeypatch.setattr(SqliteStore, "write", forgetful)
    with pytest.raises((AssertionError, ExceptionGroup)):
        run("sqlite://:memory:", 200, Phase.generate)
