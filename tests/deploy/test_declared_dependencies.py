"""The dependencies that pyproject.toml declares are those that the product imports: neither is one
missing, which an environment with other packages would hide, nor is one superfluous.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.deploy.stack import ROOT

PACKAGES = ("engine", "realtime", "bench", "continuo/client")
OTHER_ENVIRONMENTS = ROOT / "bench/competitors"
"""Programs that run in the environments of other engines."""
OF_A_DEPENDENCY = {"triton": "torch"}
"""Distributions that a dependency brings along: its build for CUDA, where alone we import them."""
PLUGINS = {"hiredis": "redis", "httptools": "uvicorn"}
"""Distributions that another one imports if they are installed."""


def normalize(requirement: str) -> str:
    """Return the name of a distribution as package indexes compare it."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def declared() -> tuple[set[str], set[str]]:
    """Return what an installation has, and what the extras for users add to it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = [requirement for extra in ("otel", "bench") for requirement in extras[extra]]
    return {*map(normalize, project["dependencies"])}, {*map(normalize, optional)}


def imports(body: ast.AST, *, is_deferred: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the packages that a module imports, and whether only a function or a type checker
    imports them."""
    for node in ast.iter_child_nodes(body):
        if isinstance(node, ast.Import):
            yield from ((name.name.partition(".")[0], is_deferred) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield node.module.partition(".")[0], is_deferred
        else:
            deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.If | ast.Try)
            yield from imports(node, is_deferred=is_deferred or deferred)


def imported() -> dict[tuple[frozenset[str], bool], list[Path]]:
    """Return the distributions of the packages that the product imports, any of which may be the
    one declared, and the modules that import them; whether these do so later."""
    distributions = packages_distributions()
    found: dict[tuple[frozenset[str], bool], list[Path]] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if path.is_relative_to(OTHER_ENVIRONMENTS):
                continue
            for name, is_deferred in imports(ast.parse(path.read_text())):
                if name != "continuo" and name not in sys.stdlib_module_names:
                    names = frozenset(map(normalize, distributions.get(name, [name])))
                    found.setdefault((names, is_deferred), []).append(path)
    return found


def test_what_is_imported_is_declared() -> None:
    """A module that imports an extra does so in a function, so that it can do without."""
    required, optional = declared()
    for (names, is_deferred), modules in imported().items():
        known = required | {name for name, of in OF_A_DEPENDENCY.items() if of in required}
        if is_deferred or all(module.is_relative_to(ROOT / "bench") for module in modules):
            known |= optional
        assert names & known, f"{sorted(names)} is imported by {modules[0]}, and not declared"


def test_what_is_declared_is_imported() -> None:
    required, optional = declared()
    used = {name for names, _ in imported() for name in names}
    used |= {name for name, of in PLUGINS.items() if of in used}
    assert required | optional <= used
