"""Time that scheduler, cache and batch building take per decode step and turn, on a null device.

Measured: decode steps of N sequences; and turns (16 ids in, 8 out) after a history of H ids,
alternately in a streaming and in a regular session. The time of a turn must not depend on H in the
streaming session; the regular session publishes each turn to the radix tree.
"""

import argparse
import time
from pathlib import Path

from continuo import engine
from continuo.bench.null_device import NullRunner
from continuo.bench.report import Report, ReportRow, median, percentile
from continuo.engine.batch import Geometry
from continuo.engine.config import BUNDLED_MODEL, EngineConfig
from continuo.engine.sampling import Sampling
from continuo.engine.server.assembly import assemble
from continuo.engine.text import ModelText
from continuo.engine.wire.messages import AppendIds, Generate, OpenSession

PAGE_SIZE = 16
TEXT = ModelText(str(Path(engine.__file__).parent / "bundled" / BUNDLED_MODEL))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=int, default=2000, help="steps timed for each row (default: %(default)s)"
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=200,
        help="turns timed for each history (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> Report:
    rows: list[ReportRow] = [_measure_decode(n, options.steps) for n in (1, 8, 64, 256)]
    for history in (1_000, 10_000, 100_000):
        rows += _measure_turns(history, options.turns)
    notes = [
        "Microseconds. A turn is 16 ids in and 8 out: an append, a prefill and 7 decode steps."
    ]
    return Report("Work outside the device", rows, notes=notes)


class _EngineHarness:
    """An engine core on a null device, without link and process."""

    def __init__(self, pages: int, rows: int) -> None:
        geometry = Geometry(pages, PAGE_SIZE, pages * PAGE_SIZE, 4096, 8192, 0)
        self.runner = NullRunner(geometry)
        parts = assemble(self.runner, TEXT, EngineConfig(max_num_seqs=rows))
        self.loop, self.sessions = parts.loop, parts.sessions
        self.steps = 0

    def step(self) -> float:
        """Run one step. Returns the seconds spent outside the device, or 0 if no step was
        needed."""
        start_s = time.perf_counter()
        plan = self.loop.prepare_step()
        if plan is None:
            return 0.0
        launch_s = time.perf_counter()
        result = self.runner.launch(plan.batch)
        collected_s = time.perf_counter()
        self.loop.apply_result(plan, result, self.sessions)
        self.loop.take_events()
        self.steps += 1
        return launch_s - start_s + time.perf_counter() - collected_s

    def drain(self) -> float:
        """Run steps until none is needed any more. Returns the seconds spent outside the device."""
        total = 0.0
        while spent := self.step():
            total += spent
        return total


def _measure_decode(sequences: int, steps: int) -> ReportRow:
    harness = _EngineHarness(pages=sequences * (steps // PAGE_SIZE + 80), rows=256)
    for n in range(sequences):
        harness.sessions.apply(OpenSession(0, f"s{n}"))
        harness.sessions.apply(AppendIds(0, f"s{n}", [n % 4000] * 1024))
    harness.drain()
    for n in range(sequences):
        harness.sessions.apply(Generate(0, f"s{n}", "t", Sampling(max_tokens=steps)))
    harness.step()
    spent = [harness.step() for _ in range(steps - 2)]
    return {
        "what": f"decode step, {sequences} sequences",
        "median_us": median(spent) * 1e6,
        "p99_us": percentile(spent, 99) * 1e6,
    }


def _measure_turns(history: int, turns: int) -> list[ReportRow]:
    kinds = {
        "streaming": _open_session(history, turns, streaming=True),
        "regular": _open_session(history, turns, streaming=False),
    }
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(turns):
        for kind, harness in kinds.items():
            spent[kind].append(_time_turn(harness, f"t{number}"))
    return [
        {
            "what": f"{kind} turn, {history} ids of history",
            "median_us": median(seconds[1:]) * 1e6,
            "p99_us": percentile(seconds[1:], 99) * 1e6,
        }
        for kind, seconds in spent.items()
    ]


def _open_session(history: int, turns: int, *, streaming: bool) -> _EngineHarness:
    harness = _EngineHarness(pages=(history + turns * 24) // PAGE_SIZE + 10, rows=64)
    harness.sessions.apply(OpenSession(0, "s", streaming))
    harness.sessions.apply(AppendIds(0, "s", [7] * history))
    harness.drain()
    return harness


def _time_turn(harness: _EngineHarness, name: str) -> float:
    steps, start_s = harness.steps, time.perf_counter()
    harness.sessions.apply(AppendIds(0, "s", list(range(16))))
    harness.sessions.apply(Generate(0, "s", name, Sampling(max_tokens=8)))
    spent = time.perf_counter() - start_s + harness.drain()
    assert harness.steps == steps + 8, "the turn was refused"
    return spent
