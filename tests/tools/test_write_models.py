"""Tests of the generated parts of the pages on models."""

import pytest

from tools.write_models import DOCS, PARTS, write_page


@pytest.mark.parametrize("name", PARTS)
def test_generated_parts_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == write_page(name)
    for lines in PARTS[name].values():
        assert "\n".join(lines) in write_page(name)
