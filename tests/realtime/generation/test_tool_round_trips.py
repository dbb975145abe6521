"""The calls that a chat template writes come back through decoder and parser, whole and in pieces;
`evidence/tool-formats.md` has the whole table."""

from random import Random

import pytest

from tests.support.checkpoints import PUBLISHED
from tests.support.tool_round_trips import AMBIGUOUS, FORMATS, NAMES, comes_back
from tools.write_tool_formats import SIGNS, is_complete, read_page

CUTS = 3


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in PUBLISHED else name for name in FORMATS],
)
def test_calls_come_back_as_the_page_says(name: str) -> None:
    random, page = Random(name), read_page()
    for sample in NAMES:
        found = comes_back(name, sample, random, CUTS)
        assert SIGNS[found] == page[name, sample], sample
        assert (found is False) == ((name, sample) in AMBIGUOUS), sample


def test_page_has_every_template_and_sample() -> None:
    assert is_complete()
