"""Sessions: what each command does, and the transitions of a turn, each written once.

    begin ──► end(stop | length | cancelled | failed) ──► settle ──► the commands that waited

A command on a session whose turn runs, or whose tokens are in flight, waits in order; only cancel,
close and info do not. A refused command changes nothing. What is in flight is named by its turn.
"""

import heapq
import secrets
from array import array
from collections.abc import Callable
from typing import TypeGuard, assert_never

from engine.batch import Geometry
from engine.cache import SessionAwareCache
from engine.errors import BadRequest, Busy, EngineError, TooLong, UnknownSession
from engine.log import Log, edits
from engine.messages import (
    AnyCommand,
    AnyEvent,
    Append,
    Cancel,
    Close,
    Done,
    EngineStats,
    Expired,
    Fork,
    Generate,
    Info,
    ListSessions,
    Open,
    Reason,
    Refused,
    Rewind,
    SessionInfo,
    Stats,
    TurnEnded,
)
from engine.metrics import Counters
from engine.schedule import Scheduler
from engine.sequence import Sequence, Turn
from engine.text import Grammars, StopWatch

DEFERRED_MAX = 256
"""Commands that may wait on one session."""
QUEUED_TURNS_MAX = 8
"""Turns among them."""
NOBODY = 0
"""The number of a command that no front has sent: its Done reaches nobody."""

Deferrable = Append | Generate | Rewind | Fork


class Sessions:
    def __init__(
        self,
        cache: SessionAwareCache,
        scheduler: Scheduler,
        geometry: Geometry,
        counters: Counters,
        watch: Callable[[tuple[str, ...]], StopWatch],
        grammars: Grammars,
        emit: Callable[[AnyEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._geometry = geometry
        self._counters = counters
        self._watch = watch
        self._grammars = grammars
        self._emit = emit
        self._clock = clock
        self._table: dict[str, Sequence] = {}
        self._deadlines: list[tuple[float, str, Sequence]] = []
        """Heap of (not before, session, its sequence), one for each session with a timeout."""
        self._unprepared: dict[Sequence, None] = {}
        """Quiet sessions whose next command waits until its grammar is compiled."""

    # ---- commands -------------------------------------------------------------------------

    def apply(self, command: AnyCommand) -> None:
        """Answers with exactly one Done or Refused, now or when the session's turn has ended."""
        try:
            self._apply(command)
        except EngineError as error:
            self._emit(Refused(command.n, error.code, error.message, error.field))

    def _apply(self, command: AnyCommand) -> None:
        match command:
            case Open():
                self._open(command)
            case Append() | Generate() | Rewind() | Fork():
                self._in_order(self._find(command.session), command)
            case Cancel():
                self._cancel(self._find(command.session), command)
            case Close():
                self._close(self._find(command.session), command)
            case Info():
                info = self._info(self._find(command.session))
                self._emit(Done(command.n, info.length, info))
            case ListSessions():
                sessions = [self._info(s) for s in self._table.values()]
                self._emit(Done(command.n, sessions=sessions))
            case Stats():
                self._emit(Done(command.n, stats=self._stats()))
            case _:
                assert_never(command)

    def _in_order(self, sequence: Sequence, command: Deferrable) -> None:
        if isinstance(command, Append):
            sequence.log.check_append(command, self._geometry.vocab_size)
        waiting = sequence.deferred
        prepared = self._prepared(command)
        if not sequence.busy and not waiting:
            if prepared:
                self._change(sequence, command)
                return
            self._unprepared[sequence] = None
        last = waiting[-1] if waiting else None
        if _is_provisional(last) and _is_provisional(command):
            waiting.pop()
            self._emit(Done(last.n, sequence.log.length))
        self._check_bounds(sequence, command)
        waiting.append(command)

    def _prepared(self, command: Deferrable) -> bool:
        """Whether it may take effect. A grammar is compiled from when it is first heard of."""
        grammar = command.sampling.grammar if isinstance(command, Generate) else None
        return grammar is None or self._grammars.prepared(grammar)

    def resume(self) -> None:
        """Sessions whose next command has its grammar now go on."""
        for sequence in tuple(self._unprepared):
            del self._unprepared[sequence]
            if sequence.closing is None:
                self.settle(sequence)

    def _check_bounds(self, sequence: Sequence, command: Deferrable) -> None:
        waiting = sequence.deferred
        if len(waiting) >= DEFERRED_MAX:
            raise Busy(f"{DEFERRED_MAX} commands already wait on session {sequence.id}")
        turns = sum(isinstance(other, Generate) for other in waiting)
        if isinstance(command, Generate) and turns >= QUEUED_TURNS_MAX:
            raise Busy(
                f"session {sequence.id} has a turn in flight and {turns} queued, which is the most",
                field="turn",
            )

    def _change(self, sequence: Sequence, command: Deferrable) -> None:
        match command:
            case Append():
                if sequence.mark_s is None:
                    sequence.mark_s = self._counters.worked_s(self._clock())
                self._changed(sequence, sequence.log.append(command))
                if edits(command):
                    self._cache.match(sequence.lease, sequence.ids, len(sequence.ids))
                    self._rest(sequence)
                self._emit(Done(command.n, sequence.log.length))
            case Generate():
                self._begin(sequence, command)
            case Rewind():
                self._changed(sequence, sequence.log.rewind(command.to))
                self._emit(Done(command.n, command.to))
            case Fork():
                self._fork(sequence, command)
            case _:
                assert_never(command)
        self._touch(sequence)

    def _open(self, command: Open) -> None:
        limit = self._geometry.max_model_len
        capacity = limit if command.capacity_tokens is None else command.capacity_tokens
        if command.session in self._table:
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
        lease = self._cache.open(command.scope)
        log = Log(capacity, streaming=command.streaming)
        self._add(Sequence(command.session, lease, log, command.timeout_s, self._clock()))
        self._emit(Done(command.n))

    def _begin(self, sequence: Sequence, command: Generate) -> None:
        """A turn starts. Its prompt is the whole log; there must be room for one id more."""
        log, sampling = sequence.log, command.sampling
        if not log.length:
            raise BadRequest("there is nothing to continue: the session is empty", field="session")
        room = log.capacity - log.length + command.resumed
        if room < 1:
            raise TooLong(
                f"the session holds {log.length} of {log.capacity} tokens: no room for an answer",
                field="session",
            )
        limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        watch = self._watch(sampling.stop) if sampling.stop and not sampling.ignore_eos else None
        matcher = None
        if sampling.grammar is not None:
            matcher = self._grammars.matcher(sampling.grammar, sampling.stop_ids)
        turn = Turn(command.turn, sampling, seed, limit, watch, matcher, self._clock())
        sequence.aside = log.take_span()
        self._forget(sequence, log.length)
        turn.begin(sequence.ids, command.resumed)
        now_s = self._counters.worked_s(turn.asked_s)
        turn.mark_s = now_s if sequence.mark_s is None else sequence.mark_s
        sequence.mark_s = None
        sequence.turn = turn
        sequence.turns += 1
        if sequence.turns == 1:
            sequence.publish_to = log.length
        self._scheduler.add_turn(sequence)
        self._emit(Done(command.n, log.length))

    def _fork(self, sequence: Sequence, command: Fork) -> None:
        log, cache = sequence.log, self._cache
        at = log.length if command.at is None else command.at
        if command.child in self._table:
            raise BadRequest(f"session {command.child} is already open", field="child")
        if not 0 <= at <= log.length:
            raise BadRequest(f"at is {at}; it must be from 0 to {log.length}", field="at")
        cache.wake(sequence.lease)
        cache.recall(sequence.lease)
        lease = cache.fork(sequence.lease, sequence.ids, at, log.length)
        cache.rest(sequence.lease)
        copy = Log(log.capacity, streaming=log.history is None)
        copy.ids.extend(log.ids[:at])
        child = Sequence(command.child, lease, copy, sequence.timeout_s, self._clock())
        child.turns = sequence.turns
        child.reached = lease.committed
        self._add(child)
        self._schedule(child)
        self._emit(Done(command.n, at))

    def _cancel(self, sequence: Sequence, command: Cancel) -> None:
        """Ends the running turn now, or withdraws a waiting one. Unknown turns have ended: fine."""
        turn = sequence.turn
        if turn is not None and command.turn in (None, turn.id):
            self.end(sequence, "cancelled", drop=command.drop)
            self.settle(sequence)
        elif command.turn is not None:
            self._withdraw(sequence, command.turn)
        self._emit(Done(command.n, sequence.log.length))

    def _withdraw(self, sequence: Sequence, turn: str) -> None:
        for waiting in sequence.deferred:
            if isinstance(waiting, Generate) and waiting.turn == turn:
                sequence.deferred.remove(waiting)
                self._emit(Refused(waiting.n, "cancelled", f"turn {turn} was cancelled", "turn"))
                return

    def _close(self, sequence: Sequence, command: Close) -> None:
        if sequence.turn is not None:
            self.end(sequence, "cancelled")
        for waiting in sequence.deferred:
            self._emit(Refused(waiting.n, UnknownSession.code, "the session was closed", "session"))
        sequence.deferred.clear()
        del self._table[sequence.id]
        sequence.closing = command
        self._scheduler.remove(sequence)
        self.settle(sequence)

    # ---- transitions of a turn ------------------------------------------------------------

    def end(
        self,
        sequence: Sequence,
        reason: Reason,
        *,
        drop: bool = False,
        stop: str | None = None,
        error: str | None = None,
    ) -> None:
        """The one way out of a turn. What is still in flight for it is dropped when it lands; with
        `drop`, so is what it has said."""
        turn = sequence.turn
        assert turn is not None
        sequence.turn = None
        if drop:
            sequence.log.cut(turn.began)
            sequence.reached = min(sequence.reached, turn.began)
        else:
            sequence.log.turn_ended(turn.id, turn.began)
        sequence.found = "none"
        self._scheduler.remove(sequence)
        self._touch(sequence)
        now = sequence.touched_s
        taken_up = turn.taken_up_s or now
        self._emit(
            TurnEnded(
                session=sequence.id,
                turn=turn.id,
                reason=reason,
                length=len(sequence.ids),
                prompt_tokens=turn.began,
                cached_tokens=turn.cached or 0,
                output_tokens=turn.outputs,
                seed=turn.seed,
                residency=turn.residency,
                stop=stop,
                queued_s=taken_up - turn.asked_s,
                prefill_s=max(turn.first_id_s - taken_up, 0.0),
                model_s=self._counters.worked_s(now) - turn.mark_s,
                error=error,
            )
        )

    def settle(self, sequence: Sequence) -> None:
        """After anything that may have made a session quiet: when nothing of it runs or flies, the
        lease rests, and what waited is done."""
        if sequence.busy:
            return
        self._cache.rewind(sequence.lease, len(sequence.ids))
        if sequence.log.history is not None:
            self._cache.publish(sequence.lease, sequence.ids, sequence.log.length)
        if sequence.closing is not None:
            self._release(sequence, sequence.closing)
            return
        if sequence.aside:
            span, sequence.aside = sequence.aside, array("i")
            sequence.log.put_span(span)
            self._schedule(sequence)
        self._rest(sequence)
        while sequence.deferred and not sequence.busy:
            command = sequence.deferred.popleft()
            try:
                if not self._prepared(command):
                    sequence.deferred.appendleft(command)
                    self._unprepared[sequence] = None
                    return
                self._change(sequence, command)
            except EngineError as error:
                self._emit(Refused(command.n, error.code, error.message, error.field))

    def _release(self, sequence: Sequence, closing: Close) -> None:
        shared = sequence.log.length if closing.keep_prefix else 0
        self._cache.close(sequence.lease, sequence.ids, shared)
        self._emit(Done(closing.n, sequence.log.length))

    def expire(self) -> float | None:
        """Ends the sessions whose time is up. Returns the seconds until the next may be. A timeout
        counts from the end of the last turn or change, and cannot fire inside a turn."""
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, id, sequence = heapq.heappop(self._deadlines)
            if self._table.get(id) is not sequence or sequence.timeout_s is None:
                continue
            deadline = sequence.touched_s + sequence.timeout_s
            if sequence.busy or sequence.deferred:
                deadline = max(deadline, now + sequence.timeout_s)
            if deadline > now:
                heapq.heappush(self._deadlines, (deadline, id, sequence))
            else:
                self._close(sequence, Close(NOBODY, id))
                self._emit(Expired(id))
        return self._deadlines[0][0] - now if self._deadlines else None

    def publish(self, sequence: Sequence) -> None:
        """Shares the first turn's prompt, once KV has reached it."""
        if sequence.publish_to and sequence.committed >= sequence.publish_to:
            self._cache.publish(sequence.lease, sequence.ids, sequence.publish_to)
            sequence.publish_to = 0

    # ---- inside ---------------------------------------------------------------------------

    def _find(self, session: str) -> Sequence:
        sequence = self._table.get(session)
        if sequence is None:
            raise UnknownSession(f"there is no session {session}", field="session")
        return sequence

    def _add(self, sequence: Sequence) -> None:
        self._table[sequence.id] = sequence
        self._rest(sequence)
        if sequence.timeout_s is not None:
            deadline = sequence.touched_s + sequence.timeout_s
            heapq.heappush(self._deadlines, (deadline, sequence.id, sequence))

    def _rest(self, sequence: Sequence) -> None:
        if not sequence.busy:
            self._cache.rest(sequence.lease)

    def _changed(self, sequence: Sequence, kept: int) -> None:
        """The log was changed after its first `kept` ids, and KV follows it."""
        self._forget(sequence, kept)
        self._schedule(sequence)

    def _forget(self, sequence: Sequence, to: int) -> None:
        self._cache.rewind(sequence.lease, to)
        sequence.reached = min(sequence.reached, to)
        sequence.publish_to = min(sequence.publish_to, to)

    def _schedule(self, sequence: Sequence) -> None:
        """What a quiet session owes is prefilled when there is time."""
        if sequence.owed:
            self._scheduler.add_append(sequence)
        else:
            self._scheduler.remove(sequence)

    def _touch(self, sequence: Sequence) -> None:
        """The session was used, or its turn has ended: its timeout begins anew."""
        sequence.touched_s = self._clock()

    def _info(self, sequence: Sequence) -> SessionInfo:
        return SessionInfo(
            session=sequence.id,
            streaming=sequence.log.history is None,
            state="generating" if sequence.turn else "prefilling" if sequence.flying else "idle",
            length=sequence.log.length,
            provisional=sequence.log.provisional,
            committed=sequence.committed,
            held_pages=len(sequence.lease.pages),
            host_pages=len(sequence.lease.host),
            turn=sequence.turn.id if sequence.turn else None,
            idle_s=self._clock() - sequence.touched_s,
        )

    def _stats(self) -> EngineStats:
        cache, counters = self._cache, self._counters
        queued = sum(isinstance(c, Generate) for s in self._table.values() for c in s.deferred)
        return EngineStats(
            pages_total=cache.pool.total,
            pages_free=cache.pool.free,
            pages_tree=cache.tree.size,
            pages_leased=cache.leased,
            sessions=len(self._table),
            active_turns=self._scheduler.turns,
            queued_turns=queued,
            steps=counters.steps,
            tokens_computed=counters.tokens_computed,
            tokens_drawn=counters.tokens_drawn,
            model_s=counters.model_s,
            failed_steps=counters.failed_steps,
            failed_audits=counters.failed_audits,
            retractions=self._scheduler.retractions,
            evicted_pages=cache.evicted,
            host_pages_total=cache.host.pool.total,
            host_pages_used=cache.host.used,
            pages_spilled=cache.host.spilled,
            pages_recalled=cache.host.recalled,
        )


def _is_provisional(command: Deferrable | None) -> TypeGuard[Append]:
    return isinstance(command, Append) and command.span == "provisional"
