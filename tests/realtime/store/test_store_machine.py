"""Stateful tests of stores: random sessions in a store and in a model in plain Python.

After every step, the store holds what the model holds.
"""

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
    IdempotencyConflict,
    IdempotentRequest,
    LeaseLost,
    NewSession,
    ResponseCheckpoint,
    ResponseNotFound,
    RunningResponse,
    SessionDataLost,
    SessionEnded,
    SessionExists,
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
from tests.support.store_records import new_session

pytestmark = pytest.mark.slow

RESPONSE_IDS = ("resp_1", "resp_2", "resp_12")
ids = st.lists(st.integers(0, 200_000), max_size=5).map(tuple)
entries = st.lists(st.binary(max_size=40), max_size=3).map(tuple)
requests = st.builds(
    IdempotentRequest,
    st.sampled_from("abcdefghijklmnop"),
    st.sampled_from((b"x", b"y")),
    st.binary(max_size=3),
)
checkpoint = st.builds(
    ResponseCheckpoint,
    id=st.sampled_from(RESPONSE_IDS),
    seed=st.integers(0, 9),
    prompt=st.integers(0, 9),
)
checkpoints = st.lists(checkpoint, max_size=2, unique_by=lambda each: each.id).map(tuple)


@dataclass
class SessionModel:
    """A session as the store should hold it."""

    new: NewSession
    leases: list[SessionLease]
    is_expired: bool = False
    is_removed: bool = False
    """Deleted, or swept after expiry."""
    has_tombstone: bool = False
    """Deleted, not swept."""
    is_parked: bool = False
    epoch: int = 0
    state: bytes = b""
    log: list[bytes] = field(default_factory=list[bytes])
    requests: dict[str, IdempotentRequest] = field(default_factory=dict[str, IdempotentRequest])
    running_responses: dict[str, RunningResponse] = field(
        default_factory=dict[str, RunningResponse]
    )
    events: list[bytes] = field(default_factory=list[bytes])

    def expected_error(self, lease: SessionLease) -> type[Exception] | None:
        if self.is_removed:
            return SessionEnded if self.has_tombstone else SessionNotFound
        return None if lease == self.leases[-1] else LeaseLost

    def write(self, lease: SessionLease, change: WriteBatch) -> object:
        """The expected result of a write, or the type of the expected error."""
        error = self.expected_error(lease)
        if error is not None:
            return error
        request = change.request
        if (
            request is not None
            and request.key in self.requests
            and request.key not in change.revoked_keys
        ):
            recorded = self.requests[request.key]
            return (
                DuplicateWrite(recorded.result)
                if recorded.content_digest == request.content_digest
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
            self.requests.pop(key, None)
        self.requests.update((request.key, request) for request in change.restored_requests)
        if change.request is not None:
            self.requests[change.request.key] = change.request
        if change.kept_entries is not None:
            self.log[change.kept_entries :] = change.entries
        if change.events is not None:
            self.events[change.events.first_offset :] = change.events.bodies
        for ended in change.ended_responses:
            self.running_responses.pop(ended, None)
        for started in change.started_responses:
            self.running_responses[started.id] = RunningResponse(started)
        self.epoch = self.epoch if change.epoch is None else change.epoch
        self.state = self.state if change.state is None else change.state

    def become(self, batch: WriteBatch, lease: SessionLease) -> None:
        """Contain nothing but a batch, under a new lease."""
        self.is_expired = self.is_removed = self.is_parked = False
        self.log, self.requests, self.running_responses, self.events = [], {}, {}, []
        self.leases.append(lease)
        self._apply(batch)

    def journal(
        self, lease: SessionLease, response_id: str, first: int, new_ids: tuple[int, ...]
    ) -> object:
        """The expected result of a journal call, or the type of the expected error."""
        error = self.expected_error(lease)
        if error is not None:
            return error
        if response_id not in self.running_responses:
            return ResponseNotFound
        response = self.running_responses[response_id]
        if first > len(response.ids):
            return SessionDataLost
        all_ids = (*response.ids, *new_ids[len(response.ids) - first :])
        self.running_responses[response_id] = RunningResponse(response.checkpoint, all_ids)
        return len(all_ids)

    def check(self, found: Snapshot | None) -> None:
        if self.is_removed or self.is_expired:
            assert found is None
            return
        assert found is not None
        lease, metadata = self.leases[-1], found.metadata
        assert (metadata.owner, metadata.fence) == (lease.owner, lease.fence)
        assert (metadata.epoch, metadata.is_parked) == (self.epoch, self.is_parked)
        assert metadata.entry_count == len(self.log)
        assert found.entries == tuple(self.log)
        assert found.state == self.state
        assert found.running_responses == tuple(
            self.running_responses[key] for key in sorted(self.running_responses)
        )
        assert found.events == StoredEvents(0, tuple(self.events))


class StoreMachine(RuleBasedStateMachine):
    url = "sqlite://:memory:"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store: Store = self.runner.run(open_store(self.url))
        self.sessions: list[SessionModel] = []

    def teardown(self) -> None:
        self.runner.run(self.store.aclose())
        self.runner.close()

    def outcome_of(self, call: Any) -> object:
        """The result of a call, or the type of its error."""
        try:
            return self.runner.run(call)
        except Exception as error:
            return type(error)

    def draw_session(self, data: st.DataObject) -> tuple[SessionModel, SessionLease]:
        """A session and a lease: mostly a live session and its current lease."""
        models = self.live_models() if data.draw(st.integers(0, 9), "alive") else self.sessions
        model = data.draw(st.sampled_from(models or self.sessions), "session")
        age = data.draw(st.sampled_from((1, 1, 1, 1, 2)), "lease")
        return model, model.leases[-min(age, len(model.leases))]

    def live_models(self) -> list[SessionModel]:
        return [model for model in self.sessions if not model.is_removed]

    @precondition(lambda self: len(self.live_models()) < 2)
    @rule(state=st.binary(max_size=9))
    def create(self, state: bytes) -> None:
        new = new_session(state=state)
        lease = self.runner.run(self.store.create(new))
        self.sessions.append(SessionModel(new, [lease], state=state))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), owner=st.sampled_from(("gate-1", "gate-2")), expects_fence=st.booleans())
    def claim(self, data: st.DataObject, owner: str, expects_fence: bool) -> None:
        """With `expects_fence`, claim from the fence of the current lease or of an older one."""
        model, lease = self.draw_session(data)
        fence = lease.fence if expects_fence else None
        outcome = self.outcome_of(
            self.store.claim(model.new.id, owner, ttl_s=3600, expected_fence=fence)
        )
        if model.is_removed or model.is_expired:
            assert outcome is SessionNotFound
            return
        if fence not in (None, model.leases[-1].fence):
            assert outcome is LeaseLost
            return
        assert isinstance(outcome, SessionLease)
        assert outcome.fence > model.leases[-1].fence
        model.leases.append(outcome)
        model.is_parked = False

    @precondition(lambda self: self.sessions)
    @rule(
        data=st.data(),
        entries=entries,
        request=st.none() | requests,
        restored=st.just([]) | st.lists(requests, max_size=3, unique_by=lambda each: each.key),
        revoked_keys=st.lists(st.sampled_from("abcdefghijklmnop"), max_size=2).map(tuple),
        started_responses=checkpoints,
        ended_responses=st.lists(st.sampled_from(RESPONSE_IDS), max_size=2).map(tuple),
        state=st.none() | st.binary(max_size=9),
        epoch=st.none() | st.integers(0, 9),
        events=st.none() | st.lists(st.binary(max_size=9), max_size=2).map(tuple),
        twice=st.booleans(),
    )
    def write(
        self,
        data: st.DataObject,
        entries: tuple[bytes, ...],
        events: tuple[bytes, ...] | None,
        restored: list[IdempotentRequest],
        twice: bool,
        **rest: Any,
    ) -> None:
        model, lease = self.draw_session(data)
        change = WriteBatch(**rest)
        key = None if change.request is None else change.request.key
        change = _with(
            change, restored_requests=tuple(each for each in restored if each.key != key)
        )
        if data.draw(st.booleans(), "touch the log"):
            end = len(model.log)
            at = data.draw(st.sampled_from((end, end)) | st.integers(0, end + 1), "at")
            change = _with(change, kept_entries=at, entries=entries)
        if events is not None:
            first = data.draw(st.integers(0, len(model.events) + 1), "first")
            change = _with(change, events=StoredEvents(first, events))
        for _ in range(1 + twice):
            outcome = self.outcome_of(self.store.write(lease, change))
            assert outcome == model.write(lease, change)

    @precondition(lambda self: self.sessions)
    @rule(
        data=st.data(),
        expects_fence=st.booleans(),
        entries=entries,
        restored=st.lists(requests, max_size=3, unique_by=lambda each: each.key).map(tuple),
        started_responses=checkpoints,
        state=st.binary(max_size=9),
        epoch=st.integers(0, 9),
        events=st.lists(st.binary(max_size=9), max_size=2).map(tuple),
    )
    def recreate(
        self,
        data: st.DataObject,
        expects_fence: bool,
        restored: tuple[IdempotentRequest, ...],
        events: tuple[bytes, ...],
        **rest: Any,
    ) -> None:
        """Write a session of the present owner again, which the store has or has not."""
        model, _ = self.draw_session(data)
        lease = model.leases[-1]
        is_absent = model.is_removed or model.is_expired
        batch = WriteBatch(
            kept_entries=0, restored_requests=restored, events=StoredEvents(0, events), **rest
        )
        outcome = self.outcome_of(
            self.store.recreate(
                lease,
                _with_owner(model.new, lease.owner),
                batch,
                expected_fence=lease.fence if expects_fence else 0,
            )
        )
        if model.has_tombstone:
            assert outcome is SessionEnded
        elif expects_fence is is_absent:
            assert outcome is (SessionNotFound if is_absent else SessionExists)
        else:
            assert isinstance(outcome, SessionLease)
            assert outcome.fence > lease.fence
            model.become(batch, outcome)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), response_id=st.sampled_from(RESPONSE_IDS), new_ids=ids)
    def journal(self, data: st.DataObject, response_id: str, new_ids: tuple[int, ...]) -> None:
        model, lease = self.draw_session(data)
        response = model.running_responses.get(response_id)
        first = data.draw(st.integers(0, len(response.ids) + 1 if response else 0), "first")
        outcome = self.outcome_of(self.store.journal(lease, response_id, first, new_ids))
        assert outcome == model.journal(lease, response_id, first, new_ids)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), parked=st.booleans())
    def extend_deadline(self, data: st.DataObject, parked: bool) -> None:
        model, lease = self.draw_session(data)
        expires = data.draw(st.integers(0, 4), "not expired") == 0
        outcome = self.outcome_of(
            self.store.extend_deadline(lease, 0 if expires else 3600, is_parked=parked)
        )
        assert outcome == model.expected_error(lease)
        if outcome is None:
            model.is_expired, model.is_parked = expires, parked

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        model, lease = self.draw_session(data)
        error = model.expected_error(lease)
        outcome = self.outcome_of(self.store.delete(lease))
        assert outcome == (None if model.is_removed else error)
        model.has_tombstone = model.has_tombstone or (not model.is_removed and outcome is None)
        model.is_removed = model.is_removed or outcome is None

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def force_delete(self, data: st.DataObject) -> None:
        model, _ = self.draw_session(data)
        outcome = self.outcome_of(self.store.force_delete(model.new.id))
        if model.is_removed or model.is_expired:
            assert outcome is SessionNotFound
            return
        assert isinstance(outcome, int)
        assert outcome > model.leases[-1].fence
        model.is_removed = model.has_tombstone = True

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        model, lease = self.draw_session(data)
        assert self.outcome_of(self.store.confirm(lease)) == model.expected_error(lease)

    @rule()
    def sweep(self) -> None:
        swept = self.runner.run(self.store.sweep(1000)).expired
        expired = [model for model in self.sessions if model.is_expired and not model.is_removed]
        assert {model.new.id for model in expired} <= set(swept)
        unswept = {
            model.new.id for model in self.sessions if model.is_removed or not model.is_expired
        }
        assert not unswept & set(swept)
        for model in expired:
            model.is_removed = True

    @invariant()
    def store_equals_model(self) -> None:
        for model in self.sessions:
            model.check(self.runner.run(self.store.load(model.new.id)))


def _with_owner(new: NewSession, owner: str) -> NewSession:
    return msgspec.structs.replace(new, owner=owner)


def _with(change: WriteBatch, **changes: Any) -> WriteBatch:
    return msgspec.structs.replace(change, **changes)


def run_machine(url: str, examples: int, *phases: Phase) -> None:
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


def test_sqlite_behaves_as_the_model() -> None:
    run_machine("sqlite://:memory:", 50)


def test_redis_behaves_as_the_model(redis: RedisProcess) -> None:
    run_machine(redis.url, 30)


def test_machine_detects_a_store_that_loses_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = SqliteStore.write

    async def write_losing_entries(
        self: SqliteStore, lease: SessionLease, change: WriteBatch
    ) -> WriteResult | DuplicateWrite:
        return await write(self, lease, _with(change, entries=change.entries[:2]))

    monkeypatch.setattr(SqliteStore, "write", write_losing_entries)
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_machine("sqlite://:memory:", 2000, Phase.generate)
