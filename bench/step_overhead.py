"""Time per decode step of scheduler, cache and batch building, on a device that does nothing.

Two tables in one: steps of N sequences, and one turn (16 ids in, 8 out) on a history of H ids, of a
streaming session, whose cost must not depend on H, and of a regular one, which publishes each turn.
The two take turns, one by one.
"""

import argparse
import time
from pathlib import Path

from continuo import engine
from continuo.bench.null_device import NullRunner
from continuo.bench.report import Report, ReportRow, median, percentile
from continuo.engine.batch import Geometry
from continuo.engine.config import BUNDLED_MODEL, EngineConfig
from continuo.engine.server.assembly import assemble
from continuo.engine.text import ModelText
from continuo.engine.wire.messages import AppendIds, Generate, OpenSession, Sampling

PAGE_SIZE = 16
TEXT = ModelText(str(Path(engine.__file__).parent / "bundled" / BUNDLED_MODEL))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=2000, help="steps timed for each row")
    parser.add_argument("--turns", type=int, default=200, help="turns timed for each history")


def run(options: argparse.Namespace) -> Report:
    rows: list[ReportRow] = [_measure_decode(n, options.steps) for n in (1, 8, 64, 256)]
    for history in (1_000, 10_000, 100_000):
        rows += _measure_turns(history, options.turns)
    notes = [
        "Microseconds. A turn is 16 ids in and 8 out: an append, a prefill and 7 decode steps."
    ]
    return Report("Work outside the device", rows, notes=notes)


class _EngineHarness:
    """Everything of an engine but the device and the border."""

    def __init__(self, pages: int, rows: int) -> None:
        geometry = Geometry(pages, PAGE_SIZE, pages * PAGE_SIZE, 4096, 8192, 0)
        self.runner = NullRunner(geometry)
        parts = assemble(self.runner, TEXT, EngineConfig(max_num_seqs=rows))
        self.loop, self.sessions = parts.loop, parts.sessions
        self.steps = 0

    def step(self) -> float:
        """Runs one step; returns the seconds of it that are ours, 0 if there was nothing to do."""
        began = time.perf_counter()
        order = self.loop.prepare_step()
        if order is None:
            return 0.0
        ordered = time.perf_counter()
        sampled = self.runner.launch(order.batch)
        answered = time.perf_counter()
        self.loop.apply_result(order, sampled, self.sessions)
        self.loop.take_events()
        self.steps += 1
        return ordered - began + time.perf_counter() - answered

    def drain(self) -> float:
        """Runs steps until nothing is owed; returns the seconds that are ours."""
        total = 0.0
        while spent := self.step():
            total += spent
        return total


def _measure_decode(sequences: int, steps: int) -> ReportRow:
    rig = _EngineHarness(pages=sequences * (steps // PAGE_SIZE + 80), rows=256)
    for n in range(sequences):
        rig.sessions.apply(OpenSession(0, f"s{n}"))
        rig.sessions.apply(AppendIds(0, f"s{n}", [n % 4000] * 1024))
    rig.drain()
    for n in range(sequences):
        rig.sessions.apply(Generate(0, f"s{n}", "t", Sampling(max_tokens=steps)))
    rig.step()
    spent = [rig.step() for _ in range(steps - 2)]
    return {
        "what": f"decode step, {sequences} sequences",
        "median_us": median(spent) * 1e6,
        "p99_us": percentile(spent, 99) * 1e6,
    }


def _measure_turns(history: int, turns: int) -> list[ReportRow]:
    kinds = {
        "streaming": _open_session(history, turns, True),
        "regular": _open_session(history, turns, False),
    }
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(turns):
        for kind, rig in kinds.items():
            spent[kind].append(_time_turn(rig, f"t{number}"))
    return [
        {
            "what": f"{kind} turn, {history} ids of history",
            "median_us": median(found[1:]) * 1e6,
            "p99_us": percentile(found[1:], 99) * 1e6,
        }
        for kind, found in spent.items()
    ]


def _open_session(history: int, turns: int, streaming: bool) -> _EngineHarness:
    rig = _EngineHarness(pages=(history + turns * 24) // PAGE_SIZE + 10, rows=64)
    rig.sessions.apply(OpenSession(0, "s", streaming))
    rig.sessions.apply(AppendIds(0, "s", [7] * history))
    rig.drain()
    return rig


def _time_turn(rig: _EngineHarness, name: str) -> float:
    steps, began = rig.steps, time.perf_counter()
    rig.sessions.apply(AppendIds(0, "s", list(range(16))))
    rig.sessions.apply(Generate(0, "s", name, Sampling(max_tokens=8)))
    spent = time.perf_counter() - began + rig.drain()
    assert rig.steps == steps + 8, "it was not refused"
    return spent
