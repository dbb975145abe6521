"""Tests of the reference of options in the documentation."""

from continuo.realtime.server.config.options import OPTIONS
from tools.write_configuration import PATH, write


def test_reference_has_every_option_and_is_up_to_date() -> None:
    text = PATH.read_text("utf-8")
    assert text == write()
    assert all(f"| `--{option.name}" in text for option in OPTIONS)
