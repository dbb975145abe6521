"""continuo bench NAME: finds the bench, runs it, prints its table, writes its JSON."""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from continuo.bench.report import Report

BENCHES = {
    "agent-loop": "an agent that goes on from its responses, and one that sends all again",
    "session-latency": "turns of long sessions: no_session, regular, streaming; peers",
    "flatness": "whether a turn costs the same whatever its index",
    "cold-beside-live": "short turns beside long cold prompts",
    "commit-to-first-token": "words prefilled while they are spoken",
    "append-acknowledged": "appends until they are acknowledged, durability normal and strict",
    "barge-in": "an answer interrupted, cut to what was heard, and the next turn",
    "gateway": "token streams, idle connections and appends before a scripted engine",
    "idle-sessions": "ten times more open sessions than fit",
    "masked-step": "what following a grammar costs a step",
    "parked-sessions": "sessions without a client in Redis: bytes each, how late they are removed",
    "recovery": "an engine, a gateway or Redis killed, until all goes on",
    "resume-storm": "a gateway killed under 2,000 answers, until all go on at another one",
    "step-overhead": "scheduler, cache and batch building per step, on a null device",
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="continuo bench", description="Measures Continuo on this machine."
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    modules = {
        name: importlib.import_module("continuo.bench." + name.replace("-", "_"))
        for name in BENCHES
    }
    for name, text in BENCHES.items():
        command = commands.add_parser(name, help=text, description=modules[name].__doc__)
        command.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
        modules[name].add_options(command)
    options = parser.parse_args(argv)
    report: Report = modules[options.name].run(options)
    print(report.render())
    if options.json is not None:
        report.save(options.json)
    return 0
