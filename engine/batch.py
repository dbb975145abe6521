"""The order to the device and its answer. Knows no session, no scheduler and no torch.

A batch is one step: some page moves first, in order, then the rows together. A row is a stretch of
one sequence: its inputs are written to KV at positions start, start+1, …; where `sample` is given,
one id is drawn from the logits of its last input.

    position   0 ........ start .......... start+count
    KV         already there | written now |
    input      -             | ids, or the id that row `feed` of the step before has drawn
"""

from __future__ import annotations

from array import array
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

TicketT = TypeVar("TicketT")


class Penalties(msgspec.Struct, frozen=True):
    """Per-turn penalties and what they look at. `seen` is every distinct id of prompt and output;
    `counts` how often each id stands in the output so far."""

    repetition: float
    presence: float
    frequency: float
    seen_ids: set[int]
    output_counts: dict[int, int]


class TokenMask(Protocol):
    """Which ids may be drawn, as its turn stands when the step runs. Asked when the model's work
    has been launched; on CUDA it takes its time beside it."""

    def compute_bitmask(self) -> bytes:
        """One bit for each id, the least significant first; there may be more than ids."""
        ...


class SampleParams(msgspec.Struct, frozen=True):
    """How to draw one id. Greedy where temperature is 0; else inverse CDF of `uniform`.

    Order of operations: penalties, logit bias, mask, temperature, top-k, top-p, min-p. Candidates
    are ordered by probability, descending, ties by id, and `uniform` in [0, 1) picks along that
    order.
    """

    temperature: float = 0.0
    top_k: int = 0
    """0: off."""
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: float = 0.0
    logprobs: int = -1
    """-1: none; n: log-probability of the drawn id and of the n likeliest (before mask and
    temperature)."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    penalties: Penalties | None = None
    mask: TokenMask | None = None


class BatchRow(msgspec.Struct, frozen=True):
    ids: array[int]
    """int32 inputs known on the host; empty exactly when `feed` is used."""
    feed_row: int
    """-1, or the row of the previous batch whose drawn id is this row's one input."""
    start: int
    """Tokens of this sequence already in KV."""
    pages: array[int]
    """int32 page numbers covering positions [0, start + count)."""
    sample: SampleParams | None

    @property
    def count(self) -> int:
        return len(self.ids) or 1


class PageMove(NamedTuple):
    """One page of KV, all layers: `copy` page to page, `spill` page to host slot, `load` back."""

    kind: Literal["copy", "spill", "load"]
    source: int
    target: int


class Batch(msgspec.Struct, frozen=True):
    number: int
    rows: list[BatchRow]
    moves: list[PageMove] = []
    """Carried out in order before any row."""


class Logprobs(msgspec.Struct, frozen=True):
    """Natural logarithms: of the drawn id, and of the likeliest ids, best first."""

    drawn: float
    top: list[tuple[int, float]]


class RowResult(msgspec.Struct, frozen=True):
    """What one row answered: an id, or why that row alone failed."""

    id: int
    logprobs: Logprobs | None = None
    failure: str | None = None


class BatchResult(msgspec.Struct, frozen=True):
    results: list[RowResult | None]
    """Parallel to Batch.rows; None where nothing was to be drawn."""
    model_s: float
    """Seconds the device spent on this step."""


class Geometry(msgspec.Struct, frozen=True):
    """What the scheduler and the cache must know of the device."""

    pages: int
    page_size: int
    max_model_len: int
    vocab_size: int
    batched_tokens: int
    steps_ahead: int
    host_pages: int = 0
    """Pages the host tier can keep."""


class DeviceLost(Exception):
    """The device cannot run another step in this process."""


class Runner(Protocol[TicketT]):
    """Runs batches in the order given. Called from one thread at a time.

    `launch` starts a step, once the one before is done, and returns before it is done; `collect`
    waits for it, or does it where nobody else can. Until then the batch stays as it is. A failure
    of one row is in its Drawn; an exception means that the step has failed, for one of its rows or
    for all. Then `works` says whether another step can be tried.

    Where no step runs ahead, the caller works at each itself, perhaps with others: then it may
    `approach` the end of a step, and plan and launch the next one while they do the rest.
    """

    @property
    def geometry(self) -> Geometry: ...

    def launch(self, batch: Batch) -> TicketT: ...

    def collect(self, ticket: TicketT) -> BatchResult: ...

    def run_until_near_end(self, ticket: TicketT) -> bool:
        """Works at a step until others can do the little that is left. False: there are none, and
        it must be collected before the next one is launched."""
        del ticket
        return False

    def discard(self, ticket: TicketT) -> None:
        """In place of `collect`: nobody wants what the step does. Its moves are made; what it has
        written to KV is anything at all."""
        self.collect(ticket)

    def is_usable(self) -> bool:
        """Whether the device can run another step after one has failed."""
        return True
