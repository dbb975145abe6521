"""Tests of the planted bugs: each still applies to the code.

`python -m tools.mutation` tests that each is caught; evidence/mutations.md has its last result.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.mutation.__main__ import TABLE, TESTS, copy_tree, read_table, render_table
from tools.mutation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_applies_and_parses(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text()
    planted = mutant.mutate(text)
    assert planted != text
    ast.parse(planted)


def test_every_test_that_runs_against_the_bugs_exists() -> None:
    assert [path for path in TESTS if not (ROOT / path).exists()] == []


@pytest.mark.process
def test_copy_imports_its_own_code(tmp_path: Path) -> None:
    """Otherwise the tests would run without the bug."""
    tree = copy_tree(tmp_path)
    program = "import continuo.engine, tests; print(continuo.engine.__file__, tests.__path__[0])"
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [str(tree / "continuo/engine/__init__.py"), str(tree / "tests")]


def test_planted_bugs_are_distinct() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 24
    assert len({(mutant.path, mutant.changes) for mutant in MUTANTS}) == len(MUTANTS)


def test_table_can_be_read_and_counts_the_bugs() -> None:
    text = TABLE.read_text()
    assert render_table(read_table(text)) == text


def test_planted_bug_that_does_not_apply_raises() -> None:
    mutant = MUTANTS[0]
    with pytest.raises(ValueError, match="has 0 places for this bug, not one"):
        mutant.mutate("something else")
