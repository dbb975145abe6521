"""Batches for the device and their results. Independent of sessions, scheduler and torch.

A batch is one step: its page moves first, in order, then all rows together. A row computes
consecutive tokens of one sequence: the KV of its inputs is written at positions start, start+1, …;
if `sample` is given, one token id is drawn from the logits of the last input.

    position   0 ........ start .......... start+count
    KV         committed     | written now |
    input      -             | ids, or the id drawn by row `feed_row` of the previous step
"""

from __future__ import annotations

from array import array
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

from continuo.engine.sampling import Sampling

TicketT = TypeVar("TicketT")


class PenalizedIds(msgspec.Struct, frozen=True):
    """Token ids that the penalties of one turn apply to. `seen_ids` are the distinct ids of prompt
    and output; `output_counts` are the occurrences of each id in the output so far."""

    seen_ids: set[int]
    output_counts: dict[int, int]


class TokenMask(Protocol):
    """Constraint on the token id that a turn draws next. The bitmask is computed after the forward
    pass of the step has been launched; on CUDA the two are computed in parallel."""

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


class BatchRow(msgspec.Struct, frozen=True):
    ids: array[int]
    """Input token ids (int32); empty if and only if the input comes from `feed_row`."""
    feed_row: int
    """Index of a row of the previous batch: the id which that row draws is the only input of this
    row. -1 if the inputs are `ids`."""
    start: int
    """Position of the first input: the number of tokens of this sequence already in KV."""
    pages: array[int]
    """int32 page numbers covering positions [0, start + count)."""
    sample: SampleParams | None

    @property
    def count(self) -> int:
        return len(self.ids) or 1


class PageMove(NamedTuple):
    """A move of one KV page, all layers: `copy` from page to page, `spill` from page to host slot,
    `load` from host slot to page."""

    kind: Literal["copy", "spill", "load"]
    source: int
    target: int


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


class BatchResult(msgspec.Struct, frozen=True):
    results: list[RowResult | None]
    """Results in the order of Batch.rows; None for a row without `sample`."""
    model_s: float
    """Seconds that the device spent on this step."""


class Geometry(msgspec.Struct, frozen=True):
    """Sizes and limits of the device, for the scheduler and the cache."""

    pages: int
    page_size: int
    max_model_len: int
    vocab_size: int
    batched_tokens: int
    steps_ahead: int
    """Number of steps that the device can run beyond the one whose result is awaited. 0: the thread
    that calls the Runner computes each step itself."""
    host_pages: int = 0
    """Capacity of the host tier, in pages."""


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
    step afterwards.
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

    def discard(self, ticket: TicketT) -> None:
        """Cancel a launched step, in place of `collect`. Its page moves still take effect; the KV
        that it wrote is undefined."""
        self.collect(ticket)

    def is_usable(self) -> bool:
        """Return whether the device can run another step after a failure."""
        return True
