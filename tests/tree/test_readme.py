"""The README: what a newcomer finds on its first screen, and below it."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
FIRST_SCREEN_LINES = 60
FIRST = "\n".join(README.splitlines()[:FIRST_SCREEN_LINES])
BELOW = README.removeprefix(FIRST)


@pytest.mark.parametrize(
    "statement",
    [
        "self-hosted realtime conversation server",
        "**Text only, no audio yet**",
        "**Models**: ",
        "**Hardware**: ",
        "(docs/models.md)",
        "(docs/memory.md)",
        "Clone this repository",
        "\nmake demo ",
        "\nmake test ",
        "Requires Python ",
        "\n.venv/bin/continuo chat\n",
        "\nyou> ",
    ],
)
def test_first_screen_says(statement: str) -> None:
    assert statement in FIRST


def test_first_screen_has_one_picture() -> None:
    assert len(re.findall(r"<img |!\[", FIRST)) == 1
    assert "</picture>" in FIRST


@pytest.mark.parametrize(
    "section", ["The parts", "How it compares", "What it does not do", "Read on"]
)
def test_section_is_below(section: str) -> None:
    assert f"\n## {section}\n" in BELOW


def test_comparison_names_others_and_what_they_do_better() -> None:
    comparison = BELOW.partition("\n## How it compares\n")[2].partition("\n## ")[0]
    assert {"vLLM", "SGLang", "Ollama"} <= set(re.findall(r"\w+", comparison))
    assert "What they do better: " in comparison
