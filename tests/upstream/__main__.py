"""python -m tests.upstream [KIND] [--part PART]: test an engine on real servers.

KIND: llama-server or vllm; default: both. They are installed first, once. PART: `engine`, turns,
and kills of the server; `faults`, the fault rows of other servers; `clients`, the tests of clients,
of which those in `differences.py` are expected to fail. Default: all.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from tests.support.processes import ROOT
from tests.upstream.differences import EXPECTED
from tests.upstream.install import FIGURES
from tests.upstream.servers import SERVERS, running_server

CHECKS = {"engine": "engine_checks.py", "faults": "fault_checks.py"}
PARTS = (*CHECKS, "clients")
PYTEST = (sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=[*SERVERS], metavar="KIND", help="default: both")
    parser.add_argument("--part", choices=PARTS, metavar="PART", help="default: all")
    options = parser.parse_args()
    FIGURES.unlink(missing_ok=True)
    passed = True
    for kind in [options.kind] if options.kind else SERVERS:
        for part in [options.part] if options.part else PARTS:
            passed &= check_clients(kind) if part == "clients" else run_checks(kind, CHECKS[part])
    print(FIGURES.read_text() if FIGURES.exists() else "")
    return 0 if passed else 1


def run_checks(kind: str, file: str) -> bool:
    command = (*PYTEST, f"tests/upstream/{file}", "-k", kind)
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def check_clients(kind: str) -> bool:
    """Run the tests of clients on a server. Returns whether exactly the expected ones fail."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        asyncio.run(_run_clients(kind, Path(folder), report))
        counts, failed = _read(report)
    expected: Mapping[str, str] = EXPECTED[kind]
    unexpected, fixed = failed - expected.keys(), expected.keys() - failed
    print(f"{kind}: {counts}; {len(failed & expected.keys())} differences as expected")
    print(*(f"unexpected failure: {test}" for test in sorted(unexpected)), sep="\n")
    print(*(f"passes, but expected to fail: {test}" for test in sorted(fixed)), sep="\n")
    return not unexpected and not fixed


async def _run_clients(kind: str, folder: Path, report: Path) -> None:
    async with running_server(kind, folder) as server:
        environment = {**os.environ, "CONTINUO_ENGINE_URL": server.url}
        command = (*PYTEST, "tests/clients", f"--junitxml={report}")
        await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env=environment, check=False)


def _read(report: Path) -> tuple[str, set[str]]:
    """Return the counts of a report of pytest, and the names of the tests that failed."""
    suite = next(ElementTree.parse(report).iter("testsuite"))
    failed = {
        f"{case.get('classname', '').rpartition('.')[2]}.py::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    }
    counts = ", ".join(
        f"{suite.get(name)} {name}" for name in ("tests", "failures", "errors", "skipped")
    )
    return counts, failed


if __name__ == "__main__":
    sys.exit(main())
