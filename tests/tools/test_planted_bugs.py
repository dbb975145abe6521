"""The bugs of the mutation check can still be planted. Whether each is caught is for
`python -m tools.mutation` to say; docs/mutations.md has its last answer."""

import ast
from pathlib import Path

import pytest

from tools.mutation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_applies_and_is_still_python(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text()
    planted = mutant.mutate(text)
    assert planted != text
    ast.parse(planted)


def test_each_is_another_bug() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 24
    assert len({(mutant.path, mutant.changes) for mutant in MUTANTS}) == len(MUTANTS)


def test_code_that_has_moved_on_is_reported() -> None:
    mutant = MUTANTS[0]
    with pytest.raises(ValueError, match="has 0 places for this bug, not one"):
        mutant.mutate("something else")
