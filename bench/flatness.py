"""Flatness, the growth of a turn's time over a session: 8 sessions x 150 turns, 16 ids in, 8 out.

Measured: the mean of the last ten turns divided by the mean of turns 2 to 11. The wall clock
includes attention over a longer context; the time outside the model must stay flat.
"""

import argparse

import uvloop

from continuo.bench import live_engine, session_latency
from continuo.bench.report import Report, median


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="S", help="S, M, or a checkpoint folder (default: %(default)s)"
    )
    parser.add_argument(
        "--sessions", type=int, default=8, help="concurrent sessions (default: %(default)s)"
    )
    parser.add_argument(
        "--turns", type=int, default=150, help="turns of each session (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="of the engine (default: %(default)s)")
    parser.add_argument(
        "--block-size", type=int, default=16, help="tokens of a page (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    folder = session_latency.resolve_checkpoint(options.model)
    async with live_engine.run_engine(
        folder, **session_latency.make_engine_settings(options)
    ) as engine:
        vocabulary = engine.ready.vocab_size
        prompts = live_engine.random_prompts(options.sessions, options.turns, 16, vocabulary)
        await session_latency.measure(engine, "streaming", [p[:5] for p in prompts], "warm-up")
        runs = [
            await session_latency.measure(engine, "streaming", prompts, str(number))
            for number in range(options.runs)
        ]
    row = session_latency.summarize("streaming", "Engine", runs)
    flat = median([r.flatness(r.wall_s) for r in runs])
    return Report(
        f"Flatness, {options.sessions} sessions x {options.turns} turns",
        [{**row, "wall_last10_over_first": flat}],
        notes=["The reference engine asserts at most 1.15 on the wall clock of a GPU."],
    )
