"""The check of prose finds what is planted for each of its rules, and accepts clean text."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import check_prose
from tools.check_prose import CODE_WORDS_MAX, PAGE_WORDS_MAX, ROOT, Finding

EXPLAINED = frozenset({"KV"})
CLEAN_PAGE = """# Sessions

You open a session over HTTP. The client wants a KV cache that nobody else can read: for example,
`client.open("powerful")` tells the engine who you are ([more](other.md#ABC)). A page in LRU (least
recently used) order is evicted first; the LRU list is kept by the engine.
Multi-head latent attention (MLA) has MLA layers.

| term | meaning |
|---|---|
| XYZ | a table explains no abbreviation and checks none |

- One item: the user speaks.
- Another item: the user is heard.

<!-- not run: XYZ -->
```python
powerful = "XYZ"

powerful = "XYZ"
```

    WS /v1/realtime?model=NAME
"""
CLEAN_MODULE = '''"""Close a session that nobody wants any more.

    free  |  tree  |  leased     a drawing, which may be as long as it likes, is no sentence

Returns None if the page is not in the tree.
"""

LIMIT_S = 1.0
"""All seconds that a client may speak before it is heard."""
ROWS = lambda: "It is no docstring"  # a lambda has a body, too
# One comment goes on
# in the next line.
'''


def words(count: int) -> str:
    """Return a sentence of `count` words."""
    return " ".join(["Each", *["word"] * (count - 2), "ends."])


def find(file: str, text: str) -> list[Finding]:
    return list(check_prose.findings_of(file, text, EXPLAINED))


def test_clean_page_and_module_pass() -> None:
    assert find("page.md", CLEAN_PAGE) == []
    assert find("module.py", CLEAN_MODULE) == []


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        ("A seamless session.", "hype"),
        ("## Blazingly quick", "hype"),
        ("| cache | State-of-the-art |", "hype"),
        ("Look into /home/jane/docs first.", "path"),
        ("```sh\ncat /home/jane/notes\n```", "path"),
        ("| log | `/home/jane/log` |", "path"),
        (words(PAGE_WORDS_MAX + 1), "sentence"),
        (words(PAGE_WORDS_MAX).removesuffix(".") + ",\nand `some code`.", "sentence"),
        ("Pages are kept in LRU order.", "abbreviation"),
        ("The KV of an SSM\nlayer.", "abbreviation"),
    ],
)
def test_plant_on_a_page_is_found_in_its_line(plant: str, problem: str) -> None:
    before = "First line.\n\n```text\ntwo\n```\n\n"
    (found,) = find("page.md", f"{before}{plant}\n\nLast line.\n")
    assert problem in found.problem
    assert 7 <= found.line <= 8


@pytest.mark.parametrize(
    ("plant", "line", "problem"),
    [
        ('"""It closes a session."""\n', 1, "pronoun"),
        ('X = 1\n"""What a client wants."""\n', 2, "pronoun"),
        ('def f() -> None:\n    """Return a powerful turn."""\n', 2, "hype"),
        ("x = 1\n# A cutting-edge\n# cache.\n", 2, "hype"),
        ("x = 1  # from /root/models\n", 1, "path"),
        (f'"""Begin.\n\n{words(CODE_WORDS_MAX + 1)}\n"""\n', 3, "sentence"),
        (f"# Both {'word ' * 22}\n# and {'word ' * 22}\n", 1, "sentence"),
    ],
)
def test_plant_in_a_module_is_found_in_its_line(plant: str, line: int, problem: str) -> None:
    (found,) = find("module.py", plant)
    assert found.line == line
    assert problem.replace("pronoun", "begins with") in found.problem


def test_long_list_of_parameters_is_no_long_sentence() -> None:
    lines = "\n".join(f"    name{number}: one two three four five" for number in range(20))
    assert find("module.py", f'"""Begin.\n\nArgs:\n{lines}\n"""\n') == []


def test_comments_beside_code_are_sentences_of_their_own() -> None:
    comment = "# " + "word " * 30
    assert find("module.py", f"x = 1  {comment}\ny = 2  {comment}\n") == []


def test_stray_backtick_hides_no_later_paragraph() -> None:
    (found,) = find("page.md", "A ` alone.\n\nA powerful `x`.\n")
    assert found.text == "powerful"


def test_glossary_explains_the_terms_of_its_first_column() -> None:
    table = "| term | meaning |\n|---|---|\n| KV, TTL | of each ABC |\n"
    assert check_prose.explained_in(table) == {"KV", "TTL"}


def test_figures_are_words_per_thousand(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("You say, for example, that\n`which code` counts once. " + "word " * 192)
    assert check_prose.figures_line("page", [str(page)]) == (
        "page:    200 words; per thousand  5.0 you  5.0 relative words  5.0 for example"
    )


@pytest.mark.parametrize(
    ("subject", "merged", "problems"),
    [
        ("area: " + "x" * 67, "area: bring what was merged", 1),
        ("area: " + "x" * 66, "Merge branch 'other' into main", 1),
        ("area: " + "x" * 66, "area: bring what was merged", 0),
    ],
)
def test_subjects_of_commits(
    subject: str, merged: str, problems: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=Tester", "-c", "user.email=tester@example.org")
        subprocess.run(("git", *identity, *arguments), cwd=tmp_path, check=True)

    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # set in a hook, where they name the repository of the hook
    git("init", "--quiet", "--initial-branch", "main")
    git("commit", "--quiet", "--allow-empty", "--message", "area: begin")
    git("tag", "begin")
    git("switch", "--quiet", "--create", "other")
    git("commit", "--quiet", "--allow-empty", "--message", subject)
    git("switch", "--quiet", "main")
    git("merge", "--quiet", "--no-ff", "--message", merged, "other")
    monkeypatch.setattr(check_prose, "ROOT", tmp_path)
    monkeypatch.setattr(check_prose, "BASE", "begin")
    monkeypatch.setattr(check_prose, "NAMED_MERGES", "begin")
    assert len(list(check_prose.subject_problems())) == problems


def test_clone_without_the_first_commits_has_no_subject_to_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_prose, "BASE", "0" * 40)
    assert list(check_prose.subject_problems()) == []


@pytest.mark.parametrize(("text", "status"), [("A powerful page.\n", 1), ("A page.\n", 0)])
def test_command_exits_with_1_if_a_file_has_an_error(
    text: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "page.md").write_text(text)
    command = (sys.executable, "tools/check_prose.py", str(tmp_path / "page.md"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert f"prose: {status} errors\nprose of the how-to pages: " in done.stdout
