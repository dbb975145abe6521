"""Write evidence/tool-formats.md: the calls that each chat template writes, and whether they come
back.

Takes half a minute. With --check, only exit with 1 if the page has not one row for each template
and one column for each sample: the tests read the calls again, and compare.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.support.tool_round_trips import (
    AMBIGUOUS,
    FORMATS,
    FORMS,
    NAMES,
    REWRITTEN,
    comes_back,
    form_comes_back,
)

PAGE = Path(__file__).parent.parent / "evidence/tool-formats.md"
CUTS = 20
"""Number of times that each output is cut at random places."""
SIGNS = {True: "yes", False: "no", None: "refused"}
FORM_SIGNS = {**SIGNS, None: "other"}
Results = dict[tuple[str, str], str]
"""Signs by template and sample, or form."""
_INTRODUCTION = """\
# Tool formats

<!-- Written by `python -m tools.write_tool_formats`. -->

Each chat template of the tests writes the same calls, as if its model had written them earlier.
The server reads their ids as the output of a model: whole, token by token, and {cuts} times cut at
random places.

- *yes*: the calls come back with the same arguments. If you send them back in the next request,
  they have the same ids as the output, so that its KV is reused.
- *no*: they do not, for a reason below the table.
- *refused*: the template refuses the conversation.

The last column has an argument with all control tokens of the template.

"""
_FORMS = """\
## Forms of JSON

A model may write the same arguments in several forms of JSON. The server hands them to you as they
are, and renders them as you send them back.

- *yes*: rendered again, they have the ids of the output.
- *no*: they do not, for the reason below the table.
- *other*: the template does not write such a value as JSON.

The forms, as arguments or, where a template writes them one by one, as the value of one:

"""


def write_page(results: Results) -> str:
    """Write the page. Raises KeyError if a result is missing."""
    reasons = [f"- `{name}`, {sample}: {why}." for (name, sample), why in AMBIGUOUS.items()]
    forms = [f"- {name}: `{''.join(form)}`".replace("\n", "⏎") for name, form in FORMS.items()]
    lines = [_INTRODUCTION.format(cuts=CUTS), *_write_table(results, NAMES), "", *reasons, ""]
    lines += [_FORMS + "\n".join(forms), "", *_write_table(results, tuple(FORMS)), ""]
    return "\n".join([*lines, f"- {REWRITTEN[0]}: {REWRITTEN[1]}.", ""])


def _write_table(results: Results, columns: Sequence[str]) -> list[str]:
    rows = [[f"`{name}`", *(results[name, column] for column in columns)] for name in FORMATS]
    lines = [["template", *columns], ["---"] * (len(columns) + 1), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def read_page() -> Results:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("|")
    ]
    results: Results = {}
    names: list[str] = []
    for row in rows:
        if row[0] == "template":
            names = row[1:]
        for name, cell in zip(names, row[1:], strict=True):
            results[row[0].strip("`"), name] = cell
    return results


def measure() -> Results:
    random = Random(1)
    samples = {
        (family, name): SIGNS[comes_back(family, name, random, CUTS)]
        for family in FORMATS
        for name in NAMES
    }
    forms = {
        (family, name): FORM_SIGNS[form_comes_back(family, name)]
        for family in FORMATS
        for name in FORMS
    }
    return samples | forms


def is_complete() -> bool:
    """Whether the page has all results."""
    try:
        return write_page(read_page()) == PAGE.read_text("utf-8")
    except KeyError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if not parser.parse_args().check:
        PAGE.write_text(write_page(measure()), "utf-8")
    elif not is_complete():
        sys.exit(f"evidence/{PAGE.name} is out of date: run python -m tools.write_tool_formats")


if __name__ == "__main__":
    main()
