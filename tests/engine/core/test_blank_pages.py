"""Tests of rows that read what no step has computed, on pages that another session had."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from continuo.engine.batch import Batch, BatchResult, BatchRow, Geometry, SampleParams, WindowGroup
from continuo.engine.config import EngineConfig
from continuo.engine.core.cache import SessionAwareCache
from continuo.engine.server.assembly import assemble
from continuo.engine.text import ModelText
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import VOCABULARY, DigestRunner, oracle

IDS = array("i", range(40))
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "full": ({}, "reads position 0, which was never computed, in page 9 of group 0"),
    "window": (
        {"windows": (WindowGroup(9, 12),), "has_full_layers": False},
        "reads position 7, which was never computed, in page 8 of group 1",
    ),
    "state": (
        {"state_slots": 6, "has_full_layers": False},
        "reads the state at position 15, which was never computed, in slot 0",
    ),
}
"""By kind of memory: fields of Geometry, and what the first row of a step may not do."""


class Steps:
    """A cache and a null device, without scheduler and loop."""

    def __init__(self, *, blanks_pages: bool, **memory: Any) -> None:
        geometry = Geometry(12, 4, 48, VOCABULARY, 64, 0, **memory)
        self.runner = DigestRunner(geometry)
        self.cache = SessionAwareCache.for_geometry(geometry, blanks_pages=blanks_pages)
        self.number = 0

    def run_row_behind_a_gap(self) -> BatchResult:
        """Compute the ids 15 to 30 of a session, and no earlier ones: the row before is planned,
        and left out. Another session has had the pages."""
        cache = self.cache
        other, lease = cache.open(), cache.open()
        assert cache.reserve(other, 40)
        self.launch([self.row(other, 0, 40)])
        cache.commit(other, 40)
        cache.close(other, IDS, 0)
        assert cache.reserve(lease, 15)
        assert cache.reserve(lease, 16)
        return self.launch([self.row(lease, 15, 31)])

    def row(self, lease: Any, start: int, end: int) -> BatchRow:
        memory = self.cache.components.row_memory(lease)
        return BatchRow(IDS[start:end], -1, start, lease.pages, SampleParams(), *memory)

    def launch(self, rows: list[BatchRow]) -> BatchResult:
        self.number += 1
        return self.runner.launch(Batch(self.number, rows, self.cache.take_moves()))


@pytest.mark.parametrize("kind", KINDS)
def test_row_behind_positions_never_computed_fails_at_once(kind: str) -> None:
    memory, message = KINDS[kind]
    with pytest.raises(AssertionError, match=f"^row 0 {message}$"):
        Steps(blanks_pages=True, **memory).run_row_behind_a_gap()


def test_row_behind_positions_never_computed_draws_an_id_without_blanks() -> None:
    """The row reads the entries of the session that had its pages: the fault would be silent."""
    [drawn] = Steps(blanks_pages=False).run_row_behind_a_gap().results
    assert drawn is not None
    assert [drawn.id] != oracle(IDS[:31], 1)


def test_failed_step_that_only_blanked_pages_discards_no_kv() -> None:
    core = CoreHarness()
    core.open("idle")
    core.append("idle", [1, 2, 3, 4, 5])
    core.run()
    core.open("busy")
    core.append("busy", [6, 7, 8])
    core.generate("busy", 2)
    core.runner.failing_steps.add(core.counters.steps)
    core.run()
    assert core.counters.failed_steps == 1
    assert core.turn_ids("busy") == oracle([6, 7, 8], 2)
    assert core.sequence("idle").committed == 5


@pytest.mark.parametrize("audit", [True, False])
def test_pages_are_blanked_if_every_step_is_audited(letters: Path, audit: bool) -> None:
    runner = DigestRunner(Geometry(12, 4, 48, VOCABULARY, 64, 0))
    config = EngineConfig(audit_every_step=audit)
    cache = assemble(runner, ModelText(str(letters)), config).cache
    assert cache.reserve(cache.open(), 5)
    assert [move.kind for move in cache.take_moves()] == ["blank", "blank"] * audit
