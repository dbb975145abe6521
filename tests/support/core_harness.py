"""CoreHarness: an engine core without sockets, threads and real time.

A test applies commands, launches and collects single steps, and reads the events. Steps and tokens
can be counted exactly, because the clock `now` stands still until the test advances it.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from continuo.engine.batch import BatchRow, Geometry, Runner
from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.cache.radix_tree import RadixTree
from continuo.engine.core.counters import Counters
from continuo.engine.core.loop import EngineLoop, MisplacedRows, PreparedStep
from continuo.engine.core.paged_backend import PagedBackend
from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.sessions import Sessions
from continuo.engine.core.speculation import Speculation
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

EventT = TypeVar("EventT")


class CoreHarness:
    def __init__(
        self,
        *,
        pages: int = 64,
        page_size: int = 4,
        max_model_len: int = 10_000,
        batched_tokens: int = 16,
        rows: int = 8,
        host_pages: int = 0,
        max_group_share: float = 1.0,
        scheduler: type[Scheduler] = Scheduler,
        vocabulary: int = VOCABULARY,
        speculation: Speculation | Callable[[RadixTree], Speculation] | None = None,
        audit_every: int = 1,
        allows_misplaced: bool = False,
        device: Runner[Any] | None = None,
        **memory: Any,
    ) -> None:
        """`vocabulary`: number of valid input ids; the null device draws only ids below
        VOCABULARY. `speculation`: or a function that makes it for a prefix tree. `audit_every`:
        launches and collections from one audit of the cache to the next. `allows_misplaced`: rows
        need not begin where the KV of their sequence ends. `device`: a model's runner, in place of
        the null device; the sizes are then its own. `memory`: further fields of Geometry."""
        if device is None:
            limit = min(max_model_len, pages * page_size)
            device = DigestRunner(
                Geometry(
                    pages, page_size, limit, vocabulary, batched_tokens, 0, host_pages, **memory
                )
            )
        self.device, geometry = device, device.geometry
        self.cache = SessionAwareCache.for_geometry(geometry, blanks_pages=True)
        if callable(speculation):
            speculation = speculation(self.cache.tree)
        self.scheduler = scheduler(
            self.cache, batched_tokens, rows, max_group_share, speculation=speculation
        )
        self.counters = Counters()
        self.now = 1000.0
        self.events: list[EngineEvent] = []
        self._loop = EngineLoop(
            device, self.cache, self.scheduler, self.counters, speculation=speculation
        )
        self._in_flight: deque[tuple[PreparedStep, Any]] = deque()
        """Each step launched and not yet collected, with its ticket or the error of its launch."""
        self._pages: deque[list[tuple[bytes, ...]]] = deque()
        """Page tables of the rows of each step in flight, copied at launch; a table must not change
        until its step is collected."""
        self._audit_every, self._unaudited = audit_every, 0
        self._allows_misplaced = allows_misplaced
        self._n = 0
        self.sessions = Sessions(
            PagedBackend(self.cache, self.scheduler, self.counters, geometry.state_bytes),
            geometry.max_model_len,
            geometry.vocab_size,
            make_stop_watch=_no_stops,
            grammars=GrammarCompiler(Tokenizer(tiny_tokenizer()), VOCABULARY, (), self._loop.wake),
            emit=self._loop.emit,
            clock=lambda: self.now,
        )

    @property
    def runner(self) -> DigestRunner:
        assert isinstance(self.device, DigestRunner)
        return self.device

    # ---- commands -------------------------------------------------------------------------

    def open(
        self,
        session: str,
        *,
        streaming: bool = True,
        timeout_s: float | None = None,
        capacity: int | None = None,
        scope: str = "",
        group: str = "",
        weight: float = 1.0,
    ) -> Sequence:
        options = {"scope": scope, "group": group, "weight": weight}
        number = self.next_number()
        self.apply(OpenSession(number, session, streaming, timeout_s, capacity, **options))
        return self.sequence(session)

    def append(self, session: str, ids: list[int], **options: Any) -> CommandDone:
        return self.apply(AppendIds(self.next_number(), session, ids, **options))

    def generate(self, session: str, count: int, turn: str = "turn") -> CommandDone:
        return self.apply(Generate(self.next_number(), session, turn, Sampling(max_tokens=count)))

    def rewind(self, session: str, to: int) -> CommandDone:
        return self.apply(RewindSession(self.next_number(), session, to))

    def fork(self, session: str, child: str, at: int | None = None) -> CommandDone:
        return self.apply(ForkSession(self.next_number(), session, child, at))

    def close(self, session: str, *, keep_prefix: bool = True) -> CommandDone:
        return self.apply(CloseSession(self.next_number(), session, keep_prefix))

    def apply(self, command: LoopCommand) -> CommandDone:
        """Apply a command and assert that it is neither refused nor deferred. Returns its reply."""
        reply = self.submit(command)
        assert isinstance(reply, CommandDone), reply
        return reply

    def expect_refusal(self, command: LoopCommand) -> CommandRefused:
        """Apply a command and assert that it is refused at once. Returns the refusal."""
        reply = self.submit(command)
        assert isinstance(reply, CommandRefused), reply
        return reply

    def submit(self, command: LoopCommand) -> CommandDone | CommandRefused | None:
        """Apply a command. Returns its reply, or None if the command is deferred."""
        before = len(self.events)
        self.sessions.apply(command)
        self._take_events()
        replies = [e for e in self.events[before:] if isinstance(e, CommandDone | CommandRefused)]
        return next((e for e in replies if e.n == command.n), None)

    def next_number(self) -> int:
        self._n += 1
        return self._n

    # ---- steps ----------------------------------------------------------------------------

    def launch(self) -> PreparedStep | None:
        """Plan a step and launch it on the device; its result takes effect in `collect`.

        Returns None if no row can run.
        """
        if self._in_flight and self._in_flight[-1][0].refusal:
            return None
        step = self._loop.prepare_step()
        if step is None:
            return None
        if not self._allows_misplaced:
            self._check_starts(step)
        ticket: Any
        try:
            if step.refusal is not None:
                raise step.refusal
            ticket = self.device.launch(step.batch)
        except Exception as error:
            follows_failed_step = any(isinstance(each, Exception) for _, each in self._in_flight)
            is_expected = isinstance(error, RuntimeError | MisplacedRows)
            if not is_expected and not follows_failed_step:
                raise
            ticket = error.with_traceback(None)  # as the loop does; else it would be garbage
        self._in_flight.append((step, ticket))
        self._pages.append(list(map(_page_tables, step.batch.rows)))
        self._audit()
        return step

    def _check_starts(self, step: PreparedStep) -> None:
        """Check that each sequence has at most one row, and that it begins where computing ended:
        behind the tokens committed, and those of earlier steps in flight."""
        assert len({row.sequence for row in step.rows}) == len(step.rows), "two rows of a sequence"
        earlier = [row for each, _ in self._in_flight for row in each.rows]
        for row in step.rows:
            in_flight = sum(x.tokens for x in earlier if x.sequence is row.sequence)
            assert row.start == row.sequence.committed + in_flight, "a row leaves a gap"
            assert row.start + row.tokens == row.sequence.launched

    def collect(self) -> None:
        """Apply the result of the oldest step in flight."""
        step, ticket = self._in_flight.popleft()
        assert self._pages.popleft() == list(map(_page_tables, step.batch.rows))
        if isinstance(ticket, Exception):
            failed = [step, *(each for each, _ in self._in_flight)]
            self._in_flight.clear()
            self._pages.clear()
            self._loop.apply_failure(failed, ticket, self.sessions)
        else:
            self._loop.apply_result(step, self.device.collect(ticket), self.sessions)
        self._take_events()
        self._audit()

    def _audit(self) -> None:
        self._unaudited += 1
        if self._unaudited >= self._audit_every:
            self.cache.audit()
            self._unaudited = 0

    def step(self) -> PreparedStep | None:
        step = self.launch()
        if step is not None:
            self.collect()
        return step

    def run(self, *, ahead: int = 0, steps_max: int = 2000) -> int:
        """Run steps until no sequence owes tokens. Returns the number of launched steps.

        `ahead`: number of earlier steps that may still be in flight when a step is launched.
        """
        launched = 0
        while True:
            step = self.launch()
            launched += step is not None
            assert launched <= steps_max, f"tokens are still owed after {steps_max} steps"
            if len(self._in_flight) > ahead or (self._in_flight and step is None):
                self.collect()
            elif step is None:
                return launched

    @property
    def steps_in_flight(self) -> int:
        """Number of steps launched and not yet collected."""
        return len(self._in_flight)

    def advance_clock(self, seconds: float) -> None:
        self.now += seconds
        self.sessions.expire_idle()
        self._take_events()

    # ---- events and state -----------------------------------------------------------------

    def events_of(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]

    def turn_ids(self, session: str, turn: str = "turn") -> list[int]:
        """Return the ids that a turn has output so far."""
        pieces = [e for e in self.events_of(TurnTokens) if (e.session, e.turn) == (session, turn)]
        return [id for piece in pieces for id in piece.ids]

    def turn_end(self, session: str, turn: str = "turn") -> TurnEnded:
        """Return the TurnEnded event of a turn. Raises ValueError unless exactly one exists."""
        (end,) = [e for e in self.events_of(TurnEnded) if (e.session, e.turn) == (session, turn)]
        return end

    def has_turn_ended(self, session: str, turn: str = "turn") -> bool:
        return any((e.session, e.turn) == (session, turn) for e in self.events_of(TurnEnded))

    def sequence(self, session: str) -> Sequence:
        return self.sessions._sequences[session]

    def _take_events(self) -> None:
        self.events += self._loop.take_events()


def _page_tables(row: BatchRow) -> tuple[bytes, ...]:
    return row.pages.tobytes(), *(table.pages.tobytes() for table in row.windows)


def _no_stops(sampling: Sampling) -> StopStringMatcher:
    raise AssertionError("stop strings are not supported by this harness")
