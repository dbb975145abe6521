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
    Answer,
    Begun,
    Change,
    Conflict,
    Entry,
    Events,
    Lease,
    NewSession,
    Once,
    Repeated,
    SessionBehind,
    SessionEnded,
    Snapshot,
    StaleFence,
    Store,
    UnknownAnswer,
    UnknownSession,
    Written,
    open_store,
)
from continuo.realtime.store.sqlite.store import SqliteStore
from tests.realtime.store.making import fresh_session
from tests.realtime.store.redis_process import RedisProcess

NAMES = ("resp_1", "resp_2", "resp_12")
ids = st.lists(st.integers(0, 200_000), max_size=5).map(tuple)
entries = st.lists(st.builds(Entry, st.binary(max_size=40), ids), max_size=3).map(tuple)
asked = st.builds(
    Once, st.sampled_from("abcdefghijklmnop"), st.sampled_from((b"x", b"y")), st.binary(max_size=3)
)
answers = st.builds(
    Begun, id=st.sampled_from(NAMES), seed=st.integers(0, 9), prompt=st.integers(0, 9)
)
begins = st.lists(answers, max_size=2, unique_by=lambda begun: begun.id).map(tuple)


@dataclass
class Model:
    """One session as it should be."""

    new: NewSession
    leases: list[Lease]
    over: bool = False
    """Its time is."""
    gone: bool = False
    ended: bool = False
    """And that is remembered."""
    parked: bool = False
    epoch: int = 0
    state: bytes = b""
    log: list[Entry] = field(default_factory=list[Entry])
    once: dict[str, Once] = field(default_factory=dict[str, Once])
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    events: list[bytes] = field(default_factory=list[bytes])

    def fault(self, lease: Lease) -> type[Exception] | None:
        if self.gone:
            return SessionEnded if self.ended else UnknownSession
        return None if lease == self.leases[-1] else StaleFence

    def write(self, lease: Lease, change: Change) -> object:
        """What write gives, or the kind of what it raises."""
        fault = self.fault(lease)
        if fault is not None:
            return fault
        once = change.once
        if once is not None and once.key in self.once and once.key not in change.undone:
            before = self.once[once.key]
            return Repeated(before.result) if before.content == once.content else Conflict
        if change.at is not None and change.at > len(self.log):
            return SessionBehind
        if change.events is not None and change.events.first > len(self.events):
            return SessionBehind
        self._apply(change)
        return Written(len(self.log), len(self.events))

    def _apply(self, change: Change) -> None:
        for key in change.undone:
            self.once.pop(key, None)
        self.once.update((once.key, once) for once in change.again)
        if change.once is not None:
            self.once[change.once.key] = change.once
        if change.at is not None:
            self.log[change.at :] = change.entries
        if change.events is not None:
            self.events[change.events.first :] = change.events.bodies
        for ended in change.ends:
            self.answers.pop(ended, None)
        for begun in change.begins:
            self.answers[begun.id] = Answer(begun)
        self.epoch = self.epoch if change.epoch is None else change.epoch
        self.state = self.state if change.state is None else change.state

    def journal(self, lease: Lease, name: str, first: int, said: tuple[int, ...]) -> object:
        fault = self.fault(lease)
        if fault is not None:
            return fault
        if name not in self.answers:
            return UnknownAnswer
        answer = self.answers[name]
        if first > len(answer.ids):
            return SessionBehind
        whole = (*answer.ids, *said[len(answer.ids) - first :])
        self.answers[name] = Answer(answer.begun, whole)
        return len(whole)

    def check(self, found: Snapshot | None) -> None:
        if self.gone or self.over:
            assert found is None
            return
        assert found is not None
        lease, card = self.leases[-1], found.card
        assert (card.owner, card.fence) == (lease.owner, lease.fence)
        assert (card.epoch, card.parked) == (self.epoch, self.parked)
        assert card.position == len(self.log)
        assert found.log == tuple(self.log)
        assert found.state == self.state
        assert found.answers == tuple(self.answers[name] for name in sorted(self.answers))
        assert found.events == Events(0, tuple(self.events))


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

    def pick(self, data: st.DataObject) -> tuple[Model, Lease]:
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
        got = self.wait(self.store.claim(model.new.id, owner, hold_s=3600, seen=fence))
        if model.gone or model.over:
            assert got is UnknownSession
            return
        if fence not in (None, model.leases[-1].fence):
            assert got is StaleFence
            return
        assert isinstance(got, Lease)
        assert got.fence > model.leases[-1].fence
        model.leases.append(got)
        model.parked = False

    @precondition(lambda self: self.sessions)
    @rule(
        data=st.data(),
        entries=entries,
        once=st.none() | asked,
        again=st.just([]) | st.lists(asked, max_size=3, unique_by=lambda once: once.key),
        undone=st.lists(st.sampled_from("abcdefghijklmnop"), max_size=2).map(tuple),
        begins=begins,
        ends=st.lists(st.sampled_from(NAMES), max_size=2).map(tuple),
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
        again: list[Once],
        twice: bool,
        **rest: Any,
    ) -> None:
        model, lease = self.pick(data)
        change = Change(**rest)
        known = None if change.once is None else change.once.key
        change = _with(change, again=tuple(one for one in again if one.key != known))
        if data.draw(st.booleans(), "touch the log"):
            end = len(model.log)
            at = data.draw(st.sampled_from((end, end)) | st.integers(0, end + 1), "at")
            change = _with(change, at=at, entries=entries)
        if events is not None:
            first = data.draw(st.integers(0, len(model.events) + 1), "first")
            change = _with(change, events=Events(first, events))
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
        got = self.wait(self.store.hold(lease, 0 if over else 3600, parked=parked))
        assert got == model.fault(lease)
        if got is None:
            model.over, model.parked = over, parked

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        model, lease = self.pick(data)
        fault = model.fault(lease)
        got = self.wait(self.store.close(lease))
        assert got == (None if model.gone else fault)
        model.ended = model.ended or (not model.gone and got is None)
        model.gone = model.gone or got is None

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        model, _ = self.pick(data)
        got = self.wait(self.store.end(model.new.id))
        if model.gone or model.over:
            assert got is UnknownSession
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


def _with(change: Change, **changes: Any) -> Change:
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

    async def forgetful(self: SqliteStore, lease: Lease, change: Change) -> Written | Repeated:
        return await write(self, lease, _with(change, entries=change.entries[:2]))

    monkeypatch.setattr(SqliteStore, "write", forgetful)
    with pytest.raises((AssertionError, ExceptionGroup)):
        run("sqlite://:memory:", 200, Phase.generate)
