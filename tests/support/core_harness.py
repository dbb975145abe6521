"""Desk: the loop's parts without sockets, threads or time. Commands in, steps by hand, events out.

What takes place in which step is exact here, so that tests count steps and tokens and never look at
a clock: `now` stands still until a test moves it.
"""

from collections import deque
from typing import Any, TypeVar

from continuo.engine.batch import BatchResult, Geometry
from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.counters import Counters
from continuo.engine.core.loop import EngineLoop, PreparedStep
from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.sessions import Sessions
from continuo.engine.text import GrammarCompiler, StopStringMatcher
from continuo.engine.text.tokenizer.tokenizer import Tokenizer
from continuo.engine.wire.messages import (
    AppendIds,
    CloseSession,
    CommandDone,
    CommandRefused,
    EngineEvent,
    ForkSession,
    Generate,
    LoopCommand,
    OpenSession,
    RewindSession,
    Sampling,
    TurnEnded,
    TurnTokens,
)
from tests.support.digest_runner import VOCABULARY, DigestRunner
from tests.support.engines import tiny_tokenizer

Kind = TypeVar("Kind")


class Desk:
    def __init__(
        self,
        *,
        pages: int = 64,
        page_size: int = 4,
        max_model_len: int = 10_000,
        batched_tokens: int = 16,
        rows: int = 8,
        host_pages: int = 0,
        scheduler: type[Scheduler] = Scheduler,
        vocabulary: int = VOCABULARY,
    ) -> None:
        """`vocabulary`: ids it reads; it draws the first VOCABULARY of them."""
        limit = min(max_model_len, pages * page_size)
        geometry = Geometry(pages, page_size, limit, vocabulary, batched_tokens, 0, host_pages)
        self.runner = DigestRunner(geometry)
        self.cache = SessionAwareCache(pages, page_size, host_pages)
        self.scheduler = scheduler(self.cache, batched_tokens, rows)
        self.counters = Counters()
        self.now = 1000.0
        self.events: list[EngineEvent] = []
        self._loop = EngineLoop(self.runner, self.cache, self.scheduler, self.counters)
        self._flying: deque[tuple[PreparedStep, BatchResult | Exception]] = deque()
        self._pages: deque[list[bytes]] = deque()
        """Of the rows in flight, which nobody may change."""
        self._n = 0
        self.sessions = Sessions(
            self.cache,
            self.scheduler,
            geometry,
            self.counters,
            make_stop_watch=_no_stops,
            grammars=GrammarCompiler(Tokenizer(tiny_tokenizer()), VOCABULARY, (), self._loop.wake),
            emit=self._loop.emit,
            clock=lambda: self.now,
        )

    # ---- commands -------------------------------------------------------------------------

    def open(
        self,
        session: str,
        *,
        streaming: bool = True,
        timeout_s: float | None = None,
        capacity: int | None = None,
        scope: str = "",
    ) -> Sequence:
        self.do(OpenSession(self.n(), session, streaming, timeout_s, capacity, scope))
        return self.sequence(session)

    def append(self, session: str, ids: list[int], **options: Any) -> CommandDone:
        return self.do(AppendIds(self.n(), session, ids, **options))

    def generate(self, session: str, count: int, turn: str = "turn") -> CommandDone:
        return self.do(Generate(self.n(), session, turn, Sampling(max_tokens=count)))

    def rewind(self, session: str, to: int) -> CommandDone:
        return self.do(RewindSession(self.n(), session, to))

    def fork(self, session: str, child: str, at: int | None = None) -> CommandDone:
        return self.do(ForkSession(self.n(), session, child, at))

    def close(self, session: str, *, keep_prefix: bool = True) -> CommandDone:
        return self.do(CloseSession(self.n(), session, keep_prefix))

    def do(self, command: LoopCommand) -> CommandDone:
        """A command that takes effect at once."""
        answer = self.tell(command)
        assert isinstance(answer, CommandDone), answer
        return answer

    def refuse(self, command: LoopCommand) -> CommandRefused:
        answer = self.tell(command)
        assert isinstance(answer, CommandRefused), answer
        return answer

    def tell(self, command: LoopCommand) -> CommandDone | CommandRefused | None:
        """The command's answer; None: it waits."""
        before = len(self.events)
        self.sessions.apply(command)
        self._take_events()
        answers = [e for e in self.events[before:] if isinstance(e, CommandDone | CommandRefused)]
        return next((e for e in answers if e.n == command.n), None)

    def n(self) -> int:
        self._n += 1
        return self._n

    # ---- steps ----------------------------------------------------------------------------

    def launch(self) -> PreparedStep | None:
        """Plans a step and runs it on the device; its answer is not looked at yet."""
        order = self._loop.prepare_step()
        if order is None:
            return None
        answer: BatchResult | Exception
        try:
            answer = self.runner.launch(order.batch)
        except Exception as error:
            behind_a_lost_one = any(isinstance(each, Exception) for _, each in self._flying)
            if not isinstance(error, RuntimeError) and not behind_a_lost_one:
                raise
            answer = error
        self._flying.append((order, answer))
        self._pages.append([row.pages.tobytes() for row in order.batch.rows])
        self.cache.audit()
        return order

    def collect(self) -> None:
        """The oldest step in flight takes effect."""
        order, answer = self._flying.popleft()
        assert self._pages.popleft() == [row.pages.tobytes() for row in order.batch.rows]
        if isinstance(answer, Exception):
            lost = [order, *(each for each, _ in self._flying)]
            self._flying.clear()
            self._pages.clear()
            self._loop.apply_failure(lost, answer, self.sessions)
        else:
            self._loop.apply_result(order, answer, self.sessions)
        self._take_events()
        self.cache.audit()

    def step(self) -> PreparedStep | None:
        order = self.launch()
        if order is not None:
            self.collect()
        return order

    def run(self, *, ahead: int = 0, steps_max: int = 2000) -> int:
        """Steps until nothing is owed, `ahead` of them launched beyond the one awaited. Returns how
        many were launched."""
        launched = 0
        while True:
            order = self.launch()
            launched += order is not None
            assert launched <= steps_max, "it does not come to an end"
            if len(self._flying) > ahead or (self._flying and order is None):
                self.collect()
            elif order is None:
                return launched

    @property
    def flying(self) -> int:
        """Steps launched and not yet collected."""
        return len(self._flying)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.sessions.expire_idle()
        self._take_events()

    # ---- what can be seen -----------------------------------------------------------------

    def heard(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    def said(self, session: str, turn: str = "turn") -> list[int]:
        """All ids of a turn."""
        pieces = [e for e in self.heard(TurnTokens) if (e.session, e.turn) == (session, turn)]
        return [id for piece in pieces for id in piece.ids]

    def ended(self, session: str, turn: str = "turn") -> TurnEnded:
        """The end of a turn, of which there must be exactly one."""
        (end,) = [e for e in self.heard(TurnEnded) if (e.session, e.turn) == (session, turn)]
        return end

    def has_ended(self, session: str, turn: str = "turn") -> bool:
        return any((e.session, e.turn) == (session, turn) for e in self.heard(TurnEnded))

    def sequence(self, session: str) -> Sequence:
        return self.sessions._sequences[session]

    def _take_events(self) -> None:
        self.events += self._loop.take_events()


def _no_stops(stops: tuple[str, ...]) -> StopStringMatcher:
    raise AssertionError("no stop strings here")
