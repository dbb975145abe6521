"""Speculation: the drafts of each row, and the measurement of their gain.

    propose ──► the row computes its drafts and draws an id after each ──► observe

The ids drawn are those of a turn without drafts: each is drawn with the random number of its place
in the output, and valid only if all drafts before it equal the ids drawn. So drafts change how long
a turn takes, never its output.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from continuo.engine.config import SpeculativeConfig
from continuo.engine.core.cache.radix_tree import RadixTree
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.speculation.draft_gain import DraftGain
from continuo.engine.core.speculation.prompt_lookup import PromptLookup
from continuo.engine.core.speculation.tree_lookup import TreeLookup
from continuo.engine.core.turn import Turn
from continuo.engine.wire.token_log import TokenLog

NO_DRAFTS: "array[int]" = array("i")
MEASURED_SESSIONS_MAX = 1024
"""Maximum number of sessions whose gain is remembered, the most recently used ones."""


class Drafter(Protocol):
    """Source of drafts. A draft is any valid token id; a wrong one costs time alone."""

    def expects_match(self, sequence: Sequence) -> bool:
        """Return whether drafts are likely for the id after the one that is being drawn, so that
        the next row should wait for that id."""
        ...

    def propose(self, sequence: Sequence, count: int) -> "array[int]":
        """Return up to `count` ids that are likely to be drawn next, or none."""
        ...


class FirstDrafter:
    """Drafter that takes the drafts of the first of several drafters that has any."""

    def __init__(self, *drafters: Drafter) -> None:
        self._drafters = drafters

    def expects_match(self, sequence: Sequence) -> bool:
        return any(drafter.expects_match(sequence) for drafter in self._drafters)

    def propose(self, sequence: Sequence, count: int) -> "array[int]":
        for drafter in self._drafters:
            if drafts := drafter.propose(sequence, count):
                return drafts
        return NO_DRAFTS


class MeasuredTurn:
    """The gain of a session, and the running turn in which it is measured."""

    __slots__ = ("gain", "is_waiting", "last_s", "log", "turn")

    def __init__(self, log: TokenLog, gain: DraftGain) -> None:
        self.log = log
        self.gain = gain
        self.turn: Turn | None = None
        self.last_s = 0.0
        """Time at which the last row of `turn` was collected."""
        self.is_waiting = False
        """Whether the next row has waited for the id drawn last."""


class Speculation:
    def __init__(
        self, drafter: Drafter, length: int, make_gain: Callable[[int], DraftGain] = DraftGain
    ) -> None:
        """`length`: the most drafts of a row."""
        self._drafter = drafter
        self._length = length
        self._make_gain = make_gain
        self._measured: OrderedDict[str, MeasuredTurn] = OrderedDict()
        """By session, least recently used first."""

    @classmethod
    def configure(cls, config: SpeculativeConfig, tree: RadixTree) -> "Speculation":
        """Draft from the session's own log, else from the tree."""
        lookup = PromptLookup(config.shortest_ngram, config.longest_ngram)
        return cls(FirstDrafter(lookup, TreeLookup(tree)), config.num_speculative_tokens)

    def propose(self, sequence: Sequence, count: int) -> "array[int]":
        """Return up to `count` drafts for the next row of a turn, whose last id is known."""
        turn = sequence.turn
        if turn is None or not turn.can_draft:
            return NO_DRAFTS
        gain = self._measured_turn(sequence, turn).gain
        count = min(count, gain.length, turn.max_output_tokens - turn.launched_tokens - 1)
        if count <= 0 or not gain.is_drafting:
            return NO_DRAFTS
        return turn.fit_drafts(self._drafter.propose(sequence, count))

    def waits_for_id(self, sequence: Sequence) -> bool:
        """Return whether the next row of a turn should wait until its last id has been collected,
        because drafts are likely then."""
        turn = sequence.turn
        if turn is None or not turn.can_draft:
            return False
        measured = self._measured_turn(sequence, turn)
        waits = measured.gain.is_drafting and self._drafter.expects_match(sequence)
        measured.is_waiting |= waits
        return waits

    def observe(self, sequence: Sequence, turn: Turn, drafts: int, ids: int, now: float) -> None:
        """Record that a row of a turn with this number of `drafts` has drawn this number of
        `ids`."""
        measured = self._measured_turn(sequence, turn)
        last_s, measured.last_s = measured.last_s, now
        has_drafted, measured.is_waiting = measured.is_waiting or drafts > 0, False
        if not last_s:
            return
        if has_drafted:
            measured.gain.observe_drafted(ids, now - last_s)
        else:
            measured.gain.observe_plain(now - last_s)
        if drafts:
            measured.gain.length = min(2 * ids, self._length)

    def _measured_turn(self, sequence: Sequence, turn: Turn) -> MeasuredTurn:
        measured = self._measured.get(sequence.id)
        if measured is None or measured.log is not sequence.log:
            measured = MeasuredTurn(sequence.log, self._make_gain(self._length))
            self._measured[sequence.id] = measured
            if len(self._measured) > MEASURED_SESSIONS_MAX:
                self._measured.popitem(last=False)
        if measured.turn is not turn:
            measured.turn, measured.last_s, measured.is_waiting = turn, 0.0, False
            self._measured.move_to_end(sequence.id)
        return measured
