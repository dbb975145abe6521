"""python -m tools.mutation: plant each bug in a copy of the tree and find the test that catches it.

The unchanged copy must pass first. Each bug gets one test run, which ends at the first failure. The
results are saved after each run, so that an interrupted check resumes where it stopped. A bug that
was caught, and whose file has not changed since, is tried again only with --again. With --tests,
only these tests run; with --save, the bugs that they catch are saved.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from tools.mutation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build/mutation.json"
TABLE = ROOT / "evidence/mutations.md"
COPIED_PATHS = (
    "continuo",
    "engine",
    "realtime",
    "bench",
    "tests",
    "tools/mutation",
    "pyproject.toml",
)
"""Paths that the tests need. `continuo` links to the copies of the other folders."""
TESTS = (
    "tests/engine/core/speculation",
    "tests/engine/core/schedule",
    "tests/reference/test_unit_cases.py",
    "tests/reference/test_session_control.py",
    "tests/reference/test_defects.py",
    "tests/reference/test_steps_counted.py",
    "tests/engine/core/test_keep_prefix.py",
    "tests/engine/core/test_idle_audit.py",
    "tests/engine/core/test_misplaced_rows.py",
    "tests/worlds",
    "tests/engine/core/test_failed_steps.py",
    "tests/engine/core/test_turn_ends.py",
    "tests/engine/core/test_interrupted_prefill.py",
    "tests/engine/core/test_branch_under_load.py",
    "tests/engine/core/test_fork_positions.py",
    "tests/engine/core/test_components.py",
    "tests/engine/core/test_blank_pages.py",
    "tests/engine/core/test_random_histories.py",
    "tests/engine/core/cache",
    "tests/engine/client/test_streaming_sessions.py",
    "tests/engine/client/test_engine_client.py",
    "tests/reference/test_stress_kit.py",
    "tests/engine/client/test_engine_client_machine.py",
)
"""Tests that run against each bug, the fastest first."""
EXAMPLES = 60
"""Number of examples that hypothesis runs of each state machine."""
TIMING_SENSITIVE = (
    "engine/client/test_engine_client",
    "engine/client/test_streaming_sessions",
    "engine/core/test_idle_audit",
    "engine/core/test_interrupted_prefill",
    "reference/test_stress_kit",
)
"""Path prefixes of tests that run an engine in real time. A failure counts only if it repeats."""
NOTHING = "**nothing**"
"""Cell of the table for a bug that no test catches."""
TEST_S_MAX = 30
"""Time limit of one test in seconds. If a test exceeds the limit, the bug counts as caught."""
UNCHANGED_RUN_S_MAX = 3600.0
"""Time limit of the run without a bug. A run with one may take RUN_FACTOR_MAX times what that took:
a bug that only makes it slower on a busy machine is not caught."""
RUN_FACTOR_MAX = 3.0
RUN_S_MIN = 10 * TEST_S_MAX
"""Least time limit of a run with a bug: a test that hangs ends before its run does."""


class MutantResult(TypedDict):
    digest: str
    """Digest of the file with the bug in it."""
    caught_by: str | None
    """First test that failed, or a text that says what exceeded its time limit; None if all tests
    passed."""
    seconds: float
    on: str
    """Date of the run."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutation",
        description=(__doc__ or "").split("\n\n")[1],
        epilog=f"Writes the bugs that were tried to {TABLE.relative_to(ROOT)}, whose other rows "
        "stay. Exits with 1 if a bug was not caught.",
    )
    parser.add_argument(
        "names", nargs="*", help="only bugs whose name contains one of these (default: all)"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="also bugs that were caught before (default: skip them)",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the bugs and exit (default: try them)"
    )
    parser.add_argument(
        "--tests", nargs="+", metavar="PATH", help="run these tests only (default: all of TESTS)"
    )
    parser.add_argument(
        "--save",
        action="store_true",
        help="with --tests: save the bugs that are caught (default: save nothing)",
    )
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(x in m.name for x in options.names)]
    if options.list:
        print("\n".join(f"{m.path:34} {m.name}" for m in chosen))
        return 0
    if options.tests:
        return try_with(options.tests, chosen, is_saving=options.save)
    results = read_results()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = copy_tree(Path(folder))
        todo = [m for m in chosen if options.again or not is_up_to_date(tree, m, results)]
        run_s_max = check_baseline(tree, TESTS) if todo else 0.0
        for number, mutant in enumerate(todo, 1):
            results[mutant.name] = result = run_mutant(tree, mutant, run_s_max, TESTS)
            save_results(results)
            print(f"{number:3}/{len(todo)} {describe(mutant, result)}", flush=True)
    missed = [m.name for m in MUTANTS if m.name in results and not results[m.name]["caught_by"]]
    untried = sum(m.name not in results for m in MUTANTS)
    print(f"{len(MUTANTS)} bugs, {len(missed)} not caught, {untried} not tried")
    return 1 if missed else 0


def try_with(tests: Sequence[str], mutants: Sequence[Mutant], *, is_saving: bool) -> int:
    """Run some tests against bugs. If `is_saving`, save the bugs that are caught: other tests may
    catch the others. Returns the exit status."""
    results = read_results()
    are_all_caught = True
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = copy_tree(Path(folder))
        run_s_max = check_baseline(tree, tests)
        for mutant in mutants:
            result = run_mutant(tree, mutant, run_s_max, tests)
            print(describe(mutant, result), flush=True)
            are_all_caught &= result["caught_by"] is not None
            if is_saving and result["caught_by"]:
                results[mutant.name] = result
                save_results(results)
    return 0 if are_all_caught else 1


def describe(mutant: Mutant, result: MutantResult) -> str:
    return f"{result['seconds']:6.1f} s  {mutant.name}: {result['caught_by'] or 'NOT CAUGHT'}"


def copy_tree(folder: Path) -> Path:
    """Copy what the tests need into `folder`, where the bugs are planted."""
    for name in COPIED_PATHS:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignored = shutil.ignore_patterns(
                "__pycache__", "*.safetensors", "assets", "node_modules"
            )
            shutil.copytree(source, target, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, target)
    return folder


def digest_mutated_file(tree: Path, mutant: Mutant) -> str:
    mutated = mutant.mutate((tree / mutant.path).read_text())
    return hashlib.blake2b(mutated.encode(), digest_size=8).hexdigest()


def is_up_to_date(tree: Path, mutant: Mutant, results: dict[str, MutantResult]) -> bool:
    known = results.get(mutant.name)
    return bool(
        known and known["caught_by"] and known["digest"] == digest_mutated_file(tree, mutant)
    )


def check_baseline(tree: Path, tests: Sequence[str]) -> float:
    """Run the tests without a bug. Returns the time limit of a run with one, in seconds; exits if
    a test fails."""
    print("  the unchanged tree …", end=" ", flush=True)
    start_s = time.monotonic()
    failed = first_failure(tree, UNCHANGED_RUN_S_MAX, tests)
    if failed is not None:
        sys.exit(f"fails without any bug: {failed}")
    spent_s = time.monotonic() - start_s
    print(f"passes in {spent_s:.1f} s")
    return max(RUN_FACTOR_MAX * spent_s, RUN_S_MIN)


def run_mutant(tree: Path, mutant: Mutant, run_s_max: float, tests: Sequence[str]) -> MutantResult:
    file = tree / mutant.path
    original = file.read_text()
    mutant.mutate_file(tree)
    start_s = time.monotonic()
    try:
        caught_by = first_failure(tree, run_s_max, tests)
    finally:
        file.write_text(original)
    seconds = round(time.monotonic() - start_s, 1)
    digest, today = digest_mutated_file(tree, mutant), time.strftime("%Y-%m-%d")
    return MutantResult(digest=digest, caught_by=caught_by, seconds=seconds, on=today)


def first_failure(tree: Path, run_s_max: float, tests: Sequence[str]) -> str | None:
    failed = run_tests(tree, run_s_max, tests)
    if (
        failed
        and failed.startswith(TIMING_SENSITIVE)
        and not run_tests(tree, run_s_max, [f"tests/{failed}"])
    ):
        return run_tests(tree, run_s_max, tests)
    return failed


def run_tests(tree: Path, run_s_max: float, tests: Sequence[str]) -> str | None:
    """Run tests in the copy `tree` for at most `run_s_max` seconds.

    Returns the first test that failed, a text if a time limit was exceeded, or None if all passed.
    """
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "tools.mutation.quick", "--hypothesis-seed=1", "-W", "ignore"]
    command += [f"--timeout={TEST_S_MAX}", "--tb=no", "--show-capture=no", *tests]
    wide = {"COLUMNS": "1000"}  # pytest cuts the reason of a failure to fit
    environment = {**os.environ, **wide, "EXAMPLES": str(EXAMPLES), "PYTHONPATH": str(tree)}
    try:
        run = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=run_s_max
        )
    except subprocess.TimeoutExpired:
        return f"a run of more than {run_s_max:.0f} s"
    if run.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", run.stdout, re.MULTILINE)
    if failed and "Timeout" in (failed[2] or ""):
        return f"{failed[1].removeprefix('tests/')}, which takes more than {TEST_S_MAX} s"
    if failed:
        return failed[1].removeprefix("tests/")
    timed_out = re.search(r"(?m)^.*(tests/\S+\.py).*Timeout", run.stdout)
    if timed_out or "Timeout" in run.stdout + run.stderr:
        return "a test that hangs"
    sys.exit(f"the tests could not be run:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}")


def read_results() -> dict[str, MutantResult]:
    """Return the results that were saved here, and those of the table for other bugs."""
    saved: dict[str, MutantResult] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return read_table(TABLE.read_text()) | saved


def save_results(results: dict[str, MutantResult]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    TABLE.write_text(render_table(results))


def read_table(text: str) -> dict[str, MutantResult]:
    """Return the results in a table. Their digests are empty: which file they are of is unknown."""
    results: dict[str, MutantResult] = {}
    for row in re.findall(r"(?m)^\| \S+\.py \|(.*)\|$", text):
        name, test, seconds, on = (cell.strip() for cell in row.split(" | "))
        caught_by = None if test == NOTHING else test.strip("`")
        results[name] = MutantResult(digest="", caught_by=caught_by, seconds=float(seconds), on=on)
    return results


def render_table(results: dict[str, MutantResult]) -> str:
    tried = [(m, results[m.name]) for m in MUTANTS if m.name in results]
    caught = sum(result["caught_by"] is not None for _, result in tried)
    lines = [
        "# Planted bugs",
        "",
        "`python -m tools.mutation` plants each of these bugs alone in a copy of the tree and runs",
        "the tests of cache, scheduler, sessions and engine client, or those that `--tests` names,",
        "until the first failure. Times are those of the whole run, the start of pytest included.",
        "Each row is the last run of its bug: `on` is the day of the run, whose code it tests.",
        "",
        f"Of {len(MUTANTS)} bugs, {len(tried)} were planted, {caught} of them caught.",
        "",
        "| in | bug | caught by | seconds | on |",
        "|---|---|---|---:|---|",
    ]
    for mutant, result in tried:
        test = f"`{result['caught_by']}`" if result["caught_by"] else NOTHING
        path = mutant.path.removeprefix("engine/")
        cells = [path, mutant.name, test, f"{result['seconds']:.1f}", result["on"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
