"""The snippets of docs/recipes.md, with a real server and the bundled model."""

import ast
import inspect
import re
import types
from typing import Any

import pytest

from tests.clients.conftest import KEY, ROOT, Server

PAGE_NAME = "docs/recipes.md"
PAGE = (ROOT / PAGE_NAME).read_text()
RECIPES = re.findall(r"^## (.+?)\n.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
NAMESPACE: dict[str, Any] = {}
"""Names that the snippets define; each may use the imports of those before it."""


@pytest.mark.parametrize(("title", "source"), RECIPES, ids=[title for title, _ in RECIPES])
async def test_recipe_runs_as_it_stands(
    title: str,
    source: str,
    server: Server,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CONTINUO_URL", server.url)
    monkeypatch.setenv("CONTINUO_API_KEY", KEY)
    exec("from continuo.client import connect", NAMESPACE)
    code = compile(source, f"recipe {title!r}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert code.co_flags & inspect.CO_COROUTINE, "the snippet awaits something"
    await types.FunctionType(code, NAMESPACE)()
    shown = capsys.readouterr().out
    assert shown.strip()
    if model == "demo" and title in ("Ask", "Resume in another program", "Edit what was said"):
        assert "Ada" in shown.splitlines()[-1]


def test_every_recipe_has_a_snippet() -> None:
    assert [title for title, _ in RECIPES] == re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
