"""Scheduling under load, in exact counts, on a null device: steps, and tokens computed over needed.

A prefix of a prompt is needed once in each cache scope, and every id of an output once. "First id"
is counted in steps from the begin of a turn. Steps take no time here, so that a prefill chunk is
limited by the tokens of a step alone.
"""

import argparse
import statistics
import time
from array import array
from collections.abc import Callable
from typing import NamedTuple

from continuo.bench.report import Report, ReportRow
from continuo.bench.scheduling_scenarios import (
    PAGE_SIZE,
    LoadedEngine,
    begin_decodes_beside_waiting_turns,
    run_appended_prompts,
    run_beside_full_pool,
    run_beside_more_turns_than_rows,
    run_beside_queued_prompts,
    run_burst,
    run_cold_prompts,
    run_decode_pressure,
    run_early_stops,
    run_more_turns_than_rows,
    run_shared_prompt,
)
from continuo.engine.core.cache import SessionAwareCache

SCENARIOS: dict[str, Callable[..., LoadedEngine]] = {
    "8 turns, one prompt of 1,600": run_shared_prompt,
    "the same, 7 begin in its middle": lambda **o: run_shared_prompt(late=True, **o),
    "the same, in 2 cache scopes": lambda **o: run_shared_prompt(late=True, scopes=2, **o),
    "8 turns, one prompt of 1,600, 8 cache scopes": lambda **o: run_shared_prompt(scopes=8, **o),
    "8 turns, one prompt of 1,600 and 40 own ids": lambda **o: run_shared_prompt(own=40, **o),
    "the same prompt appended to 8 sessions": lambda **o: run_appended_prompts(at_once=True, **o),
    "16 prompts of 1,000, pool for 3": lambda **o: run_burst(16, 1_000, **o),
    "32 prompts of 1,000, pool for 3": lambda **o: run_burst(32, 1_000, **o),
    "64 prompts of 1,000, pool for 3": lambda **o: run_burst(64, 1_000, **o),
    "16 prompts of 3,000, pool for 3": lambda **o: run_burst(16, 3_000, **o),
    "16 turns of 200 + 400, pool of 3,200": lambda **o: run_decode_pressure(
        16, 200, 400, 3_200, **o
    ),
    "16 turns of 200 + 400, pool of 3,600": lambda **o: run_decode_pressure(16, 200, 400, **o),
    "8 turns of 1,000 + 200, pool of 3,600": lambda **o: run_decode_pressure(8, 1_000, 200, **o),
    "64 turns of 200 that may fill the context and stop after 20, pool of 3,600": (
        lambda **o: run_early_stops(64, 200, 20, 3_600, None, **o)
    ),
    "16 prompts of 1,000, ample room": lambda **o: run_cold_prompts(16, **o),
    "64 prompts of 1,000, ample room": lambda **o: run_cold_prompts(64, **o),
    "128 turns of 400 on 64 rows": run_more_turns_than_rows,
    "a prompt of 1,000 beside 64 of another group": run_beside_queued_prompts,
    "a turn beside 100 of another group on 16 rows": run_beside_more_turns_than_rows,
    "a prompt of 1,000 beside a group that fills the pool": run_beside_full_pool,
}


class Before(NamedTuple):
    """Figures of the scheduler of 2026-11-22: see decision 0021."""

    steps: int
    over_needed: float | None = None
    first_id: str | None = None
    gap: int | None = None


BEFORE = {
    "8 turns, one prompt of 1,600": Before(28, 7.86, "25 / 25 / 25"),
    "the same, 7 begin in its middle": Before(29, 7.86, "4 / 22 / 23"),
    "the same, in 2 cache scopes": Before(29, 3.97, "4 / 22 / 23"),
    "16 prompts of 1,000, pool for 3": Before(181, 1.84, "16 / 83 / 162"),
    "32 prompts of 1,000, pool for 3": Before(371, 2.28, "20 / 203 / 352"),
    "64 prompts of 1,000, pool for 3": Before(823, 2.76, "24 / 472 / 804"),
    "16 prompts of 3,000, pool for 3": Before(301, 1.90, "46 / 164 / 282"),
    "16 turns of 200 + 400, pool of 3,200": Before(1_033),
    "16 turns of 200 + 400, pool of 3,600": Before(925, 2.55, "6 / 6 / 7"),
    "8 turns of 1,000 + 200, pool of 3,600": Before(624, 2.35, "13 / 222 / 425"),
    "64 prompts of 1,000, ample room": Before(125, 1.00, "118 / 122 / 125"),
    "128 turns of 400 on 64 rows": Before(865, 1.00, "1 / 5 / 131", gap=396),
}
UNDER_PRESSURE = ("pool for 3", "pool of 3,200", "pool of 3,600")
"""Ends of the names of the scenarios that are also run with a host tier."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host-pages",
        type=int,
        default=2_000,
        help="pages of the host tier (default: %(default)s)",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="loads whose name contains TEXT (default: all)"
    )


def run(options: argparse.Namespace) -> Report:
    rows: list[ReportRow] = []
    scenarios = {name: scenario for name, scenario in SCENARIOS.items() if options.only in name}
    for name, scenario in scenarios.items():
        for host_pages in (0, options.host_pages) if name.endswith(UNDER_PRESSURE) else (0,):
            rows.append(_row(name, host_pages, scenario(host_pages=host_pages)))
    for waiting in (0, 2_000):
        rows.append({"load": f"64 decodes, {waiting} turns wait", "us a step": _step_us(waiting)})
    for scopes in (1_000, 16_000):
        rows.append({"load": f"pages of {scopes} scopes", "us an evicted page": _evict_us(scopes)})
    return Report("Scheduling under load", rows)


def _row(name: str, host_pages: int, loaded: LoadedEngine) -> ReportRow:
    first = loaded.ordered_first_id_steps()
    before = BEFORE.get(name)
    return {
        "load": f"{name}, host tier" if host_pages else name,
        "steps before": before and before.steps,
        "steps": loaded.steps,
        "over needed before": before and before.over_needed,
        "over needed": round(loaded.computed_over_needed, 3),
        "first id before": before and before.first_id,
        "first id: first / median / last": (
            f"{first[0]} / {statistics.median(first):g} / {first[-1]}"
        ),
        "of the quiet turn": loaded.first_id_steps.get("quiet"),
        "longest gap before": before and before.gap,
        "longest gap": max(loaded.gaps.values()),
    }


def _step_us(waiting: int) -> float:
    loaded = begin_decodes_beside_waiting_turns(waiting)
    spent: list[float] = []
    for _ in range(400):
        start_s = time.perf_counter()
        loaded.step()
        spent.append(time.perf_counter() - start_s)
    return statistics.median(spent) * 1e6


def _evict_us(scopes: int) -> float:
    """Return the microseconds that the eviction of a page takes if each is of another scope."""
    cache = SessionAwareCache(scopes, PAGE_SIZE)
    ids = array("i", range(PAGE_SIZE))
    for n in range(scopes):
        lease = cache.open(f"scope {n}")
        cache.reserve(lease, PAGE_SIZE)
        cache.commit(lease, PAGE_SIZE)
        cache.close(lease, ids, PAGE_SIZE)
    lease = cache.open()
    start_s = time.perf_counter()
    cache.reserve(lease, scopes * PAGE_SIZE)
    return (time.perf_counter() - start_s) / scopes * 1e6
