"""Sleeps in tests. Each guesses how long something takes; new tests wait for the thing itself."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
SLEEPS_MAX = 227
"""Number of sleeps when they were last counted. It only falls."""


def test_number_of_sleeps_in_tests_only_falls() -> None:
    pattern = re.compile(r"\bsleep\((?!0\))")
    count = sum(
        len(pattern.findall(file.read_text("utf-8")))
        for file in TESTS.rglob("*.py")
        if file != Path(__file__)
    )
    assert count <= SLEEPS_MAX
    assert count > SLEEPS_MAX - 10, f"lower SLEEPS_MAX to {count}"
