"""Batches for the device and their results. Independent of sessions, scheduler and torch.

A batch is one step: its page moves first, in order, then all rows together. A row computes
consecutive tokens of one sequence: the KV of its inputs is written at positions start, start+1, …;
if `sample` is given, one token id is drawn from the logits of the last input.

    position   0 ........ start .......... start+count
    KV         committed     | written now |
    input      -             | ids, or the id drawn by row `feed_row` of the previous step

The last inputs may be drafts: guesses of the ids that will be drawn. Then an id is also drawn after
each draft, as if the draft had been drawn before it, and the caller discards the draws after the
first wrong draft.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

from continuo.engine.sampling import Sampling

TicketT = TypeVar("TicketT")


class TokenCounts:
    """Occurrences of each id in a log, from position `start` on. `update` takes O(new ids)."""

    __slots__ = ("_index", "_log", "_start", "end", "ids", "occurrences")

    def __init__(self, log: array[int], start: int = 0) -> None:
        self._log, self._start = log, start
        self.end = start
        """Position up to which the log is counted."""
        self.ids = array("i")
        """Distinct ids, in the order in which they were first counted."""
        self.occurrences = array("i")
        """Occurrences of each of `ids`; 0 for ids that have been cut off the log."""
        self._index: dict[int, int] = {}
        """Index of each id in `ids`."""
        self.update()

    def update(self) -> None:
        """Count the ids that the log has gained."""
        for id, count in Counter(self._log[self.end :]).items():
            index = self._index.setdefault(id, len(self.ids))
            if index == len(self.ids):
                self.ids.append(id)
                self.occurrences.append(0)
            self.occurrences[index] += count
        self.end = len(self._log)

    def truncate(self, to: int) -> None:
        """Remove the ids from position `to` on, before they are cut off the log."""
        for id in self._log[max(to, self._start) : self.end]:
            self.occurrences[self._index[id]] -= 1
        self.end = min(self.end, max(to, self._start))


class PenalizedIds(msgspec.Struct, frozen=True):
    """Token ids that the penalties of one turn apply to. `seen`: those of prompt and output, if the
    turn has a repetition penalty; `output`: those of the output so far."""

    seen: TokenCounts
    output: TokenCounts


class TokenMask(Protocol):
    """Constraint on the token id that a turn draws next. The bitmask is computed after the forward
    pass of the step has been launched, in parallel with it."""

    def compute_bitmask(self) -> bytes:
        """Return the mask: one bit per id, set if the id may be drawn, least significant bit first.
        Excess bits are ignored."""
        ...


class SampleParams(msgspec.Struct, frozen=True):
    """Parameters for sampling one token id: those of the turn, and what changes from id to id.
    Greedy if `temperature` is 0; else by inverse transform sampling with the random number
    `uniform` in [0, 1).

    Order of operations: penalties, logit bias, mask, temperature, top-k, top-p, min-p. The
    remaining candidates are ordered by descending probability, ties by id; `uniform` is looked up
    in their cumulative distribution.
    """

    sampling: Sampling = Sampling()
    uniform: float = 0.0
    penalized: PenalizedIds | None = None
    mask: TokenMask | None = None


class WindowTable(NamedTuple):
    """Pages of one window group: `pages` are int32 page numbers covering the positions from page
    `first` on, up to start + count of the row. The first one holds the earliest position that the
    first token of the row attends to."""

    first: int
    pages: array[int]


class StateSlots(NamedTuple):
    """The state slot that a row reads, which holds the state after exactly `start` tokens, and the
    one that it writes, for the state after start + count tokens. They always differ, so that a step
    can be abandoned. `read` is -1 for a row that starts at position 0, whose state is all zeros."""

    read: int
    write: int


NO_STATE = StateSlots(-1, -1)


class BatchRow(msgspec.Struct, frozen=True):
    ids: array[int]
    """Input token ids (int32); empty if and only if the input comes from `feed_row`."""
    feed_row: int
    """Index of a row of the previous batch: the id which that row draws is the only input of this
    row. -1 if the inputs are `ids`."""
    start: int
    """Position of the first input: the number of tokens of this sequence already in KV."""
    pages: array[int]
    """int32 page numbers of the full group, covering positions [0, start + count)."""
    sample: SampleParams | None
    windows: tuple[WindowTable, ...] = ()
    """The page table of each window group, in the order of `Geometry.windows`."""
    slots: StateSlots = NO_STATE
    """Slots of the recurrent state; NO_STATE if the model has none."""
    draft_samples: tuple[SampleParams, ...] = ()
    """How the id after each draft is drawn. The drafts are the last of `ids`; `sample` is for the
    input before them. A row with drafts feeds no row of the next batch."""

    @property
    def count(self) -> int:
        return len(self.ids) or 1

    @property
    def samples(self) -> tuple[SampleParams, ...]:
        """How the row draws ids: one entry for each of its last inputs, in order."""
        return () if self.sample is None else (self.sample, *self.draft_samples)


FULL_GROUP, STATE_POOL = 0, -1
"""Values of `PageMove.group`: the full group; the pool of state slots."""


class PageMove(NamedTuple):
    """A move of one KV page, all layers of its group: `copy` from page to page, `spill` from page
    to host slot, `load` from host slot to page. `blank` fills the page `target`: a row that reads
    one of its positions before a row has written it must fail. Its source is its target."""

    kind: Literal["copy", "spill", "load", "blank"]
    source: int
    target: int
    group: int = FULL_GROUP
    """FULL_GROUP; n: window group n - 1 of `Geometry.windows`; STATE_POOL: state slots are moved in
    place of pages."""


class Batch(msgspec.Struct, frozen=True):
    number: int
    rows: list[BatchRow]
    moves: list[PageMove] = []
    """Page moves, executed in order before any row is computed."""


class Logprobs(msgspec.Struct, frozen=True):
    """Natural log-probabilities: that of the drawn id, and (id, log-probability) of the likeliest
    ids, likeliest first."""

    drawn: float
    top: list[tuple[int, float]]


class RowResult(msgspec.Struct, frozen=True):
    """Result of one row: the drawn id, or the reason why this row alone failed."""

    id: int
    logprobs: Logprobs | None = None
    failure: str | None = None
    after_drafts: tuple[RowResult, ...] = ()
    """Results of `BatchRow.draft_samples`: each is valid if all drafts up to it were drawn."""


class BatchResult(msgspec.Struct, frozen=True):
    results: list[RowResult | None]
    """Results in the order of Batch.rows; None for a row without `sample`."""
    model_s: float
    """Seconds that the device spent on this step."""


class WindowGroup(msgspec.Struct, frozen=True):
    """Size of the pool of one window group: the layers whose tokens attend to the last `window`
    positions, their own included."""

    window: int
    pages: int
    host_pages: int = 0


class Geometry(msgspec.Struct, frozen=True):
    """Sizes and limits of the device, for the scheduler and the cache."""

    pages: int
    """Pages of the full group: the layers that attend to all positions."""
    page_size: int
    max_model_len: int
    vocab_size: int
    batched_tokens: int
    steps_ahead: int
    """Number of steps that the device can run beyond the one whose result is awaited. 0: the thread
    that calls the Runner computes each step itself."""
    host_pages: int = 0
    """Capacity of the host tier, in pages of the full group."""
    windows: tuple[WindowGroup, ...] = ()
    state_slots: int = 0
    """Slots for the recurrent state of a sequence; 0: the model has no recurrent layers."""
    host_state_slots: int = 0
    state_bytes: int = 0
    """Bytes of one state slot, over all layers."""
    samples_late: bool = False
    """Whether the runner reads the penalties and the mask of a row only after the previous step has
    been collected, even if the row was launched before. Then turns that have them run ahead like
    all others."""
    has_full_layers: bool = True
    """Whether any layer belongs to the full group. If none does, its pages take no memory, and are
    only numbers by which sequences with the same past are found."""

    @property
    def memory_pages(self) -> int:
        """Pages of all groups that take memory."""
        full = self.pages if self.has_full_layers else 0
        return full + sum(group.pages for group in self.windows)


class DeviceLost(Exception):
    """Raised when the device cannot run another step in this process."""


class Runner(Protocol[TicketT]):
    """Device that runs batches in the order given. Called from one thread at a time.

    `launch` enqueues a step behind the previous one and returns before it is done; `collect` waits
    for the result, or computes it on the calling thread if the device has no thread of its own.
    Until `collect` returns, the batch must not be changed. The failure of one row is reported in
    its RowResult; an exception means that the whole step has failed, whether one row or all rows
    are the cause. `is_usable` then says whether another step may be launched.

    `Geometry.steps_ahead` is the number of steps that the device can run beyond the one whose
    result is awaited. If it is 0, the device has no thread of its own: the calling thread computes
    each step, possibly with worker threads. If these can compute the end of the step alone, the
    caller calls `run_until_near_end`, launches the next step meanwhile, and collects the earlier
    step afterwards. While a step is computed, by `run_for`, the caller may still decide to discard
    it. With `Geometry.samples_late`, the rows of that next step may have penalties and
    masks that depend on ids of the earlier one: they are read no sooner than in the next call of
    `run_for`, `run_until_near_end` or `collect` for that step.
    """

    @property
    def geometry(self) -> Geometry: ...

    def launch(self, batch: Batch) -> TicketT: ...

    def collect(self, ticket: TicketT) -> BatchResult: ...

    def run_until_near_end(self, ticket: TicketT) -> bool:
        """Compute a launched step until worker threads can finish it alone, and return True; the
        caller may then launch the next step before it collects this one. Returns False if that is
        not possible: the caller must collect this step first. By default nothing is computed."""
        del ticket
        return False

    def run_for(self, ticket: TicketT, seconds: float) -> float:
        """Compute a launched step for about `seconds`, and return the seconds that the rest is
        expected to take; 0 if worker threads can finish it alone, or if that is not possible. The
        caller may do other work before it calls this method again, `run_until_near_end`, `collect`
        or `discard`. By default nothing is computed."""
        del ticket, seconds
        return 0.0

    def discard(self, ticket: TicketT) -> None:
        """Cancel a launched step, in place of `collect`. Its page moves still take effect; the KV
        that it wrote is undefined."""
        self.collect(ticket)

    def is_usable(self) -> bool:
        """Return whether the device can run another step after a failure."""
        return True
