"""Sessions: the effects of all commands, and the transitions of a turn.

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
import secrets
from array import array
from collections.abc import Callable
from typing import assert_never

import msgspec

from continuo.engine.batch import Geometry
from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.core.counters import Counters
from continuo.engine.core.deferred_commands import DeferrableCommand
from continuo.engine.core.idle_timeouts import IdleTimeouts
from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.stats import engine_load, engine_stats, session_info
from continuo.engine.core.turn import Turn
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
from continuo.engine.text import GrammarCompiler, GrammarMatcher, StopStringMatcher
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
    TurnEnded,
    TurnEndReason,
    TurnTokens,
)
from continuo.engine.wire.token_log import TokenLog, regular_only_option
from continuo.engine.wire.turn_tree import common_prefix_length

log = logging.getLogger(__name__)

RecordTurn = Callable[[Turn, float], None]


class Sessions:
    """The sessions of an engine by id, and what each command does to them.

    Owns the sequences, their timeouts and the deferred commands. Called by EngineLoop alone, on its
    thread, between steps. Always: each command is answered by exactly one CommandDone or
    CommandRefused, unless it asks for no reply; each turn ends by exactly one TurnEnded or is
    paused; and a refused command has changed nothing.
    """

    def __init__(  # noqa: PLR0913 - one argument per part of the core that commands act on
        self,
        cache: SessionAwareCache,
        scheduler: Scheduler,
        geometry: Geometry,
        counters: Counters,
        make_stop_watch: Callable[[Sampling], StopStringMatcher],
        grammars: GrammarCompiler,
        emit: Callable[[EngineEvent], None],
        clock: Callable[[], float],
        digest: str = "",
        record_turn: RecordTurn | None = None,
    ) -> None:
        """`digest` is the fingerprint of the model, tokenizer and chat template. `record_turn` is
        called with each turn that has a trace context when it ends or is paused, and the time;
        None: traces are not exported."""
        self._digest = digest
        self._cache = cache
        self._scheduler = scheduler
        self._geometry = geometry
        self._counters = counters
        self._make_stop_watch = make_stop_watch
        self._grammars = grammars
        self._emit = emit
        self._clock = clock
        self._record_turn = record_turn
        self._sequences: dict[str, Sequence] = {}
        self._timeouts = IdleTimeouts()
        self._awaiting_grammar: dict[Sequence, None] = {}
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
                info = session_info(self._cache, self._find(command.session), self._clock())
                self._emit(CommandDone(command.n, info.length, info))
            case ListSessions():
                now = self._clock()
                sessions = [session_info(self._cache, s, now) for s in self._sequences.values()]
                self._emit(CommandDone(command.n, sessions=sessions))
            case GetStats():
                stats = engine_stats(
                    self._cache,
                    self._scheduler,
                    self._counters,
                    self._sequences.values(),
                    self._geometry.state_bytes,
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

    def _forked_child(self, command: LoopCommand) -> Sequence | None:
        """Return the child session that a failed ForkSession has opened. Returns None for any other
        command, or if no child was opened."""
        child = self._sequences.get(command.child) if isinstance(command, ForkSession) else None
        return child if child is not None and child.opening_command is command else None

    def _discard(self, sequence: Sequence, message: str) -> None:
        """Close a session whose state is unknown."""
        try:
            if sequence.turn is not None:
                self.end_turn(sequence, "failed", error=message)
            self._close(sequence, CloseSession(NO_REPLY, sequence.id, keep_prefix=False))
        except Exception:
            log.exception("session %s could not be closed; its pages are leaked", sequence.id)
            self._sequences.pop(sequence.id, None)
            self._scheduler.remove(sequence)

    def _apply_or_defer(self, sequence: Sequence, command: DeferrableCommand) -> None:
        """Apply a command if the session is idle, has no deferred commands, and the command's
        grammar is compiled; else defer the command."""
        match command:
            case AppendIds():
                sequence.log.check_append(command, self._geometry.vocab_size)
            case Generate():
                check_sampling(command.sampling, self._geometry.vocab_size)
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

    def _defer_span(self, sequence: Sequence, span: AppendIds) -> None:
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

    def _execute(self, sequence: Sequence, command: DeferrableCommand) -> None:
        match command:
            case AppendIds():
                self._follow_log_change(sequence, sequence.log.append(command))
                if not sequence.turn_count:
                    sequence.publish_to = sequence.log.length
                if regular_only_option(command):
                    self._cache.match(sequence.lease, sequence.ids, len(sequence.ids))
                    self._mark_idle(sequence)
                self._emit(CommandDone(command.n, sequence.log.length))
            case Generate():
                self._check_not_draining()
                sequence.log.check_turn_unused(command.turn)
                self._begin_turn(sequence, command)
            case ResumeTurn():
                self._restart_paused(sequence, command)
            case RewindSession():
                self._follow_log_change(sequence, sequence.log.rewind(command.to))
                self._emit(CommandDone(command.n, command.to))
            case ForkSession():
                self._fork(sequence, command)
            case AttachSession():
                self._restore(sequence, command)
            case _:
                assert_never(command)
        self._touch(sequence)

    def _open(self, command: OpenSession) -> Sequence:
        capacity = self._check_open(command)
        lease = self._cache.open(command.scope)
        log = TokenLog(capacity, streaming=command.streaming)
        sequence = Sequence(command.session, lease, log, command.timeout_s, self._clock())
        sequence.group, sequence.weight = command.group, command.weight
        self._add(sequence)
        return sequence

    def _check_open(self, command: OpenSession) -> int:
        """Validate a command and return the capacity of its session, in tokens. Raises Busy,
        BadRequest, ModelMismatch."""
        self._check_not_draining()
        self._check_digest(command)
        limit = self._geometry.max_model_len
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
        if running and _continues_turn(sequence, command):
            sequence.deferred_span = array("i", command.provisional)
            self._emit(CommandDone(command.n, len(command.ids)))
            self._resend(sequence, command)
            if command.paused:
                self.end_turn(sequence, "cancelled", is_paused=True)
                self.advance_if_idle(sequence)
            return
        if running:
            # The running turn is not the client's, even if it has the same id: its `generate` was
            # sent on a lost link and arrived late. The attach starts the turn again.
            self.end_turn(sequence, "cancelled", drop_output=True, emit_event=False)
        self._apply_or_defer(sequence, command)

    def _check_attach(self, command: AttachSession, capacity: int) -> None:
        """Validate an attach to a session of this capacity, independently of its state. Raises
        BadRequest, TooLong."""
        vocab_size, length, generate = self._geometry.vocab_size, len(command.ids), command.generate
        check_token_ids(command.ids, vocab_size)
        check_token_ids(command.provisional, vocab_size, "provisional")
        for field, count in (("ids", length), ("provisional", len(command.provisional))):
            if count > capacity:
                raise TooLong(
                    f"{field} has {count} tokens; the session holds {capacity}", field=field
                )
        if generate is not None:
            check_sampling(generate.sampling, vocab_size)
            _check_resumed(generate.resumed, length)
            _output_room(capacity, length, generate.resumed)

    def _restore(self, sequence: Sequence, command: AttachSession) -> None:
        """Change the log to the ids of an attach, and continue its turn after its last id. Finished
        turns are cleared, because the client may not know that the last one has finished, and may
        start it again under the same id."""
        log, ids = sequence.log, array("i", command.ids)
        generate, is_continued = command.generate, _continues_turn(sequence, command)
        if generate is not None:
            self._make_matcher(generate, sequence.group)  # may raise: before any change
        sequence.opening_command = None
        log.take_provisional()
        log.clear_turns()
        sequence.deferred_span = array("i")
        was_empty = not log.ids
        if is_continued and sequence.last_turn_ended is not None:
            self._follow_log_change(sequence, log.rewind(sequence.last_turn_ended.length))
        else:
            kept = log.rewind(common_prefix_length(log.ids, ids))
            log.ids.extend(ids[kept:])
            self._follow_log_change(sequence, kept)
        if was_empty:
            sequence.committed_high_water = log.length  # the KV was on another engine
        if not sequence.turn_count:
            sequence.publish_to = log.length
        log.put_provisional(array("i", command.provisional))
        self._schedule(sequence)
        self._mark_idle(sequence)
        if command.apart:
            self._scheduler.isolate(sequence, command.apart)
        self._emit(CommandDone(command.n, len(ids)))
        if is_continued:
            self._resend(sequence, command)
        if generate is not None and (sequence.is_paused or not is_continued):
            emitted = generate.resumed + log.length - len(ids)
            self._begin_turn(
                sequence, msgspec.structs.replace(generate, n=NO_REPLY, resumed=emitted)
            )
        if command.paused and sequence.turn is not None:
            self.end_turn(sequence, "cancelled", is_paused=True)
            self.advance_if_idle(sequence)

    def _resend(self, sequence: Sequence, command: AttachSession) -> None:
        """Emit the output ids of an attached turn that are not in the ids of the command, and the
        turn's TurnEnded if it has ended."""
        assert command.generate is not None
        turn, first = command.generate.turn, command.generate.resumed
        rest = sequence.ids[len(command.ids) : sequence.log.length].tolist()
        if rest:
            self._emit(TurnTokens(sequence.id, turn, first, rest))
        if (
            sequence.turn is None
            and sequence.last_turn_ended is not None
            and not sequence.is_paused
        ):
            self._emit(sequence.last_turn_ended)

    def _begin_turn(self, sequence: Sequence, command: Generate) -> None:
        """Begin a turn on the whole log. Raises BadRequest for an invalid argument or an empty log,
        and TooLong if the log has no room for one more id."""
        log, sampling = sequence.log, command.sampling
        _check_resumed(command.resumed, log.length)
        room = _output_room(log.capacity, log.length, command.resumed)
        limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        stop_watch = (
            self._make_stop_watch(sampling) if sampling.stop and not sampling.ignore_eos else None
        )
        matcher, requested_s = (
            self._make_matcher(command, sequence.group),
            command.asked_s or self._clock(),
        )
        turn = Turn(command.turn, sampling, seed, limit, stop_watch, matcher, requested_s)
        turn.traceparent = command.traceparent
        sequence.deferred_span = log.take_provisional()
        self._rewind_kv(sequence, log.length)
        end_reason = turn.begin(log, command.resumed)
        self._cache.components.begin_answer(sequence.lease, turn.prompt_tokens)
        turn.model_s_at_request = self._counters.model_s_at(turn.requested_s)
        sequence.turn = turn
        sequence.last_turn_ended = sequence.paused_turn = None
        sequence.turn_count += 1
        if sequence.turn_count == 1:
            sequence.publish_to = log.length
        self._scheduler.add_turn(sequence)
        self._emit(CommandDone(command.n, log.length))
        if end_reason is not None:
            self.end_turn(sequence, end_reason)
            self.advance_if_idle(sequence)

    def _make_matcher(self, command: Generate, group: str) -> GrammarMatcher | None:
        """Build the matcher of a turn's grammar, if it has one. Raises BadRequest for a grammar
        that cannot be enforced."""
        grammar = command.sampling.grammar
        if grammar is None:
            return None
        return self._grammars.create_matcher(grammar, command.sampling.stop_ids, group)

    def _fork(self, sequence: Sequence, command: ForkSession) -> None:
        log, cache = sequence.log, self._cache
        at = log.length if command.at is None else command.at
        if command.child in self._sequences:
            raise BadRequest(f"session {command.child} is already open", field="child")
        if not 0 <= at <= log.length:
            raise BadRequest(f"at is {at}; it must be from 0 to {log.length}", field="at")
        cache.mark_busy(sequence.lease)
        cache.recall(sequence.lease)
        lease = cache.fork(sequence.lease, sequence.ids, at, log.length)
        if not sequence.lease.reserved and (sequence.turn is None or not sequence.turn.is_admitted):
            cache.mark_idle(sequence.lease)
        child = Sequence(command.child, lease, log.fork(at), sequence.timeout_s, self._clock())
        child.group, child.weight = sequence.group, sequence.weight
        child.turn_count = sequence.turn_count
        child.committed_high_water = min(sequence.committed_high_water, at)
        child.opening_command = command
        self._add(child)
        self._schedule(child)
        child.opening_command = None
        self._emit(CommandDone(command.n, at))

    def _cancel(self, sequence: Sequence, command: CancelTurn) -> None:
        """Cancel a running, paused or queued turn. An unknown turn counts as ended, which is no
        error."""
        turn = sequence.turn
        if turn is not None and command.turn in (None, turn.id):
            self.end_turn(sequence, "cancelled", drop_output=command.drop)
            self.advance_if_idle(sequence)
        elif (
            sequence.is_paused
            and sequence.last_turn_ended
            and command.turn in (None, sequence.last_turn_ended.turn)
        ):
            self._end_paused_turn(sequence, sequence.last_turn_ended, drop_output=command.drop)
        elif command.turn is not None:
            queued = sequence.deferred.remove_turn(command.turn)
            if queued is not None:
                message = f"turn {queued.turn} was cancelled"
                self._emit(CommandRefused(queued.n, "cancelled", message, "turn"))
        self._emit(CommandDone(command.n, sequence.log.length))

    def _pause(self, sequence: Sequence, command: PauseTurn) -> None:
        if sequence.turn is not None:
            self.end_turn(sequence, "cancelled", is_paused=True)
            self.advance_if_idle(sequence)
        self._emit(CommandDone(command.n, sequence.log.length))

    def _resume(self, sequence: Sequence, command: ResumeTurn) -> None:
        """Continue the paused turn as soon as no tokens of the session are in flight."""
        if sequence.is_paused:
            self._apply_or_defer(sequence, command)
        else:
            self._emit(CommandDone(command.n, sequence.log.length))

    def _restart_paused(self, sequence: Sequence, command: ResumeTurn) -> None:
        """Begin the paused turn again after its last id, unless it has ended meanwhile."""
        turn = sequence.paused_turn
        if turn is None:
            self._emit(CommandDone(command.n, sequence.log.length))
            return
        sampling = msgspec.structs.replace(turn.sampling, seed=turn.seed)
        emitted = sequence.log.length - turn.prompt_tokens
        self._begin_turn(
            sequence,
            Generate(
                command.n, sequence.id, turn.id, sampling, emitted, traceparent=turn.traceparent
            ),
        )

    def _end_paused_turn(
        self, sequence: Sequence, ended: TurnEnded, *, drop_output: bool = False
    ) -> None:
        """End a paused turn, so that it can no longer be resumed."""
        if drop_output:
            kept = sequence.log.rewind(ended.prompt_tokens)
            if sequence.in_flight:  # KV is cut when the step is collected
                sequence.committed_high_water = min(sequence.committed_high_water, kept)
            else:
                self._follow_log_change(sequence, kept)
            ended = msgspec.structs.replace(ended, length=ended.prompt_tokens)
        else:
            sequence.log.record_turn(ended.turn, ended.prompt_tokens)
        sequence.paused_turn, sequence.last_turn_ended = None, None if drop_output else ended
        self._emit(ended)

    def _close(self, sequence: Sequence, command: CloseSession) -> None:
        if sequence.turn is not None:
            self.end_turn(sequence, "cancelled")
        elif sequence.is_paused and sequence.last_turn_ended is not None:
            self._end_paused_turn(sequence, sequence.last_turn_ended)
        self._refuse_deferred(
            sequence, UnknownEngineSession("the session was closed", field="session")
        )
        del self._sequences[sequence.id]
        sequence.closing_command = command
        self._scheduler.remove(sequence)
        self.advance_if_idle(sequence)

    def _refuse_deferred(self, sequence: Sequence, error: EngineError) -> None:
        for command in sequence.deferred:
            self._emit(CommandRefused(command.n, error.code, error.message, error.field))
        sequence.deferred.clear()

    # ---- transitions of a turn ------------------------------------------------------------

    def end_turn(
        self,
        sequence: Sequence,
        reason: TurnEndReason,
        *,
        drop_output: bool = False,
        is_paused: bool = False,
        emit_event: bool = True,
        error: str | None = None,
    ) -> None:
        """End the running turn. Every running turn ends by this method. Its ids still in flight are
        discarded when they are collected. `drop_output` also removes the output of the turn from
        the log; an attach that names the turn then starts it again. `is_paused` pauses the turn
        instead, without a TurnEnded."""
        turn = sequence.turn
        assert turn is not None
        sequence.turn = None
        if drop_output:
            sequence.log.truncate(turn.prompt_tokens)
            sequence.committed_high_water = min(sequence.committed_high_water, turn.prompt_tokens)
        elif not is_paused:
            sequence.log.record_turn(turn.id, turn.prompt_tokens)
        sequence.worst_residency = "none"
        self._scheduler.remove(sequence)
        if turn.output_tokens and not is_paused:
            self._scheduler.observe_output(turn.output_tokens)
        self._touch(sequence)
        now = sequence.last_used_s
        first_step_s = turn.first_step_s or now
        is_traced = self._record_turn is not None and bool(turn.traceparent)
        if self._record_turn is not None and is_traced:
            self._record_turn(turn, now)
        ended = TurnEnded(
            session=sequence.id,
            turn=turn.id,
            reason=reason,
            length=len(sequence.ids),
            prompt_tokens=turn.prompt_tokens,
            cached_tokens=turn.cached_tokens or 0,
            output_tokens=turn.output_tokens,
            seed=turn.seed,
            residency=turn.residency,
            stop=turn.stopped_by,
            queued_s=first_step_s - turn.requested_s,
            prefill_s=max(turn.first_id_s - first_step_s, 0.0),
            model_s=self._counters.model_s_at(now) - turn.model_s_at_request,
            error=error,
            traced=is_traced,
        )
        sequence.paused_turn = turn if is_paused else None
        sequence.last_turn_ended = None if drop_output else ended
        if emit_event and not is_paused:
            self._emit(ended)

    def advance_if_idle(self, sequence: Sequence) -> None:
        """Trim and publish the KV of a session if it is idle, mark its lease idle, and apply its
        deferred commands. Called after each event that may have made the session idle."""
        if sequence.is_busy:
            return
        self._cache.rewind(sequence.lease, len(sequence.ids))
        if sequence.log.turn_tree is not None:
            self._cache.publish(sequence.lease, sequence.ids, sequence.log.length)
        if sequence.closing_command is not None:
            self._finish_close(sequence, sequence.closing_command)
            return
        if sequence.deferred_span:
            span, sequence.deferred_span = sequence.deferred_span, array("i")
            sequence.log.put_provisional(span)
            self._schedule(sequence)
        self._mark_idle(sequence)
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

    def _finish_close(self, sequence: Sequence, command: CloseSession) -> None:
        shared = sequence.log.length if command.keep_prefix else 0
        self._cache.close(sequence.lease, sequence.ids, shared)
        self._emit(CommandDone(command.n, sequence.log.length))

    def expire_idle(self) -> float | None:
        """Close the sessions whose idle timeout has passed. Returns the seconds until the next
        timeout may be due; None if no session has a timeout."""
        now = self._clock()
        for sequence in self._timeouts.pop_expired(now):
            self._close(sequence, CloseSession(NO_REPLY, sequence.id))
            self._emit(SessionExpired(sequence.id))
        return self._timeouts.next_due_in_s(now)

    def publish_prompt(self, sequence: Sequence) -> None:
        """Publish the computed pages of the session's first prompt in the radix tree, so that other
        sessions need not compute them while the rest of it is prefilled."""
        self._cache.publish(sequence.lease, sequence.ids, sequence.publish_to)
        if sequence.committed >= sequence.publish_to:
            sequence.publish_to = 0

    # ---- inside ---------------------------------------------------------------------------

    def _find(self, session: str) -> Sequence:
        sequence = self._sequences.get(session)
        if sequence is None:
            raise UnknownEngineSession(f"there is no session {session}", field="session")
        return sequence

    def _add(self, sequence: Sequence) -> None:
        self._sequences[sequence.id] = sequence
        self._mark_idle(sequence)
        self._timeouts.add(sequence)

    def _mark_idle(self, sequence: Sequence) -> None:
        if not sequence.is_busy:
            self._cache.mark_idle(sequence.lease)

    def _follow_log_change(self, sequence: Sequence, kept: int) -> None:
        """Cut the KV and schedule the owed ids after a change of the log that kept only its first
        `kept` ids."""
        ended = sequence.last_turn_ended
        if ended is not None and kept < ended.length and not sequence.is_paused:
            sequence.last_turn_ended = None  # its output was cut: an attach must not resend its end
        self._rewind_kv(sequence, kept)
        self._schedule(sequence)

    def _rewind_kv(self, sequence: Sequence, to: int) -> None:
        self._cache.rewind(sequence.lease, to)
        sequence.committed_high_water = min(sequence.committed_high_water, to)
        sequence.publish_to = min(sequence.publish_to, to)

    def _schedule(self, sequence: Sequence) -> None:
        """Schedule an idle session's owed ids (see sequence.py) for prefill when there is time, or
        unschedule the session if it owes none that are worth computing before a turn."""
        if self._cache.prefill_end(len(sequence.ids)) > sequence.launched:
            self._scheduler.add_append(sequence)
        else:
            self._scheduler.remove(sequence)

    def _touch(self, sequence: Sequence) -> None:
        """Restart the idle timeout of a session."""
        sequence.last_used_s = self._clock()

    def measure_load(self) -> EngineLoad:
        """Return the load of the engine; O(1)."""
        return engine_load(
            self._cache,
            self._scheduler,
            sessions=len(self._sequences),
            draining=self._is_draining,
            step_s=self._counters.step_s(self._clock()),
        )


def _continues_turn(sequence: Sequence, command: AttachSession) -> bool:
    """Return whether an attach command continues the running or last turn of a session: it names
    that turn, with the same prompt, and the token ids of the command are the beginning of the
    session's log."""
    generate = command.generate
    if generate is None:
        return False
    prompt = len(command.ids) - generate.resumed
    return sequence.has_emitted(generate.turn, prompt, array("i", command.ids))


def _check_resumed(resumed: int, length: int) -> None:
    if not 0 <= resumed <= length:
        raise BadRequest(f"resumed is {resumed}; it must be from 0 to {length}", field="resumed")


def _output_room(capacity: int, length: int, emitted: int) -> int:
    """Return the maximum number of output ids of a turn on a log of `length` ids, of which the last
    `emitted` ones are already output of the turn. Raises BadRequest for an empty log, TooLong for a
    full one."""
    if not length:
        raise BadRequest("there is nothing to continue: the session is empty", field="session")
    room = capacity - length + emitted
    if room < 1:
        raise TooLong(
            f"the session holds {length} of {capacity} tokens: no room for output",
            field="session",
        )
    return room


def _is_fork_of_prompt(sequence: Sequence, command: ForkSession) -> bool:
    """Return whether a fork is within the prompt of the running turn, which no longer changes."""
    turn = sequence.turn
    return turn is not None and command.at is not None and command.at <= turn.prompt_tokens
