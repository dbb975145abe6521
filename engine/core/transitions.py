"""Transitions: what happens to one session, once a command is accepted and nothing is in flight.

    begin_turn ──► end_turn(stop | length | cancelled | failed | paused)
    restore        the log becomes that of an attach, and its turn continues

They act on the log and the turn of one sequence, and call its backend. They know neither the other
sessions nor what is deferred. `Sessions` decides when a transition may happen.
"""

import math
import secrets
from array import array
from collections.abc import Callable
from typing import Generic

import msgspec

from continuo.engine.core.sequence_backend import SequenceBackend
from continuo.engine.core.token_sequence import SequenceT, TokenSequence
from continuo.engine.core.turn import Turn
from continuo.engine.errors import BadRequest, TooLong
from continuo.engine.sampling import Sampling
from continuo.engine.text import GrammarCompiler, GrammarMatcher, StopStringMatcher
from continuo.engine.wire.messages import (
    NO_REPLY,
    AppendIds,
    AttachSession,
    CommandDone,
    EngineEvent,
    Generate,
    TokenLogprobs,
    TurnEnded,
    TurnEndReason,
    TurnTokens,
)
from continuo.engine.wire.turn_tree import common_prefix_length

RecordTurn = Callable[[Turn, float], None]


class Transitions(Generic[SequenceT]):
    """The transitions of one sequence. Called by Sessions, and by EngineLoop when a step is
    collected, on its thread. Always: each turn that begins ends by exactly one TurnEnded, or is
    paused."""

    def __init__(
        self,
        backend: SequenceBackend[SequenceT],
        make_stop_watch: Callable[[Sampling], StopStringMatcher],
        grammars: GrammarCompiler,
        emit: Callable[[EngineEvent], None],
        clock: Callable[[], float],
        record_turn: RecordTurn | None,
    ) -> None:
        """Args:
        backend: that of `Sessions`.
        make_stop_watch: makes the matcher of the stop strings of a turn.
        grammars: those that are compiled; a turn with another one is not begun.
        emit: sends an event to the client of the session.
        clock: seconds of the monotonic clock.
        record_turn: see `Sessions`.
        """
        self._backend = backend
        self._make_stop_watch = make_stop_watch
        self._grammars = grammars
        self._emit = emit
        self._clock = clock
        self._record_turn = record_turn

    def begin_turn(self, sequence: SequenceT, command: Generate) -> bool:
        """Begin a turn on the whole log. Returns whether it has ended at once. Raises BadRequest
        for an invalid argument or an empty log, and TooLong if the log has no room for one more
        id."""
        log, sampling = sequence.log, command.sampling
        length = log.length
        check_resumed(command.resumed, length)
        room = output_room(log.capacity, length, command.resumed)
        limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        seed = sampling.seed
        if seed is None:
            seed = secrets.randbits(63) if sampling.temperature else 0
        stop_watch = (
            self._make_stop_watch(sampling) if sampling.stop and not sampling.ignore_eos else None
        )
        matcher = self._make_matcher(command, sequence.group)
        requested_s = command.asked_s or self._clock()
        turn = Turn(command.turn, sampling, seed, limit, stop_watch, matcher, requested_s)
        turn.traceparent = command.traceparent
        sequence.deferred_span = log.take_provisional()
        end_reason = turn.begin(log, command.resumed)
        sequence.turn = turn
        sequence.last_turn_ended = sequence.paused_turn = None
        sequence.turn_count += 1
        self._backend.begin_turn(sequence, turn)
        self._emit(CommandDone(command.n, length))
        if end_reason is not None:
            self.end_turn(sequence, end_reason)
        return end_reason is not None

    def restore(self, sequence: SequenceT, command: AttachSession) -> bool:
        """Change the log to the ids of an attach, and continue its turn after its last id. Returns
        whether that has ended at once, or is paused. Finished turns are cleared, because the client
        may not know that the last one has finished, and may start it again under the same id."""
        log, ids = sequence.log, array("i", command.ids)
        generate, is_continued = command.generate, continues_turn(sequence, command)
        if generate is not None:
            self._make_matcher(generate, sequence.group)  # may raise: before any change
        sequence.opening_command = None
        log.take_provisional()
        log.clear_turns()
        sequence.deferred_span = array("i")
        was_empty = not log.ids
        if is_continued and sequence.last_turn_ended is not None:
            self.rewind(sequence, sequence.last_turn_ended.length)
        else:
            kept = log.rewind(common_prefix_length(log.ids, ids))
            log.ids.extend(ids[kept:])
            self._clear_cut_turn(sequence, kept)
            self._backend.extend(sequence, kept, is_moved=was_empty)
        log.put_provisional(array("i", command.provisional))
        self._backend.compute_ahead(sequence)
        self._backend.mark_idle(sequence)
        if command.apart:
            self._backend.isolate(sequence, command.apart)
        self._emit(CommandDone(command.n, len(ids)))
        if is_continued:
            self.resend(sequence, command)
        has_ended = False
        if generate is not None and (sequence.is_paused or not is_continued):
            emitted = generate.resumed + log.length - len(ids)
            generate = msgspec.structs.replace(generate, n=NO_REPLY, resumed=emitted)
            has_ended = self.begin_turn(sequence, generate)
        if command.paused and sequence.turn is not None:
            self.end_turn(sequence, "cancelled", is_paused=True)
            has_ended = True
        return has_ended

    def resend(self, sequence: SequenceT, command: AttachSession) -> None:
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

    def _make_matcher(self, command: Generate, group: str) -> GrammarMatcher | None:
        """Build the matcher of a turn's grammar, if it has one. Raises BadRequest for a grammar
        that cannot be enforced."""
        grammar = command.sampling.grammar
        if grammar is None:
            return None
        return self._grammars.create_matcher(grammar, command.sampling.stop_ids, group)

    def end_turn(
        self,
        sequence: SequenceT,
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
        elif not is_paused:
            sequence.log.record_turn(turn.id, turn.prompt_tokens)
        now = sequence.last_used_s = self._clock()
        model_s = self._backend.end_turn(sequence, turn, now, is_paused=is_paused)
        first_step_s = turn.first_step_s or now
        found = turn.cached_tokens or 0
        cached = min(found, max(sequence.computed_from, found - sequence.computed_ahead))
        computed = sequence.computed_ahead + turn.computed_tokens
        is_traced = self._record_turn is not None and bool(turn.traceparent)
        if self._record_turn is not None and is_traced:
            self._record_turn(turn, now)
        ended = TurnEnded(
            session=sequence.id,
            turn=turn.id,
            reason=reason,
            length=len(sequence.ids),
            prompt_tokens=turn.prompt_tokens,
            cached_tokens=int(cached),
            computed_tokens=computed,
            prefilled_after_commit=turn.computed_tokens,
            output_tokens=turn.output_tokens,
            seed=turn.seed,
            residency=turn.residency,
            stop=turn.stopped_by,
            queued_s=first_step_s - turn.requested_s,
            prefill_s=max(turn.first_id_s - first_step_s, 0.0),
            model_s=model_s,
            error=error,
            traced=is_traced,
        )
        sequence.paused_turn = turn if is_paused else None
        sequence.last_turn_ended = None if drop_output else ended
        if emit_event and not is_paused:
            self._emit(ended)
            sequence.computed_ahead, sequence.computed_from = 0, math.inf
        else:
            sequence.count_ahead(found, turn.computed_tokens)

    def end_paused_turn(
        self, sequence: SequenceT, ended: TurnEnded, *, drop_output: bool = False
    ) -> None:
        """End a paused turn, so that it can no longer be resumed."""
        if drop_output:
            self.rewind(sequence, ended.prompt_tokens)
            ended = msgspec.structs.replace(ended, length=ended.prompt_tokens)
        else:
            sequence.log.record_turn(ended.turn, ended.prompt_tokens)
        ended = msgspec.structs.replace(ended, computed_tokens=sequence.computed_ahead)
        sequence.computed_ahead, sequence.computed_from = 0, math.inf
        sequence.paused_turn, sequence.last_turn_ended = None, None if drop_output else ended
        self._emit(ended)

    def apply_ids(
        self,
        sequence: SequenceT,
        turn: Turn,
        ids: list[int],
        logprobs: list[TokenLogprobs] | None = None,
    ) -> int:
        """Append `ids`, drawn for the running turn, to the log, up to the one that ends it, and
        emit them. `logprobs`: one for each id, or None. Returns how many were applied."""
        count, end_reason = 0, None
        for token_id in ids:
            sequence.ids.append(token_id)
            count += 1
            end_reason = turn.accept(token_id)
            if end_reason is not None:
                break
        if count:
            if not turn.first_id_s:
                turn.first_id_s = self._clock()
            first = turn.output_tokens - count
            applied = ids if count == len(ids) else ids[:count]
            rest = None if logprobs is None else logprobs[:count]
            self._emit(TurnTokens(sequence.id, turn.id, first, applied, rest))
        if end_reason is not None:
            self.end_turn(sequence, end_reason)
        return count

    def append(self, sequence: SequenceT, command: AppendIds) -> None:
        kept = sequence.log.append(command)
        self._clear_cut_turn(sequence, kept)
        self._backend.extend(sequence, kept)

    def rewind(self, sequence: SequenceT, to: int) -> None:
        sequence.log.rewind(to)
        self._clear_cut_turn(sequence, to)
        self._backend.rewind(sequence, to)

    def _clear_cut_turn(self, sequence: SequenceT, kept: int) -> None:
        """Clear the end of the last turn if its output was cut: an attach must not resend it."""
        ended = sequence.last_turn_ended
        if ended is not None and kept < ended.length and not sequence.is_paused:
            sequence.last_turn_ended = None

    def touch(self, sequence: SequenceT) -> None:
        """Restart the idle timeout of a session."""
        sequence.last_used_s = self._clock()


def continues_turn(sequence: TokenSequence, command: AttachSession) -> bool:
    """Return whether an attach command continues the running or last turn of a session: it names
    that turn, with the same prompt, and the token ids of the command are the beginning of the
    session's log."""
    generate = command.generate
    if generate is None:
        return False
    prompt = len(command.ids) - generate.resumed
    return sequence.has_emitted(generate.turn, prompt, array("i", command.ids))


def check_resumed(resumed: int, length: int) -> None:
    if not 0 <= resumed <= length:
        raise BadRequest(f"resumed is {resumed}; it must be from 0 to {length}", field="resumed")


def output_room(capacity: int, length: int, emitted: int) -> int:
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
