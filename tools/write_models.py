"""Write the generated parts of docs/models.md.

With --check, only exit with 1 if the file differs.
"""

import argparse
import sys
from pathlib import Path

from continuo.engine import KNOWN_ARCHITECTURES

DOCS = Path(__file__).parents[1] / "docs"


def write_page(name: str) -> str:
    """Return the text of a page of docs/ with its generated parts."""
    text = (DOCS / name).read_text("utf-8")
    for part, lines in PARTS[name].items():
        start = f"<!-- Written by `python -m tools.write_models`: {part}. -->\n\n"
        before, found, rest = text.partition(start)
        _, end, after = rest.partition("\n\n")
        if not (found and end):
            sys.exit(f"{name}: expected {start.strip()}, and blank lines around the part after it")
        text = "".join((before, start, "\n".join(lines), end, after))
    return text


def list_architectures() -> list[str]:
    """Return the table of architectures."""
    lines = ["| architecture | models | runs in |", "|---|---|---|"]
    for each in KNOWN_ARCHITECTURES:
        way = f"refused: {each.reason}" if each.way == "refused" else each.way
        lines.append(f"| `{each.name}` | {each.models} | {way} |")
    return lines


PARTS = {"models.md": {"architectures": list_architectures()}}
"""Generated parts by page and name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    is_check = parser.parse_args().check
    for name in PARTS:
        text = write_page(name)
        if not is_check:
            (DOCS / name).write_text(text, "utf-8")
        elif (DOCS / name).read_text("utf-8") != text:
            sys.exit(f"docs/{name} is out of date: run python -m tools.write_models")


if __name__ == "__main__":
    main()
