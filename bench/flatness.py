"""Flatness, the growth of a turn's time over a session: 8 sessions x 150 turns, 16 ids in, 8 out.

Measured: the mean of the last ten turns divided by the mean of turns 2 to 11, on the wall clock and
outside the model. The wall clock includes attention over a longer context; the time outside the
model must stay flat.
"""

import argparse

import uvloop

from continuo.bench import session_latency, turns
from continuo.bench.report import Report, ReportRow, median
from continuo.bench.targets.selection import add_target_options
from continuo.bench.turns import Turns


def add_options(parser: argparse.ArgumentParser) -> None:
    session_latency.add_workload_options(parser, sessions=8, turns=150)
    add_target_options(parser, ("engine", "llama.cpp"))


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    runs, meter, notes = await session_latency.measure_turns(options)
    return Report(
        session_latency.describe_workload("Flatness", options),
        [
            {**_row(name, measured), **turns.describe_cpu(name, meter)}
            for name, measured in runs.items()
        ],
        notes=[*notes, "The reference engine asserts at most 1.15 on the wall clock of a GPU."],
        facts={"cpu": [reading._asdict() for reading in meter.readings]},
        plot=session_latency.plot_turns(runs),
    )


def _row(name: str, runs: list[Turns]) -> ReportRow:
    wall = [turns.mean_ms(each, "last 10") / turns.mean_ms(each, "first 10") for each in runs]
    outside = [
        last / first
        for last, first in (
            (turns.outside_model_ms(each, "last 10"), turns.outside_model_ms(each, "first 10"))
            for each in runs
        )
        if last is not None and first is not None
    ]
    return {
        "target": name,
        "first 10, ms": median([turns.mean_ms(each, "first 10") for each in runs]),
        "last 10, ms": median([turns.mean_ms(each, "last 10") for each in runs]),
        "last 10 over first 10": median(wall),
        "outside the model, last 10 over first 10": median(outside) if outside else None,
    }
