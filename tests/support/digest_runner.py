"""Null device: a Runner whose KV entries are digests of all ids before, and determine its output.

If a page is lost, wrongly shared, overwritten or copied too late, the chain of digests breaks and
the drawn ids differ from those of `oracle`, which is computed from the ids alone.
"""

import hashlib
import time
from collections.abc import Sequence
from typing import TypeVar

from continuo.engine.batch import (
    Batch,
    BatchResult,
    BatchRow,
    Geometry,
    Logprobs,
    PageMove,
    RowResult,
    Runner,
    SampleParams,
)
from continuo.engine.fingerprint import compute_fingerprint
from continuo.engine.text import GrammarMatcher
from continuo.engine.wire.messages import EngineReady

VOCABULARY = 97
Digest = bytes


def extend(past: Digest, id: int) -> Digest:
    return hashlib.blake2b(past + id.to_bytes(4, "little"), digest_size=8).digest()


def draw(past: Digest, sample: SampleParams) -> int:
    """Draw the id that `past` determines, or the next id that the mask allows.

    Returns -1 if the mask allows no id.
    """
    salt = b"%.17g" % (sample.uniform if sample.temperature else 0.0)
    first = hashlib.blake2b(past + salt, digest_size=2).digest()[0] % VOCABULARY
    if sample.mask is None:
        return first
    allowed = sample.mask.compute_bitmask()
    order = ((first + n) % VOCABULARY for n in range(VOCABULARY))
    return next((id for id in order if allowed[id >> 3] >> (id & 7) & 1), -1)


def oracle(
    ids: Sequence[int],
    count: int,
    stop_ids: Sequence[int] = (),
    matcher: GrammarMatcher | None = None,
) -> list[int]:
    """Compute the greedy continuation of `ids`: the output after one fresh prefill."""
    past = b""
    for id in ids:
        past = extend(past, id)
    out: list[int] = []
    while len(out) < count and not (out and out[-1] in stop_ids):
        out.append(draw(past, SampleParams(mask=matcher)))
        if matcher is not None:
            matcher.accept(out[-1])
        past = extend(past, out[-1])
    return out


Page = TypeVar("Page")


def carry_out(moves: Sequence[PageMove], device: list[list[Page]], host: list[list[Page]]) -> None:
    for kind, source, target in moves:
        match kind:
            case "copy":
                device[target] = list(device[source])
            case "spill":
                host[target] = list(device[source])
            case "load":
                device[target] = list(host[source])


def logprobs(past: Digest, id: int, count: int) -> Logprobs:
    """Compute log probabilities that depend on all ids before, like the drawn id."""
    drawn = -past[0] / 32
    return Logprobs(drawn, [((id + n) % VOCABULARY, drawn - n) for n in range(count)])


def ready(geometry: Geometry, folder: str, incarnation: str) -> EngineReady:
    """Make the ready message of an engine on this device."""
    return EngineReady(
        folder=folder,
        model="test",
        architecture="Test",
        max_model_len=geometry.max_model_len,
        vocab_size=geometry.vocab_size,
        pages=geometry.pages,
        page_size=geometry.page_size,
        device="none",
        dtype="-",
        load_s=0.0,
        incarnation=incarnation,
        digest=compute_fingerprint(folder),
    )


class DigestRunner(Runner[BatchResult]):
    """Runner of the null device.

    A test may choose step numbers that raise, ids that raise in every step that reads them, ids
    whose logits are NaN, and the duration `step_s` of a step. `run_until_near_end` reports for two
    of three steps that worker threads can finish them alone.
    """

    def __init__(self, geometry: Geometry, *, step_s: float = 0.0) -> None:
        self._geometry = geometry
        self.step_s = step_s
        size = geometry.page_size
        self.memory: list[list[Digest]] = [[b"?"] * size for _ in range(geometry.pages)]
        self.host: list[list[Digest]] = [[b"?"] * size for _ in range(geometry.host_pages)]
        self.drawn: list[int] = []
        self.fail_at: set[int] = set()
        self.explosive: set[int] = set()
        self.poison: set[int] = set()
        self.rows_run = 0
        self.tokens_run = 0
        self.approached = 0
        self.abandoned = 0
        self._rows: list[BatchRow] = []

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    def launch(self, batch: Batch) -> BatchResult:
        if batch.number in self.fail_at:
            raise RuntimeError("the device is on fire")
        carry_out(batch.moves, self.memory, self.host)
        before, self.drawn = self.drawn, []
        self._rows = batch.rows
        results: list[RowResult | None] = []
        size = self._geometry.page_size
        for row in batch.rows:
            self.rows_run += 1
            self.tokens_run += row.count
            ids = list(row.ids) if row.feed_row < 0 else [before[row.feed_row]]
            if self.explosive and self.explosive.intersection(ids):
                raise RuntimeError("the device is on fire")
            last = row.start - 1
            past = self.memory[row.pages[last // size]][last % size] if row.start else b""
            for position, id in enumerate(ids, row.start):
                past = extend(past, id)
                self.memory[row.pages[position // size]][position % size] = past
            assert len(row.pages) == -(-(row.start + len(ids)) // size)
            id = self.draw(past, row.sample) if row.sample is not None else -1
            self.drawn.append(id)
            results.append(self._row_result(id, row.sample, ids[-1], past))
        return BatchResult(results, self.step_s)

    def draw(self, past: Digest, sample: SampleParams) -> int:
        return draw(past, sample)

    def collect(self, ticket: BatchResult) -> BatchResult:
        if self.step_s:
            time.sleep(self.step_s)
        return ticket

    def run_until_near_end(self, ticket: BatchResult) -> bool:
        del ticket
        self.approached += 1
        return self.approached % 3 > 0

    def discard(self, ticket: BatchResult) -> None:
        """Overwrite the KV of a cancelled step: its content is undefined."""
        del ticket
        self.abandoned += 1
        size = self._geometry.page_size
        for row in self._rows:
            for position in range(row.start, row.start + row.count):
                self.memory[row.pages[position // size]][position % size] = b"?"

    def _row_result(
        self, id: int, sample: SampleParams | None, last: int, past: Digest
    ) -> RowResult | None:
        if sample is None:
            return None
        if last in self.poison:
            return RowResult(-1, failure="the logits are not finite")
        if id < 0:
            return RowResult(-1, failure="the grammar allows nothing")
        if sample.logprobs < 0:
            return RowResult(id)
        return RowResult(id, logprobs(past, id, sample.logprobs))
