"""Check docstrings, comments and pages of the documentation, and the subjects of commits.

Errors are hype, paths of one machine, long sentences, docstrings that begin with a pronoun, and
abbreviations that neither their page nor docs/glossary.md explains. Code and tables are left out,
but hype is an error in tables too, and a path of one machine anywhere. `--figures` prints how often
pages say "you", "for example" and relative words, which are no errors.
"""

import argparse
import ast
import inspect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = "docs/glossary.md"
BASE = "c807a00f5d84"
"""Last commit whose subject is not checked; later commits must have short subjects."""
NAMED_MERGES = "bea53205a962"
"""Last commit up to which a merge may have the subject that git gives it."""
SUBJECT_CHARS_MAX = 72
CODE_WORDS_MAX = 45
PAGE_WORDS_MAX = 60
"""Words of a sentence: in a docstring or comment, and on a page. Lower them as prose improves."""

HYPE = re.compile(
    r"(?i)\b(?:(?:blazing|seamless|effortless)(?:ly)?|powerful|revolutionary|supercharged?|turnkey"
    r"|unparalleled|unleash(?:es)?|(?:cutting|bleeding)[- ]edge|lightning[- ]fast|game[- ]changing"
    r"|state[- ]of[- ]the[- ]art|(?:world|best[- ]in)[- ]class|enterprise[- ]grade)\b"
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root/|home/(?!continuo\b)\w|work/)[\w./-]*")
PRONOUN = re.compile(r"(?i)(?:it|its|this|these|those|that|they|there|we|who|what|whatever)\b")
ABBREVIATION = re.compile(r"(?<![\w/.-])[A-Z]{2,4}(?=s?\b)(?![/.]\w)")
FAMILIAR = (
    "AI AMD API CI CPU CRC CUDA DNS EPYC GB GCC GLM GPU HTML HTTP IP JSON KB LFM LLM LM MB PEP PING"
    " PNG POST RAM RFC SDK SHA SQL SVG TCP TLS TOML URL UTC UTF YAML"
)
"""Abbreviations, and names such as those of models, that every reader of the pages knows."""
BRANCHES = re.compile(
    r"Merge (?:remote-tracking )?(?:branch|commit|tag|pull request)\b|Merge \S+ into "
)

FENCED_CODE = re.compile(r"^[ >]*(`{3,}|~{3,}).*?^[ >]*\1[`~]*[ ]*$", re.MULTILINE | re.DOTALL)
INDENTED_CODE = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
CODE_SPAN = re.compile(r"(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\1(?!`)", re.DOTALL)
HTML = re.compile(r"<!--.*?-->|</?[a-z][^<>]*>", re.DOTALL)
TABLE = re.compile(r"^ *\|.*$|^.*\S {2,}\S.*$|^.*[│├└─┌].*$", re.MULTILINE)
"""Rows of tables; lines of columns and drawings."""
LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
BREAK = re.compile(
    r"\n(?=\s*\n)"  # the end of a paragraph
    r"|\n(?=\s*(?:[-*+#]+|\d+\.) )"  # before a heading or the item of a list
    r"|\n(?=(?: {4})?\*{0,2}\w+(?:, \w+)*: )"  # before a parameter of `Args:`
    r"|(?<=[.!?])[\"”)*]*\s+(?=[\"“(*]*[A-Z0-9`])"  # the end of a sentence
)

FIGURES = {
    "you": re.compile(r"(?i)\byour?(?:s|self)?\b"),
    "relative words": re.compile(r"(?i)\b(?:that|which|what)\b"),
    "for example": re.compile(r"(?i)\bfor example\b"),
}


class Finding(NamedTuple):
    file: str
    line: int
    text: str
    problem: str


def findings_of(file: str, text: str, explained: frozenset[str]) -> Iterator[Finding]:
    """Yield the errors in a page or Python file. `explained`: abbreviations of the glossary."""
    if file.endswith(".md"):
        yield from misleading(file, 1, text, PAGE_WORDS_MAX)
        yield from unexplained(file, text, explained)
        return
    for line, comment in comments(text):
        yield from misleading(file, line, comment, CODE_WORDS_MAX)
    for line, docstring in docstrings(text):
        yield from misleading(file, line, docstring, CODE_WORDS_MAX)
        if found := PRONOUN.match(docstring):
            problem = f"begins with {found.group()!r}: name the subject"
            yield Finding(file, line, docstring.partition("\n")[0], problem)


def misleading(file: str, line: int, text: str, words_max: int) -> Iterator[Finding]:
    """Yield the hype, paths of one machine and long sentences of `text`, which begins at `line`."""
    prose = prose_of(text)
    yield from matches(file, line, without_code(text), HYPE, "hype: say what it does")
    yield from matches(file, line, text, MACHINE_PATH, "a path of one machine")
    yield from long_sentences(file, line, prose, words_max)


def matches(
    file: str, line: int, text: str, pattern: re.Pattern[str], problem: str
) -> Iterator[Finding]:
    """Yield a finding for each match of `pattern` in `text`, which begins at `line`."""
    for found in pattern.finditer(text):
        yield Finding(file, line + text.count("\n", 0, found.start()), found.group(), problem)


def long_sentences(file: str, line: int, prose: str, words_max: int) -> Iterator[Finding]:
    """Yield the sentences of `prose`, which begins at `line`, of more than `words_max` words."""
    for offset, sentence in sentences(prose):
        if (words := count_words(sentence)) > words_max:
            begin = " ".join(sentence.split()[:12]) + " …"
            problem = f"a sentence of {words} words; the limit is {words_max}: split it"
            yield Finding(file, line + prose.count("\n", 0, offset), begin, problem)


def unexplained(file: str, page: str, explained: frozenset[str]) -> Iterator[Finding]:
    """Yield the first use of each abbreviation that neither the glossary nor the page explains.

    A page explains it as `LRU (least recently used)` or `least recently used (LRU)`.
    """
    prose = prose_of(page)
    met = {*FAMILIAR.split(), *explained}
    for found in ABBREVIATION.finditer(prose):
        word = found.group()
        if word not in met and not re.search(rf"\b{word} \([a-z]|[a-z] \({word}\)", prose):
            problem = f"explain this abbreviation here, or in {GLOSSARY}"
            yield Finding(file, 1 + prose.count("\n", 0, found.start()), word, problem)
        met.add(word)


def explained_in(glossary: str) -> frozenset[str]:
    """Return the abbreviations in the first column of the tables of `glossary`."""
    cells = re.findall(r"^\| (.*?) \|", glossary, re.MULTILINE)
    return frozenset(ABBREVIATION.findall(" ".join(cells)))


def prose_of(text: str) -> str:
    """Return `text` without code and tables, with links as their text. Lines keep their numbers."""
    return LINK.sub(r"\1", _replace(TABLE, "", without_code(text)))


def without_code(text: str) -> str:
    """Return `text` without code and HTML; a code span becomes one word."""
    text = _replace(CODE_SPAN, "`x`", _replace(FENCED_CODE, "", text))
    return _replace(HTML, "", _replace(INDENTED_CODE, "", text))


def _replace(pattern: re.Pattern[str], word: str, text: str) -> str:
    """Replace each match of `pattern` with `word` and the line breaks of the match."""
    return pattern.sub(lambda found: word + "\n" * found[0].count("\n"), text)


def sentences(prose: str) -> Iterator[tuple[int, str]]:
    """Yield offset and text of each sentence, heading and item of a list."""
    begin = 0
    for end, next_begin in [*(found.span() for found in BREAK.finditer(prose)), (len(prose), 0)]:
        sentence = prose[begin:end].lstrip()
        yield end - len(sentence), sentence
        begin = next_begin


def count_words(text: str) -> int:
    """Count the words of `text` that have a letter or digit."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstrings of modules, classes, functions and variables."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)  # that of a lambda is no list
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, inspect.cleandoc(text)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the comments; those of consecutive lines are one."""
    first, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != first + len(lines) or not token.line.lstrip().startswith("#"):
            yield first, "\n".join(lines)
            first, lines = token.start[0], []
        lines.append(token.string.lstrip("#: "))
    yield first, "\n".join(lines)


def subject_problems() -> Iterator[str]:
    """Yield the subjects of commits that are too long, and those of merges that name branches."""
    with suppress(subprocess.CalledProcessError):  # a shallow clone lacks the first commits
        for line in git("log", "--no-merges", "--format=%s", f"{BASE}..HEAD"):
            if len(line) > SUBJECT_CHARS_MAX:
                yield f"commit subject over {SUBJECT_CHARS_MAX}: {line}"
        for line in git("log", "--merges", "--format=%s", f"{NAMED_MERGES}..HEAD"):
            if BRANCHES.match(line):
                yield f"the subject of a merge says what it brings: {line}"


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints. Raises CalledProcessError if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def read(file: str) -> str:
    """Return the text of a file of the repository."""
    return (ROOT / file).read_text("utf-8")


def check(files: list[str]) -> int:
    """Print the errors in `files`; without any, in all files and commits. Returns their number."""
    explained = explained_in(read(GLOSSARY))
    problems = [
        f"{found.file}:{found.line}: {found.problem}\n    {found.text}"
        for file in files or git("ls-files", "*.py", "*.md")
        for found in findings_of(file, read(file), explained)
    ]
    problems += [] if files else subject_problems()
    print("\n".join([*problems, f"prose: {len(problems)} errors"]))
    return len(problems)


def figures_line(name: str, pages: list[str]) -> str:
    """Return the figures of `pages` together, in words per thousand, as one line."""
    prose = "\n\n".join(prose_of(read(page)) for page in pages)
    words = count_words(prose)
    line = f"{name}: {words:6,} words; per thousand"
    for key, pattern in FIGURES.items():
        line += f" {1000 * len(pattern.findall(prose)) / max(words, 1):4.1f} {key}"
    return line


def how_to_line() -> str:
    """Return the figures of the pages together that the index lists under "How to"."""
    section = read("docs/README.md").partition("## How to\n")[2].partition("\n## ")[0]
    names = re.findall(r"^- \[.*?\]\((.*?)\)", section, re.MULTILINE)
    return figures_line("prose of the how-to pages", [f"docs/{name}" for name in names])


def main(arguments: list[str]) -> int:
    """Run the command line. Returns the exit status: 1 if there is an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", action="store_true", help="print figures, and check nothing")
    parser.add_argument("files", nargs="*", metavar="FILE", help="default: all files, and commits")
    options = parser.parse_args(arguments)
    if options.figures:
        for page in options.files or git("ls-files", "*.md"):
            print(figures_line(f"{page:55}", [page]))
    errors = 0 if options.figures else check(options.files)
    print(how_to_line())
    return min(errors, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
