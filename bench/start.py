"""Start of `continuo serve`: seconds until it listens and until its first token, and its memory.

Each start is a new process with a store in memory and a client that connects as soon as it listens.
The memory is that of the gateway process and of the engine process at rest, REST_S after the
response: resident pages, of which those shared with other processes count in part (Pss).
"""

import argparse
import asyncio
import re
import tempfile
import time
from pathlib import Path

import uvloop

from continuo.bench.processes import Process, start_continuo
from continuo.bench.realtime_client import RealtimeClient
from continuo.bench.report import Report, ReportRow, median
from continuo.bench.targets.selection import resolve_checkpoint
from continuo.engine.config import BUNDLED_MODEL

REST_S = 1.0
RESPONSE = {"max_output_tokens": 8, "ignore_eos": True}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        nargs="+",
        default=[BUNDLED_MODEL, "S"],
        metavar="MODEL",
        help=f"{BUNDLED_MODEL}, S, M, L, or checkpoint folders (default: {BUNDLED_MODEL} S)",
    )
    parser.add_argument(
        "--times", type=int, default=5, help="starts of each model (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options.models, options.times))


async def _run(models: list[str], times: int) -> Report:
    rows = [await _measure_starts(model, times) for model in models]
    return Report("Start of `continuo serve`", rows, notes=["Medians of all starts of a model."])


async def _measure_starts(model: str, times: int) -> ReportRow:
    folder = model if model == BUNDLED_MODEL else str(resolve_checkpoint(model))
    starts = [await _measure_start(folder) for _ in range(times)]
    first_tokens_s = [start["first_token_s"] for start in starts]
    return {
        "model": Path(model).name,
        "times": times,
        **{name: median([start[name] for start in starts]) for name in starts[0]},
        "worst_first_token_s": max(first_tokens_s),
    }


async def _measure_start(model: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        options = ("--model", model, "--port", "0", "--no-web", "--store", "sqlite://:memory:")
        began_s = time.monotonic()
        server = start_continuo(Path(folder), "serve", *options)
        try:
            url = await server.wait_for_output(r"Listening on +(\S+)")
            listening_s = time.monotonic() - began_s
            client = await RealtimeClient.connect(url)
            await client.add_message("What is 3 plus 4?")
            await client.create_response(**RESPONSE)
            await client.receive_until("response.output_text.delta")
            first_token_s = time.monotonic() - began_s
            await client.receive_until("response.done")
            await asyncio.sleep(REST_S)
            memory = _read_memory(server)
            await client.abort()
        finally:
            server.stop()
    return {"listening_s": listening_s, "first_token_s": first_token_s, **memory}


def _read_memory(server: Process) -> dict[str, float]:
    """Return the memory of the gateway, and of its engine, in MiB."""
    engine_mib = sum(map(_read_pss_mib, server.children()))
    return {"gateway_mib": _read_pss_mib(server.pid), "engine_mib": engine_mib}


def _read_pss_mib(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
    assert found is not None, rollup
    return int(found[1]) / 1024
