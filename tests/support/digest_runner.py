"""Null device: a Runner whose KV entry of a token is the digest of all ids up to that token.

The digest of the last token determines the id that is drawn next. If a page is lost, wrongly
shared, overwritten or copied too late, the chain of digests breaks, and the drawn ids differ from
those that `oracle` computes without any KV.

The entries of a window group are the same digests; a row must find those of its whole window, or
its step fails. A recurrent state is a position and the digest there; a row must find its own start.

A page is blank until a row is computed there, and again when a move blanks it. A row that reads a
blank position fails its step: a position before its start in the full group, one of its windows, or
its state.
"""

import hashlib
import time
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from continuo.engine.batch import (
    FULL_GROUP,
    STATE_POOL,
    Batch,
    BatchResult,
    BatchRow,
    Geometry,
    Logprobs,
    PageMove,
    RowResult,
    Runner,
    SampleParams,
    WindowTable,
)
from continuo.engine.core.turn import uniform
from continuo.engine.fingerprint import compute_fingerprint
from continuo.engine.sampling import Sampling
from continuo.engine.text import GrammarMatcher
from continuo.engine.wire.messages import EngineReady

VOCABULARY = 97
GREEDY = Sampling()
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
    sampling: Sampling = GREEDY,
    seed: int = 0,
    first: int = 0,
) -> list[int]:
    """Compute the continuation of `ids` on the null device, from the ids alone.

    Returns up to `count` ids; the first of `stop_ids` ends the output and is included. `matcher`:
    grammar that the output must follow. `seed`: that of the turn; `first`: index of the first id in
    its output.
    """
    past = b""
    for id in ids:
        past = extend_digest(past, id)
    out: list[int] = []
    while len(out) < count and not (out and out[-1] in stop_ids):
        number = uniform(seed, first + len(out))
        out.append(draw_id(past, SampleParams(sampling, number, mask=matcher)))
        if matcher is not None:
            matcher.accept(out[-1])
        past = extend_digest(past, out[-1])
    return out


PageT = TypeVar("PageT")


def apply_moves(
    moves: Sequence[PageMove],
    device: list[list[PageT]],
    host: list[list[PageT]],
    group: int = FULL_GROUP,
    *,
    blank: PageT,
) -> None:
    """Carry out the moves of one group. `blank`: the content of each position of a blank page."""
    for kind, source, target, _ in [move for move in moves if move.group == group]:
        match kind:
            case "copy":
                device[target] = list(device[source])
            case "spill":
                host[target] = list(device[source])
            case "load":
                device[target] = list(host[source])
            case "blank":
                device[target] = [blank] * len(device[target])


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


BLANK = b"?"
"""Entry of a position that no row has computed."""
BLANK_STATE = (-1, BLANK)


def _blank(pages: int, page_size: int) -> list[list[Digest]]:
    return [[BLANK] * page_size for _ in range(pages)]


class DigestRunner(Runner[BatchResult]):
    """Runner of the null device.

    A test may set `failing_steps` (numbers of steps that raise), `raising_ids` (ids that make each
    step that reads them raise), `nan_ids` (ids after which the logits are not finite) and `step_s`
    (seconds that `collect` takes). Two of three calls of `run_until_near_end` return True.
    `pauses`: calls of `run_for` that return `rest_s` for each step, and not 0.
    """

    def __init__(self, geometry: Geometry, *, step_s: float = 0.0, pauses: int = 0) -> None:
        self._geometry = geometry
        self.step_s = step_s
        self.pauses = pauses
        self.rest_s = 1.0
        self.times_paused = 0
        """Calls of `run_for` for the last step that have returned `rest_s`."""
        size = geometry.page_size
        self.groups = [_blank(geometry.pages, size)]
        """By page group: pages with the digest of each position."""
        self.host_groups = [_blank(geometry.host_pages, size)]
        for group in geometry.windows:
            self.groups.append(_blank(group.pages, size))
            self.host_groups.append(_blank(group.host_pages, size))
        self.device_pages, self.host_pages = self.groups[0], self.host_groups[0]
        self._computed: list[set[int]] = [set() for _ in self.groups]
        """By page group: the pages that are known to have no blank position."""
        self.states: list[list[tuple[int, Digest]]] = [[BLANK_STATE]] * geometry.state_slots
        """By slot, one entry: the position and digest of a recurrent state."""
        self.host_states: list[list[tuple[int, Digest]]] = [[]] * geometry.host_state_slots
        self.pasts: dict[Digest, Digest] = {}
        """The digest one token before each digest; recorded only if there are window groups."""
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
        for n, (pages, host) in enumerate(zip(self.groups, self.host_groups, strict=True)):
            apply_moves(batch.moves, pages, host, n, blank=BLANK)
            self._computed[n].difference_update(m.target for m in batch.moves if m.group == n)
        apply_moves(batch.moves, self.states, self.host_states, STATE_POOL, blank=BLANK_STATE)
        before, self.drawn_ids = self.drawn_ids, []
        self._rows = batch.rows
        self.times_paused = 0
        results: list[RowResult | None] = []
        size = self._geometry.page_size
        for index, row in enumerate(batch.rows):
            self.row_count += 1
            self.token_count += row.count
            ids = list(row.ids) if row.feed_row < 0 else [before[row.feed_row]]
            if self.raising_ids and self.raising_ids.intersection(ids):
                raise RuntimeError("the device is on fire")
            self._check_computed(row, index)
            past = self._read_past(row)
            drawn: list[RowResult] = []
            samples = row.samples
            assert len(samples) <= len(ids)
            for position, id in enumerate(ids, row.start):
                past, earlier = extend_digest(past, id), past
                if self._geometry.windows:
                    self.pasts[past] = earlier
                self._write(row, position, past)
                number = position - row.start - len(ids) + len(samples)
                if number >= 0:
                    drawn.append(self._draw_result(past, samples[number], id))
            if self._geometry.state_slots:
                assert row.slots.read != row.slots.write
                self.states[row.slots.write] = [(row.start + len(ids), past)]
            end = -(-(row.start + len(ids)) // size)
            assert len(row.pages) == end
            assert all(first + len(pages) == end for first, pages in row.windows)
            self.drawn_ids.append(drawn[0].id if len(drawn) == 1 else -1)
            results.append(_row_result(drawn))
        return BatchResult(results, self.step_s)

    def _check_computed(self, row: BatchRow, index: int) -> None:
        """Check that no position which row `index` of the step reads is blank. O(pages of the row).

        Raises AssertionError.
        """
        geometry, start = self._geometry, row.start
        if not start:
            return
        if geometry.has_full_layers:
            self._check_positions(row, index, FULL_GROUP, WindowTable(0, row.pages), 0)
        for number, (group, table) in enumerate(zip(geometry.windows, row.windows, strict=True), 1):
            self._check_positions(row, index, number, table, max(start - group.window + 1, 0))
        if geometry.state_slots and self.states[row.slots.read] == [BLANK_STATE]:
            raise AssertionError(
                f"row {index} reads the state at position {start}, which was never computed, "
                f"in slot {row.slots.read}"
            )

    def _check_positions(
        self, row: BatchRow, index: int, group: int, table: WindowTable, begin: int
    ) -> None:
        """Check the positions from `begin` to the start of a row in one page group. `table`: index
        of its first page there, and the pages from there on."""
        size, (first, pages) = self._geometry.page_size, table
        memory, computed = self.groups[group], self._computed[group]
        assert begin // size >= first, "a row reads before its window"
        before_last = pages[begin // size - first : row.start // size - first]
        if not computed.issuperset(before_last):
            computed.update(page for page in before_last if BLANK not in memory[page])
        if computed.issuperset(before_last):
            begin = max(begin, row.start - row.start % size)
        for position in range(begin, row.start):
            page = pages[position // size - first]
            if memory[page][position % size] == BLANK:
                raise AssertionError(
                    f"row {index} reads position {position}, which was never computed, in page "
                    f"{page} of group {group}"
                )

    def _read_past(self, row: BatchRow) -> Digest:
        """Read the digest before a row from the full group, the state, or the first window group,
        whichever the model has, and check that the others hold the same past."""
        geometry, last = self._geometry, row.start - 1
        if not row.start:
            return b""
        found: list[Digest] = []
        if geometry.has_full_layers:
            page = row.pages[last // geometry.page_size]
            found.append(self.device_pages[page][last % geometry.page_size])
        if geometry.state_slots:
            [(position, past)] = self.states[row.slots.read]
            assert position == row.start, "a state is continued from another position"
            found.append(past)
        for number, group in enumerate(geometry.windows):
            past = self._entry(number, row, last)
            found.append(past)
            for position in range(last, max(row.start - group.window, -1), -1):
                assert self._entry(number, row, position) == past, "a window is not whole"
                past = self.pasts.get(past, b"")
        assert all(past == found[0] for past in found), "components hold different pasts"
        return found[0]

    def _entry(self, number: int, row: BatchRow, position: int) -> Digest:
        first, pages = row.windows[number]
        index, slot = divmod(position, self._geometry.page_size)
        return self.groups[number + 1][pages[index - first]][slot]

    def _write(self, row: BatchRow, position: int, digest: Digest) -> None:
        index, slot = divmod(position, self._geometry.page_size)
        self.device_pages[row.pages[index]][slot] = digest
        for number, (first, pages) in enumerate(row.windows):
            self.groups[number + 1][pages[index - first]][slot] = digest

    def draw(self, past: Digest, sample: SampleParams) -> int:
        return draw_id(past, sample)

    def collect(self, ticket: BatchResult) -> BatchResult:
        if self.step_s:
            time.sleep(self.step_s)
        return ticket

    def run_for(self, ticket: BatchResult, seconds: float) -> float:
        del ticket, seconds
        if self.times_paused >= self.pauses:
            return 0.0
        self.times_paused += 1
        return self.rest_s

    def run_until_near_end(self, ticket: BatchResult) -> bool:
        del ticket
        self.near_end_calls += 1
        return self.near_end_calls % 3 > 0

    def discard(self, ticket: BatchResult) -> None:
        """Overwrite the KV that a cancelled step wrote, as its content is undefined by contract."""
        del ticket
        self.discarded_steps += 1
        for pages in self._computed:
            pages.clear()
        for row in self._rows:
            for position in range(row.start, row.start + row.count):
                self._write(row, position, BLANK)
            if self._geometry.state_slots:
                self.states[row.slots.write] = [BLANK_STATE]

    def _draw_result(self, past: Digest, sample: SampleParams, last: int) -> RowResult:
        id = self.draw(past, sample)
        if last in self.nan_ids:
            return RowResult(-1, failure="the logits are not finite")
        if id < 0:
            return RowResult(-1, failure="the grammar allows nothing")
        if sample.sampling.logprobs is None:
            return RowResult(id)
        return RowResult(id, compute_logprobs(past, id, sample.sampling.logprobs))


def _row_result(drawn: Sequence[RowResult]) -> RowResult | None:
    if not drawn:
        return None
    return msgspec.structs.replace(drawn[0], after_drafts=tuple(drawn[1:]))
