"""Incremental input: words are appended provisionally and prefilled as they arrive, then committed.

A word of three ids arrives every 150 ms; one arrival in five has a wrong last word, which the next
one revises. Measured: ids prefilled after the commit, and time from the commit to the first id. For
comparison, the same with all words appended at the end, as by a client without incremental input.
"""

import argparse
import asyncio
import random
import time

import uvloop

from continuo.bench import live_engine, session_latency
from continuo.bench.report import Report, ReportRow, median, percentile
from continuo.engine.client.engine_client import EngineClient


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="S", help="S, M, or a checkpoint folder (default: %(default)s)"
    )
    parser.add_argument(
        "--turns", type=int, default=20, help="turns of each measurement (default: %(default)s)"
    )
    parser.add_argument(
        "--words", type=int, default=20, help="words of a turn (default: %(default)s)"
    )
    parser.add_argument(
        "--pause-ms", type=float, default=150.0, help="between words (default: %(default)s)"
    )
    parser.add_argument("--dtype", default="auto", help="of the engine (default: %(default)s)")


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    folder = session_latency.resolve_checkpoint(options.model)
    async with live_engine.run_engine(folder, dtype=options.dtype, max_model_len=8192) as engine:
        rows = [
            await _measure(engine, options, is_incremental=is_incremental)
            for is_incremental in (True, False, True, False)
        ]
    title = f"Turns of {options.words} words, one every {options.pause_ms:.0f} ms"
    return Report(title, rows)


async def _measure(
    engine: EngineClient, options: argparse.Namespace, *, is_incremental: bool
) -> ReportRow:
    source = random.Random(1)
    session, firsts, prefilled = await engine.open(), list[float](), list[int]()
    for _ in range(options.turns):
        words = [_random_word(source) for _ in range(options.words)]
        if is_incremental:
            await _append_incrementally(engine, session, words, source, options.pause_ms / 1e3)
        before = await engine.stats()
        ids = [id for word in words for id in word]
        start_s = time.perf_counter()
        turn = await live_engine.append_and_generate(
            engine, session, [*ids, 2, 3], 1, "commit" if is_incremental else "firm"
        )
        firsts.append(await live_engine.time_to_first_id(turn, start_s))
        prefilled.append(live_engine.count_computed_tokens(before, await engine.stats()))
    return {
        "words": "incrementally" if is_incremental else "at the end",
        "prefilled_after_commit_median": median(prefilled),
        "prefilled_after_commit_max": max(prefilled),
        "first_id_p50_ms": median(firsts) * 1e3,
        "first_id_p99_ms": percentile(firsts, 99) * 1e3,
    }


def _random_word(source: random.Random) -> list[int]:
    return [source.randrange(1, 4000) for _ in range(3)]


async def _append_incrementally(
    engine: EngineClient,
    session: str,
    words: list[list[int]],
    source: random.Random,
    pause_s: float,
) -> None:
    """Append all words but the last as provisional spans, each one word longer than the one that it
    replaces.

    In about one span of five, the last word is wrong. The caller commits the last of `words`.
    """
    for count in range(1, len(words)):
        recognized = [list(word) for word in words[:count]]
        if source.random() < 0.2:
            recognized[-1] = _random_word(source)
        await engine.append(session, [id for word in recognized for id in word], "provisional")
        await asyncio.sleep(pause_s)
