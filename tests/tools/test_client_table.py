"""The tables of docs/clients.md: each client has a row, and each row says what works."""

import json
import re

from tests.support.fenced_blocks import ROOT

CLIENTS = ROOT / "tests/clients"
PAGE = (ROOT / "docs/clients.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| client, ")
]
NO_CLIENTS = {"typescript", "ws", "zod"}
"""Packages that programs of the tests need besides clients."""


def installed_clients() -> set[str]:
    """Return the packages of the clients that the tests install."""
    pinned = [CLIENTS / "requirements.txt", CLIENTS / "middleware-requirements.txt"]
    text = "\n".join(path.read_text() for path in pinned)
    package = json.loads((CLIENTS / "node/package.json").read_text())
    return {*re.findall(r"^[\w-]+", text, re.MULTILINE), *package["dependencies"]} - NO_CLIENTS


def test_every_client_that_the_tests_install_has_a_row() -> None:
    clients = installed_clients()
    assert clients >= {"openai", "litellm", "@mastra/voice-openai-realtime"}
    named = " ".join(row[0].lower() for row in ROWS)
    assert [name for name in clients if name not in named] == []


def test_every_row_says_what_works() -> None:
    assert len(ROWS) > 25
    assert [row for row in ROWS if len(row) != 4 or not row[0] or not row[1]] == []


def test_every_section_of_a_client_is_in_a_row() -> None:
    sections = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    }
    linked = set(re.findall(r"\]\(#([\w-]+)\)", " ".join(row[0] for row in ROWS)))
    assert sections - linked == {"which-clients-work", "reconnecting-and-resuming"}
