"""Incremental input: words are sent provisionally and prefilled as they arrive, then committed.

A word of three ids arrives every 150 ms; one arrival in five has a wrong last word, which the next
one revises. Measured: ids prefilled after the commit, and time from the commit to the first token.
For comparison, the same with all words sent at the end, as by a client without incremental input;
a target that accepts none has only that.
"""

import argparse
import asyncio
import itertools
import random
from functools import partial

import uvloop

from continuo.bench import prompts, turns
from continuo.bench.host import CpuMeter
from continuo.bench.report import Report, ReportRow, median, percentile
from continuo.bench.targets.selection import Room, add_target_options, run_targets
from continuo.bench.targets.target import Output, Session, Target, Turn

IDS_PER_WORD = 3
REVISED_SHARE = 0.2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--turns", type=int, default=5, help="turns of each run (default: %(default)s)"
    )
    parser.add_argument(
        "--words", type=int, default=20, help="words of a turn (default: %(default)s)"
    )
    parser.add_argument(
        "--pause-ms", type=float, default=150.0, help="between words (default: %(default)s)"
    )
    add_target_options(parser, ("engine", "websocket", "llama.cpp"))


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    meter, rows = CpuMeter(), list[ReportRow]()
    context = options.turns * (options.words * IDS_PER_WORD + 8)
    async with run_targets(options, Room(1, context)) as (targets, notes):
        for is_incremental in (True, False):
            chosen = [t for t in targets if t.accepts_drafts or not is_incremental]
            measure = partial(_run_turns, options, context, is_incremental=is_incremental)
            runs = await turns.alternate(chosen, options.runs, measure, meter, notes)
            rows += [
                _row(name, measured, is_incremental=is_incremental)
                for name, measured in runs.items()
            ]
    return Report(
        f"Turns of {options.words} words, one every {options.pause_ms:.0f} ms",
        rows,
        notes=[*notes, meter.describe()],
        facts={"cpu": [reading._asdict() for reading in meter.readings]},
    )


async def _run_turns(
    options: argparse.Namespace, context: int, target: Target, *, is_incremental: bool
) -> list[Turn]:
    source, measured = random.Random(1), list[Turn]()
    await target.resize(1, context)
    session = await target.open(turns.new_scope())
    for _ in range(options.turns):
        words = [_random_word(source) for _ in range(options.words)]
        if is_incremental:
            await _send_incrementally(session, words, source, options.pause_ms / 1e3)
        ids = list(itertools.chain.from_iterable(words))
        measured.append(await session.turn(ids, Output(1)))
    await session.close()
    return measured


def _random_word(source: random.Random) -> list[int]:
    return prompts.random_ids(source, IDS_PER_WORD)


async def _send_incrementally(
    session: Session, words: list[list[int]], source: random.Random, pause_s: float
) -> None:
    """Send all words but the last as drafts, each one word longer than the one that it replaces.

    In about one draft of five, the last word is wrong. The caller commits the last of `words`.
    """
    for count in range(1, len(words)):
        recognized = [list(word) for word in words[:count]]
        if source.random() < REVISED_SHARE:
            recognized[-1] = _random_word(source)
        await session.draft([id for word in recognized for id in word])
        await asyncio.sleep(pause_s)


def _row(name: str, runs: list[list[Turn]], *, is_incremental: bool) -> ReportRow:
    measured = [turn for each in runs for turn in each]
    computed = [turn.computed_tokens for turn in measured if turn.computed_tokens is not None]
    first_ms = [turn.first_s * 1e3 for turn in measured]
    return {
        "words are sent": "as they arrive" if is_incremental else "at the end",
        "target": name,
        "prefilled after the commit, median": median(computed) if computed else None,
        "prefilled after the commit, max": max(computed, default=None),
        "first token p50, ms": percentile(first_ms, 50),
        "first token p99, ms": percentile(first_ms, 99),
    }
