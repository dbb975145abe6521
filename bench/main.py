"""`continuo bench WORKLOAD`: run a benchmark, print its tables, and save, draw or publish them."""

import argparse
import importlib
import json
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from continuo.bench import plot, published
from continuo.bench.host import CpuMeter, describe_machine
from continuo.bench.report import Report
from continuo.engine import print_line
from continuo.realtime.server.own_command import find_own_command

GROUPS = {
    "What a client waits for; with --base-url, of any server": {
        "session-latency": "turns of long sessions, through each door, beside competitors",
        "throughput": "1 to 64 rows, greedy and sampled; first token by context; bandwidth floor",
        "flatness": "growth of a turn's time over a session",
        "cold-beside-live": "short turns during the prefill of long cold prompts",
        "commit-to-first-token": "words prefilled as they arrive, until the first token",
        "barge-in": "a response interrupted and cut to what was played, and the next turn",
    },
    "The server": {
        "agent-loop": "agents that continue from the previous response, or resend the history",
        "gateway": "token streams, idle connections and appends with a scripted engine",
        "append-acknowledged": "appends until acknowledged, durability normal and strict",
        "idle-sessions": "ten times more open sessions than fit",
        "parked-sessions": "parked sessions in Redis: bytes each, lateness of their removal",
        "page": "a long answer on the page in Chromium: its longest task while it streams",
        "start": "continuo serve until it listens and until its first token; memory at rest",
        "recovery": "an engine, a gateway or Redis killed: time to recovery",
        "resume-storm": "a gateway killed under 2,000 responses: time until all are resumed",
        "journey": "files of the program that an append and a response enter",
    },
    "Parts of the engine": {
        "step-overhead": "scheduler, cache and batch building per step, on a null device",
        "scheduling": "turns under load, in steps and tokens computed, on a null device",
        "speculation": "drafts by prompt lookup, on repetitive output and on prose",
        "masked-step": "cost of a grammar per step",
        "sampled-step": "cost of sampling per step on a CPU",
        "gpu-counts": "kernels, copies and allocations per step on a GPU, counted on a CPU",
        "gpu-step": "steps of a decoder of eight billion parameters on a GPU, beside the floor",
    },
}
WITH_PLOT = ("session-latency", "throughput")
"""Workloads whose figures are drawn by `--plot`."""
BENCHES = {name: text for group in GROUPS.values() for name, text in group.items()}
DESCRIPTION = """\
Measure this server, or any OpenAI-compatible one, beside other engines on the same machine.

A figure is the median of runs that alternate with those of what it is compared with. Processor time
that other processes used meanwhile is measured and printed: above 0.1 cores, a run counts as noisy.
"""
EXAMPLES = """\
Examples:
  {command} bench session-latency --model M --targets engine websocket llama.cpp
  {command} bench throughput --rows 1 4 --plot steps.svg --json steps.json
  {command} bench session-latency --base-url http://127.0.0.1:8080/v1 --api chat --turns 50
"""


def main(argv: Sequence[str]) -> int:
    name = next((argument for argument in argv if argument in BENCHES), None)
    if name is None or argv[0] != name:
        overview = _build_overview()
        if argv:
            overview.parse_args(argv)
        overview.print_help()
        return 2
    module = importlib.import_module("continuo.bench." + name.replace("-", "_"))
    parser = argparse.ArgumentParser(
        prog=f"{find_own_command()} bench {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    _add_common_options(parser)
    options = parser.parse_args(argv[1:])
    if options.publish:
        published.check_name(options.publish, name)
    if options.plot and name not in WITH_PLOT:
        parser.error(f"--plot: {name} has no plot; {' and '.join(WITH_PLOT)} have one")
    for path in options.plot:
        plot.check_path(path)
    meter, start_s = CpuMeter(), time.monotonic()
    with meter.reading("all"):
        report: Report = module.run(options)
    run = {
        "command": "continuo bench " + " ".join(_without_outputs(argv)),
        "machine": describe_machine(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": published.current_commit(),
        "seconds": round(time.monotonic() - start_s),
        "foreign_cores": round(meter.readings[0].foreign_cores, 2),
        "own_cores": round(meter.readings[0].own_cores, 2),
    }
    print_line("\n" + report.render())
    print_line(published.describe_run(run))
    data = {**report.to_json(), "run": run}
    if options.json is not None:
        options.json.write_text(json.dumps(data, indent=2) + "\n")
    for path in options.plot:
        assert report.plot is not None, f"{name} has no plot"
        plot.save(report.plot, path)
    if options.publish:
        published.publish(options.publish, data)
    return 0


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures to FILE (default: none)"
    )
    group.add_argument(
        "--plot",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help=f"draw the figures of {' and '.join(WITH_PLOT)} as .svg, or as .png with the extra "
        "`bench` (default: none)",
    )
    group.add_argument(
        "--publish",
        metavar="NAME",
        help="save the figures as evidence/benchmarks/NAME.json and write them into "
        "evidence/benchmarks.md; NAME is the workload's, or begins with it and a dash "
        "(default: none)",
    )


def _build_overview() -> argparse.ArgumentParser:
    """Return the parser of `continuo bench` without a workload, which prints the list of them."""
    command, width = find_own_command(), max(map(len, BENCHES))
    parts = [
        f"{title}:\n" + "\n".join(f"  {name:{width}}  {text}" for name, text in group.items())
        for title, group in GROUPS.items()
    ]
    common = argparse.ArgumentParser(add_help=False, usage=argparse.SUPPRESS)
    _add_common_options(common)
    results = common.format_help().partition("results:")[2]
    parser = argparse.ArgumentParser(
        prog=f"{command} bench",
        usage=f"{command} bench WORKLOAD [options]",
        description=DESCRIPTION,
        epilog="\n\n".join(
            [
                *parts,
                f"Options of every workload (those of one: {command} bench WORKLOAD --help):"
                + results.rstrip(),
                textwrap.dedent(EXAMPLES).rstrip().format(command=command),
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=BENCHES, metavar="WORKLOAD", help=argparse.SUPPRESS)
    return parser


def _without_outputs(argv: Sequence[str]) -> list[str]:
    """Return the arguments without those that say where results go."""
    kept: list[str] = []
    is_skipping = False
    for argument in argv:
        if argument.startswith("--"):
            is_skipping = argument.partition("=")[0] in ("--json", "--plot", "--publish")
        if not is_skipping:
            kept.append(argument)
    return kept
