"""Short turns during the prefill of cold prompts.

Measured: p50 of the turns of 7 sessions (16 ids in, 1 out), first without other load, then while
prompts of 4,000 ids without cached KV are prefilled, one after another; and the second p50 divided
by the first. SGLang reaches a ratio below 3.0 with prompts of 40,000 ids on a GPU; a CPU prefills
4,000 ids in the time in which a GPU prefills 40,000.
"""

import argparse
import asyncio
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
        "--runs", type=int, default=5, help="runs of each kind (default: %(default)s)"
    )
    parser.add_argument("--dtype", default="auto", help="of the engine (default: %(default)s)")


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    folder = session_latency.resolve_checkpoint(options.model)
    alone, beside, cold, ratios = list[float](), list[float](), list[float](), list[float]()
    async with live_engine.run_engine(
        folder, dtype=options.dtype, max_model_len=options.cold + 64
    ) as engine:
        await _run_live_sessions(engine, options, "warm-up")
        for number in range(options.runs):
            alone.append(median(await _run_live_sessions(engine, options, f"alone {number}")))
            stop = asyncio.Event()
            colds = asyncio.create_task(_run_cold_prompts(engine, options, stop))
            await asyncio.sleep(0.05)
            beside.append(median(await _run_live_sessions(engine, options, f"beside {number}")))
            stop.set()
            cold += await colds
            ratios.append(beside[-1] / alone[-1])
    row: ReportRow = {
        "live_p50_alone_ms": median(alone) * 1e3,
        "live_p50_beside_ms": median(beside) * 1e3,
        "ratio": median(ratios),
        "ratio_max": max(ratios),
        "cold_prompts": len(cold),
        "cold_p50_ms": percentile(cold, 50) * 1e3,
    }
    return Report(f"{options.sessions} live sessions beside {options.cold} cold ids", [row])


async def _run_live_sessions(
    engine: EngineClient, options: argparse.Namespace, scope: str
) -> list[float]:
    prompts = live_engine.random_prompts(
        options.sessions, options.turns, 16, engine.ready.vocab_size
    )
    by_session = await asyncio.gather(*(_run_session(engine, p, scope) for p in prompts))
    return [seconds for spent in by_session for seconds in spent]


async def _run_session(engine: EngineClient, prompts: list[list[int]], scope: str) -> list[float]:
    session, spent = await engine.open(cache_scope=scope), list[float]()
    for ids in prompts:
        start_s = time.perf_counter()
        await live_engine.read_ids(await live_engine.append_and_generate(engine, session, ids, 1))
        spent.append(time.perf_counter() - start_s)
    await engine.close(session, keep_prefix=False)
    return spent[1:]


async def _run_cold_prompts(
    engine: EngineClient, options: argparse.Namespace, stop: asyncio.Event
) -> list[float]:
    spent: list[float] = []
    while not stop.is_set():
        [[ids]] = live_engine.random_prompts(
            1, 1, options.cold, engine.ready.vocab_size, seed=len(spent)
        )
        start_s = time.perf_counter()
        turn = await engine.complete(ids, live_engine.greedy(1), cache_scope=f"cold {start_s}")
        await live_engine.read_ids(turn)
        spent.append(time.perf_counter() - start_s)
    return spent
