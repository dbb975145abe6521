"""Many more open sessions than fit: N idle sessions with 10 times the KV that the page pool holds.

Sessions wake at random: each appends 16 ids and generates one. Measured: time to that id, by
residency of the session's KV: hot, host (spilled and recalled) or recomputed; with and without a
host tier. No turn may fail.
"""

import argparse
import asyncio
import random
import time
from collections import defaultdict
from pathlib import Path

import uvloop

from continuo.bench.prompts import random_ids, random_prompts
from continuo.bench.report import Report, ReportRow, median, percentile
from continuo.bench.targets.engine_target import read_turn, run_engine
from continuo.bench.targets.selection import resolve_checkpoint
from continuo.engine.sampling import Sampling

CONTEXT = 512
ONE_ID = Sampling(max_tokens=1, ignore_eos=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="S", help="S, M, or a checkpoint folder (default: %(default)s)"
    )
    parser.add_argument(
        "--sessions", type=int, default=40, help="open sessions (default: %(default)s)"
    )
    parser.add_argument("--wakes", type=int, default=200, help="turns (default: %(default)s)")
    parser.add_argument(
        "--times",
        type=int,
        default=10,
        help="KV of all sessions over the size of the pool (default: %(default)s)",
    )
    parser.add_argument(
        "--host-gib",
        type=float,
        nargs="+",
        default=[0.0, 0.25],
        help="sizes of the host tier (default: 0 0.25)",
    )
    parser.add_argument("--dtype", default="auto", help="of the engine (default: %(default)s)")


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    folder = resolve_checkpoint(options.model)
    rows = [row for host in options.host_gib for row in await _measure_wakes(options, folder, host)]
    title = f"{options.sessions} open sessions of {CONTEXT} ids in 1/{options.times} of their pages"
    return Report(title, rows)


async def _measure_wakes(
    options: argparse.Namespace, folder: Path, host_gib: float
) -> list[ReportRow]:
    by_residency: dict[str, list[float]] = defaultdict(list)
    source = random.Random(0)
    pages = options.sessions * CONTEXT // 16 // options.times
    settings = {
        "dtype": options.dtype,
        "num_gpu_blocks_override": pages,
        "max_model_len": min(CONTEXT * 2, pages * 16),
        "kv_offloading_size": host_gib,
    }
    async with run_engine(folder, **settings) as engine:
        prompts = random_prompts(options.sessions, 1, CONTEXT)
        sessions = [await engine.open() for _ in prompts]
        for session, [ids] in zip(sessions, prompts, strict=True):
            await engine.append(session, ids)
            await read_turn(await engine.generate(session, ONE_ID), time.perf_counter())
        for _ in range(options.wakes):
            # A few sessions wake much more often than the others, as in production.
            index = min(int(source.expovariate(4 / options.sessions)), options.sessions - 1)
            session = sessions[index]
            length = (await engine.info(session)).length
            await engine.rewind(session, min(length, CONTEXT))
            ids = random_ids(source, 16)
            start_s = time.perf_counter()
            _, stream = await asyncio.gather(
                engine.append(session, ids), engine.generate(session, ONE_ID)
            )
            turn = await read_turn(stream, start_s)
            assert stream.ended is not None
            by_residency[stream.ended.residency].append(turn.first_s)
        stats = await engine.fleet.stats()
    return [
        {
            "host_tier_gib": host_gib,
            "kv_was": residency,
            "wakes": len(spent),
            "first_id_p50_ms": median(spent) * 1e3,
            "first_id_p99_ms": percentile(spent, 99) * 1e3,
            "pages": pages,
            "evicted_pages": stats.evicted_pages,
        }
        for residency, spent in sorted(by_residency.items())
    ]
