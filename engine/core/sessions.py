"""Sessions: what each command does, and the transitions of a turn, each written once.

    begin ──► end(stop | length | cancelled | failed) ──► settle ──► the commands that waited
      ▲         │ paused
      └─────────┘ attach

A command on a session whose turn runs, or whose tokens are in flight, waits in order; only attach,
cancel, pause, close, info and a fork of what the turn began with do not. A refused command changes
nothing. A command that fails by a fault of ours is refused too, and its session closed: what it is
like is not known any more. What is in flight is named by its turn.
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
from continuo.engine.core.deferred_commands import Deferrable
from continuo.engine.core.idle_timeouts import Deadlines
from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.stats import engine_load, engine_stats, session_info
from continuo.engine.core.turn import Turn
from continuo.engine.errors import (
    BadRequest,
    Busy,
    CommandFailed,
    EngineError,
    OtherModel,
    StaleFence,
    TooLong,
    UnknownSession,
)
from continuo.engine.text import Grammars, Matcher, StopWatch
from continuo.engine.wire.bounds import check, check_ids
from continuo.engine.wire.messages import (
    AnyEvent,
    Append,
    Attach,
    Cancel,
    Close,
    Done,
    Drain,
    Expired,
    Fork,
    Generate,
    Info,
    ListSessions,
    Load,
    LoopCommand,
    Open,
    Pause,
    Reason,
    Refused,
    Rewind,
    Stats,
    Tokens,
    TurnEnded,
)
from continuo.engine.wire.token_log import Log, edits
from continuo.engine.wire.turn_tree import common_prefix

log = logging.getLogger(__name__)

NOBODY = 0
"""The number of a command that no front has sent: its Done reaches nobody."""


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
        digest: str = "",
    ) -> None:
        """`digest`: of the model, tokenizer and chat template."""
        self._digest = digest
        self._cache = cache
        self._scheduler = scheduler
        self._geometry = geometry
        self._counters = counters
        self._watch = watch
        self._grammars = grammars
        self._emit = emit
        self._clock = clock
        self._table: dict[str, Sequence] = {}
        self._deadlines = Deadlines()
        self._unprepared: dict[Sequence, None] = {}
        """Quiet sessions whose next command waits until its grammar is compiled."""
        self._draining = False

    # ---- commands -------------------------------------------------------------------------

    def apply(self, command: LoopCommand) -> None:
        """Answers with exactly one Done or Refused, now or when the session's turn has ended."""
        try:
            self._apply(command)
        except EngineError as error:
            self._refuse(command, error)
        except Exception as error:
            self._fail(command, error)

    def _apply(self, command: LoopCommand) -> None:
        match command:
            case Open():
                self._open(command)
                self._emit(Done(command.n))
            case Attach():
                self._attach(command)
            case Append() | Generate() | Rewind() | Fork():
                self._in_order(self._find(command.session), command)
            case Cancel():
                self._cancel(self._find(command.session), command)
            case Pause():
                self._pause(self._find(command.session), command)
            case Close():
                self._close(self._find(command.session), command)
            case Info():
                info = session_info(self._find(command.session), self._clock())
                self._emit(Done(command.n, info.length, info))
            case ListSessions():
                now = self._clock()
                sessions = [session_info(s, now) for s in self._table.values()]
                self._emit(Done(command.n, sessions=sessions))
            case Stats():
                stats = engine_stats(
                    self._cache, self._scheduler, self._counters, self._table.values()
                )
                self._emit(Done(command.n, stats=stats))
            case Drain():
                self._draining = True
                self._emit(Done(command.n))
            case _:
                assert_never(command)

    def _refuse(self, command: LoopCommand, error: EngineError) -> None:
        """A session that was opened for a refused attach is closed again."""
        self._emit(Refused(command.n, error.code, error.message, error.field))
        if isinstance(command, Attach):
            sequence = self._table.get(command.session)
            if sequence is not None and sequence.opening is command:
                self._close(sequence, Close(NOBODY, sequence.id, keep_prefix=False))

    def _fail(self, command: LoopCommand, error: Exception) -> None:
        """Refuse a command that raised what is no EngineError, and close its session, which may be
        half changed. Other sessions go on."""
        name = type(command).__name__
        log.error("%s failed by a fault of the engine", name, exc_info=error)
        message = f"the engine failed at {name}: {type(error).__name__}: {error}"
        self._emit(Refused(command.n, CommandFailed.code, message))
        if isinstance(command, ListSessions | Stats | Drain | Info):
            return
        for sequence in self._table.get(command.session), self._born(command):
            if sequence is not None:
                self._discard(sequence, message)

    def _born(self, command: LoopCommand) -> Sequence | None:
        """The child of a fork, if it is there by this command."""
        child = self._table.get(command.child) if isinstance(command, Fork) else None
        return child if child is not None and child.opening is command else None

    def _discard(self, sequence: Sequence, message: str) -> None:
        """Close a session of which nothing is known for sure."""
        try:
            if sequence.turn is not None:
                self.end(sequence, "failed", error=message)
            self._close(sequence, Close(NOBODY, sequence.id, keep_prefix=False))
        except Exception:
            log.exception("session %s could not be closed: its pages are lost", sequence.id)
            self._table.pop(sequence.id, None)
            self._scheduler.remove(sequence)

    def _in_order(self, sequence: Sequence, command: Deferrable) -> None:
        match command:
            case Append():
                sequence.log.check_append(command, self._geometry.vocab_size)
            case Generate():
                check(command.sampling, self._geometry.vocab_size)
            case _:
                pass
        waiting = sequence.deferred
        prepared = self._prepared(command)
        if isinstance(command, Fork) and not waiting and _of_the_past(sequence, command):
            self._fork(sequence, command)
            return
        if not sequence.busy and not waiting:
            if prepared:
                self._change(sequence, command)
                return
            self._unprepared[sequence] = None
        if sequence.turn is not None and (span := waiting.outdated(command)) is not None:
            self._put_aside(sequence, span)
        waiting.put(command, sequence.id)

    def _put_aside(self, sequence: Sequence, span: Append) -> None:
        """A provisional span behind which the next one has come while the turn runs need not wait:
        it takes effect aside, and stands if the next one is refused."""
        try:
            sequence.log.check_room(len(sequence.ids) + len(span.ids))
        except TooLong as error:
            self._emit(Refused(span.n, error.code, error.message, error.field))
            return
        sequence.aside = array("i", span.ids)
        self._emit(Done(span.n, sequence.log.length))

    def _prepared(self, command: Deferrable) -> bool:
        """Whether it may take effect. A grammar is compiled from when it is first heard of."""
        asked = command.generate if isinstance(command, Attach) else command
        grammar = asked.sampling.grammar if isinstance(asked, Generate) else None
        return grammar is None or self._grammars.prepared(grammar)

    def resume(self) -> None:
        """Sessions whose next command has its grammar now go on."""
        for sequence in tuple(self._unprepared):
            del self._unprepared[sequence]
            if sequence.closing is None:
                self.settle(sequence)

    def _change(self, sequence: Sequence, command: Deferrable) -> None:
        match command:
            case Append():
                self._changed(sequence, sequence.log.append(command))
                if edits(command):
                    self._cache.match(sequence.lease, sequence.ids, len(sequence.ids))
                    self._rest(sequence)
                self._emit(Done(command.n, sequence.log.length))
            case Generate():
                self._check_drain()
                sequence.log.check_turn(command.turn)
                self._begin(sequence, command)
            case Rewind():
                self._changed(sequence, sequence.log.rewind(command.to))
                self._emit(Done(command.n, command.to))
            case Fork():
                self._fork(sequence, command)
            case Attach():
                self._restore(sequence, command)
            case _:
                assert_never(command)
        self._touch(sequence)

    def _open(self, command: Open) -> Sequence:
        capacity = self._check_open(command)
        lease = self._cache.open(command.scope)
        log = Log(capacity, streaming=command.streaming)
        sequence = Sequence(command.session, lease, log, command.timeout_s, self._clock())
        self._add(sequence)
        return sequence

    def _check_open(self, command: Open) -> int:
        """The tokens that the session may hold. Raises Busy, BadRequest, OtherModel."""
        self._check_drain()
        self._check_digest(command)
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
        return capacity

    def _check_drain(self) -> None:
        if self._draining:
            raise Busy("this engine is stopping: it takes nothing new")

    def _check_digest(self, opened: Open) -> None:
        if opened.digest and self._digest and opened.digest != self._digest:
            raise OtherModel(
                f"session {opened.session} is of another model, tokenizer or chat template "
                f"({opened.digest}) than this engine's ({self._digest})",
                field="digest",
            )

    def _attach(self, command: Attach) -> None:
        """A turn that goes on need not stop for it; else the log is brought up to what it says as
        soon as nothing is in flight."""
        sequence = self._table.get(command.session)
        if sequence is not None:
            self._check_digest(command.opened)
            self._check_attach(command, sequence.log.capacity)
        else:
            self._check_attach(command, self._check_open(command.opened))
            sequence = self._open(command.opened)
            sequence.opening = command
        if sequence.opening is not None:
            sequence.opening = command  # in place of an attach that waits, refused below
        self._refuse_waiting(sequence, StaleFence("another front has taken the session over"))
        running = sequence.turn is not None
        if running and _goes_on(sequence, command):
            sequence.aside = array("i", command.provisional)
            self._emit(Done(command.n, len(command.ids)))
            self._tell_again(sequence, command)
            return
        if running:
            # Who attaches does not mean this one, though it may have the same name: asked for
            # before a link was lost, it came late, and is asked for again.
            self.end(sequence, "cancelled", drop=True, told=False)
        self._in_order(sequence, command)

    def _check_attach(self, command: Attach, capacity: int) -> None:
        """Check an attach to a session of this capacity, whatever state it
        is in. Raises BadRequest, TooLong."""
        vocabulary, length, asked = self._geometry.vocab_size, len(command.ids), command.generate
        check_ids(command.ids, vocabulary)
        check_ids(command.provisional, vocabulary, "provisional")
        for field, count in (("ids", length), ("provisional", len(command.provisional))):
            if count > capacity:
                raise TooLong(
                    f"{field} has {count} tokens; the session holds {capacity}", field=field
                )
        if asked is not None:
            check(asked.sampling, vocabulary)
            _check_resumed(asked.resumed, length)
            _room(capacity, length, asked.resumed)

    def _restore(self, sequence: Sequence, command: Attach) -> None:
        """The log becomes what the front says; the turn goes on where it was. Of finished turns the
        front knows better: of one here it may not have heard, and ask for it again."""
        log, ids = sequence.log, array("i", command.ids)
        asked, goes_on = command.generate, _goes_on(sequence, command)
        if asked is not None:
            self._matcher(asked)  # raises while nothing has changed
        sequence.opening = None
        log.take_span()
        log.forget_turns()
        sequence.aside = array("i")
        anew = not log.ids
        if goes_on and sequence.ended is not None:
            self._changed(sequence, log.rewind(sequence.ended.length))
        else:
            kept = log.rewind(common_prefix(log.ids, ids))
            log.ids.extend(ids[kept:])
            self._changed(sequence, kept)
        if anew:
            sequence.reached = log.length  # its KV was elsewhere
        log.put_span(array("i", command.provisional))
        self._schedule(sequence)
        self._rest(sequence)
        if command.apart:
            self._scheduler.isolate(sequence, command.apart)
        self._emit(Done(command.n, len(ids)))
        if goes_on:
            self._tell_again(sequence, command)
        if asked is not None and (sequence.paused or not goes_on):
            said = asked.resumed + log.length - len(ids)
            self._begin(sequence, msgspec.structs.replace(asked, n=NOBODY, resumed=said))
        if command.paused and sequence.turn is not None:
            self.end(sequence, "cancelled", paused=True)
            self.settle(sequence)

    def _tell_again(self, sequence: Sequence, command: Attach) -> None:
        """What a turn has said behind the ids its front knows, and how it has ended."""
        assert command.generate is not None
        turn, first = command.generate.turn, command.generate.resumed
        rest = sequence.ids[len(command.ids) : sequence.log.length].tolist()
        if rest:
            self._emit(Tokens(sequence.id, turn, first, rest))
        if sequence.turn is None and sequence.ended is not None and not sequence.paused:
            self._emit(sequence.ended)

    def _begin(self, sequence: Sequence, command: Generate) -> None:
        """A turn starts. Its prompt is the whole log; there must be room for one id more."""
        log, sampling = sequence.log, command.sampling
        _check_resumed(command.resumed, log.length)
        room = _room(log.capacity, log.length, command.resumed)
        limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        watch = self._watch(sampling.stop) if sampling.stop and not sampling.ignore_eos else None
        matcher, asked_s = self._matcher(command), command.asked_s or self._clock()
        turn = Turn(command.turn, sampling, seed, limit, watch, matcher, asked_s)
        sequence.aside = log.take_span()
        self._forget(sequence, log.length)
        over = turn.begin(sequence.ids, command.resumed)
        turn.mark_s = self._counters.worked_s(turn.asked_s)
        sequence.turn = turn
        sequence.ended, sequence.paused = None, False
        sequence.turns += 1
        if sequence.turns == 1:
            sequence.publish_to = log.length
        self._scheduler.add_turn(sequence)
        self._emit(Done(command.n, log.length))
        if over is not None:
            self.end(sequence, over)
            self.settle(sequence)

    def _matcher(self, command: Generate) -> Matcher | None:
        """Raises BadRequest for a grammar that cannot be enforced."""
        grammar = command.sampling.grammar
        if grammar is None:
            return None
        return self._grammars.matcher(grammar, command.sampling.stop_ids)

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
        if not sequence.lease.reserved and (sequence.turn is None or not sequence.turn.admitted):
            cache.rest(sequence.lease)
        child = Sequence(command.child, lease, log.fork(at), sequence.timeout_s, self._clock())
        child.turns = sequence.turns
        child.reached = min(sequence.reached, at)
        child.opening = command
        self._add(child)
        self._schedule(child)
        child.opening = None
        self._emit(Done(command.n, at))

    def _cancel(self, sequence: Sequence, command: Cancel) -> None:
        """Ends the running turn now, or withdraws a waiting one. Unknown turns have ended: fine."""
        turn = sequence.turn
        if turn is not None and command.turn in (None, turn.id):
            self.end(sequence, "cancelled", drop=command.drop)
            self.settle(sequence)
        elif sequence.paused and sequence.ended and command.turn in (None, sequence.ended.turn):
            self._end_paused(sequence, sequence.ended, drop=command.drop)
        elif command.turn is not None:
            waiting = sequence.deferred.withdraw(command.turn)
            if waiting is not None:
                message = f"turn {waiting.turn} was cancelled"
                self._emit(Refused(waiting.n, "cancelled", message, "turn"))
        self._emit(Done(command.n, sequence.log.length))

    def _pause(self, sequence: Sequence, command: Pause) -> None:
        if sequence.turn is not None:
            self.end(sequence, "cancelled", paused=True)
            self.settle(sequence)
        self._emit(Done(command.n, sequence.log.length))

    def _end_paused(self, sequence: Sequence, ended: TurnEnded, *, drop: bool = False) -> None:
        """It will not go on any more."""
        if drop:
            kept = sequence.log.rewind(ended.prompt_tokens)
            if sequence.flying:  # KV follows when it lands
                sequence.reached = min(sequence.reached, kept)
            else:
                self._changed(sequence, kept)
            ended = msgspec.structs.replace(ended, length=ended.prompt_tokens)
        else:
            sequence.log.turn_ended(ended.turn, ended.prompt_tokens)
        sequence.paused, sequence.ended = False, None if drop else ended
        self._emit(ended)

    def _close(self, sequence: Sequence, command: Close) -> None:
        if sequence.turn is not None:
            self.end(sequence, "cancelled")
        elif sequence.paused and sequence.ended is not None:
            self._end_paused(sequence, sequence.ended)
        self._refuse_waiting(sequence, UnknownSession("the session was closed", field="session"))
        del self._table[sequence.id]
        sequence.closing = command
        self._scheduler.remove(sequence)
        self.settle(sequence)

    def _refuse_waiting(self, sequence: Sequence, error: EngineError) -> None:
        for waiting in sequence.deferred:
            self._emit(Refused(waiting.n, error.code, error.message, error.field))
        sequence.deferred.clear()

    # ---- transitions of a turn ------------------------------------------------------------

    def end(
        self,
        sequence: Sequence,
        reason: Reason,
        *,
        drop: bool = False,
        paused: bool = False,
        told: bool = True,
        error: str | None = None,
    ) -> None:
        """The one way out of a turn. What is still in flight for it is dropped when it lands; with
        `drop`, so is what it has said, and who asks for it later has it made anew. Nobody is told
        of one that is `paused`."""
        turn = sequence.turn
        assert turn is not None
        sequence.turn = None
        if drop:
            sequence.log.cut(turn.began)
            sequence.reached = min(sequence.reached, turn.began)
        elif not paused:
            sequence.log.turn_ended(turn.id, turn.began)
        sequence.found = "none"
        self._scheduler.remove(sequence)
        self._touch(sequence)
        now = sequence.touched_s
        taken_up = turn.taken_up_s or now
        ended = TurnEnded(
            session=sequence.id,
            turn=turn.id,
            reason=reason,
            length=len(sequence.ids),
            prompt_tokens=turn.began,
            cached_tokens=turn.cached or 0,
            output_tokens=turn.outputs,
            seed=turn.seed,
            residency=turn.residency,
            stop=turn.stopped_by,
            queued_s=taken_up - turn.asked_s,
            prefill_s=max(turn.first_id_s - taken_up, 0.0),
            model_s=self._counters.worked_s(now) - turn.mark_s,
            error=error,
        )
        sequence.paused, sequence.ended = paused, None if drop else ended
        if told and not paused:
            self._emit(ended)

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
                self._refuse(command, error)
            except Exception as error:
                self._fail(command, error)

    def _release(self, sequence: Sequence, closing: Close) -> None:
        shared = sequence.log.length if closing.keep_prefix else 0
        self._cache.close(sequence.lease, sequence.ids, shared)
        self._emit(Done(closing.n, sequence.log.length))

    def expire(self) -> float | None:
        """Ends the sessions whose time is up. Returns the seconds until the next may be."""
        now = self._clock()
        for sequence in self._deadlines.due(now):
            self._close(sequence, Close(NOBODY, sequence.id))
            self._emit(Expired(sequence.id))
        return self._deadlines.within_s(now)

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
        self._deadlines.add(sequence)

    def _rest(self, sequence: Sequence) -> None:
        if not sequence.busy:
            self._cache.rest(sequence.lease)

    def _changed(self, sequence: Sequence, kept: int) -> None:
        """The log was changed after its first `kept` ids, and KV follows it."""
        ended = sequence.ended
        if ended is not None and kept < ended.length and not sequence.paused:
            sequence.ended = None  # it is cut: who knows nothing of that is not told its end
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

    def load(self) -> Load:
        """How full it is, at a glance."""
        return engine_load(
            self._cache,
            self._scheduler,
            sessions=len(self._table),
            draining=self._draining,
            step_s=self._counters.step_s(self._clock()),
        )


def _goes_on(sequence: Sequence, command: Attach) -> bool:
    """Whether the turn it names is this session's, and what it knows of it is so."""
    asked = command.generate
    if asked is None:
        return False
    prompt = len(command.ids) - asked.resumed
    return sequence.has_said(asked.turn, prompt, array("i", command.ids))


def _check_resumed(resumed: int, length: int) -> None:
    if not 0 <= resumed <= length:
        raise BadRequest(f"resumed is {resumed}; it must be from 0 to {length}", field="resumed")


def _room(capacity: int, length: int, said: int) -> int:
    """Ids a turn may say on a log of `length`, the `said` at its end included."""
    if not length:
        raise BadRequest("there is nothing to continue: the session is empty", field="session")
    room = capacity - length + said
    if room < 1:
        raise TooLong(
            f"the session holds {length} of {capacity} tokens: no room for an answer",
            field="session",
        )
    return room


def _of_the_past(sequence: Sequence, command: Fork) -> bool:
    """Whether it forks what the running turn does not change."""
    turn = sequence.turn
    return turn is not None and command.at is not None and command.at <= turn.began
