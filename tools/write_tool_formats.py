"""Write evidence/tool-formats.md: the calls that each chat template writes, and whether they come
back.

Takes half a minute. With --check, only exit with 1 if the page has not one row for each template
and one column for each sample: the tests read the calls again, and compare.
"""

import argparse
import sys
from pathlib import Path
from random import Random

from tests.support.tool_round_trips import AMBIGUOUS, FORMATS, NAMES, comes_back

PAGE = Path(__file__).parent.parent / "evidence/tool-formats.md"
CUTS = 20
"""Number of times that each output is cut at random places."""
SIGNS = {True: "yes", False: "no", None: "refused"}
Results = dict[tuple[str, str], str]
"""Signs by template and sample."""
_INTRODUCTION = """\
# Tool formats

<!-- Written by `python -m tools.write_tool_formats`. -->

Each chat template of the tests writes the same calls, as if its model had written them earlier.
The server reads their ids as the output of a model: whole, token by token, and {cuts} times cut at
random places.

- *yes*: the calls come back with the same arguments.
- *no*: they do not, for a reason below the table.
- *refused*: the template refuses the conversation.

The last column has an argument with all control tokens of the template.

"""


def write_page(results: Results) -> str:
    """Write the page. Raises KeyError if a result is missing."""
    rows = [[f"`{name}`", *(results[name, sample] for sample in NAMES)] for name in FORMATS]
    lines = [["template", *NAMES], ["---"] * (len(NAMES) + 1), *rows]
    table = [f"| {' | '.join(cells)} |" for cells in lines]
    reasons = [f"- `{name}`, {sample}: {why}." for (name, sample), why in AMBIGUOUS.items()]
    return "\n".join([_INTRODUCTION.format(cuts=CUTS), *table, "", *reasons, ""])


def read_page() -> Results:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("|")
    ]
    names = rows[0][1:]
    return {
        (row[0].strip("`"), name): cell
        for row in rows[2:]
        for name, cell in zip(names, row[1:], strict=True)
    }


def measure() -> Results:
    random = Random(1)
    return {
        (family, name): SIGNS[comes_back(family, name, random, CUTS)]
        for family in FORMATS
        for name in NAMES
    }


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
