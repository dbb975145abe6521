"""Null device: a Runner whose KV entry of a token is the digest of all ids up to that token.

The digest of the last token determines the id that is drawn next. If a page is lost, wrongly
shared, overwritten or copied too late, the chain of digests breaks, and the drawn ids differ from
those that `oracle` computes without any KV.
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


def extend_digest(past: Digest, id: int) -> Digest:
    return hashlib.blake2b(past + id.to_bytes(4, "little"), digest_size=8).digest()


def draw_id(past: Digest, sample: SampleParams) -> int:
    """Draw the id that the digest `past` determines; if the mask forbids it, the next allowed one.

    Returns -1 if the mask allows no id.
    """
    salt = b"%.17g" % (sample.uniform if sample.sampling.temperature else 0.0)
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
    """Compute the greedy continuation of `ids` on the null device, from the ids alone.

    Returns up to `count` ids; the first of `stop_ids` ends the output and is included. `matcher`:
    grammar that the output must follow.
    """
    past = b""
    for id in ids:
        past = extend_digest(past, id)
    out: list[int] = []
    while len(out) < count and not (out and out[-1] in stop_ids):
        out.append(draw_id(past, SampleParams(mask=matcher)))
        if matcher is not None:
            matcher.accept(out[-1])
        past = extend_digest(past, out[-1])
    return out


PageT = TypeVar("PageT")


def apply_moves(
    moves: Sequence[PageMove], device: list[list[PageT]], host: list[list[PageT]]
) -> None:
    for kind, source, target in moves:
        match kind:
            case "copy":
                device[target] = list(device[source])
            case "spill":
                host[target] = list(device[source])
            case "load":
                device[target] = list(host[source])


def compute_logprobs(past: Digest, id: int, count: int) -> Logprobs:
    """Make up log probabilities of the drawn id and `count` others from the digest `past`."""
    drawn = -past[0] / 32
    return Logprobs(drawn, [((id + n) % VOCABULARY, drawn - n) for n in range(count)])


def make_engine_ready(geometry: Geometry, folder: str, incarnation: str) -> EngineReady:
    """Make the EngineReady message of an engine on the null device, with model folder `folder`."""
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

    A test may set `failing_steps` (numbers of steps that raise), `raising_ids` (ids that make each
    step that reads them raise), `nan_ids` (ids after which the logits are not finite) and `step_s`
    (seconds that `collect` takes). Two of three calls of `run_until_near_end` return True.
    """

    def __init__(self, geometry: Geometry, *, step_s: float = 0.0) -> None:
        self._geometry = geometry
        self.step_s = step_s
        size = geometry.page_size
        self.device_pages: list[list[Digest]] = [[b"?"] * size for _ in range(geometry.pages)]
        self.host_pages: list[list[Digest]] = [[b"?"] * size for _ in range(geometry.host_pages)]
        self.drawn_ids: list[int] = []
        self.failing_steps: set[int] = set()
        self.raising_ids: set[int] = set()
        self.nan_ids: set[int] = set()
        self.row_count = 0
        self.token_count = 0
        self.near_end_calls = 0
        self.discarded_steps = 0
        self._rows: list[BatchRow] = []

    @property
    def geometry(self) -> Geometry:
        return self._geometry

    def launch(self, batch: Batch) -> BatchResult:
        if batch.number in self.failing_steps:
            raise RuntimeError("the device is on fire")
        apply_moves(batch.moves, self.device_pages, self.host_pages)
        before, self.drawn_ids = self.drawn_ids, []
        self._rows = batch.rows
        results: list[RowResult | None] = []
        size = self._geometry.page_size
        for row in batch.rows:
            self.row_count += 1
            self.token_count += row.count
            ids = list(row.ids) if row.feed_row < 0 else [before[row.feed_row]]
            if self.raising_ids and self.raising_ids.intersection(ids):
                raise RuntimeError("the device is on fire")
            last = row.start - 1
            past = self.device_pages[row.pages[last // size]][last % size] if row.start else b""
            for position, id in enumerate(ids, row.start):
                past = extend_digest(past, id)
                self.device_pages[row.pages[position // size]][position % size] = past
            assert len(row.pages) == -(-(row.start + len(ids)) // size)
            id = self.draw(past, row.sample) if row.sample is not None else -1
            self.drawn_ids.append(id)
            results.append(self._row_result(id, row.sample, ids[-1], past))
        return BatchResult(results, self.step_s)

    def draw(self, past: Digest, sample: SampleParams) -> int:
        return draw_id(past, sample)

    def collect(self, ticket: BatchResult) -> BatchResult:
        if self.step_s:
            time.sleep(self.step_s)
        return ticket

    def run_until_near_end(self, ticket: BatchResult) -> bool:
        del ticket
        self.near_end_calls += 1
        return self.near_end_calls % 3 > 0

    def discard(self, ticket: BatchResult) -> None:
        """Overwrite the KV that a cancelled step wrote, as its content is undefined by contract."""
        del ticket
        self.discarded_steps += 1
        size = self._geometry.page_size
        for row in self._rows:
            for position in range(row.start, row.start + row.count):
                self.device_pages[row.pages[position // size]][position % size] = b"?"

    def _row_result(
        self, id: int, sample: SampleParams | None, last: int, past: Digest
    ) -> RowResult | None:
        if sample is None:
            return None
        if last in self.nan_ids:
            return RowResult(-1, failure="the logits are not finite")
        if id < 0:
            return RowResult(-1, failure="the grammar allows nothing")
        if sample.sampling.logprobs is None:
            return RowResult(id)
        return RowResult(id, compute_logprobs(past, id, sample.sampling.logprobs))
