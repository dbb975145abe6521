"""Stateful test of the engine client: random commands on many sessions, with a null device.

Socket and loop are real. Pools are small, so that leases are shrunk, spilled and recalled, and
turns retracted. After any history, an output equals that of one fresh prefill of the log; each turn
ends exactly once; the loop audits itself after every step; at the end no page is leased.
"""

import asyncio
import os
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

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

from continuo.engine.client.engine_client import TurnStream
from continuo.engine.errors import TooLong
from continuo.engine.wire.messages import Sampling
from tests.support.digest_runner import oracle
from tests.support.engines import digest_engine, write_tiny_model

pytestmark = pytest.mark.slow

FOLDER = write_tiny_model(Path(mkdtemp()))
IDS = st.lists(st.integers(0, 3), min_size=1, max_size=9)


class SessionModel:
    """The expected state of one session."""

    def __init__(self, name: str, log: list[int], capacity: int) -> None:
        self.name = name
        self.log = log
        self.capacity = capacity
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


class EngineClientMachine(RuleBasedStateMachine):
    sessions = Bundle("sessions")

    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        pages=st.integers(8, 40),
        host=st.sampled_from([0, 6, 40]),
        ahead=st.sampled_from([0, 1]),
        tokens=st.sampled_from([2, 5, 16]),
        rows=st.sampled_from([2, 8]),
    )
    def start(
        self, page_size: int, pages: int, host: int, ahead: int, tokens: int, rows: int
    ) -> None:
        self.loop = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.harness = self._run(
            self.stack.enter_async_context(
                digest_engine(
                    FOLDER,
                    pages=pages,
                    page_size=page_size,
                    host_pages=host,
                    steps_ahead=ahead,
                    batched_tokens=tokens,
                    rows=rows,
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

    @rule(target=sessions, streaming=st.booleans(), scope=st.sampled_from(["a", "b"]))
    def open(self, streaming: bool, scope: str) -> SessionModel:
        name = self._run(self.engine.open(streaming=streaming, cache_scope=scope))
        return self._add(name, [])

    @rule(session=sessions, ids=IDS)
    def append(self, session: SessionModel, ids: list[int]) -> None:
        self._finish(session)
        self._append(session, ids)

    @rule(session=sessions, ids=IDS)
    def append_during_a_turn(self, session: SessionModel, ids: list[int]) -> None:
        if session.turn is not None and len(ids) <= session.room_after_turn:
            session.pending_appends.append(
                (ids, self._run(self._start(self.engine.append(session.name, ids))))
            )

    @rule(session=sessions, ids=IDS)
    def put_span_during_a_turn(self, session: SessionModel, ids: list[int]) -> None:
        if session.turn is not None and len(ids) <= session.room_after_turn:
            span = self.engine.append(session.name, ids, "provisional")
            session.pending_spans.append((ids, self._run(self._start(span))))

    @rule(session=sessions, ids=IDS, commit=st.booleans())
    def put_span(self, session: SessionModel, ids: list[int], commit: bool) -> None:
        self._finish(session)
        span = session.span[: len(ids) // 2] + ids
        if len(session.log) + len(span) > session.capacity:
            return
        self._run(self.engine.append(session.name, span, "provisional"))
        session.span = span
        if commit:
            self._run(self.engine.append(session.name, span[:-1], "commit"))
            session.log, session.span = session.log + span[:-1], []

    @rule(session=sessions, limit=st.integers(1, 12))
    def generate(self, session: SessionModel, limit: int) -> None:
        self._finish(session)
        if not session.log or len(session.log) == session.capacity:
            return

        async def begin() -> None:
            turn = await self.engine.generate(session.name, Sampling(max_tokens=limit))
            session.turn, session.output, session.cancelled = turn, [], False
            session.discarded = False

            async def read() -> None:
                async for piece in turn:
                    session.output.extend(piece.ids)

            session.reading = asyncio.create_task(read())

        self._run(begin())
        session.limit = min(limit, session.capacity - len(session.log))

    @rule(session=sessions, discard=st.booleans(), wait=st.sampled_from([0, 0.001, 0.003]))
    def cancel(self, session: SessionModel, discard: bool, wait: float) -> None:
        if session.turn is None:
            return
        self._run(asyncio.sleep(wait))
        self._run(self.engine.cancel(session.name, session.turn.id, discard_output=discard))
        session.cancelled, session.discarded = True, discard
        self._finish(session)

    @rule(session=sessions)
    def finish(self, session: SessionModel) -> None:
        self._finish(session)

    @rule(session=sessions, data=st.data())
    def rewind(self, session: SessionModel, data: st.DataObject) -> None:
        self._finish(session)
        to = data.draw(st.integers(0, len(session.log)))
        assert self._run(self.engine.rewind(session.name, to)) == to
        del session.log[to:]

    @rule(target=sessions, session=sessions, data=st.data())
    def fork(self, session: SessionModel, data: st.DataObject) -> SessionModel:
        self._finish(session)
        at = data.draw(st.integers(0, len(session.log)))
        name = self._run(self.engine.fork(session.name, at))
        return self._add(name, session.log[:at])

    @rule(session=consumes(sessions), keep=st.booleans())
    def close(self, session: SessionModel, keep: bool) -> None:
        self._finish(session)
        self._run(self.engine.close(session.name, keep_prefix=keep))
        self.all.remove(session)

    @rule(ids=IDS, limit=st.integers(1, 6))
    def complete(self, ids: list[int], limit: int) -> None:
        ids = ids[: self.capacity - 1]

        async def once() -> list[int]:
            turn = await self.engine.complete(ids, Sampling(max_tokens=limit), cache_scope="a")
            return [id async for piece in turn for id in piece.ids]

        output = self._run(once())
        assert output == oracle(ids, min(limit, self.capacity - len(ids)))

    @rule()
    def kill_engine(self) -> None:
        self.harness.kill()

    @rule()
    def pass_time(self) -> None:
        self._run(asyncio.sleep(0.002))

    # ---- helpers --------------------------------------------------------------------------

    def _add(self, name: str, log: list[int]) -> SessionModel:
        session = SessionModel(name, log, self.capacity)
        self.all.append(session)
        return session

    def _append(self, session: SessionModel, ids: list[int]) -> None:
        if len(ids) > session.room:
            try:
                self._run(self.engine.append(session.name, ids))
            except TooLong:
                return
            raise AssertionError("an append beyond the capacity was accepted")
        session.log = session.log + ids
        assert self._run(self.engine.append(session.name, ids)) == len(session.log)

    async def _start(self, command: Coroutine[Any, Any, int]) -> "asyncio.Task[int]":
        task = asyncio.create_task(command)
        await asyncio.sleep(0)
        return task

    def _finish(self, session: SessionModel) -> None:
        """Wait for the turn to end, and check its output."""
        if session.turn is None or session.reading is None:
            return
        turn, session.turn = session.turn, None
        self._run(session.reading)
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
            self._run(_wait(task))
            session.log = session.log + ids
        for ids, task in session.pending_spans:
            self._run(_wait(task))
            session.span = ids
        session.pending_appends, session.pending_spans = [], []
        info = self._run(self.engine.info(session.name))
        assert (info.length, info.provisional) == (len(session.log), len(session.span))

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            for session in self.all:
                self._finish(session)
                self._run(self.engine.close(session.name))
            stats = self._run(self.engine.stats())
            assert (stats.sessions, stats.pages_leased, stats.host_pages_used) == (0, 0, 0)
            assert stats.pages_free + stats.pages_tree == stats.pages_total
            self._run(self.stack.aclose())
        finally:
            self.loop.close()


async def _wait(task: "asyncio.Task[int]") -> int:
    return await task


TestEngineClient = EngineClientMachine.TestCase
TestEngineClient.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
