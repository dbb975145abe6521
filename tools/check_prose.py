"""Check the prose of docstrings and comments, and the subjects of commits.

Usage: python tools/check_prose.py [FILE ...]

A docstring begins with an imperative or a noun phrase: its first word is not a pronoun. Words that
make persons of machines, or that have no meaning in the trade, are refused anywhere. Exceptions are
lines `FILE: TEXT OF THE LINE` in tools/prose_exceptions.txt; an exception that matches no finding
is an error too. Subjects of commits after BASE have at most 72 characters, and those of merges
after NAMED_MERGES say what they bring.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXCEPTIONS = ROOT / "tools" / "prose_exceptions.txt"
CHECKED = ("engine", "realtime", "bench", "tools", "tests")
UNCHECKED = ("tools/check_prose.py", "tools/demo_model/")
"""Prefixes of paths that are not checked: this file, which names the refused words, and the
training recipe of the demo model."""
BASE = "c807a00f5d84"
"""Last commit whose subject is not checked; later commits must have short subjects."""
NAMED_MERGES = "bea53205a962"
"""Last commit up to which a merge may have the subject that git gives it."""
SUBJECT_CHARS_MAX = 72

FIRST_WORDS = re.compile(
    r"(?:who|whose|whom|whoever|nobody|somebody|anybody|everybody|it|its|there|what|whatever|that"
    r"|those|these|this|they|he|we|of|as|so|not|nothing|none|all|one|where|until|up to)\b",
    re.IGNORECASE,
)
BRANCHES = re.compile(
    r"Merge (?:remote-tracking )?(?:branch|commit|tag|pull request)\b|Merge \S+ into "
)
RIDDLES = re.compile(
    r"\b(?:nobody|somebody|whoever|anybody|everybody|farewell|goodbye|hears?|heard|tells?|told"
    r"|speaks?|spoken|forgets?|forgot|forgotten|wishes|wants?|wanted|lets? go|letting go|gives? up"
    r"|goes on|went on|comes? back|came back|stands? (?:there|first|last|behind)|is gone|are gone)"
    r"\b",
    re.IGNORECASE,
)


class Finding(NamedTuple):
    file: str
    line: int
    text: str
    problem: str


def findings_of(file: str, source: str) -> Iterator[Finding]:
    """Yield every breach of a rule in `source`, the text of the Python file `file`."""
    for line, text in docstrings(ast.parse(source)):
        first = text.strip().splitlines()[0] if text.strip() else ""
        if FIRST_WORDS.match(first):
            word = first.split()[0]
            yield Finding(file, line, first, f"begins with {word!r}: name the subject")
        for number, one in enumerate(text.splitlines()):
            yield from riddles(file, line + number, one)
    for line, text in comments(source):
        yield from riddles(file, line, text)


def riddles(file: str, line: int, text: str) -> Iterator[Finding]:
    """Yield a finding if a line has a word that readers would have to puzzle out (see RIDDLES).
    Only the first such word of the line is reported."""
    if found := RIDDLES.search(text):
        yield Finding(file, line, text.strip(), f"{found.group()!r} is no term of the trade")


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of docstrings: of modules, classes, functions, fields and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda | ast.IfExp):
            continue
        for statement in getattr(node, "body", []):
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.lineno, statement.value.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of comments."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def checked_files() -> list[str]:
    """List the tracked Python files to check, relative to the repository."""
    listed = subprocess.run(
        ("git", "ls-files", "--", *(f"{folder}/*.py" for folder in CHECKED)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [file for file in listed.stdout.splitlines() if not file.startswith(UNCHECKED)]


def long_subjects() -> list[str]:
    """List the subjects of commits since BASE that are too long."""
    return [line for line in subjects_since(BASE, "--no-merges") if len(line) > SUBJECT_CHARS_MAX]


def unnamed_merges() -> list[str]:
    """List the subjects of merges since NAMED_MERGES that name only branches."""
    return [line for line in subjects_since(NAMED_MERGES, "--merges") if BRANCHES.match(line)]


def subjects_since(base: str, kind: str) -> list[str]:
    """List the subjects of commits after `base`; none if it is not in the clone."""
    log = subprocess.run(
        ("git", "log", kind, "--format=%s", f"{base}..HEAD"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return log.stdout.splitlines()


def main(files: list[str]) -> int:
    """Check `files` and print every finding. Returns the exit status: 1 if anything is found.

    Without `files`, check all files, the exceptions and the subjects of commits.
    """
    excepted = set(EXCEPTIONS.read_text("utf-8").splitlines()) if EXCEPTIONS.exists() else set()
    used: set[str] = set()
    problems: list[str] = []
    for file in files or checked_files():
        for found in findings_of(file, (ROOT / file).read_text("utf-8")):
            key = f"{file}: {found.text}"
            used.add(key)
            if key not in excepted:
                problems.append(f"{file}:{found.line}: {found.problem}\n    {found.text}")
    if not files:
        unneeded = sorted(line for line in excepted - used if line and not line.startswith("#"))
        problems += [f"prose_exceptions.txt: not needed any more: {line}" for line in unneeded]
        problems += [f"commit subject over {SUBJECT_CHARS_MAX}: {line}" for line in long_subjects()]
        problems += [f"the subject of a merge says what it brings: {x}" for x in unnamed_merges()]
    print("\n".join(problems) or "prose: nothing found")
    if problems:
        print(f"prose: {len(problems)} found")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
