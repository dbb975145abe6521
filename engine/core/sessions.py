"""Sessions: the effects of all commands, and when the transitions of a turn may happen.

    begin ──► end(stop | length | cancelled | failed) ──► advance_if_idle ──► deferred commands
      ▲         │ paused
      └─────────┘ resume, attach

A command on a session with a running turn or with tokens in flight is deferred, in order; only
attach, cancel, pause, close, info and a fork of the running turn's prompt are not. A refused
command changes nothing. A command that fails because of a bug is refused too, and its session is
closed, because its state is unknown. Each row in flight refers to the Turn for which it draws an
id, so that an id drawn for a turn that has ended meanwhile is discarded.
"""

import logging
from array import array
from collections.abc import Callable
from typing import Generic, assert_never

import msgspec

from continuo.engine.core.deferred_commands import DeferrableCommand
from continuo.engine.core.idle_timeouts import IdleTimeouts
from continuo.engine.core.sequence_backend import SequenceBackend
from continuo.engine.core.token_sequence import SequenceT, TokenSequence
from continuo.engine.core.transitions import (
    RecordTurn,
    Transitions,
    check_resumed,
    continues_turn,
    output_room,
)
from continuo.engine.errors import (
    BadRequest,
    Busy,
    CommandFailed,
    EngineError,
    ModelMismatch,
    StaleEngineFence,
    TooLong,
    UnknownEngineSession,
)
from continuo.engine.sampling import Sampling
from continuo.engine.text import GrammarCompiler, StopStringMatcher
from continuo.engine.wire.bounds import check_sampling, check_token_ids
from continuo.engine.wire.messages import (
    NO_REPLY,
    AppendIds,
    AttachSession,
    CancelTurn,
    CloseSession,
    CommandDone,
    CommandRefused,
    DrainEngine,
    EngineEvent,
    EngineLoad,
    ForkSession,
    Generate,
    GetSessionInfo,
    GetStats,
    ListSessions,
    LoopCommand,
    OpenSession,
    PauseTurn,
    ResumeTurn,
    RewindSession,
    SessionExpired,
)
from continuo.engine.wire.token_log import TokenLog, regular_only_option

log = logging.getLogger(__name__)


class Sessions(Generic[SequenceT]):
    """The sessions of an engine by id, and what each command does to them.

    Owns the sequences, their timeouts and the deferred commands. Called by EngineLoop alone, on its
    thread, between steps. Always: each command is answered by exactly one CommandDone or
    CommandRefused, unless it asks for no reply; each turn ends by exactly one TurnEnded or is
    paused; and a refused command has changed nothing.
    """

    def __init__(  # noqa: PLR0913 - one argument per part of the core that commands act on
        self,
        backend: SequenceBackend[SequenceT],
        max_model_len: int,
        vocab_size: int,
        make_stop_watch: Callable[[Sampling], StopStringMatcher],
        grammars: GrammarCompiler,
        emit: Callable[[EngineEvent], None],
        clock: Callable[[], float],
        digest: str = "",
        record_turn: RecordTurn | None = None,
    ) -> None:
        """Args:
        backend: computes the ids of the sessions and draws the output of their turns.
        max_model_len: tokens that a session has at most.
        vocab_size: each id of a command is below it.
        make_stop_watch: makes the matcher of the stop strings of a turn.
        grammars: compiles the grammar of a turn; the turn is deferred meanwhile.
        emit: sends an event to the client of the session.
        clock: seconds of the monotonic clock.
        digest: fingerprint of model, tokenizer and chat template; a session of another one is
            refused. Empty: it is not compared.
        record_turn: called with each turn that has a trace context when it ends or is paused, and
            the time; None: traces are not exported.
        """
        self._digest = digest
        self._backend = backend
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._grammars = grammars
        self._emit = emit
        self._clock = clock
        self.transitions = Transitions(backend, make_stop_watch, grammars, emit, clock, record_turn)
        self._sequences: dict[str, SequenceT] = {}
        self._timeouts = IdleTimeouts[SequenceT]()
        self._awaiting_grammar: dict[SequenceT, None] = {}
        """Idle sessions whose next command is deferred until its grammar is compiled."""
        self._is_draining = False

    # ---- commands -------------------------------------------------------------------------

    def apply(self, command: LoopCommand) -> None:
        """Apply a command, now or once the session is idle. Emits exactly one CommandDone or
        CommandRefused for it."""
        try:
            self._apply(command)
        except EngineError as error:
            self._refuse(command, error)
        except Exception as error:  # noqa: BLE001 - a defect fails one command, not the engine
            self._fail(command, error)

    def _apply(self, command: LoopCommand) -> None:
        match command:
            case OpenSession():
                self._open(command)
                self._emit(CommandDone(command.n))
            case AttachSession():
                self._attach(command)
            case AppendIds() | Generate() | RewindSession() | ForkSession():
                self._apply_or_defer(self._find(command.session), command)
            case CancelTurn():
                self._cancel(self._find(command.session), command)
            case PauseTurn():
                self._pause(self._find(command.session), command)
            case ResumeTurn():
                self._resume(self._find(command.session), command)
            case CloseSession():
                self._close(self._find(command.session), command)
            case GetSessionInfo():
                info = self._backend.info(self._find(command.session), self._clock())
                self._emit(CommandDone(command.n, info.length, info))
            case ListSessions():
                now = self._clock()
                ids = self._sequences if command.sessions is None else command.sessions
                found = [self._sequences[id] for id in ids if id in self._sequences]
                infos = [self._backend.info(sequence, now) for sequence in found]
                self._emit(CommandDone(command.n, sessions=infos))
            case GetStats():
                grammars = self._grammars.size
                stats = msgspec.structs.replace(
                    self._backend.stats(self._sequences.values()),
                    grammar_bytes=grammars.held_bytes,
                    grammar_bytes_max=grammars.bytes_max,
                )
                self._emit(CommandDone(command.n, stats=stats))
            case DrainEngine():
                self._is_draining = True
                self._emit(CommandDone(command.n))
            case _:
                assert_never(command)

    def _refuse(self, command: LoopCommand, error: EngineError) -> None:
        """Refuse a command. A session that was opened for a refused attach is closed again."""
        self._emit(CommandRefused(command.n, error.code, error.message, error.field))
        if isinstance(command, AttachSession):
            sequence = self._sequences.get(command.session)
            if sequence is not None and sequence.opening_command is command:
                self._close(sequence, CloseSession(NO_REPLY, sequence.id, keep_prefix=False))

    def _fail(self, command: LoopCommand, error: Exception) -> None:
        """Refuse a command that raised anything but an EngineError, and close its session, which
        may be half changed. Other sessions are not affected."""
        name = type(command).__name__
        log.error("%s failed because of a bug in the engine", name, exc_info=error)
        message = f"the engine failed at {name}: {type(error).__name__}: {error}"
        self._emit(CommandRefused(command.n, CommandFailed.code, message))
        if isinstance(command, ListSessions | GetStats | DrainEngine | GetSessionInfo):
            return
        for sequence in self._sequences.get(command.session), self._forked_child(command):
            if sequence is not None:
                self._discard(sequence, message)

    def _forked_child(self, command: LoopCommand) -> SequenceT | None:
        """Return the child session that a failed ForkSession has opened. Returns None for any other
        command, or if no child was opened."""
        child = self._sequences.get(command.child) if isinstance(command, ForkSession) else None
        return child if child is not None and child.opening_command is command else None

    def _discard(self, sequence: SequenceT, message: str) -> None:
        """Close a session whose state is unknown."""
        try:
            if sequence.turn is not None:
                self.transitions.end_turn(sequence, "failed", error=message)
            self._close(sequence, CloseSession(NO_REPLY, sequence.id, keep_prefix=False))
        except Exception:
            log.exception("session %s could not be closed; its pages are leaked", sequence.id)
            self._sequences.pop(sequence.id, None)
            self._backend.stop_computing(sequence)

    def _apply_or_defer(self, sequence: SequenceT, command: DeferrableCommand) -> None:
        """Apply a command if the session is idle, has no deferred commands, and the command's
        grammar is compiled; else defer the command."""
        match command:
            case AppendIds():
                sequence.log.check_append(command, self._vocab_size)
            case Generate():
                check_sampling(command.sampling, self._vocab_size)
            case _:
                pass
        deferred = sequence.deferred
        is_ready = self._is_grammar_ready(command, sequence.group)
        if (
            isinstance(command, ForkSession)
            and not deferred
            and _is_fork_of_prompt(sequence, command)
        ):
            self._fork(sequence, command)
            return
        if not sequence.is_busy and not deferred:
            if is_ready:
                self._execute(sequence, command)
                return
            self._awaiting_grammar[sequence] = None
        if (
            sequence.turn is not None
            and (span := deferred.pop_superseded_span(command)) is not None
        ):
            self._defer_span(sequence, span)
        deferred.put(command, sequence.id)

    def _defer_span(self, sequence: SequenceT, span: AppendIds) -> None:
        """Acknowledge `span`, a deferred provisional append that a newer one has superseded while a
        turn runs, or refuse it as too long. If the newer one is refused when the turn ends, `span`
        takes effect; therefore its ids are kept in `deferred_span`."""
        try:
            sequence.log.check_room(len(sequence.ids) + len(span.ids))
        except TooLong as error:
            self._emit(CommandRefused(span.n, error.code, error.message, error.field))
            return
        sequence.deferred_span = array("i", span.ids)
        self._emit(CommandDone(span.n, sequence.log.length))

    def _is_grammar_ready(self, command: DeferrableCommand, group: str) -> bool:
        """Return whether the grammar of a command, if any, is compiled. Compilation is started if
        it is not."""
        generate = command.generate if isinstance(command, AttachSession) else command
        grammar = generate.sampling.grammar if isinstance(generate, Generate) else None
        return grammar is None or self._grammars.prepare(grammar, group)

    def resume_prepared(self) -> None:
        """Advance the sessions whose next command was waiting for its grammar."""
        for sequence in tuple(self._awaiting_grammar):
            del self._awaiting_grammar[sequence]
            if sequence.closing_command is None:
                self.advance_if_idle(sequence)

    def _execute(self, sequence: SequenceT, command: DeferrableCommand) -> None:
        match command:
            case AppendIds():
                self.transitions.append(sequence, command)
                if sequence.log.turn_tree is not None and regular_only_option(command):
                    self._backend.find_cached(sequence)
                self._emit(CommandDone(command.n, sequence.log.length))
            case Generate():
                self._check_not_draining()
                sequence.log.check_turn_unused(command.turn)
                if self.transitions.begin_turn(sequence, command):
                    self.advance_if_idle(sequence)
            case ResumeTurn():
                self._restart_paused(sequence, command)
            case RewindSession():
                self.transitions.rewind(sequence, command.to)
                self._emit(CommandDone(command.n, command.to))
            case ForkSession():
                self._fork(sequence, command)
            case AttachSession():
                if self.transitions.restore(sequence, command):
                    self.advance_if_idle(sequence)
            case _:
                assert_never(command)
        self.transitions.touch(sequence)

    def _open(self, command: OpenSession) -> SequenceT:
        capacity = self._check_open(command)
        log = TokenLog(capacity, streaming=command.streaming)
        sequence = self._backend.open(
            command.session, command.scope, log, command.timeout_s, self._clock()
        )
        sequence.group, sequence.weight = command.group, command.weight
        self._add(sequence)
        return sequence

    def _check_open(self, command: OpenSession) -> int:
        """Validate a command and return the capacity of its session, in tokens. Raises Busy,
        BadRequest, ModelMismatch."""
        self._check_not_draining()
        self._check_digest(command)
        limit = self._max_model_len
        capacity = limit if command.capacity_tokens is None else command.capacity_tokens
        if command.session in self._sequences:
            raise BadRequest(f"session {command.session} is already open", field="session_id")
        if not 1 <= capacity <= limit:
            raise BadRequest(
                f"capacity_tokens is {capacity}; it must be from 1 to {limit}",
                field="capacity_tokens",
            )
        if command.timeout_s is not None and not command.timeout_s > 0:
            raise BadRequest(
                f"timeout_s is {command.timeout_s}; it must be above 0", field="timeout_s"
            )
        return capacity

    def _check_not_draining(self) -> None:
        if self._is_draining:
            raise Busy("this engine is stopping and accepts no new sessions or turns")

    def _check_digest(self, opened: OpenSession) -> None:
        if opened.digest and self._digest and opened.digest != self._digest:
            raise ModelMismatch(
                f"session {opened.session} was made with another model, tokenizer or chat template "
                f"({opened.digest}) than this engine's ({self._digest})",
                field="digest",
            )

    def _attach(self, command: AttachSession) -> None:
        """Attach a session. A running turn that the command continues is not interrupted; otherwise
        the log is changed as soon as no tokens of the session are in flight."""
        sequence = self._sequences.get(command.session)
        if sequence is not None:
            self._check_digest(command.opened)
            self._check_attach(command, sequence.log.capacity)
            sequence.weight = command.opened.weight
        else:
            self._check_attach(command, self._check_open(command.opened))
            sequence = self._open(command.opened)
            sequence.opening_command = command
        if sequence.opening_command is not None:
            sequence.opening_command = command  # replaces a deferred attach, refused below
        self._refuse_deferred(
            sequence, StaleEngineFence("another client has taken the session over")
        )
        running = sequence.turn is not None
        if running and continues_turn(sequence, command):
            sequence.deferred_span = array("i", command.provisional)
            self._emit(CommandDone(command.n, len(command.ids)))
            self.transitions.resend(sequence, command)
            if command.paused:
                self.transitions.end_turn(sequence, "cancelled", is_paused=True)
                self.advance_if_idle(sequence)
            return
        if running:
            # The running turn is not the client's, even if it has the same id: its `generate` was
            # sent on a lost link and arrived late. The attach starts the turn again.
            self.transitions.end_turn(sequence, "cancelled", drop_output=True, emit_event=False)
        self._apply_or_defer(sequence, command)

    def _check_attach(self, command: AttachSession, capacity: int) -> None:
        """Validate an attach to a session of this capacity, independently of its state. Raises
        BadRequest, TooLong."""
        vocab_size, length, generate = self._vocab_size, len(command.ids), command.generate
        check_token_ids(command.ids, vocab_size)
        check_token_ids(command.provisional, vocab_size, "provisional")
        for field, count in (("ids", length), ("provisional", len(command.provisional))):
            if count > capacity:
                raise TooLong(
                    f"{field} has {count} tokens; the session holds {capacity}", field=field
                )
        if generate is not None:
            check_sampling(generate.sampling, vocab_size)
            check_resumed(generate.resumed, length)
            output_room(capacity, length, generate.resumed)

    def _fork(self, sequence: SequenceT, command: ForkSession) -> None:
        log = sequence.log
        at = log.length if command.at is None else command.at
        if command.child in self._sequences:
            raise BadRequest(f"session {command.child} is already open", field="child")
        if not 0 <= at <= log.length:
            raise BadRequest(f"at is {at}; it must be from 0 to {log.length}", field="at")
        child = self._backend.fork(sequence, command.child, log.fork(at), self._clock())
        child.group, child.weight = sequence.group, sequence.weight
        child.turn_count = sequence.turn_count
        child.opening_command = command
        self._add(child)
        self._backend.compute_ahead(child)
        child.opening_command = None
        self._emit(CommandDone(command.n, at))

    def _cancel(self, sequence: SequenceT, command: CancelTurn) -> None:
        """Cancel a running, paused or queued turn. An unknown turn counts as ended, which is no
        error."""
        turn = sequence.turn
        if turn is not None and command.turn in (None, turn.id):
            self.transitions.end_turn(sequence, "cancelled", drop_output=command.drop)
            self.advance_if_idle(sequence)
        elif (
            sequence.is_paused
            and sequence.last_turn_ended
            and command.turn in (None, sequence.last_turn_ended.turn)
        ):
            self.transitions.end_paused_turn(
                sequence, sequence.last_turn_ended, drop_output=command.drop
            )
        elif command.turn is not None:
            queued = sequence.deferred.remove_turn(command.turn)
            if queued is not None:
                message = f"turn {queued.turn} was cancelled"
                self._emit(CommandRefused(queued.n, "cancelled", message, "turn"))
        self._emit(CommandDone(command.n, sequence.log.length))

    def _pause(self, sequence: SequenceT, command: PauseTurn) -> None:
        if sequence.turn is not None:
            self.transitions.end_turn(sequence, "cancelled", is_paused=True)
            self.advance_if_idle(sequence)
        self._emit(CommandDone(command.n, sequence.log.length))

    def _resume(self, sequence: SequenceT, command: ResumeTurn) -> None:
        """Continue the paused turn as soon as no tokens of the session are in flight."""
        if sequence.is_paused:
            self._apply_or_defer(sequence, command)
        else:
            self._emit(CommandDone(command.n, sequence.log.length))

    def _restart_paused(self, sequence: SequenceT, command: ResumeTurn) -> None:
        """Begin the paused turn again after its last id, unless it has ended meanwhile."""
        turn = sequence.paused_turn
        if turn is None:
            self._emit(CommandDone(command.n, sequence.log.length))
            return
        sampling = msgspec.structs.replace(turn.sampling, seed=turn.seed)
        emitted = sequence.log.length - turn.prompt_tokens
        generate = Generate(
            command.n, sequence.id, turn.id, sampling, emitted, traceparent=turn.traceparent
        )
        if self.transitions.begin_turn(sequence, generate):
            self.advance_if_idle(sequence)

    def _close(self, sequence: SequenceT, command: CloseSession) -> None:
        if sequence.turn is not None:
            self.transitions.end_turn(sequence, "cancelled")
        elif sequence.is_paused and sequence.last_turn_ended is not None:
            self.transitions.end_paused_turn(sequence, sequence.last_turn_ended)
        self._refuse_deferred(
            sequence, UnknownEngineSession("the session was closed", field="session")
        )
        del self._sequences[sequence.id]
        sequence.closing_command = command
        self._backend.stop_computing(sequence)
        self.advance_if_idle(sequence)

    def _refuse_deferred(self, sequence: SequenceT, error: EngineError) -> None:
        for command in sequence.deferred:
            self._emit(CommandRefused(command.n, error.code, error.message, error.field))
        sequence.deferred.clear()

    # ---- between turns --------------------------------------------------------------------

    def advance_if_idle(self, sequence: SequenceT) -> None:
        """Settle a session in the backend if it is idle, and apply its deferred commands. Called
        after each event that may have made the session idle."""
        if sequence.is_busy:
            return
        self._backend.settle(sequence)
        if sequence.closing_command is not None:
            self._finish_close(sequence, sequence.closing_command)
            return
        if sequence.deferred_span:
            span, sequence.deferred_span = sequence.deferred_span, array("i")
            sequence.log.put_provisional(span)
            self._backend.compute_ahead(sequence)
        self._backend.mark_idle(sequence)
        while sequence.deferred and not sequence.is_busy:
            command = sequence.deferred.popleft()
            try:
                if not self._is_grammar_ready(command, sequence.group):
                    sequence.deferred.appendleft(command)
                    self._awaiting_grammar[sequence] = None
                    return
                self._execute(sequence, command)
            except EngineError as error:
                self._refuse(command, error)
            except Exception as error:  # noqa: BLE001 - a defect fails one command, not the engine
                self._fail(command, error)

    def _finish_close(self, sequence: SequenceT, command: CloseSession) -> None:
        shared = sequence.log.length if command.keep_prefix else 0
        self._backend.close(sequence, shared)
        self._emit(CommandDone(command.n, sequence.log.length))

    def expire_idle(self) -> float | None:
        """Close the sessions whose idle timeout has passed. Returns the seconds until the next
        timeout may be due; None if no session has a timeout."""
        now = self._clock()
        for sequence in self._timeouts.pop_expired(now):
            self._close(sequence, CloseSession(NO_REPLY, sequence.id))
            self._emit(SessionExpired(sequence.id))
        return self._timeouts.next_due_in_s(now)

    # ---- inside ---------------------------------------------------------------------------

    def _find(self, session: str) -> SequenceT:
        sequence = self._sequences.get(session)
        if sequence is None:
            raise UnknownEngineSession(f"there is no session {session}", field="session")
        return sequence

    def _add(self, sequence: SequenceT) -> None:
        self._sequences[sequence.id] = sequence
        self._backend.mark_idle(sequence)
        self._timeouts.add(sequence)

    def measure_load(self) -> EngineLoad:
        """Return the load of the engine; O(1)."""
        sessions, now = len(self._sequences), self._clock()
        return self._backend.load(sessions, now, draining=self._is_draining)


def _is_fork_of_prompt(sequence: TokenSequence, command: ForkSession) -> bool:
    """Return whether a fork is within the prompt of the running turn, which no longer changes."""
    turn = sequence.turn
    return turn is not None and command.at is not None and command.at <= turn.prompt_tokens
