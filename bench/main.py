"""continuo bench NAME: finds the bench, runs it, prints its table, writes its JSON."""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

NAMES = {
    "step-overhead": "scheduler, cache and batch building per step, on a null device",
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="continuo bench", description="Measures Continuo on this machine."
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    modules = {name: importlib.import_module("bench." + name.replace("-", "_")) for name in NAMES}
    for name, text in NAMES.items():
        command = commands.add_parser(name, help=text, description=modules[name].__doc__)
        command.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
        modules[name].add_options(command)
    options = parser.parse_args(argv)
    report = modules[options.name].run(options)
    print(report.text())
    if options.json is not None:
        report.save(options.json)
    return 0
