"""Tests of Sessions on a backend without cache and scheduler, which only records its calls."""

from array import array
from collections.abc import Collection

import pytest

from continuo.engine.core.sessions import Sessions
from continuo.engine.core.token_sequence import TokenSequence
from continuo.engine.core.turn import Turn
from continuo.engine.sampling import Sampling
from continuo.engine.text import GrammarCompiler, StopStringMatcher
from continuo.engine.text.tokenizer.tokenizer import Tokenizer
from continuo.engine.wire.messages import (
    AppendIds,
    AttachSession,
    CancelTurn,
    CloseSession,
    CommandDone,
    CommandRefused,
    EngineEvent,
    EngineLoad,
    EngineStats,
    ForkSession,
    Generate,
    LoopCommand,
    OpenSession,
    PauseTurn,
    ResumeTurn,
    SessionInfo,
    TokenLogprobs,
    TurnEnded,
    TurnTokens,
)
from continuo.engine.wire.token_log import TokenLog
from tests.support.digest_runner import VOCABULARY
from tests.support.engines import tiny_tokenizer


class RecordingBackend:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def take_calls(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls

    def open(
        self, session: str, scope: str, log: TokenLog, timeout_s: float | None, now: float
    ) -> TokenSequence:
        self.calls.append(f"open {session}")
        return TokenSequence(session, log, timeout_s, now)

    def fork(self, parent: TokenSequence, session: str, log: TokenLog, now: float) -> TokenSequence:
        self.calls.append(f"fork {parent.id} {session} {log.length}")
        return TokenSequence(session, log, parent.timeout_s, now)

    def close(self, sequence: TokenSequence, shared_tokens: int) -> None:
        self.calls.append(f"close {sequence.id} {shared_tokens}")

    def extend(self, sequence: TokenSequence, kept: int, *, is_moved: bool = False) -> None:
        self.calls.append(f"extend {sequence.id} {kept}{' moved' if is_moved else ''}")

    def rewind(self, sequence: TokenSequence, kept: int) -> None:
        self.calls.append(f"rewind {sequence.id} {kept}")

    def compute_ahead(self, sequence: TokenSequence) -> None:
        self.calls.append(f"compute ahead {sequence.id}")

    def stop_computing(self, sequence: TokenSequence) -> None:
        self.calls.append(f"stop computing {sequence.id}")

    def isolate(self, sequence: TokenSequence, extra_tokens: int) -> None:
        self.calls.append(f"isolate {sequence.id} {extra_tokens}")

    def find_cached(self, sequence: TokenSequence) -> None:
        self.calls.append(f"find cached {sequence.id}")

    def begin_turn(self, sequence: TokenSequence, turn: Turn) -> None:
        assert sequence.turn is turn
        self.calls.append(f"begin {turn.id} {turn.prompt_tokens}+{turn.output_tokens}")

    def end_turn(
        self, sequence: TokenSequence, turn: Turn, now: float, *, is_paused: bool
    ) -> float:
        assert sequence.turn is None
        self.calls.append(f"{'pause' if is_paused else 'end'} {turn.id}")
        return 0.25

    def settle(self, sequence: TokenSequence) -> None:
        self.calls.append(f"settle {sequence.id}")

    def mark_idle(self, sequence: TokenSequence) -> None:
        assert not sequence.is_busy

    def info(self, sequence: TokenSequence, now: float) -> SessionInfo:
        raise NotImplementedError

    def load(self, sessions: int, now: float, *, draining: bool) -> EngineLoad:
        raise NotImplementedError

    def stats(self, sequences: Collection[TokenSequence]) -> EngineStats:
        raise NotImplementedError


class Harness:
    def __init__(self) -> None:
        self.backend = RecordingBackend()
        self.events: list[EngineEvent] = []
        self.sessions = Sessions(
            self.backend,
            1000,
            VOCABULARY,
            make_stop_watch=_no_stops,
            grammars=GrammarCompiler(Tokenizer(tiny_tokenizer()), VOCABULARY, (), lambda: None),
            emit=lambda event: self.events.append(event),
            clock=lambda: 1000.0,
        )
        self.apply(OpenSession(1, "s"), AppendIds(2, "s", [1, 2, 3]))
        self.apply(Generate(3, "s", "t", Sampling(max_tokens=4, ignore_eos=True)))
        assert self.backend.take_calls() == ["open s", "extend s 0", "begin t 3+0"]
        self.take_events()

    def apply(self, *commands: LoopCommand) -> list[EngineEvent]:
        for command in commands:
            self.sessions.apply(command)
        return self.take_events()

    def take_events(self) -> list[EngineEvent]:
        events = self.events.copy()
        self.events.clear()
        return events

    def draw(self, *ids: int) -> None:
        """Apply ids that the backend has drawn, as EngineLoop does, and discard their events."""
        sequence = self.sequence
        assert sequence.turn is not None
        self.sessions.transitions.apply_ids(sequence, sequence.turn, [*ids])
        self.sessions.advance_if_idle(sequence)
        self.events = [event for event in self.events if not isinstance(event, TurnTokens)]

    @property
    def sequence(self) -> TokenSequence:
        return self.sessions._find("s")


def _no_stops(sampling: Sampling) -> StopStringMatcher:
    raise NotImplementedError


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_deferred_commands_are_applied_after_the_end_of_the_turn(harness: Harness) -> None:
    assert harness.apply(AppendIds(4, "s", [9]), ForkSession(5, "s", "child", 8)) == []
    harness.draw(5, 6, 7, 8)
    ended, appended, forked = harness.take_events()
    assert isinstance(ended, TurnEnded)
    assert (ended.reason, ended.length, ended.output_tokens, ended.model_s) == (
        "length",
        7,
        4,
        0.25,
    )
    assert (appended, forked) == (CommandDone(4, 8), CommandDone(5, 8))
    assert harness.backend.take_calls() == [
        "end t", "settle s", "extend s 7", "fork s child 8", "compute ahead child",
    ]  # fmt: skip


def test_ids_after_the_end_of_the_turn_are_not_applied(harness: Harness) -> None:
    sequence = harness.sequence
    turn = sequence.turn
    assert turn is not None
    logprobs = [TokenLogprobs(-float(n), []) for n in range(6)]
    assert harness.sessions.transitions.apply_ids(sequence, turn, [*range(6)], logprobs) == 4
    tokens, ended = harness.take_events()
    assert tokens == TurnTokens("s", "t", 0, [0, 1, 2, 3], logprobs[:4])
    assert isinstance(ended, TurnEnded)
    assert harness.sequence.ids == array("i", [1, 2, 3, 0, 1, 2, 3])


def test_attach_continues_a_running_turn_without_a_call_to_the_backend(harness: Harness) -> None:
    harness.draw(5, 6)
    generate = Generate(0, "s", "t", Sampling(max_tokens=4), resumed=1)
    attach = AttachSession(4, OpenSession(0, "s"), [1, 2, 3, 5], generate=generate, fence=2)
    assert harness.apply(attach) == [CommandDone(4, 4), TurnTokens("s", "t", 1, [6])]
    assert harness.backend.take_calls() == []


def test_attach_with_another_log_restores_it_and_its_turn(harness: Harness) -> None:
    harness.draw(5, 6)
    generate = Generate(0, "s", "u", Sampling(max_tokens=4), resumed=1)
    attach = AttachSession(
        4, OpenSession(0, "s"), [1, 2, 8, 9], generate=generate, fence=2, apart=7
    )
    assert harness.apply(attach)[0] == CommandDone(4, 4)
    assert harness.sequence.ids == array("i", [1, 2, 8, 9])
    assert harness.backend.take_calls() == [
        "end t", "extend s 2", "compute ahead s", "isolate s 7", "begin u 3+1",
    ]  # fmt: skip


def test_paused_turn_is_resumed_after_its_last_id(harness: Harness) -> None:
    harness.draw(5, 6)
    harness.apply(PauseTurn(4, "s"))
    assert harness.backend.take_calls() == ["pause t", "settle s"]
    harness.apply(ResumeTurn(5, "s"))
    assert harness.backend.take_calls() == ["begin t 3+2"]


def test_cancelled_turn_whose_output_is_dropped_leaves_its_prompt(harness: Harness) -> None:
    harness.draw(5, 6)
    ended, done = harness.apply(CancelTurn(4, "s", "t", drop=True))
    assert isinstance(ended, TurnEnded)
    assert (ended.reason, ended.length, done) == ("cancelled", 3, CommandDone(4, 3))
    assert harness.backend.take_calls() == ["end t", "settle s"]


def test_closed_session_ends_its_turn_and_refuses_what_was_deferred(harness: Harness) -> None:
    ended, refused, done = harness.apply(AppendIds(4, "s", [9]), CloseSession(5, "s"))
    assert isinstance(ended, TurnEnded)
    assert isinstance(refused, CommandRefused)
    assert (refused.n, done) == (4, CommandDone(5, 3))
    assert harness.backend.take_calls() == ["end t", "stop computing s", "settle s", "close s 3"]
