"""Log: the ids of one session, and how they may be changed. Pure: no KV, no I/O.

    ids   | firm: history, never taken back by itself | provisional: the last span, replaceable |
          0 ...................................... firm ............................... len(ids)

The log is the truth. The engine keeps one beside each lease, the front another, from which a
session is opened again when the engine is gone. Every change checks first and then cannot fail:
what is refused has changed nothing. Each returns how much of the old log still stands.
"""

from array import array

from continuo.engine.errors import BadRequest, TooLong
from continuo.engine.wire.bounds import check_ids
from continuo.engine.wire.messages import Append
from continuo.engine.wire.turn_tree import Base, History, common_prefix


class Log:
    def __init__(self, capacity: int, *, streaming: bool) -> None:
        self.capacity = capacity
        """Tokens it may hold."""
        self.ids: array[int] = array("i")
        self.firm: int | None = None
        """Where the provisional span begins, if there is one: it is ids[firm:]."""
        self.history = None if streaming else History()
        """The finished turns of a regular session; a streaming one is append-only."""

    @property
    def length(self) -> int:
        """Without a provisional span."""
        return len(self.ids) if self.firm is None else self.firm

    @property
    def provisional(self) -> int:
        """Tokens of the provisional span."""
        return len(self.ids) - self.length

    # ---- changes ----------------------------------------------------------------------------

    def check_append(self, append: Append, vocabulary: int) -> None:
        """What can be said against an append whatever the log will be when its time comes."""
        check_ids(append.ids, vocabulary)
        field = edits(append)
        if field is not None and self.history is None:
            raise BadRequest(
                f"session {append.session} is streaming, hence append-only: it takes no {field}; "
                "use rewind or fork",
                field=field,
            )
        if field is not None and append.span != "firm":
            raise BadRequest(f"a {append.span} append takes no {field}", field=field)

    def check_room(self, length: int) -> None:
        """Raises TooLong for a log that would be of this length."""
        if length > self.capacity:
            raise TooLong(
                f"the log would be {length} tokens long; the session holds {self.capacity}",
                field="ids",
            )

    def append(self, append: Append) -> int:
        """Raises TooLong, and BadRequest for a turn that has not finished here."""
        new = array("i", append.ids)
        if append.span == "firm":
            return self._append_firm(append, new)
        firm = self.length
        kept = self._replace_span(new)
        self.firm = firm if append.span == "provisional" and new else None
        return kept

    def rewind(self, to: int) -> int:
        """Forgets what comes after `to`; a provisional span stays behind it."""
        if not 0 <= to <= self.length:
            raise BadRequest(f"to is {to}; it must be from 0 to {self.length}", field="to")
        span = self.take_span()
        self.cut(to)
        self.put_span(span)
        return to

    def take_span(self) -> "array[int]":
        """The provisional span, taken off."""
        firm, self.firm = self.firm, None
        if firm is None:
            return array("i")
        span = self.ids[firm:]
        self.cut(firm)
        return span

    def put_span(self, span: "array[int]") -> None:
        """Puts a provisional span back behind a log that has changed. One that no longer fits is
        dropped: its speaker is still speaking, and will be told when it is committed."""
        if span and len(self.ids) + len(span) <= self.capacity:
            self.firm = len(self.ids)
            self.ids.extend(span)

    def cut(self, to: int) -> None:
        del self.ids[to:]
        if self.history is not None:
            self.history.cut(to)

    def turn_ended(self, turn: str, prompt: int) -> None:
        """The turn's prompt was `prompt` long; all that follows is what it said."""
        if self.history is not None:
            self.history.record(turn, self.ids, prompt)

    def check_turn(self, turn: str) -> None:
        """Raises BadRequest for the name of a turn that a regular session could branch from."""
        if self.history is not None:
            self.history.check_unused(turn)

    def fork(self, at: int) -> "Log":
        """The log of a new session on the first `at` ids, with the turns that finished in them."""
        child = Log(self.capacity, streaming=self.history is None)
        child.ids.extend(self.ids[:at])
        if self.history is not None:
            child.history = self.history.fork(at)
        return child

    def forget_turns(self) -> None:
        """None can be branched from any more; the ids stay."""
        if self.history is not None:
            self.history = History()

    def base(self, append: Append) -> Base | None:
        """What a regular session's append goes on from, if not simply from its log."""
        if self.history is None or edits(append) is None:
            return None
        return self.history.base(
            self.ids[: self.length],
            append.after,
            replace=append.replace,
            drop_previous_output=append.drop_previous_output,
            offset=append.offset,
        )

    # ---- inside -----------------------------------------------------------------------------

    def _append_firm(self, append: Append, new: "array[int]") -> int:
        base = self.base(append)
        length = self.length if base is None else len(base.ids)
        self.check_room(length + len(new) + self.provisional)
        span = self.take_span()
        kept = length
        if base is not None and self.history is not None:
            kept = common_prefix(self.ids, base.ids)
            self.cut(kept)
            self.ids.extend(base.ids[kept:])
            self.history.take(base)
        self.ids.extend(new)
        self.put_span(span)
        return kept

    def _replace_span(self, new: "array[int]") -> int:
        """The common beginning of the old span and the new one stays."""
        firm = self.length
        self.check_room(firm + len(new))
        kept = firm + common_prefix(self.ids[firm:], new)
        self.cut(kept)
        self.ids.extend(new[kept - firm :])
        return kept


def edits(append: Append) -> str | None:
    """The first option of an append that only a regular session takes, if it has one."""
    given = {
        "after": append.after is not None,
        "replace": append.replace,
        "drop_previous_output": append.drop_previous_output,
        "offset": append.offset != 0,
    }
    return next((name for name, is_given in given.items() if is_given), None)
