"""`continuo bench NAME`: run a benchmark, print its table and, with --json, write its JSON file."""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from continuo.bench.report import Report

BENCHES = {
    "agent-loop": "agents that continue from the previous response, or resend the whole history",
    "session-latency": "turns of long sessions: no_session, regular, streaming; competitors",
    "flatness": "cost of a turn by its index",
    "cold-beside-live": "short turns during the prefill of long cold prompts",
    "commit-to-first-token": "words prefilled as they arrive, until the first token",
    "append-acknowledged": "latency of appends until acknowledged, durability normal and strict",
    "barge-in": "a response interrupted and truncated to what was played, and the next turn",
    "gateway": "token streams, idle connections and appends with a scripted engine",
    "idle-sessions": "ten times more open sessions than fit",
    "masked-step": "cost of a grammar per step",
    "parked-sessions": "parked sessions in Redis: bytes each, lateness of their removal",
    "recovery": "an engine, a gateway or Redis killed: time to recovery",
    "resume-storm": "a gateway killed under 2,000 responses: time until all are resumed",
    "step-overhead": "scheduler, cache and batch building per step, on a null device",
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="continuo bench", description="Measure Continuo on this machine."
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    modules = {
        name: importlib.import_module("continuo.bench." + name.replace("-", "_"))
        for name in BENCHES
    }
    for name, text in BENCHES.items():
        command = commands.add_parser(
            name,
            help=text,
            description=modules[name].__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument(
            "--json", type=Path, metavar="FILE", help="write the figures to FILE (default: none)"
        )
        modules[name].add_options(command)
    options = parser.parse_args(argv)
    report: Report = modules[options.name].run(options)
    print(report.render())
    if options.json is not None:
        report.save(options.json)
    return 0
