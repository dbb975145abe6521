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

TicketT = TypeVar("TicketT")


class Penalties(msgspec.Struct, frozen=True):
    """Penalties of one turn and the token ids that they apply to. `seen_ids` are the distinct ids
    of prompt and output; `output_counts` are the occurrences of each id in the output so far."""

    repetition: float
    presence: float
    frequency: float
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
    """Parameters for sampling one token id: greedy if `temperature` is 0; else by inverse transform
    sampling with the random number `uniform` in [0, 1).

    Order of operations: penalties, logit bias, mask, temperature, top-k, top-p, min-p. The
    remaining candidates are ordered by descending probability, ties by id; `uniform` is looked up
    in their cumulative distribution.
    """

    temperature: float = 0.0
    top_k: int = 0
    """Number of likeliest ids to sample from; 0: all ids."""
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: float = 0.0
    logprobs: int = -1
    """Log-probabilities to return: -1: none; n: those of the drawn id and of the n likeliest ids,
    computed before mask and temperature."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    penalties: Penalties | None = None
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

    If `steps_ahead` is 0, the calling thread computes each step itself, perhaps together with
    worker threads: `run_until_near_end` returns when the workers can finish alone, so that the
    caller plans and launches the next step meanwhile.
    """

    @property
    def geometry(self) -> Geometry: ...

    def launch(self, batch: Batch) -> TicketT: ...

    def collect(self, ticket: TicketT) -> BatchResult: ...

    def run_until_near_end(self, ticket: TicketT) -> bool:
        """Compute a launched step until worker threads can finish it alone, then return True.
        Returns False if there are no worker threads: then the step must be collected before the
        next one is launched."""
        del ticket
        return False

    def discard(self, ticket: TicketT) -> None:
        """Cancel a launched step, in place of `collect`. Its page moves still take effect; the KV
        that it wrote is undefined."""
        self.collect(ticket)

    def is_usable(self) -> bool:
        """Return whether the device can run another step after a failure."""
        return True
