"""From an append to its acknowledgement, by what the acknowledgement means.

8 sessions append words and items; each is acknowledged when Redis has it and the engine was told.
`--durability normal` before a Redis that writes to its disk every second, `strict` before one that
does so before it answers. The engine is scripted; all of it is on one machine.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import uvloop

from continuo.bench import gateway, random_checkpoints
from continuo.bench.processes import FSYNC_OF_DURABILITY, RedisProcess
from continuo.bench.report import Report, ReportRow


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options.seconds))


async def _run(seconds: float) -> Report:
    rows: list[ReportRow] = []
    for durability, fsync in FSYNC_OF_DURABILITY.items():
        folder = Path(tempfile.mkdtemp())
        redis = RedisProcess(folder, fsync)
        try:
            await redis.start()
            async with gateway.run_gateway(
                random_checkpoints.ensure_checkpoint("S"), 0, redis.url, durability
            ) as served:
                found = await gateway.measure_appends(served, seconds)
        finally:
            redis.kill()
            shutil.rmtree(folder)
        rows += [{"durability": durability, "appendfsync": fsync, **row} for row in found]
    return Report("An append until it is acknowledged", rows, notes=["Milliseconds."])
