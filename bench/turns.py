"""Turns of many sessions with one target, runs in alternation, and their figures."""

import asyncio
import itertools
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from continuo.bench.host import CpuMeter
from continuo.bench.prompts import random_prompts
from continuo.bench.report import ReportRow, median, percentile
from continuo.bench.targets.competitor_target import CompetitorError
from continuo.bench.targets.target import Output, Prompts, Target, Turn
from continuo.engine import print_line

Turns = list[list[Turn]]
"""The records of a run: turns[session][turn]."""
T = TypeVar("T")
WARM_UP_TURNS = 5

SPANS = {
    "first 10": lambda turns: turns[1:11],
    "first 100": lambda turns: turns[1:101],
    "all": lambda turns: turns[1:],
    "last 10": lambda turns: turns[-10:],
}
"""Parts of a session, of which the figures are means. The first turn is left out."""


def new_scope() -> str:
    """Return a cache scope that no other run has, so that runs share no KV."""
    return secrets.token_hex(4)


async def run_sessions(
    target: Target, prompts: Prompts, output: Output, limit_s: float = 600.0
) -> Turns:
    """Run all turns of `prompts`, with one client per session, concurrently. No turn begins after
    `limit_s` seconds."""
    await target.resize(len(prompts), _context_of(prompts, output))
    scope, until_s = new_scope(), time.perf_counter() + limit_s
    sessions = [await target.open(scope) for _ in prompts]

    turns = await asyncio.gather(
        *(
            session.turns(each, output, until_s)
            for session, each in zip(sessions, prompts, strict=True)
        )
    )
    await asyncio.gather(*(session.close() for session in sessions))
    return list(turns)


async def run_in_rounds(
    target: Target, prompts: Prompts, outputs: Sequence[Output]
) -> list[list[Turn]]:
    """Run as many turns as there are `outputs`; each begins in all sessions at once, when all have
    ended the one before. Returns the turns of each round."""
    context = max(sum(map(len, session)) for session in prompts)
    await target.resize(len(prompts), context + sum(output.tokens for output in outputs))
    scope = new_scope()
    sessions = [await target.open(scope) for _ in prompts]
    rounds: list[list[Turn]] = []
    for number, output in enumerate(outputs):
        turns = (s.turn(ids[number], output) for s, ids in zip(sessions, prompts, strict=True))
        rounds.append(await asyncio.gather(*turns))
    await asyncio.gather(*(session.close() for session in sessions))
    return rounds


def _context_of(prompts: Prompts, output: Output) -> int:
    return max(sum(len(ids) + output.tokens for ids in session) for session in prompts)


async def warm_up(target: Target) -> Turns:
    """Run a few turns, so that no later one is the first of its kind."""
    prompts = random_prompts(1, WARM_UP_TURNS, ids_in=16)
    return await run_sessions(target, prompts, Output(8))


async def alternate(
    targets: Sequence[Target],
    runs: int,
    measure: Callable[[Target], Awaitable[T]],
    meter: CpuMeter,
    notes: list[str],
    warm: Callable[[Target], Awaitable[object]] = warm_up,
) -> dict[str, list[T]]:
    """Warm each target up, then measure each `runs` times, in alternation: A B C A B C … Returns
    the results by the target's name. A competitor that fails is left out from then on, with a
    note."""
    results: dict[str, list[T]] = {target.name: [] for target in targets}
    failed: set[str] = set()
    for number, target in itertools.product(range(runs + 1), targets):
        if target.name in failed:
            continue
        try:
            if number == 0:
                await warm(target)
                continue
            with meter.reading(target.name):
                results[target.name].append(await measure(target))
        except CompetitorError as error:
            failed.add(target.name)
            notes.append(f"{target.name}: {error}")
            continue
        reading = meter.readings[-1]
        noise = f" beside {reading.foreign_cores:.2f} foreign cores" if reading.is_noisy else ""
        print_line(f"{target.name}: run {number} of {runs}, {reading.wall_s:.1f} s{noise}")
    return {name: measured for name, measured in results.items() if measured}


# ---------------------------------------------------------------- figures


def mean_ms(turns: Turns, span: str) -> float:
    """Return the mean wall clock of the turns of a part of all sessions (see SPANS)."""
    return statistics.fmean(t.wall_s for session in turns for t in SPANS[span](session)) * 1e3


def outside_model_ms(turns: Turns, span: str) -> float | None:
    """Return the mean of the wall clock less the device's time, if the target reports that."""
    chosen = [turn for session in turns for turn in SPANS[span](session)]
    outside = [turn.wall_s - turn.model_s for turn in chosen if turn.model_s is not None]
    return statistics.fmean(outside) * 1e3 if outside else None


def summarize(name: str, runs: Sequence[Turns]) -> ReportRow:
    """Return the figures of a target: medians over its runs of the means of each part of a session;
    percentiles over all turns of all runs."""
    chosen = [turn for turns in runs for session in turns for turn in session[1:]]
    walls, firsts = [t.wall_s * 1e3 for t in chosen], [t.first_s * 1e3 for t in chosen]
    means = [mean_ms(turns, "all") for turns in runs]
    return {
        "target": name,
        **{f"{span}, ms": median([mean_ms(turns, span) for turns in runs]) for span in SPANS},
        "all, of each run": f"{min(means):.1f}-{max(means):.1f}",
        **{f"p{p}, ms": percentile(walls, p) for p in (50, 90, 99)},
        "first token p50, ms": percentile(firsts, 50),
        "first token p99, ms": percentile(firsts, 99),
    }


def describe_cpu(name: str, meter: CpuMeter) -> ReportRow:
    """Return the processor use of a target's runs, for its row."""
    return {
        "own CPU, cores": round(meter.own_cores(name), 2),
        "foreign CPU, cores": round(meter.foreign_cores(name), 2),
    }


def compare(figures: Sequence[float], others: Sequence[float]) -> float:
    """Return the median ratio of figures of the same rounds of alternating runs."""
    return median([a / b for a, b in zip(figures, others, strict=False)])


def per_turn_ms(runs: Sequence[Turns]) -> list[float]:
    """Return the wall clock of each turn from the second on: medians over sessions and runs."""
    sessions = [session for turns in runs for session in turns]
    count = min(map(len, sessions))
    return [
        round(median([session[turn].wall_s for session in sessions]) * 1e3, 3)
        for turn in range(1, count)
    ]
