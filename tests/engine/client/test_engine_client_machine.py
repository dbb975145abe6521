"""Random lives of many sessions through the door: real socket, real loop, a device of digests.

Small pools, so that leases are shrunk, spilled and recalled, turns retracted. Whatever happened,
an answer is what one fresh prefill of the log would give; each turn ends exactly once; the books
balance after every step (the loop audits itself here) and at the end nothing is held.
"""

import asyncio
import os
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

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
from tests.support.engines import digest_engine, tiny_text

FOLDER = tiny_text(Path(mkdtemp()))
IDS = st.lists(st.integers(0, 3), min_size=1, max_size=9)


class Life:
    """What a client knows of one session."""

    def __init__(self, name: str, log: list[int], capacity: int) -> None:
        self.name = name
        self.log = log
        self.capacity = capacity
        self.span: list[int] = []
        self.turn: TurnStream | None = None
        self.limit = 0
        self.cancelled = False
        self.dropped = False
        self.said: list[int] = []
        self.reading: asyncio.Task[None] | None = None
        self.waiting: list[tuple[list[int], asyncio.Task[int]]] = []
        self.spoken: list[tuple[list[int], asyncio.Task[int]]] = []

    @property
    def room(self) -> int:
        return self.capacity - len(self.log) - len(self.span)

    @property
    def room_after(self) -> int:
        """Beside the whole answer and all that waits for its end, each span for itself."""
        waiting = sum(len(ids) for ids, _ in self.waiting + self.spoken)
        return self.room - self.limit - waiting


class Door(RuleBasedStateMachine):
    lives = Bundle("lives")

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
        self.bench = self._run(
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
        self.engine = self.bench.engine
        self.capacity = self.engine.ready.max_model_len
        self.all: list[Life] = []

    def _run(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(20):
                return await work

        return self.loop.run(bounded())

    # ---- rules ----------------------------------------------------------------------------

    @rule(target=lives, streaming=st.booleans(), scope=st.sampled_from(["a", "b"]))
    def open(self, streaming: bool, scope: str) -> Life:
        name = self._run(self.engine.open(streaming=streaming, cache_scope=scope))
        return self._add(name, [])

    @rule(life=lives, ids=IDS)
    def append(self, life: Life, ids: list[int]) -> None:
        self._finish(life)
        self._append(life, ids)

    @rule(life=lives, ids=IDS)
    def append_while_it_speaks(self, life: Life, ids: list[int]) -> None:
        if life.turn is not None and len(ids) <= life.room_after:
            life.waiting.append((ids, self._run(self._later(self.engine.append(life.name, ids)))))

    @rule(life=lives, ids=IDS)
    def speak_while_it_speaks(self, life: Life, ids: list[int]) -> None:
        if life.turn is not None and len(ids) <= life.room_after:
            spoken = self.engine.append(life.name, ids, "provisional")
            life.spoken.append((ids, self._run(self._later(spoken))))

    @rule(life=lives, ids=IDS, commit=st.booleans())
    def speak(self, life: Life, ids: list[int], commit: bool) -> None:
        self._finish(life)
        span = life.span[: len(ids) // 2] + ids
        if len(life.log) + len(span) > life.capacity:
            return
        self._run(self.engine.append(life.name, span, "provisional"))
        life.span = span
        if commit:
            self._run(self.engine.append(life.name, span[:-1], "commit"))
            life.log, life.span = life.log + span[:-1], []

    @rule(life=lives, limit=st.integers(1, 12))
    def generate(self, life: Life, limit: int) -> None:
        self._finish(life)
        if not life.log or len(life.log) == life.capacity:
            return

        async def begin() -> None:
            turn = await self.engine.generate(life.name, Sampling(max_tokens=limit))
            life.turn, life.said, life.cancelled = turn, [], False
            life.dropped = False

            async def read() -> None:
                async for piece in turn:
                    life.said.extend(piece.ids)

            life.reading = asyncio.create_task(read())

        self._run(begin())
        life.limit = min(limit, life.capacity - len(life.log))

    @rule(life=lives, drop=st.booleans(), wait=st.sampled_from([0, 0.001, 0.003]))
    def cancel(self, life: Life, drop: bool, wait: float) -> None:
        if life.turn is None:
            return
        self._run(asyncio.sleep(wait))
        self._run(self.engine.cancel(life.name, life.turn.id, discard_output=drop))
        life.cancelled, life.dropped = True, drop
        self._finish(life)

    @rule(life=lives)
    def finish(self, life: Life) -> None:
        self._finish(life)

    @rule(life=lives, data=st.data())
    def rewind(self, life: Life, data: st.DataObject) -> None:
        self._finish(life)
        to = data.draw(st.integers(0, len(life.log)))
        assert self._run(self.engine.rewind(life.name, to)) == to
        del life.log[to:]

    @rule(target=lives, life=lives, data=st.data())
    def fork(self, life: Life, data: st.DataObject) -> Life:
        self._finish(life)
        at = data.draw(st.integers(0, len(life.log)))
        name = self._run(self.engine.fork(life.name, at))
        return self._add(name, life.log[:at])

    @rule(life=consumes(lives), keep=st.booleans())
    def close(self, life: Life, keep: bool) -> None:
        self._finish(life)
        self._run(self.engine.close(life.name, keep_prefix=keep))
        self.all.remove(life)

    @rule(ids=IDS, limit=st.integers(1, 6))
    def complete(self, ids: list[int], limit: int) -> None:
        ids = ids[: self.capacity - 1]

        async def once() -> list[int]:
            turn = await self.engine.complete(ids, Sampling(max_tokens=limit), cache_scope="a")
            return [id async for piece in turn for id in piece.ids]

        said = self._run(once())
        assert said == oracle(ids, min(limit, self.capacity - len(ids)))

    @rule()
    def the_engine_dies(self) -> None:
        self.bench.kill()

    @rule()
    def time_passes(self) -> None:
        self._run(asyncio.sleep(0.002))

    # ---- inside ---------------------------------------------------------------------------

    def _add(self, name: str, log: list[int]) -> Life:
        life = Life(name, log, self.capacity)
        self.all.append(life)
        return life

    def _append(self, life: Life, ids: list[int]) -> None:
        if len(ids) > life.room:
            try:
                self._run(self.engine.append(life.name, ids))
            except TooLong:
                return
            raise AssertionError("more was taken than fits")
        life.log = life.log + ids
        assert self._run(self.engine.append(life.name, ids)) == len(life.log)

    async def _later(self, asked: Coroutine[Any, Any, int]) -> "asyncio.Task[int]":
        task = asyncio.create_task(asked)
        await asyncio.sleep(0)
        return task

    def _finish(self, life: Life) -> None:
        """Waits for the turn, and checks what it said."""
        if life.turn is None or life.reading is None:
            return
        turn, life.turn = life.turn, None
        self._run(life.reading)
        ended = turn.ended
        assert ended is not None
        assert life.said == oracle(life.log, len(life.said))
        assert ended.output_tokens == len(life.said)
        assert ended.prompt_tokens == len(life.log)
        assert ended.cached_tokens < len(life.log)
        if ended.reason == "length":
            assert len(life.said) == life.limit
            assert ended.length == len(life.log) + len(life.said)
        else:
            assert life.cancelled
            assert ended.reason == "cancelled"
            if life.dropped:
                life.said = []
            assert ended.length == len(life.log) + len(life.said)
        life.log = life.log + life.said
        if life.room < 0:
            life.span = []  # the answer has left no room for it: see Log.put_span
        for ids, task in life.waiting:
            self._run(_wait(task))
            life.log = life.log + ids
        for ids, task in life.spoken:
            self._run(_wait(task))
            life.span = ids
        life.waiting, life.spoken = [], []
        info = self._run(self.engine.info(life.name))
        assert (info.length, info.provisional) == (len(life.log), len(life.span))

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            for life in self.all:
                self._finish(life)
                self._run(self.engine.close(life.name))
            stats = self._run(self.engine.stats())
            assert (stats.sessions, stats.pages_leased, stats.host_pages_used) == (0, 0, 0)
            assert stats.pages_free + stats.pages_tree == stats.pages_total
            self._run(self.stack.aclose())
        finally:
            self.loop.close()


async def _wait(task: "asyncio.Task[int]") -> int:
    return await task


TestDoor = Door.TestCase
TestDoor.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
