"""Latency of appends until their acknowledgement, by durability.

8 sessions append words and items; each append is acknowledged once it is stored in Redis and sent
to the engine. Measured with `--durability normal` and a Redis that syncs its append-only file every
second, and with `strict` and a Redis that syncs the file before it replies. The engine is scripted;
everything runs on one machine.
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
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="time of a measurement (default: %(default)s)"
    )


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
            ) as process:
                measured = await gateway.measure_appends(process, seconds)
        finally:
            redis.kill()
            shutil.rmtree(folder)
        rows += [{"durability": durability, "appendfsync": fsync, **row} for row in measured]
    return Report("Appends until acknowledged", rows, notes=["Milliseconds."])
