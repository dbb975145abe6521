"""TokenLog: the ids of one session and the ways to change them. Pure: no KV, no I/O.

    ids   | firm: history, changed only on request    | provisional: the last span, replaceable |
          0 .................................... length ............................... len(ids)

The log is the source of truth: the engine keeps one beside each lease, and KV is a cache of it.
Every change validates its arguments before it takes effect, so a refused change has no effect.
`append` and `rewind` return how many ids at the start of the old log are kept.
"""

from array import array
from typing import Protocol

from continuo.engine.batch import TokenCounts
from continuo.engine.errors import BadRequest, TooLong
from continuo.engine.wire.bounds import check_token_ids
from continuo.engine.wire.messages import AppendIds
from continuo.engine.wire.turn_tree import AppendBase, TurnTree, common_prefix_length


class LogIndex(Protocol):
    """An index of the ids of a log."""

    def truncate(self, to: int) -> None:
        """Remove the ids from position `to` on, before they are cut off the log."""
        ...


class TokenLog:
    """The token ids of one session, with at most one provisional span at their end.

    Owned and changed by Sessions alone; cache, scheduler and drafts read it. Always: `len(ids)` is
    at most `capacity`, turns of the tree end within the firm part, and the index, if there is one,
    has no id beyond the log.
    """

    def __init__(self, capacity: int, *, streaming: bool) -> None:
        self.capacity = capacity
        """Maximum length in tokens."""
        self.ids: array[int] = array("i")
        self.provisional_start: int | None = None
        """Start of the provisional span ids[provisional_start:]; None if there is none."""
        self.turn_tree = None if streaming else TurnTree()
        """The finished turns of a regular session; None for a streaming session, which is
        append-only."""
        self._counts: TokenCounts | None = None
        self.index: LogIndex | None = None
        """Index of the ids, which follows the log when it is cut; None: there is none."""

    @property
    def length(self) -> int:
        """Length of the log in tokens, without the provisional span."""
        return len(self.ids) if self.provisional_start is None else self.provisional_start

    @property
    def provisional(self) -> int:
        """Length of the provisional span in tokens."""
        return len(self.ids) - self.length

    # ---- changes ----------------------------------------------------------------------------

    def check_append(self, append: AppendIds, vocab_size: int) -> None:
        """Raise BadRequest for an append that is invalid independently of the contents of the
        log."""
        check_token_ids(append.ids, vocab_size)
        field = regular_only_option(append)
        if field is not None and self.turn_tree is None:
            raise BadRequest(
                f"session {append.session} is streaming and therefore append-only: {field} is not "
                "allowed; use rewind or fork",
                field=field,
            )
        if field is not None and append.span != "firm":
            raise BadRequest(f"{field} is not allowed in a {append.span} append", field=field)

    def check_room(self, length: int) -> None:
        """Raise TooLong if `length` exceeds the capacity of the log."""
        if length > self.capacity:
            raise TooLong(
                f"the log would be {length} tokens long; the session holds {self.capacity}",
                field="ids",
            )

    def append(self, append: AppendIds) -> int:
        """Apply an append. Returns how many ids at the start of the old log are kept. Raises
        TooLong if the log would exceed its capacity, and BadRequest if `after` is not a finished
        turn of this session."""
        new = array("i", append.ids)
        if append.span == "firm":
            return self._append_firm(append, new)
        firm = self.length
        kept = self._replace_provisional(new)
        self.provisional_start = firm if append.span == "provisional" and new else None
        return kept

    def rewind(self, to: int) -> int:
        """Cut the firm ids to the first `to`, and move the provisional span, if any, to their end.
        Returns `to`. Raises BadRequest if `to` is out of range."""
        if not 0 <= to <= self.length:
            raise BadRequest(f"to is {to}; it must be from 0 to {self.length}", field="to")
        span = self.take_provisional()
        self.truncate(to)
        if self.turn_tree is not None:
            self.turn_tree.continue_tip()
        self.put_provisional(span)
        return to

    def take_provisional(self) -> "array[int]":
        """Remove and return the provisional span."""
        firm, self.provisional_start = self.provisional_start, None
        if firm is None:
            return array("i")
        span = self.ids[firm:]
        self.truncate(firm)
        return span

    def put_provisional(self, span: "array[int]") -> None:
        """Put a span removed by `take_provisional` back at the end of the log. A span that no
        longer fits is discarded without an error; the append that commits it later raises
        TooLong."""
        if span and len(self.ids) + len(span) <= self.capacity:
            self.provisional_start = len(self.ids)
            self.ids.extend(span)

    def count_ids(self) -> TokenCounts:
        """Count the ids of the log. Later calls take O(new ids) and return the same object, which
        follows the log when it is cut."""
        if self._counts is None:
            self._counts = TokenCounts(self.ids)
        self._counts.update()
        return self._counts

    def truncate(self, to: int) -> None:
        if self._counts is not None:
            self._counts.truncate(to)
        if self.index is not None:
            self.index.truncate(to)
        del self.ids[to:]
        if self.turn_tree is not None:
            self.turn_tree.truncate(to)

    def record_turn(self, turn: str, prompt_tokens: int) -> None:
        """Record a finished turn. The ids after the first `prompt_tokens` are its output."""
        if self.turn_tree is not None:
            self.turn_tree.record(turn, self.ids, prompt_tokens)

    def check_turn_unused(self, turn: str) -> None:
        """Raise BadRequest if this is the id of a finished turn in the turn tree of a regular
        session."""
        if self.turn_tree is not None:
            self.turn_tree.check_unused(turn)

    def fork(self, at: int) -> "TokenLog":
        """Return a new log of the first `at` ids, with the turns that finished within them."""
        child = TokenLog(self.capacity, streaming=self.turn_tree is None)
        child.ids.extend(self.ids[:at])
        if self.turn_tree is not None:
            child.turn_tree = self.turn_tree.fork(at)
        return child

    def clear_turns(self) -> None:
        """Remove all finished turns, so that appends can no longer branch from them; the ids of the
        log stay."""
        if self.turn_tree is not None:
            self.turn_tree = TurnTree()

    def find_base(self, append: AppendIds) -> AppendBase | None:
        """Return the log that an append extends if that may not be the current log: the append has
        one of the options of AppendIds that only regular sessions allow (`after`, `replace`,
        `drop_previous_output`, `offset`). Returns None for any other append."""
        if self.turn_tree is None or regular_only_option(append) is None:
            return None
        return self.turn_tree.find_base(
            self.ids[: self.length],
            append.after,
            replace=append.replace,
            drop_previous_output=append.drop_previous_output,
            offset=append.offset,
        )

    # ---- inside -----------------------------------------------------------------------------

    def _append_firm(self, append: AppendIds, new: "array[int]") -> int:
        base = self.find_base(append)
        length = self.length if base is None else len(base.ids)
        self.check_room(length + len(new) + self.provisional)
        span = self.take_provisional()
        kept = length
        if base is not None and self.turn_tree is not None:
            kept = common_prefix_length(self.ids, base.ids)
            self.truncate(kept)
            self.ids.extend(base.ids[kept:])
            self.turn_tree.apply_base(base)
        self.ids.extend(new)
        self.put_provisional(span)
        return kept

    def _replace_provisional(self, new: "array[int]") -> int:
        """Replace the provisional span with `new`, keeping their common prefix. Returns how many
        ids of the old log are kept."""
        firm = self.length
        self.check_room(firm + len(new))
        kept = firm + common_prefix_length(self.ids[firm:], new)
        self.truncate(kept)
        self.ids.extend(new[kept - firm :])
        return kept


def regular_only_option(append: AppendIds) -> str | None:
    """Return the first option of an append that only regular sessions allow, or None."""
    if append.after is not None:
        return "after"
    if append.replace:
        return "replace"
    if append.drop_previous_output:
        return "drop_previous_output"
    return "offset" if append.offset else None
