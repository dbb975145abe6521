"""The calls that a chat template writes come back through decoder and parser, whole and in pieces,
and are rendered again as they were; `evidence/tool-formats.md` has the whole tables."""

from random import Random

import pytest

from tests.support.checkpoints import PUBLISHED
from tests.support.tool_round_trips import (
    AMBIGUOUS,
    FORMATS,
    FORMS,
    NAMES,
    REWRITTEN,
    comes_back,
    form_comes_back,
)
from tools.write_tool_formats import FORM_SIGNS, SIGNS, is_complete, read_page

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


def test_arguments_in_any_form_of_json_are_rendered_as_they_were_written() -> None:
    page = read_page()
    for name in FORMATS:
        for form in FORMS:
            found = form_comes_back(name, form)
            assert FORM_SIGNS[found] == page[name, form], (name, form)
            assert found is not False or form == REWRITTEN[0], (name, form)


def test_page_has_every_template_and_sample() -> None:
    assert is_complete()
