"""Barge-in: a user interrupts a response while it is played.

A turn is cancelled after a random number of ids, the token log is truncated to a random part of the
output (what was played), and the next turn of 16 ids is requested. Measured: ids prefilled for that
turn and time to its first id, for histories of 500, 2,000 and 8,000 ids.
"""

import argparse
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
        "--turns",
        type=int,
        default=20,
        help="interruptions for each history (default: %(default)s)",
    )
    parser.add_argument("--dtype", default="auto", help="of the engine (default: %(default)s)")


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    folder = session_latency.resolve_checkpoint(options.model)
    async with live_engine.run_engine(folder, dtype=options.dtype, max_model_len=16_384) as engine:
        rows = [await _measure(engine, options, history) for history in (500, 2000, 8000)]
    return Report("Barge-in: cancel, truncate to what was played, next turn of 16 ids", rows)


async def _measure(engine: EngineClient, options: argparse.Namespace, history: int) -> ReportRow:
    source, vocabulary = random.Random(history), engine.ready.vocab_size
    session, firsts, prefilled = await engine.open(), list[float](), list[int]()
    await engine.append(session, [source.randrange(1, vocabulary) for _ in range(history)])
    for _ in range(options.turns):
        await engine.append(session, [source.randrange(1, vocabulary) for _ in range(16)])
        prompt_length = (await engine.info(session)).length
        turn = await engine.generate(session, live_engine.greedy(64))
        await _interrupt(engine, session, turn.id, turn, source.randint(2, 60))
        assert turn.ended is not None
        played = source.randint(1, turn.ended.output_tokens)
        await engine.rewind(session, prompt_length + played)
        before = await engine.stats()
        ids = [source.randrange(1, vocabulary) for _ in range(16)]
        start_s = time.perf_counter()
        firsts.append(
            await live_engine.time_to_first_id(
                await live_engine.append_and_generate(engine, session, ids, 1), start_s
            )
        )
        prefilled.append(live_engine.count_computed_tokens(before, await engine.stats()))
    await engine.close(session)
    return {
        "history_ids": history,
        "prefilled_median": median(prefilled),
        "prefilled_max": max(prefilled),
        "first_id_p50_ms": median(firsts) * 1e3,
        "first_id_p99_ms": percentile(firsts, 99) * 1e3,
    }


async def _interrupt(
    engine: EngineClient, session: str, turn_id: str, turn: live_engine.TurnStream, after: int
) -> None:
    received = 0
    async for piece in turn:
        received += len(piece.ids)
        if received == after:
            await engine.cancel(session, turn_id)
