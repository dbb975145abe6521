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

from continuo.bench.report import Report, ReportRow
from continuo.bench.scheduling_scenarios import (
    PAGE_SIZE,
    LoadedEngine,
    begin_decodes_beside_waiting_turns,
    run_beside_full_pool,
    run_beside_more_turns_than_rows,
    run_beside_queued_prompts,
    run_burst,
    run_cold_prompts,
    run_decode_pressure,
    run_more_turns_than_rows,
    run_shared_prompt,
)
from continuo.engine.core.cache import SessionAwareCache

SCENARIOS: dict[str, Callable[..., LoadedEngine]] = {
    "8 turns, one prompt of 1,600": lambda **o: run_shared_prompt(late=False, **o),
    "the same, 7 begin in its middle": lambda **o: run_shared_prompt(late=True, **o),
    "the same, in 2 cache scopes": lambda **o: run_shared_prompt(late=True, scopes=2, **o),
    "16 prompts of 1,000, pool for 3": lambda **o: run_burst(16, 1_000, **o),
    "32 prompts of 1,000, pool for 3": lambda **o: run_burst(32, 1_000, **o),
    "64 prompts of 1,000, pool for 3": lambda **o: run_burst(64, 1_000, **o),
    "16 prompts of 3,000, pool for 3": lambda **o: run_burst(16, 3_000, **o),
    "16 turns of 200 + 400, pool of 3,600": lambda **o: run_decode_pressure(16, 200, 400, **o),
    "8 turns of 1,000 + 200, pool of 3,600": lambda **o: run_decode_pressure(8, 1_000, 200, **o),
    "64 prompts of 1,000, ample room": lambda **o: run_cold_prompts(64, **o),
    "128 turns of 400 on 64 rows": run_more_turns_than_rows,
    "a prompt of 1,000 beside 64 of another group": run_beside_queued_prompts,
    "a turn beside 100 of another group on 16 rows": run_beside_more_turns_than_rows,
    "a prompt of 1,000 beside a group that fills the pool": run_beside_full_pool,
}
UNDER_PRESSURE = ("pool for 3", "pool of 3,600")
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
            for ahead in (0, 1):
                loaded = scenario(host_pages=host_pages, ahead=ahead)
                rows.append(_row(name, host_pages, ahead, loaded))
    for waiting in (0, 2_000):
        rows.append({"load": f"64 decodes, {waiting} turns wait", "us a step": _step_us(waiting)})
    for scopes in (1_000, 16_000):
        rows.append({"load": f"pages of {scopes} scopes", "us an evicted page": _evict_us(scopes)})
    return Report("Scheduling under load", rows)


def _row(name: str, host_pages: int, ahead: int, loaded: LoadedEngine) -> ReportRow:
    first = loaded.ordered_first_id_steps()
    middle = f"{statistics.median(first):g}"
    return {
        "load": name,
        "host pages": host_pages,
        "steps ahead": ahead,
        "steps": loaded.steps,
        "computed": loaded.computed_tokens,
        "over needed": round(loaded.computed_over_needed, 3),
        "retractions": loaded.retractions,
        "first id, first / median / last": f"{first[0]} / {middle} / {first[-1]}",
        "first id of the quiet turn": loaded.first_id_steps.get("quiet"),
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
