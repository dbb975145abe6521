"""The commands that the documentation names, in blocks and in the code of its prose."""

import re
from collections.abc import Iterator

from tests.support.fenced_blocks import ROOT, find_pages

PAGES = find_pages()
TEXTS = {page: (ROOT / page).read_text("utf-8") for page in PAGES}


def find_commands(text: str, program: str) -> Iterator[str]:
    """Yield the commands of blocks, and of code in the prose, that begin with `program`."""
    joined = re.sub(r" *\\\n *", " ", text)
    for found in re.finditer(rf"^(?:\.venv/bin/)?({program} [^#\n]*)", joined, re.MULTILINE):
        yield found[1].strip()
    for found in re.finditer(rf"(?<!`)`(?:\.venv/bin/)?({program} [^`]+)`", text):
        yield found[1]


def find_all(program: str) -> list[str]:
    """Return the commands of all pages that begin with `program`, each once."""
    found = (one for text in TEXTS.values() for one in find_commands(text, program))
    return sorted({" ".join(command.split()) for command in found})
