"""Changes: how the log of a quiet session is changed, its lease kept in step.

    ids   | firm: history, never taken back by itself | provisional: the last span, replaceable |
          0 ...................................... firm ............................... len(ids)

Every change checks first and then cannot fail: what is refused has changed nothing. KV up to the
first changed id always stays. A provisional span is taken off while the firm log before it changes
or a turn runs, and put back behind; it is never published.
"""

from array import array

from engine.batch import Geometry
from engine.cache import Lease, SessionAwareCache
from engine.errors import BadRequest, TooLong
from engine.history import Base, common_prefix
from engine.messages import Append
from engine.schedule import Scheduler
from engine.sequence import Sequence


class Changes:
    def __init__(self, cache: SessionAwareCache, scheduler: Scheduler, geometry: Geometry) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._vocabulary = geometry.vocab_size

    def check_append(self, sequence: Sequence, command: Append) -> None:
        """What can be said against an append whatever the log will be when its time comes."""
        ids = command.ids
        if ids and not 0 <= min(ids) <= max(ids) < self._vocabulary:
            raise BadRequest(f"ids must be from 0 to {self._vocabulary - 1}", field="ids")
        edits = {
            "after": command.after is not None,
            "replace": command.replace,
            "drop_previous_output": command.drop_previous_output,
            "offset": command.offset != 0,
        }
        field = next((name for name, given in edits.items() if given), None)
        if field is None:
            return
        if sequence.history is None:
            raise BadRequest(
                f"session {sequence.id} is streaming, hence append-only: it takes no {field}; "
                "use rewind or fork",
                field=field,
            )
        if command.span != "firm":
            raise BadRequest(f"a {command.span} append takes no {field}", field=field)

    def append(self, sequence: Sequence, command: Append) -> int:
        """Returns the new length of the log proper."""
        new = array("i", command.ids)
        match command.span:
            case "firm":
                self._append_firm(sequence, command, new)
            case "provisional":
                firm = sequence.length
                self._replace_span(sequence, new)
                sequence.firm = firm if new else None
            case "commit":
                self._replace_span(sequence, new)
                sequence.firm = None
        self.schedule(sequence)
        return sequence.length

    def rewind(self, sequence: Sequence, to: int) -> None:
        """Forgets the log after `to`; a provisional span stays behind it."""
        if not 0 <= to <= sequence.length:
            raise BadRequest(f"to is {to}; it must be from 0 to {sequence.length}", field="to")
        span = self._take_span(sequence)
        self.cut(sequence, to)
        self.put_span(sequence, span)

    def fork(self, sequence: Sequence, at: int) -> Lease:
        """A lease that shares the first `at` ids of the log, as far as they are in KV."""
        if not 0 <= at <= sequence.length:
            raise BadRequest(f"at is {at}; it must be from 0 to {sequence.length}", field="at")
        self._cache.wake(sequence.lease)
        self._cache.recall(sequence.lease)
        lease = self._cache.fork(sequence.lease, sequence.ids, at, sequence.length)
        self._cache.rest(sequence.lease)
        return lease

    def set_span_aside(self, sequence: Sequence) -> None:
        """A turn begins: the provisional span waits until it has ended."""
        sequence.aside = self._take_span(sequence)

    def put_span(self, sequence: Sequence, span: "array[int]") -> None:
        """Puts a provisional span back behind a log that has changed. One that no longer fits is
        dropped: its speaker is still speaking, and will be told when it is committed."""
        if span and len(sequence.ids) + len(span) <= sequence.capacity:
            sequence.firm = len(sequence.ids)
            sequence.ids.extend(span)
        self.schedule(sequence)

    def cut(self, sequence: Sequence, to: int) -> None:
        """Cuts the log, and KV with it. Only when nothing is in flight."""
        self.cut_log(sequence, to)
        self._cache.rewind(sequence.lease, to)

    def cut_log(self, sequence: Sequence, to: int) -> None:
        """Cuts the log alone; KV beyond it is dropped when the session settles."""
        del sequence.ids[to:]
        sequence.reached = min(sequence.reached, to)
        sequence.publish_to = min(sequence.publish_to, to)
        if sequence.history is not None:
            sequence.history.cut(to)

    # ---- inside ---------------------------------------------------------------------------

    def _append_firm(self, sequence: Sequence, command: Append, new: "array[int]") -> None:
        base = self._base(sequence, command)
        length = sequence.length if base is None else len(base.ids)
        provisional = len(sequence.ids) - sequence.length
        self._check_room(sequence, length + len(new) + provisional)
        span = self._take_span(sequence)
        if base is not None and sequence.history is not None:
            keep = common_prefix(sequence.ids, base.ids)
            self.cut(sequence, keep)
            sequence.ids.extend(base.ids[keep:])
            sequence.history.take(base)
            self._cache.match(sequence.lease, sequence.ids, len(sequence.ids))
        sequence.ids.extend(new)
        self.put_span(sequence, span)

    def _base(self, sequence: Sequence, command: Append) -> Base | None:
        """What a regular session's append goes on from, if not simply from its log."""
        edits = command.replace or command.drop_previous_output or command.offset
        if sequence.history is None or (not edits and command.after is None):
            return None
        return sequence.history.base(
            sequence.ids[: sequence.length],
            command.after,
            replace=command.replace,
            drop_previous_output=command.drop_previous_output,
            offset=command.offset,
        )

    def _replace_span(self, sequence: Sequence, new: "array[int]") -> None:
        """The common beginning of the old span and the new one keeps its KV."""
        firm = sequence.length
        self._check_room(sequence, firm + len(new))
        same = common_prefix(sequence.ids[firm:], new)
        self.cut(sequence, firm + same)
        sequence.ids.extend(new[same:])

    def _take_span(self, sequence: Sequence) -> "array[int]":
        firm, sequence.firm = sequence.firm, None
        if firm is None:
            return array("i")
        span = sequence.ids[firm:]
        self.cut(sequence, firm)
        return span

    def _check_room(self, sequence: Sequence, length: int) -> None:
        if length > sequence.capacity:
            raise TooLong(
                f"the log would be {length} tokens long; "
                f"session {sequence.id} holds {sequence.capacity}",
                field="ids",
            )

    def schedule(self, sequence: Sequence) -> None:
        """What a quiet session owes is prefilled when there is time."""
        if sequence.owed and sequence.turn is None:
            self._scheduler.add_append(sequence)
        elif not sequence.owed:
            self._scheduler.remove(sequence)
