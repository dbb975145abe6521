"""Sessions: what each command does, and the transitions of a turn, each written once.

    begin ──► end(stop | length | cancelled | failed) ──► settle ──► the commands that waited

A command on a session whose turn runs, or whose tokens are in flight, waits in order; only cancel,
close and info do not. A refused command changes nothing. What is in flight is named by its turn.
"""

import secrets
from collections.abc import Callable
from typing import assert_never

from engine.batch import Geometry
from engine.cache import SessionAwareCache
from engine.errors import BadRequest, Busy, EngineError, TooLong, UnknownSession
from engine.messages import (
    AnyCommand,
    AnyEvent,
    Append,
    Cancel,
    Close,
    Done,
    EngineStats,
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
from engine.text import StopWatch

DEFERRED_MAX = 256
"""Commands that may wait on one session."""


class Sessions:
    def __init__(
        self,
        cache: SessionAwareCache,
        scheduler: Scheduler,
        geometry: Geometry,
        counters: Counters,
        watch: Callable[[tuple[str, ...]], StopWatch],
        emit: Callable[[AnyEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._geometry = geometry
        self._counters = counters
        self._watch = watch
        self._emit = emit
        self._clock = clock
        self._table: dict[str, Sequence] = {}

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

    def _in_order(self, sequence: Sequence, command: Append | Generate | Rewind | Fork) -> None:
        if not sequence.busy and not sequence.deferred:
            self._change(sequence, command)
        elif len(sequence.deferred) < DEFERRED_MAX:
            sequence.deferred.append(command)
        else:
            raise Busy(f"{DEFERRED_MAX} commands already wait on session {sequence.id}")

    def _change(self, sequence: Sequence, command: Append | Generate | Rewind | Fork) -> None:
        match command:
            case Append():
                self._append(sequence, command)
            case Generate():
                self._begin(sequence, command)
            case Rewind():
                self._rewind(sequence, command)
            case Fork():
                self._fork(sequence, command)
            case _:
                assert_never(command)
        sequence.touched_s = self._clock()

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
        lease = self._cache.open(command.scope)
        self._add(Sequence(command.session, lease, capacity, command.streaming, self._clock()))
        self._emit(Done(command.n))

    def _append(self, sequence: Sequence, command: Append) -> None:
        length = len(sequence.ids) + len(command.ids)
        if length > sequence.capacity:
            raise TooLong(
                f"{len(command.ids)} more tokens make {length}; "
                f"session {sequence.id} holds {sequence.capacity}",
                field="ids",
            )
        vocabulary = self._geometry.vocab_size
        if command.ids and not 0 <= min(command.ids) <= max(command.ids) < vocabulary:
            raise BadRequest(f"ids must be from 0 to {vocabulary - 1}", field="ids")
        sequence.ids.extend(command.ids)
        if sequence.owed:
            self._scheduler.add_append(sequence)
        self._emit(Done(command.n, length))

    def _begin(self, sequence: Sequence, command: Generate) -> None:
        """A turn starts. Its prompt is the whole log; there must be room for one id more."""
        length, sampling = len(sequence.ids), command.sampling
        if not length:
            raise BadRequest("there is nothing to continue: the session is empty", field="session")
        room = sequence.capacity - length
        if room < 1:
            raise TooLong(
                f"the session holds {length} of {sequence.capacity} tokens: no room for an answer",
                field="session",
            )
        limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        watch = self._watch(sampling.stop) if sampling.stop and not sampling.ignore_eos else None
        turn = Turn(command.turn, sampling, seed, limit, watch, self._clock())
        turn.begin(sequence.ids)
        sequence.turn = turn
        sequence.turns += 1
        if sequence.turns == 1:
            sequence.publish_to = length
        self._scheduler.add_turn(sequence)
        self._emit(Done(command.n, length))

    def _rewind(self, sequence: Sequence, command: Rewind) -> None:
        length = len(sequence.ids)
        if not 0 <= command.to <= length:
            raise BadRequest(f"to is {command.to}; it must be from 0 to {length}", field="to")
        self._cut(sequence, command.to)
        if not sequence.owed:
            self._scheduler.remove(sequence)
        self._emit(Done(command.n, command.to))

    def _fork(self, sequence: Sequence, command: Fork) -> None:
        length = len(sequence.ids)
        at = length if command.at is None else command.at
        if command.child in self._table:
            raise BadRequest(f"session {command.child} is already open", field="child")
        if not 0 <= at <= length:
            raise BadRequest(f"at is {at}; it must be from 0 to {length}", field="at")
        self._cache.wake(sequence.lease)
        lease = self._cache.fork(sequence.lease, sequence.ids, at)
        self._rest(sequence)
        child = Sequence(command.child, lease, sequence.capacity, sequence.streaming, self._clock())
        child.ids.extend(sequence.ids[:at])
        child.turns = sequence.turns
        child.reached = lease.committed
        self._add(child)
        self._emit(Done(command.n, at))

    def _cancel(self, sequence: Sequence, command: Cancel) -> None:
        """Ends the running turn now, or withdraws a waiting one. Unknown turns have ended: fine."""
        turn = sequence.turn
        if turn is not None and command.turn in (None, turn.id):
            self.end(sequence, "cancelled")
            if command.drop:
                self._cut_log(sequence, turn.began)
            self.settle(sequence)
        elif command.turn is not None:
            self._withdraw(sequence, command.turn)
        self._emit(Done(command.n, len(sequence.ids)))

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
        stop: str | None = None,
        error: str | None = None,
    ) -> None:
        """The one way out of a turn. What is still in flight for it is dropped when it lands."""
        turn = sequence.turn
        assert turn is not None
        sequence.turn = None
        sequence.touched_s = now = self._clock()
        self._scheduler.remove(sequence)
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
                error=error,
            )
        )

    def settle(self, sequence: Sequence) -> None:
        """After anything that may have made a session quiet: when nothing of it runs or flies, the
        lease rests, and what waited is done."""
        if sequence.busy:
            return
        self._cache.rewind(sequence.lease, len(sequence.ids))
        if not sequence.streaming:
            self._cache.publish(sequence.lease, sequence.ids, len(sequence.ids))
        if sequence.closing is not None:
            self._cache.close(
                sequence.lease, sequence.ids if sequence.closing.keep_prefix else None
            )
            self._emit(Done(sequence.closing.n, len(sequence.ids)))
            return
        self._rest(sequence)
        while sequence.deferred and not sequence.busy:
            command = sequence.deferred.popleft()
            try:
                self._change(sequence, command)
            except EngineError as error:
                self._emit(Refused(command.n, error.code, error.message, error.field))

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

    def _rest(self, sequence: Sequence) -> None:
        if sequence.turn is None and not sequence.flying:
            self._cache.rest(sequence.lease)

    def _cut(self, sequence: Sequence, to: int) -> None:
        self._cut_log(sequence, to)
        self._cache.rewind(sequence.lease, to)

    def _cut_log(self, sequence: Sequence, to: int) -> None:
        del sequence.ids[to:]
        sequence.reached = min(sequence.reached, to)
        sequence.publish_to = min(sequence.publish_to, to)

    def _info(self, sequence: Sequence) -> SessionInfo:
        return SessionInfo(
            session=sequence.id,
            streaming=sequence.streaming,
            state="generating" if sequence.turn else "prefilling" if sequence.flying else "idle",
            length=len(sequence.ids),
            committed=sequence.committed,
            held_pages=len(sequence.lease.pages),
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
            retractions=self._scheduler.retractions,
            evicted_pages=cache.evicted,
        )
