"""python -m tests.upstream [KIND] [--part PART]: test an engine on real servers.

KIND: llama-server or vllm; default: both. They are installed first, once. PART: `engine`, turns,
and kills of the server; `faults`, the fault rows of other servers; `clients`, the tests of clients
whose gateway has an engine on the server; `page`, conversations in Chromium with such a gateway.
The last two fail by a test that is not in `differences.py`. Default: all.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from continuo.realtime.server.http.page import is_page_built
from tests.browser import vitest
from tests.support.processes import ROOT
from tests.upstream.differences import EXPECTED
from tests.upstream.figures import FIGURES, add_figure
from tests.upstream.servers import SERVERS, running_server

CHECKS = {"engine": "engine_checks.py", "faults": "fault_checks.py"}
PARTS = (*CHECKS, "clients", "page")
PYTEST = (sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider")
CLIENTS = (
    *("anthropic_sdk", "banner", "command", "documented_programs", "examples", "middleware"),
    *("openai_node", "openai_sdk", "recipes", "returning", "voice_clients"),
)
"""Tests of clients that start `continuo serve` in this environment. The others read recorded
transcripts, or have an engine of their own."""
PAGE = vitest.in_chromium("conversation")
ENGINE_URL = "CONTINUO_ENGINE_URL"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=[*SERVERS], metavar="KIND", help="default: both")
    parser.add_argument("--part", choices=PARTS, metavar="PART", help="default: all")
    options = parser.parse_args()
    if options.part in (None, "page") and not is_page_built():
        parser.error("part `page` needs the built page: run `make web`")
    FIGURES.unlink(missing_ok=True)
    passed = True
    for kind in [options.kind] if options.kind else SERVERS:
        for part in [options.part] if options.part else PARTS:
            passed &= run_checks(kind, CHECKS[part]) if part in CHECKS else compare(kind, part)
    print(FIGURES.read_text() if FIGURES.exists() else "")
    return 0 if passed else 1


def run_checks(kind: str, file: str) -> bool:
    command = (*PYTEST, f"tests/upstream/{file}", "-k", kind)
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def compare(kind: str, part: str) -> bool:
    """Run the tests of clients or of the page on a server. Returns whether all pass but those that
    are expected to fail. Of these it prints which have passed."""
    run = {"clients": run_clients, "page": run_page}[part]
    with tempfile.TemporaryDirectory() as folder:
        outcomes = asyncio.run(run(kind, Path(folder)))
    counts = Counter(outcomes.values())
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    expected = EXPECTED[kind][part]
    add_figure(
        f"{kind}: {counts['passed']} of {len(outcomes)} tests of {part} pass, {counts['failed']}"
        f" differ, {counts['skipped']} are skipped"
    )
    for test in sorted(failed - expected.keys()):
        print(f"unexpected failure: {test}")
    for test in sorted(expected.keys() - failed):
        print(f"expected to fail, but {outcomes.get(test, 'unknown')}: {test}")
    return counts["passed"] > 0 and failed <= expected.keys()


async def run_clients(kind: str, folder: Path) -> dict[str, str]:
    """Returns the outcome of each test: passed, failed or skipped."""
    report = folder / "report.xml"
    async with running_server(kind, folder) as server:
        environment = {**os.environ, ENGINE_URL: server.url}
        files = [f"tests/clients/test_{name}.py" for name in CLIENTS]
        command = (*PYTEST, *files, f"--junitxml={report}")
        await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env=environment, check=False)
    return _read(report)


async def run_page(kind: str, folder: Path) -> dict[str, str]:
    """Returns the outcome of each test: passed, failed or skipped."""
    async with running_server(kind, folder) as server:
        reported, output = await asyncio.to_thread(
            vitest.run, "test:browser", PAGE, {ENGINE_URL: server.url}
        )
    print(output)
    return {
        f"{file.name}::{test['fullName']}": str(test["status"])
        for file, result in reported.items()
        for test in result.assertion_results
    }


def _read(report: Path) -> dict[str, str]:
    """Return the outcome of each test in a report of pytest: passed, failed or skipped."""
    return {
        f"{case.get('classname', '').rpartition('.')[2]}.py::{case.get('name')}": _outcome(case)
        for case in ElementTree.parse(report).iter("testcase")
    }


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


if __name__ == "__main__":
    sys.exit(main())
