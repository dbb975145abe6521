"""Barge-in: a user interrupts a response while it is played.

A turn is cancelled after a random number of ids, its output is cut to a random part (what was
played), and the next turn of 16 ids is requested. Measured: ids prefilled for that turn and time to
its first token, for histories of 500, 2,000 and 8,000 ids. A target that keeps no session sends the
history again.
"""

import argparse
import random
from functools import partial

import uvloop

from continuo.bench import prompts, turns
from continuo.bench.host import CpuMeter
from continuo.bench.report import Report, ReportRow, median, percentile
from continuo.bench.targets.selection import Room, add_target_options, run_targets
from continuo.bench.targets.target import Output, Target, Turn

IDS_IN, IDS_OUT = 16, 64
INTERRUPTED_AFTER = (2, 60)
"""Fewest and most ids of a response before its interruption."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--histories",
        type=int,
        nargs="+",
        default=[500, 2000, 8000],
        help="ids before the first interruption (default: 500 2000 8000)",
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=10,
        help="interruptions for each history in a run (default: %(default)s)",
    )
    add_target_options(parser, ("engine", "websocket", "llama.cpp"))


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    meter, rows = CpuMeter(), list[ReportRow]()
    context = max(options.histories) + 1 + options.turns * (2 * IDS_IN + IDS_OUT + 1)
    async with run_targets(options, Room(1, context)) as (targets, notes):
        for history in options.histories:
            measure = partial(_run_interruptions, history, options.turns, context)
            runs = await turns.alternate(targets, options.runs, measure, meter, notes)
            rows += [_row(history, name, measured) for name, measured in runs.items()]
    return Report(
        "Barge-in: cancel, cut to what was played, next turn of 16 ids",
        rows,
        notes=[*notes, meter.describe()],
        facts={"cpu": [reading._asdict() for reading in meter.readings]},
    )


async def _run_interruptions(history: int, count: int, context: int, target: Target) -> list[Turn]:
    """Return the turns after the interruptions."""
    source, after = random.Random(history), list[Turn]()
    await target.resize(1, context)
    session = await target.open(turns.new_scope())

    def draw(ids: int) -> list[int]:
        return prompts.random_ids(source, ids)

    await session.turn(draw(history), Output(1))
    for _ in range(count):
        received = source.randint(*INTERRUPTED_AFTER)
        kept = source.randint(1, received)
        await session.interrupted_turn(draw(IDS_IN), Output(IDS_OUT), received, kept)
        after.append(await session.turn(draw(IDS_IN), Output(1)))
    await session.close()
    return after


def _row(history: int, name: str, runs: list[list[Turn]]) -> ReportRow:
    after = [turn for measured in runs for turn in measured]
    computed = [turn.computed_tokens for turn in after if turn.computed_tokens is not None]
    first_ms = [turn.first_s * 1e3 for turn in after]
    return {
        "history, ids": history,
        "target": name,
        "prefilled, median": median(computed) if computed else None,
        "prefilled, max": max(computed, default=None),
        "first token p50, ms": percentile(first_ms, 50),
        "first token p99, ms": percentile(first_ms, 99),
    }
