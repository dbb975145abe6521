"""Turn latency of long sessions: 4 sessions x 300 turns, 16 ids in and 8 out, beside a competitor.

Measured: wall clock of the client per turn. The first turn of each session is left out; `first 10`
and `first 100` are means over the turns from the second on, `last 10` over the last ten of each
session. Targets alternate, run by run; figures are medians over the runs, and ratios those of runs
side by side. "Outside the model" is the wall clock less the time in which the device was busy
during the turn, for whichever session; on a CPU it is a small part of what a client waits for.

A text target receives as many ids as the others: the text is shorter by what the chat template
adds. A server at --base-url receives as many words, and the ids that its chat template adds.
"""

import argparse

import uvloop

from continuo.bench import turns
from continuo.bench.host import CpuMeter
from continuo.bench.plot import Plot
from continuo.bench.prompts import random_prompts
from continuo.bench.report import Report, ReportRow, median
from continuo.bench.targets.selection import (
    Room,
    add_target_options,
    is_competitor,
    run_targets,
)
from continuo.bench.targets.target import Output, Target
from continuo.bench.turns import SPANS, WARM_UP_TURNS, Turns


def add_options(parser: argparse.ArgumentParser) -> None:
    add_workload_options(parser, sessions=4, turns=300)
    add_target_options(
        parser,
        (
            "engine",
            "engine/regular",
            "engine/no-session",
            "websocket",
            "llama.cpp",
            "transformers",
        ),
    )


def add_workload_options(parser: argparse.ArgumentParser, *, sessions: int, turns: int) -> None:
    for option, kind, value, text in (
        ("--sessions", int, sessions, "concurrent sessions"),
        ("--turns", int, turns, "turns of each session"),
        ("--ids-in", int, 16, "ids sent in each turn"),
        ("--ids-out", int, 8, "ids generated in each turn"),
        ("--temperature", float, 0.0, "0: greedy"),
        ("--top-p", float, 1.0, "with a temperature"),
    ):
        parser.add_argument(
            option, type=kind, default=value, metavar="N", help=f"{text} (default: %(default)s)"
        )


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    runs, meter, notes = await measure_turns(options)
    return Report(
        describe_workload("Turn latency", options),
        [
            {**turns.summarize(name, measured), **turns.describe_cpu(name, meter)}
            for name, measured in runs.items()
        ],
        {
            "Ratios of the wall clock, medians of runs side by side": _compute_ratios(runs),
            "Outside the model": _summarize_outside(runs),
        },
        notes=notes,
        facts={"cpu": [reading._asdict() for reading in meter.readings]},
        plot=plot_turns(runs),
    )


async def measure_turns(
    options: argparse.Namespace,
) -> tuple[dict[str, list[Turns]], CpuMeter, list[str]]:
    """Run the workload on the selected targets, in alternation. Returns the runs by the target's
    name, the processor use, and notes."""
    output = Output(options.ids_out, options.temperature, options.top_p)
    meter = CpuMeter()
    prompts = random_prompts(options.sessions, options.turns, options.ids_in)
    room = Room(options.sessions, options.turns * (options.ids_in + options.ids_out))
    async with run_targets(options, room) as (targets, notes):

        async def warm_up(target: Target) -> Turns:
            return await turns.run_sessions(target, [p[:WARM_UP_TURNS] for p in prompts], output)

        async def measure(target: Target) -> Turns:
            return await turns.run_sessions(target, prompts, output, options.limit_s)

        runs = await turns.alternate(targets, options.runs, measure, meter, notes, warm_up)
    notes += [*_find_unfinished(runs, options.turns), meter.describe()]
    return runs, meter, notes


def describe_workload(what: str, options: argparse.Namespace) -> str:
    served = options.base_url or f"model {options.model}"
    return (
        f"{what}, {served}, {options.sessions} sessions x {options.turns} turns, "
        f"{options.ids_in} in / {options.ids_out} out, "
        + (f"temperature {options.temperature:g}" if options.temperature else "greedy")
    )


def plot_turns(runs: dict[str, list[Turns]]) -> Plot:
    """Plot the wall clock of each turn, medians over sessions and runs."""
    lines = {name: turns.per_turn_ms(measured) for name, measured in runs.items()}
    last = max(map(len, lines.values()), default=1)
    return Plot("Wall clock of a turn", "turn", "ms", lines, x=list(range(2, 2 + last)))


def _find_unfinished(runs: dict[str, list[Turns]], count: int) -> list[str]:
    fewest = {
        name: min(len(session) for sessions in measured for session in sessions)
        for name, measured in runs.items()
    }
    return [
        f"{name}: stopped after {done} of {count} turns"
        for name, done in fewest.items()
        if done < count
    ]


def _compute_ratios(runs: dict[str, list[Turns]]) -> list[ReportRow]:
    """Compare each target of ours with each competitor, and with the first target of ours."""
    ours = [name for name in runs if not is_competitor(name)]
    pairs = [
        (name, other)
        for name in ours
        for other in runs
        if is_competitor(other) or (other == ours[0] != name)
    ]
    return [
        {
            "target": name,
            "over": other,
            **{
                span: turns.compare(
                    [turns.mean_ms(each, span) for each in runs[name]],
                    [turns.mean_ms(each, span) for each in runs[other]],
                )
                for span in SPANS
            },
            "first token": turns.compare(
                [_median_first_s(each) for each in runs[name]],
                [_median_first_s(each) for each in runs[other]],
            ),
        }
        for name, other in pairs
    ]


def _median_first_s(measured: Turns) -> float:
    return median([turn.first_s for session in measured for turn in session[1:]])


def _summarize_outside(runs: dict[str, list[Turns]]) -> list[ReportRow]:
    rows: list[ReportRow] = []
    for name, measured in runs.items():
        figures = {
            f"{span}, ms": [turns.outside_model_ms(each, span) for each in measured]
            for span in SPANS
        }
        known = {
            title: median([value for value in values if value is not None])
            for title, values in figures.items()
            if None not in values
        }
        if known:
            rows.append({"target": name, **known})
    return rows
