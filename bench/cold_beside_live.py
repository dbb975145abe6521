"""Short turns during the prefill of cold prompts.

Measured: p50 of the turns of 7 sessions (16 ids in, 1 out), first without other load, then while
prompts of 4,000 ids without cached KV are prefilled, one after another; and the second p50 divided
by the first. Then single turns, each of which interrupts the prefill of a cold prompt that was
alone until then: the steps of such a prefill are long; and the time of these turns until their own
step begins. SGLang reaches a ratio below 3.0 with prompts of 40,000 ids on a GPU; a CPU prefills
4,000 ids in the time in which a GPU prefills 40,000.
"""

import argparse
import asyncio
import itertools
from random import Random
from typing import NamedTuple

import uvloop

from continuo.bench import turns
from continuo.bench.host import CpuMeter
from continuo.bench.prompts import random_prompts
from continuo.bench.report import Report, ReportRow, median, percentile
from continuo.bench.targets.selection import Room, add_target_options, run_targets
from continuo.bench.targets.target import Ids, Output, Prompts, Target, Turn

IDS_IN = 16
SETTLE_S = 0.05
"""Time for which the first cold prompt is prefilled before the live turns begin."""


class _Run(NamedTuple):
    alone_ms: float
    beside_ms: float
    cold_ms: list[float]
    interrupting: list[Turn]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cold", type=int, default=4000, help="ids of a cold prompt (default: %(default)s)"
    )
    parser.add_argument(
        "--sessions", type=int, default=7, help="live sessions (default: %(default)s)"
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=40,
        help="turns of each session in a run (default: %(default)s)",
    )
    parser.add_argument(
        "--interruptions",
        type=int,
        default=10,
        help="turns of a run that interrupt a cold prompt (default: %(default)s)",
    )
    add_target_options(parser, ("engine", "websocket", "llama.cpp"))


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    meter = CpuMeter()
    context = max(options.cold, options.turns * (IDS_IN + 1)) + 1

    async def measure(target: Target) -> _Run:
        return await _measure(target, options, context)

    async with run_targets(options, Room(options.sessions + 1, context)) as (targets, notes):
        runs = await turns.alternate(targets, options.runs, measure, meter, notes)
    return Report(
        f"{options.sessions} live sessions beside {options.cold} cold ids",
        [_row(name, measured) for name, measured in runs.items()],
        notes=[*notes, meter.describe()],
        facts={"cpu": [reading._asdict() for reading in meter.readings]},
    )


async def _measure(target: Target, options: argparse.Namespace, context: int) -> _Run:
    prompts = random_prompts(options.sessions, options.turns, IDS_IN)
    await target.resize(options.sessions + 1, context)
    alone_ms = await _run_live(target, prompts)
    stop = asyncio.Event()
    colds = asyncio.create_task(_run_cold(target, options.cold, stop))
    await asyncio.sleep(SETTLE_S)
    beside_ms = await _run_live(target, prompts)
    stop.set()
    cold_ms = await colds
    interrupting = await _run_interrupting(target, options.cold, options.interruptions, cold_ms)
    return _Run(median(alone_ms), median(beside_ms), cold_ms, interrupting)


async def _run_live(target: Target, prompts: Prompts) -> list[float]:
    """Return the milliseconds of all turns of new sessions but the first of each."""
    scope = turns.new_scope()

    async def run_client(each: list[Ids]) -> list[float]:
        session = await target.open(scope)
        spent = [(await session.turn(ids, Output(1))).wall_s * 1e3 for ids in each]
        await session.close()
        return spent[1:]

    spent = await asyncio.gather(*map(run_client, prompts))
    return list(itertools.chain.from_iterable(spent))


async def _run_interrupting(
    target: Target, cold: int, count: int, cold_ms: list[float]
) -> list[Turn]:
    """Begin each turn of a session somewhere in the first half of the prefill of a cold prompt."""
    [prompts] = random_prompts(1, count + 1, IDS_IN)
    random, interrupting = Random(0), list[Turn]()
    session = await target.open(turns.new_scope())
    await session.turn(prompts[0], Output(1))
    for n, prompt in enumerate(prompts[1:]):
        [[cold_ids]] = random_prompts(1, 1, cold, seed=1000 + n)
        other = await target.open(turns.new_scope())
        prefill = asyncio.create_task(other.turn(cold_ids, Output(1)))
        await asyncio.sleep(random.uniform(0.05, 0.5) * min(cold_ms) / 1e3)
        interrupting.append(await session.turn(prompt, Output(1)))
        await prefill
        await other.close()
    await session.close()
    return interrupting


async def _run_cold(target: Target, ids: int, stop: asyncio.Event) -> list[float]:
    """Send cold prompts until `stop` is set. Returns the milliseconds of each."""
    spent: list[float] = []
    while not stop.is_set():
        [[cold]] = random_prompts(1, 1, ids, seed=len(spent))
        session = await target.open(turns.new_scope())
        spent.append((await session.turn(cold, Output(1))).wall_s * 1e3)
        await session.close()
    return spent


def _row(name: str, runs: list[_Run]) -> ReportRow:
    ratios = [run.beside_ms / run.alone_ms for run in runs]
    cold_ms = [ms for run in runs for ms in run.cold_ms]
    interrupting = [turn for run in runs for turn in run.interrupting]
    interrupting_ms = [turn.wall_s * 1e3 for turn in interrupting]
    queued_ms = [turn.queued_s * 1e3 for turn in interrupting if turn.queued_s is not None]
    return {
        "target": name,
        "live p50 alone, ms": median([run.alone_ms for run in runs]),
        "live p50 beside, ms": median([run.beside_ms for run in runs]),
        "beside over alone": median(ratios),
        "max": max(ratios),
        "interrupting p50, ms": median(interrupting_ms),
        "interrupting max, ms": max(interrupting_ms),
        "until its step p50, ms": median(queued_ms) if queued_ms else None,
        "until its step max, ms": max(queued_ms, default=None),
        "cold prompts": len(cold_ms),
        "cold p50, ms": percentile(cold_ms, 50),
    }
