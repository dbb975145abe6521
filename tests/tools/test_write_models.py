"""Tests of the generated tables of the page on models."""

from tools.write_models import PAGE, PARTS, write_page


def test_generated_parts_are_up_to_date() -> None:
    text = write_page()
    assert PAGE.read_text("utf-8") == text
    for lines in PARTS.values():
        assert "\n".join(lines) in text
