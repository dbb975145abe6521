"""Turn latency of long sessions: 4 sessions x 300 turns, 16 ids in and 8 out, greedy, three modes.

    no_session   the whole context is resent each turn; its KV is found in the radix tree
    regular      a session that can be edited: only new ids are sent; every turn is published
    streaming    a session that owns its pages: only new ids are sent; the radix tree is not used

Measured: wall clock of the client per turn. The first turn of each session is left out; `all` is
the mean over the others, `last10` over the last ten of each session. "Outside the model" is the
wall clock less the time in which the device was busy during the turn, for whichever session. The
modes alternate, run by run; figures are medians over the runs.
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from continuo.bench import competitors, live_engine, live_server, random_checkpoints
from continuo.bench.report import Report, ReportRow, median
from continuo.bench.turn_stats import TurnTimings
from continuo.engine.client.engine_client import EngineClient

MODES = ("no_session", "regular", "streaming")
IDS_IN, IDS_OUT = 16, 8


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="S", help="S, M, or a checkpoint folder (default: %(default)s)"
    )
    parser.add_argument(
        "--sessions", type=int, default=4, help="concurrent sessions (default: %(default)s)"
    )
    parser.add_argument(
        "--turns", type=int, default=300, help="turns of each session (default: %(default)s)"
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="alternating runs of each mode (default: %(default)s)"
    )
    parser.add_argument("--dtype", default="auto", help="of the engine (default: %(default)s)")
    parser.add_argument(
        "--block-size", type=int, default=16, help="tokens of a page (default: %(default)s)"
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        help="also measure these competitors, such as 'llama-cpp-python'; without a name, all of "
        "them (default: none)",
    )
    parser.add_argument(
        "--peer-limit-s",
        type=float,
        default=600.0,
        help="seconds after which a competitor is stopped (default: %(default)s)",
    )
    parser.add_argument(
        "--no-wire", action="store_true", help="do not measure the WebSocket (default: measure it)"
    )


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


def resolve_checkpoint(name: str) -> Path:
    return (
        random_checkpoints.ensure_checkpoint(name)
        if name in random_checkpoints.MODEL_SIZES
        else Path(name)
    )


def make_engine_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of EngineConfig, with twice the pages that all sessions need, so that none
    are evicted."""
    context = options.turns * (IDS_IN + IDS_OUT) + 64
    return {
        "dtype": options.dtype,
        "block_size": options.block_size,
        "max_model_len": context,
        "num_gpu_blocks_override": 2 * options.sessions * -(-context // options.block_size),
    }


async def _run(options: argparse.Namespace) -> Report:
    folder, settings = resolve_checkpoint(options.model), make_engine_settings(options)
    runs: dict[str, list[TurnTimings]] = {mode: [] for mode in MODES}
    prompts: live_engine.Prompts = []
    for number, mode in itertools.product(range(options.runs), MODES):
        # Each run has a new engine, whose radix tree is empty.
        async with live_engine.run_engine(folder, **settings) as engine:
            vocabulary = engine.ready.vocab_size
            prompts = live_engine.random_prompts(
                options.sessions, options.turns, IDS_IN, vocabulary
            )
            await measure(engine, mode, [p[:5] for p in prompts], "warm-up")
            runs[mode].append(await measure(engine, mode, prompts, f"{mode} {number}"))
        print(f"{mode}, run {number + 1} of {options.runs}", flush=True)
    rows = [summarize(mode, "Engine", runs[mode]) for mode in MODES]
    facts: dict[str, Any] = {"outputs_equal": _have_equal_outputs(runs)}
    if not options.no_wire:
        websocket_runs = await _measure_websocket(options, folder, settings)
        rows += [summarize(mode, "WebSocket", timings) for mode, timings in websocket_runs.items()]
        facts["outputs_equal_over_the_wire"] = all(
            _have_equal_outputs({mode: [timings[n]] for mode, timings in websocket_runs.items()})
            for n in range(options.runs)
        )
    if options.peers is not None:
        rows += _measure_competitors(options, folder, prompts, runs["streaming"][0].outputs)
    facts["ratios"] = compute_ratios(rows)
    notes = [f"{name}: {value}" for name, value in facts.items()]
    title = f"Turn latency, {options.sessions} sessions x {options.turns} turns, 16 in / 8 out"
    return Report(title, rows, rows_key="modes", notes=notes, facts=facts)


async def measure(
    engine: EngineClient, mode: str, prompts: live_engine.Prompts, scope: str
) -> TurnTimings:
    """Run all turns of `prompts`, with one client per session, concurrently. `scope`: a cache scope
    of its own for each run, so that runs do not share KV."""
    sessions = await asyncio.gather(*(_run_session(engine, mode, p, scope) for p in prompts))
    return TurnTimings.from_sessions(list(sessions))


async def _run_session(
    engine: EngineClient, mode: str, prompts: Sequence[list[int]], scope: str
) -> tuple[list[float], list[float], list[Any]]:
    wall, outside, log, outputs = list[float](), list[float](), list[int](), list[Any]()
    session = ""
    if mode != "no_session":
        session = await engine.open(streaming=mode == "streaming", cache_scope=scope)
    for ids in prompts:
        start_s = time.perf_counter()
        if mode == "no_session":
            turn = await engine.complete(log + ids, live_engine.greedy(IDS_OUT), cache_scope=scope)
        else:
            turn = await live_engine.append_and_generate(engine, session, ids, IDS_OUT)
        output = await live_engine.read_ids(turn)
        wall.append(time.perf_counter() - start_s)
        assert turn.ended is not None
        outside.append(wall[-1] - turn.ended.model_s)
        if mode == "no_session":
            log += ids + output
        outputs.append(output)
    if session:
        await engine.close(session, keep_prefix=False)
    return wall, outside, outputs


async def _measure_websocket(
    options: argparse.Namespace, folder: Path, settings: dict[str, Any]
) -> dict[str, list[TurnTimings]]:
    """Measure modes no_session and streaming through the Realtime WebSocket of `continuo serve`.

    Each turn sends a text of 13 characters, which becomes 31 ids in the chat template of the
    benchmark models. Returns the runs by mode.
    """
    settings = settings | {
        name: 2 * settings[name] for name in ("max_model_len", "num_gpu_blocks_override")
    }
    runs: dict[str, list[TurnTimings]] = {"no_session": [], "streaming": []}
    async with live_server.run_server(folder, **settings) as url:
        await live_server.measure(url, "streaming", options.sessions, 5, "warm-up")
        for number, mode in itertools.product(range(options.runs), runs):
            scope = f"run {number}"
            timings = await live_server.measure(url, mode, options.sessions, options.turns, scope)
            runs[mode].append(timings)
            print(f"{mode} over the WebSocket, run {number + 1} of {options.runs}", flush=True)
    return runs


def summarize(mode: str, through: str, runs: list[TurnTimings]) -> ReportRow:
    return {
        "mode": mode,
        "through": through,
        "mean_all_ms": median([r.mean_ms(r.wall_s) for r in runs]),
        "mean_last10_ms": median([r.mean_ms(r.wall_s, 10) for r in runs]),
        "outside_model_all_ms": median([r.mean_ms(r.outside_model_s) for r in runs]),
        "outside_model_last10_ms": median([r.mean_ms(r.outside_model_s, 10) for r in runs]),
        "outside_last10_over_first": median([r.flatness(r.outside_model_s) for r in runs]),
        "spread_all": _format_range([r.mean_ms(r.wall_s) for r in runs]),
    }


def compute_ratios(rows: list[ReportRow]) -> dict[str, float]:
    """Compare each mode with `streaming`: divide each figure in milliseconds by the same figure of
    the row that has mode `streaming` and the same `through` (engine or server). Returns the ratios,
    each under a name that contains that of the figure."""
    ratios: dict[str, float] = {}
    row_of = {(r["through"], r["mode"]): r for r in rows}
    for (through, mode), row in row_of.items():
        streaming = row_of.get((through, "streaming"))
        if streaming is None or streaming is row:
            continue
        for figure, value in row.items():
            divisor = streaming[figure]
            if figure.endswith("_ms") and isinstance(value, float) and isinstance(divisor, float):
                ratios[f"{through}, {mode} over streaming, {figure}"] = round(value / divisor, 2)
    return ratios


def _format_range(values: list[float]) -> str:
    return f"{min(values):.1f}-{max(values):.1f}"


def _have_equal_outputs(runs: dict[str, list[TurnTimings]]) -> bool:
    first = runs["streaming"][0].outputs
    return all(timings.outputs == first for each in runs.values() for timings in each)


def _measure_competitors(
    options: argparse.Namespace,
    folder: Path,
    prompts: live_engine.Prompts,
    outputs: list[list[list[int]]],
) -> list[ReportRow]:
    results = competitors.measure(
        folder,
        sessions=options.sessions,
        turns=options.turns,
        ids_in=IDS_IN,
        ids_out=IDS_OUT,
        prompts=prompts,
        names=options.peers or None,
        threads=2,
        expected=outputs,
        limit_s=options.peer_limit_s,
    )
    return [
        {
            "mode": result.mode,
            "through": result.name,
            "mean_all_ms": result.mean_all_ms,
            "mean_last10_ms": result.mean_last10_ms,
            "same_ids": str(result.has_equal_outputs),
            "note": result.note,
        }
        for result in results
    ]
