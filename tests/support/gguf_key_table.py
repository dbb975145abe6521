"""evidence/gguf-keys.md: the outcome of each change of a metadata key, in each architecture."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import cast

from tests.support.gguf_key_changes import CHANGES, GUESSES, KINDS, SIZES, Change, Outcome
from tests.support.processes import ROOT

PAGE = ROOT / "evidence" / "gguf-keys.md"
Table = dict[str, dict[Change, Outcome]]
"""Outcomes by architecture. A guessed value that is not in the table is without effect."""
OUTCOMES = "| key | value | beside |"
OTHER_KEYS = "## Keys without effect"
REMOVED = "removed"


def read_table(page: Path = PAGE) -> Table:
    rows = [_cells(line) for line in page.read_text("utf-8").splitlines() if line.startswith("|")]
    if not rows:
        return {}
    (_, _, _, *architectures), _, *changes = rows
    table: Table = {architecture: {} for architecture in architectures}
    for key, value, beside, *outcomes in changes:
        change = Change(key, _parse(value), beside)
        for architecture, outcome in zip(architectures, outcomes, strict=True):
            table[architecture][change] = cast("Outcome", outcome)
    return table


def list_named_keys(page: Path = PAGE) -> set[str]:
    """Return the keys that the page names, in the table or below it."""
    _, _, others = page.read_text("utf-8").partition(OTHER_KEYS)
    changed = {change.key for outcomes in read_table(page).values() for change in outcomes}
    return changed | set(others.partition("```")[2].partition("```")[0].split())


def write_table(table: Table, keys: list[str], page: Path = PAGE) -> None:
    """Write the outcomes and the keys below them. `keys`: all of llama.cpp."""
    architectures = [architecture for architecture in KINDS if architecture in table]
    guesses = {
        change
        for outcomes in table.values()
        for change, outcome in outcomes.items()
        if outcome != "without effect"
    } - {*CHANGES, *SIZES}
    rows = sorted({*CHANGES, *SIZES, *guesses}, key=lambda change: (change.key, _order(change)))
    others = sorted({*keys} - {change.key for change in rows})
    text, _, _ = page.read_text("utf-8").partition(OUTCOMES)
    lines = [
        f"{OUTCOMES} {' | '.join(architectures)} |",
        "|---" * (3 + len(architectures)) + "|",
    ]
    for change in rows:
        cells = [table[name].get(change, "without effect") for name in architectures]
        lines.append(f"| {' | '.join([change.key, _text(change.value), change.beside, *cells])} |")
    lines += [
        "",
        OTHER_KEYS,
        "",
        f"These {len(others)} keys of llama.cpp change nothing in any of the architectures.",
        f"Each was tried with {', '.join(map(_text, GUESSES[:-1]))} and {_text(GUESSES[-1])}.",
        "",
        "<!-- not run: a list of keys -->",
        "```",
        textwrap.fill(" ".join(others), 120, break_on_hyphens=False),
        "```",
    ]
    page.write_text(text + "\n".join(lines) + "\n", "utf-8")


def _order(change: Change) -> tuple[str, int, str]:
    """Order the changes of a key by what is beside, then as they are listed."""
    listed = [*CHANGES, *SIZES]
    place = listed.index(change) if change in listed else len(listed)
    return change.beside, place, _text(change.value)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]


def _text(value: object) -> str:
    return REMOVED if value is None else json.dumps(value)


def _parse(text: str) -> bool | float | str | tuple[object, ...] | None:
    value = None if text == REMOVED else json.loads(text)
    return tuple(value) if isinstance(value, list) else value
