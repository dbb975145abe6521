"""Long or rare commands of the documentation, each in a small form.

Commands that change files run in a copy of the repository, with the packages of this one.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.browser.vitest import needs_chromium
from tests.clients.test_documented_commands import COPY_IGNORES, write_gguf_file
from tests.support.fenced_blocks import ROOT
from tests.support.redis_process import REDIS_SERVER
from tools.demo_model.evaluate_free_use import QUESTIONS

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

needs_redis = pytest.mark.skipif(REDIS_SERVER is None, reason="redis-server is not installed")
needs_npm = pytest.mark.skipif(
    shutil.which("npm") is None or not (ROOT / "web/node_modules").is_dir(),
    reason="npm or the packages of the page are not installed",
)
slow = pytest.mark.slow
OF_MAKE = ("MAKE", "MFLAGS", "ARGS", "ROW", "KIND", "MODEL", "VERSION", "REPOSITORY")
"""Beginnings of the environment variables by which `make test` would change another make."""
BUSY = (0, 2)
"""Statuses of what measures delays, too: a machine with other work has longer ones."""
DELAY = r"\w+: an? (?:99th percentile|stall|first token|answer) "
"""Pattern of the delays that `make attack` may find on such a machine."""
STALL = r"the event loop was blocked|the interpreter lock was held"
"""Pattern of the stalls that `make fuzz` may find on such a machine."""


class Form(NamedTuple):
    command: str
    """`{folder}` stands for the folder of the test."""
    shown: str
    """Pattern that the output contains."""
    marks: tuple[pytest.MarkDecorator, ...] = ()
    statuses: tuple[int, ...] = (0,)


FORMS = {
    "make help": Form("make help", r"(?m)^make clean "),
    "make setup": Form("make setup", ""),
    "make web": Form("make web", "", (needs_npm,)),
    "make fuzz": Form(
        "make fuzz ARGS='--frames 300 --seed 7'",
        rf"(?m)^No fault found\.|^seed \d+: (?:{STALL})",
        statuses=BUSY,
    ),
    "make faults": Form("make faults ROW=F3 ARGS='--seed 1'", r"tests\.faults F3 --seed 1\n"),
    "make soak": Form(
        "make soak ARGS='--minutes 0.05 --seed 7'", r"(?m)^seed 7: gateway 0 ", (needs_redis,)
    ),
    "make worlds": Form("make worlds ARGS='--seed 7 --worlds 2'", r"2 worlds, .*, next seed 9\n"),
    "python -m tools.mutation": Form(
        ".venv/bin/python -m tools.mutation 'a match may exceed its limit'"
        " --tests tests/engine/core/cache/test_radix_tree.py",
        r"its limit: (?:engine/core/cache/test_radix_tree\.py::test_|a run of more than )",
    ),
    "python -m tools.demo_model.evaluate": Form(
        ".venv/bin/python -m tools.demo_model.evaluate --model engine/bundled/demo"
        " --only generated --count 1 --every 40",
        r"\| small talk \| \d+ \(1\) \|",
        (slow,),
    ),
    "python -m tools.demo_model.evaluate_free_use": Form(
        ".venv/bin/python -m tools.demo_model.evaluate_free_use --questions {folder}/two.json",
        r"\| all \| 2 \|",
        (slow,),
    ),
    "python -m tools.demo_model.evaluate_quantization": Form(
        ".venv/bin/python -m tools.demo_model.evaluate_quantization --conversations 1",
        "tokens of the assistant in 1 conversations",
        (slow,),
    ),
    "python -m continuo.bench.competitors.step_times": Form(
        ".venv/bin/python -m continuo.bench.competitors.step_times continuo"
        " {folder}/gguf/demo.gguf --rows 1",
        r"continuo, 1 rows: \d+\.\d\d ms",
    ),
}
"""The small form of each command, run in this repository."""


def run(command: str, folder: Path = ROOT, statuses: tuple[int, ...] = (0,)) -> str:
    """Run a command line. Returns its output; fails if its status is another."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(OF_MAKE)
    }
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode in statuses, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize(
    "form", [pytest.param(form, id=name, marks=form.marks) for name, form in FORMS.items()]
)
def test_small_form(form: Form, tmp_path: Path) -> None:
    if "two.json" in form.command:
        questions = json.loads(QUESTIONS.read_text("utf-8"))[:2]
        (tmp_path / "two.json").write_text(json.dumps(questions))
    if "demo.gguf" in form.command:
        write_gguf_file(tmp_path / "gguf/demo.gguf")
    output = run(form.command.format(folder=tmp_path), statuses=form.statuses)
    assert re.search(form.shown, output), output


def test_make_attack() -> None:
    attack = "make attack ARGS='--minutes 0.01 --phase 1 --only spoilt_frames'"
    output = run(attack, statuses=BUSY)
    assert "| `spoilt_frames` | 1 |" in output
    found = re.findall(r"(?m)^FOUND (.*)", output)
    assert [problem for problem in found if not re.match(DELAY, problem)] == []


# ---------------------------------------------------------------- in a copy


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copied") / "continuo"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*COPY_IGNORES))
    link_packages(folder)
    return folder


def link_packages(folder: Path) -> None:
    for name in (".venv", "web/node_modules"):
        if (ROOT / name).is_dir():
            (folder / name).symlink_to(ROOT / name)


def test_make_format(copied: Path) -> None:
    file = copied / "tools/badly_formatted.py"
    file.write_text("import sys\nimport os\nx = {  'a':1 }\nprint(os, sys, x)\n")
    run("make format", copied)
    assert file.read_text() == 'import os\nimport sys\n\nx = {"a": 1}\nprint(os, sys, x)\n'
    file.unlink()


@needs_npm
def test_npm_run_pack_client(copied: Path) -> None:
    run("npm run pack:client", copied / "web")
    (package,) = (copied / "web/src/client").glob("continuo-client-*.tgz")
    package.unlink()


@slow
@needs_npm
@needs_chromium
@pytest.mark.browser
def test_npm_run_screenshots(copied: Path) -> None:
    run("npm --prefix web run screenshots -- -t 'large screen a long answer'", copied)
    pictures = {path.name for path in (copied / "build/screenshots").iterdir()}
    assert {"answer-start-large-dark.png", "answer-end-large-light.png"} <= pictures


@slow
@needs_npm
def test_make_release(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its `make check`, which CI runs anyway."""
    monkeypatch.setenv("CONTINUO_PREBUILT_HEAD_SIZES", "32")
    identity = "git -c user.name=Ada -c user.email=ada@example.org"
    run(f"git init --quiet && git add --all && {identity} commit --quiet --message all", copied)
    address = "https://git.example.org/ada/continuo"
    run(f"make --assume-old=check release VERSION=99.0.0 REPOSITORY={address}", copied)
    names = sorted(path.name for path in (copied / "dist").iterdir())
    assert [name.partition("99.0.0")[0] for name in names] == [
        "continuo-client-",
        "continuo_server-",
        "continuo_server-",
    ]
    run("git checkout --quiet . && rm -rf .git dist", copied)


def test_make_clean(copied: Path) -> None:
    """The packages here stay: the copy only links to them."""
    made = [copied / name for name in ("build/docs", "dist", ".pytest_cache", ".ruff_cache")]
    for folder in made:
        folder.mkdir(parents=True, exist_ok=True)
    run("make clean", copied)
    assert [path for path in (*made, copied / ".venv") if path.exists()] == []
    assert (ROOT / ".venv/bin/python").exists()
    link_packages(copied)
