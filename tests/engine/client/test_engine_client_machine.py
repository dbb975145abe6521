"""Stateful test of the engine client: random commands on many sessions, with a null device.

The world is crowded (tests/support/worlds.py): leases are shrunk, spilled and recalled, and turns
retracted. Socket and loop are real. When the engine is killed, streaming sessions are attached
again with the ids and the turn that they are expected to have; regular sessions are closed. After
any history, an output equals that of one fresh prefill of the log; each turn ends exactly once; the
loop audits itself after every step; at the end no page is leased.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    rule,
)

from continuo.engine import SessionGroup
from continuo.engine.client.engine_client import TurnStream
from continuo.engine.errors import EngineLost, SessionDetached, TooLong, UnknownEngineSession
from continuo.engine.wire.messages import AppendSpan, Sampling
from tests.support.digest_runner import oracle
from tests.support.disturbed import ImpatientScheduler
from tests.support.drafting import oracle_speculation
from tests.support.engines import digest_engine, write_tiny_model
from tests.support.worlds import crowded_world

pytestmark = pytest.mark.slow

FOLDER = write_tiny_model(Path(mkdtemp()))
T = TypeVar("T")
IDS_MAX, OUTPUT_MAX = 9, 12
"""Ids of an append and of an output, in a world of small pages; in another one as many times more
as its sessions are longer."""
IDS = st.lists(st.integers(0, 3), min_size=1, max_size=IDS_MAX)
POSITIONS = st.integers(0, 1023)
"""Positions in a log, modulo its length: how long a cancelled turn has made it depends on the
clock, and what Hypothesis draws must not."""


class SessionModel:
    """The expected state of one session."""

    def __init__(self, name: str, log: list[int], capacity: int, *, is_streaming: bool) -> None:
        self.name = name
        self.log = log
        self.capacity = capacity
        self.is_streaming = is_streaming
        self.is_lost = False
        """Whether the session is regular and its engine was killed."""
        self.span: list[int] = []
        self.turn: TurnStream | None = None
        self.limit = 0
        self.cancelled = False
        self.discarded = False
        self.output: list[int] = []
        self.reading: asyncio.Task[None] | None = None
        self.pending_appends: list[tuple[list[int], asyncio.Task[int]]] = []
        self.pending_spans: list[tuple[list[int], asyncio.Task[int]]] = []

    @property
    def room(self) -> int:
        return self.capacity - len(self.log) - len(self.span)

    @property
    def room_after_turn(self) -> int:
        """Room left beside the whole output and all that waits for the end of the turn."""
        pending = sum(len(ids) for ids, _ in self.pending_appends + self.pending_spans)
        return self.room - self.limit - pending

    @property
    def accepted_span(self) -> list[int]:
        """The last provisional span that the engine has accepted."""
        accepted = [
            ids
            for ids, task in self.pending_spans
            if task.done() and not task.cancelled() and task.exception() is None
        ]
        return accepted[-1] if accepted else self.span


class EngineClientMachine(RuleBasedStateMachine):
    sessions = Bundle("sessions")

    @initialize(seed=st.integers(0, 2**16), pauses=st.sampled_from([0, 3]))
    def start(self, seed: int, pauses: int) -> None:
        """`seed`: of the crowded world and of its drafts. `pauses`: times that each step can be
        discarded."""
        self.world = world = crowded_world(random.Random(seed))
        speculation = partial(oracle_speculation, random.Random(seed))
        self.loop = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.harness = self._run(
            self.stack.enter_async_context(
                digest_engine(
                    FOLDER,
                    pages=world.pages,
                    page_size=world.page_size,
                    max_model_len=world.session_tokens,
                    host_pages=world.host_pages,
                    steps_ahead=world.ahead,
                    batched_tokens=world.batched_tokens,
                    rows=world.rows,
                    pauses=pauses,
                    scheduler=ImpatientScheduler,
                    speculation=speculation if world.has_drafts else None,
                    max_group_share=world.max_group_share,
                    **world.memory,
                )
            )
        )
        self.engine = self.harness.engine
        self.capacity = self.engine.ready.max_model_len
        self.all: list[SessionModel] = []

    def _run(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(20):
                return await work

        return self.loop.run(bounded())

    # ---- rules ----------------------------------------------------------------------------

    @rule(target=sessions, streaming=st.booleans(), number=st.integers(0, 3))
    def open(self, streaming: bool, number: int) -> SessionModel:
        group = SessionGroup(*self.world.group(number))
        name = self._run(self.engine.open(streaming=streaming, group=group))
        return self._add(name, [], is_streaming=streaming)

    @rule(session=sessions, ids=IDS)
    def append(self, session: SessionModel, ids: list[int]) -> None:
        if self._finish(session):
            self._append(session, self._scale(ids))

    @rule(session=sessions, ids=IDS)
    def append_during_a_turn(self, session: SessionModel, ids: list[int]) -> None:
        ids = self._scale(ids)
        if self._is_generating(session) and len(ids) <= session.room_after_turn:
            session.pending_appends.append(
                (ids, self._run(self._start(self.engine.append(session.name, ids))))
            )

    @rule(session=sessions, ids=IDS)
    def put_span_during_a_turn(self, session: SessionModel, ids: list[int]) -> None:
        ids = self._scale(ids)
        if self._is_generating(session) and len(ids) <= session.room_after_turn:
            span = self.engine.append(session.name, ids, "provisional")
            session.pending_spans.append((ids, self._run(self._start(span))))

    @rule(session=sessions, ids=IDS, commit=st.booleans())
    def put_span(self, session: SessionModel, ids: list[int], commit: bool) -> None:
        ids = self._scale(ids)
        span = session.span[: len(ids) // 2] + ids
        if not self._finish(session) or len(session.log) + len(span) > session.capacity:
            return
        self._call(session, lambda: self.engine.append(session.name, span, "provisional"))
        session.span = span
        if commit:
            self._call(session, lambda: self.engine.append(session.name, span[:-1], "commit"))
            session.log, session.span = session.log + span[:-1], []

    @rule(session=sessions, limit=st.integers(1, OUTPUT_MAX))
    def generate(self, session: SessionModel, limit: int) -> None:
        if not self._finish(session):
            return
        if not session.log or len(session.log) == session.capacity:
            return
        limit = limit * self.world.output_max // OUTPUT_MAX

        async def begin() -> None:
            turn = await self.engine.generate(session.name, Sampling(max_tokens=limit))
            session.turn, session.output, session.cancelled = turn, [], False
            session.discarded = False
            session.reading = asyncio.create_task(self._read(session, turn))

        self._call(session, begin)
        session.limit = min(limit, session.capacity - len(session.log))

    @rule(session=sessions, discard=st.booleans(), wait=st.sampled_from([0, 0.001, 0.003]))
    def cancel(self, session: SessionModel, discard: bool, wait: float) -> None:
        turn = session.turn
        if turn is None or not self._is_generating(session):
            return
        self._run(asyncio.sleep(wait))

        async def cancel() -> None:
            """Cancel the turn; if its engine was lost, when it is attached again."""
            while not turn.has_ended:
                try:
                    await self.engine.cancel(session.name, turn.id, discard_output=discard)
                except SessionDetached:
                    await asyncio.sleep(0.001)
                else:
                    return

        self._run(cancel())
        session.cancelled, session.discarded = True, discard
        self._finish(session)

    @rule(session=sessions)
    def finish(self, session: SessionModel) -> None:
        self._finish(session)

    @rule(session=sessions, position=POSITIONS)
    def rewind(self, session: SessionModel, position: int) -> None:
        if not self._finish(session):
            return
        to = position % (len(session.log) + 1)
        assert self._call(session, lambda: self.engine.rewind(session.name, to)) == to
        del session.log[to:]

    @rule(target=sessions, session=sessions, position=POSITIONS)
    def fork(self, session: SessionModel, position: int) -> SessionModel:
        if not self._finish(session):
            return session
        at = position % (len(session.log) + 1)
        name = self._call(session, lambda: self.engine.fork(session.name, at))
        return self._add(name, session.log[:at], is_streaming=session.is_streaming)

    @rule(session=consumes(sessions), keep=st.booleans())
    def close(self, session: SessionModel, keep: bool) -> None:
        if session in self.all and self._finish(session):
            self._run(self.engine.close(session.name, keep_prefix=keep))
            self.all.remove(session)

    @rule(ids=IDS, limit=st.integers(1, 6))
    def complete(self, ids: list[int], limit: int) -> None:
        ids = self._scale(ids)[: self.capacity - 1]

        async def once() -> list[int]:
            try:
                return await attempt()
            except EngineLost:  # killed before: the next engine completes it
                return await attempt()

        async def attempt() -> list[int]:
            turn = await self.engine.complete(
                ids, Sampling(max_tokens=limit), group=SessionGroup("a")
            )
            return [id async for piece in turn for id in piece.ids]

        output = self._run(once())
        assert output == oracle(ids, min(limit, self.capacity - len(ids)))

    @rule()
    def kill_engine(self) -> None:
        self.harness.kill()
        for session in self.all:
            session.is_lost = session.is_lost or not session.is_streaming

    @rule()
    def pass_time(self) -> None:
        self._run(asyncio.sleep(0.002))

    # ---- helpers --------------------------------------------------------------------------

    def _scale(self, ids: list[int]) -> list[int]:
        return ids * (self.world.append_max // IDS_MAX)

    def _add(self, name: str, log: list[int], *, is_streaming: bool) -> SessionModel:
        session = SessionModel(name, log, self.capacity, is_streaming=is_streaming)
        self.all.append(session)
        return session

    def _append(self, session: SessionModel, ids: list[int]) -> None:
        if len(ids) > session.room:
            try:
                self._call(session, lambda: self.engine.append(session.name, ids))
            except TooLong:
                return
            raise AssertionError("an append beyond the capacity was accepted")
        length = self._call(session, lambda: self.engine.append(session.name, ids))
        session.log = session.log + ids
        assert length == len(session.log)

    def _call(self, session: SessionModel, command: Callable[[], Awaitable[T]]) -> T:
        """Execute a command on a streaming session. If the engine was killed, attach the session
        with its expected log, and execute the command again."""
        try:
            return self._run(command())
        except SessionDetached:
            assert session.is_streaming
            self._run(self.engine.attach(session.name, session.log, provisional=session.span))
            return self._run(command())

    async def _read(self, session: SessionModel, turn: TurnStream) -> None:
        while turn.ended is None:
            try:
                async for piece in turn:
                    session.output.extend(piece.ids)
            except SessionDetached:
                ids, span = [*session.log, *turn.ids], session.accepted_span
                await self.engine.attach(session.name, ids, provisional=span, unfinished=turn)

    def _is_generating(self, session: SessionModel) -> bool:
        return session.turn is not None and not session.is_lost

    async def _start(self, command: Coroutine[Any, Any, int]) -> "asyncio.Task[int]":
        task = asyncio.create_task(command)
        await asyncio.sleep(0)
        return task

    def _finish(self, session: SessionModel) -> bool:
        """Wait for the turn to end, and check its output. Returns False if the session was lost
        with its engine."""
        if session.is_lost:
            self._check_lost(session)
            return False
        if session.turn is not None and session.reading is not None:
            self._finish_turn(session, session.turn, session.reading)
        return True

    def _check_lost(self, session: SessionModel) -> None:
        pending = [session.reading] if session.reading is not None else []
        tasks = [task for _, task in session.pending_appends + session.pending_spans]
        errors = self._run(_gather([*pending, *tasks]))
        assert all(error is None or isinstance(error, int | EngineLost) for error in errors)
        session.turn, session.reading = None, None
        session.pending_appends, session.pending_spans = [], []
        for _ in range(2):
            try:
                self._run(self.engine.append(session.name, [1]))
            except EngineLost:
                continue  # the loss was not noticed yet
            except UnknownEngineSession:
                return
        raise AssertionError("a regular session has survived its engine")

    def _finish_turn(
        self, session: SessionModel, turn: TurnStream, reading: "asyncio.Task[None]"
    ) -> None:
        session.turn = None
        self._run(reading)
        ended = turn.ended
        assert ended is not None
        assert session.output == oracle(session.log, len(session.output))
        assert ended.output_tokens == len(session.output)
        assert ended.prompt_tokens == len(session.log)
        assert ended.cached_tokens < len(session.log)
        if ended.reason == "length":
            assert len(session.output) == session.limit
            assert ended.length == len(session.log) + len(session.output)
        else:
            assert session.cancelled
            assert ended.reason == "cancelled"
            if session.discarded:
                session.output = []
            assert ended.length == len(session.log) + len(session.output)
        session.log = session.log + session.output
        if session.room < 0:
            session.span = []  # the output has left no room for it: see TokenLog
        for ids, task in session.pending_appends:
            self._wait_or_repeat(session, task, ids, "firm")
            session.log = session.log + ids
        for ids, task in session.pending_spans:
            self._wait_or_repeat(session, task, ids, "provisional")
            session.span = ids
        session.pending_appends, session.pending_spans = [], []
        length = len(session.log)
        self._call(session, lambda: self.engine.rewind(session.name, length))  # attaches it
        info = self._call(session, lambda: self.engine.info(session.name))
        assert (info.length, info.provisional) == (len(session.log), len(session.span))

    def _wait_or_repeat(
        self, session: SessionModel, task: "asyncio.Task[int]", ids: list[int], span: AppendSpan
    ) -> None:
        """Wait for an append, and repeat it if it was lost with the engine."""
        try:
            self._run(_wait(task))
        except SessionDetached:
            self._call(session, lambda: self.engine.append(session.name, ids, span))

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            for session in self.all:
                if self._finish(session):
                    self._run(self.engine.close(session.name))
            stats = self._run(self.engine.fleet.stats())
            assert (stats.sessions, stats.pages_leased, stats.host_pages_used) == (0, 0, 0)
            assert stats.pages_free + stats.pages_tree == stats.pages_total
            self._run(self.stack.aclose())
        finally:
            self.loop.close()


async def _wait(task: "asyncio.Task[int]") -> int:
    return await task


async def _gather(tasks: "list[asyncio.Task[Any]]") -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


TestEngineClient = EngineClientMachine.TestCase
TestEngineClient.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
