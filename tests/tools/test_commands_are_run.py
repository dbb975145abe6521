"""Each command that the Makefile, its help or the documentation names is run: by CI, by a test, or
in a small form by tests/tools/test_small_forms.py.
"""

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator

import pytest

from continuo.bench.main import BENCHES
from tests.clients import test_documented_commands as commands
from tests.support.documented_commands import find_all, find_commands
from tests.support.fenced_blocks import ROOT
from tests.tools import test_fenced_blocks as fenced_blocks
from tests.tools import test_small_forms as small_forms

PROGRAMS = ("make", "npm", "python", "continuo")
GROUPS = ("bench", "config", "store", "tenant")
"""Commands of `continuo` that have commands of their own."""
RULE = re.compile(r"^([^\s#:=][^:=\n]*):(?!=)([^\n]*)\n((?:\t[^\n]*\n)*)", re.MULTILINE)
WORDS_MIN = 3
"""Words of a reason why a command is not run."""

NOT_RUN = {
    "make upstream": "it downloads vLLM, and builds llama-server from its sources",
}
COMMAND = "tests/clients/test_command.py"
CONFIG = "tests/realtime/server/config/test_check_config.py"
SMALL = "tests/tools/test_small_forms.py"
TESTS = {
    "continuo --help": f"{COMMAND}::test_help_lists_the_commands",
    "continuo bench": "tests/bench/test_workloads.py::test_every_workload_has_a_smoke_run",
    "continuo config check": f"{CONFIG}::test_check_exits_with_1_if_there_is_an_error",
    "continuo config print": f"{CONFIG}::test_print_names_the_origin_of_every_option",
    "continuo models": f"{COMMAND}::test_models_lists_the_bundled_model",
    "python hello.py": "tests/clients/test_documented_programs.py::test_program_runs_as_a_file",
    "make demo": "tests/clients/test_documented_commands.py::demo",
    "make attack": f"{SMALL}::test_make_attack",
    "make format": f"{SMALL}::test_make_format",
    "make release": f"{SMALL}::test_make_release",
    "make clean": f"{SMALL}::test_make_clean",
    "npm run pack:client": f"{SMALL}::test_npm_run_pack_client",
    "npm run screenshots": f"{SMALL}::test_npm_run_screenshots",
}
"""The test that runs each command."""


def subjects_of(command: str) -> Iterator[str]:
    """Yield what a command runs, without options: each target of make, a module, a script of npm,
    or a command of `continuo` with its action."""
    match shlex.split(command):
        case ["make", *words]:
            yield from (f"make {word}" for word in words if "=" not in word and word[0] != "-")
        case ["python", "-m", module, *_]:
            yield f"python -m {module}"
        case ["python", "-m"] | ["continuo", "bench" | "config" | "store" | "tenant"]:
            return  # any module, or all actions
        case ["npm", *words] if "run" in words:
            scripts = [word for word in words[words.index("run") + 1 :] if word[0] != "-"]
            yield f"npm run {scripts[0]}"
        case ["continuo", group, action, *_] if group in GROUPS and action[0].islower():
            yield f"continuo {group} {action}"
        case [program, first, *_]:
            yield f"{program} {first}"
        case words:
            raise ValueError(words)


def documented() -> set[str]:
    return {
        subject
        for program in PROGRAMS
        for command in find_all(program)
        for subject in subjects_of(command)
    }


# ---------------------------------------------------------------- what runs them


def read_rules() -> dict[str, tuple[list[str], str]]:
    """Return the prerequisites and the recipe of each target of the Makefile."""
    rules: dict[str, tuple[list[str], str]] = {}
    for names, prerequisites, recipe in RULE.findall((ROOT / "Makefile").read_text("utf-8")):
        for name in names.split():
            before = rules.get(name, ([], ""))
            rules[name] = (before[0] + prerequisites.split(), before[1] + recipe)
    del rules[".PHONY"]
    return rules


RULES = read_rules()


def targets_in(line: str) -> list[str]:
    return [word for word in line.split() if word in RULES]


def made_by(targets: Iterable[str]) -> set[str]:
    """Return these targets and all that they make."""
    made: set[str] = set()
    waiting = list(targets)
    while waiting:
        target = waiting.pop()
        if target not in made:
            made.add(target)
            prerequisites, recipe = RULES[target]
            waiting += [each for each in prerequisites if each in RULES]
            lines = recipe.replace("\\\n", " ").splitlines()
            waiting += [each for line in lines if "$(MAKE)" in line for each in targets_in(line)]
    return made


def run_by_ci() -> dict[str, str]:
    """Return the targets that .ci/run makes."""
    lines = (ROOT / ".ci/run").read_text("utf-8").splitlines()
    made = made_by(
        target for line in lines if line.startswith("make ") for target in targets_in(line)
    )
    return {f"make {target}": ".ci/run" for target in made}


def run_by_recipes(run: Iterable[str]) -> dict[str, str]:
    """Return the modules and files that the recipes of these targets run."""
    found: dict[str, str] = {}
    for subject in run:
        _, recipe = RULES.get(subject.removeprefix("make "), ([], ""))
        for module, file in re.findall(r"/python (?:-m (\S+)|(\S+\.py))", recipe):
            found[f"python -m {module}" if module else f"python {file}"] = subject
    return found


def run_in_blocks() -> dict[str, str]:
    """Return what the fenced blocks run that a test runs. Blocks of `make` are not run there."""
    return {
        subject: test
        for test, blocks in fenced_blocks.RUN.items()
        for block in blocks
        if block.language in ("", "sh") and block not in commands.MAKES
        for program in PROGRAMS
        for command in find_commands(block.text, program)
        for subject in subjects_of(command)
    }


MADE = {**run_by_ci(), **dict.fromkeys(small_forms.FORMS, SMALL), **TESTS}
RUN = {
    **{f"continuo bench {name}": "tests/bench/test_workloads.py" for name in BENCHES},
    **run_in_blocks(),
    **run_by_recipes(MADE),
    **MADE,
}
"""The runner of each command. tests/bench/test_workloads.py has a run of every workload."""


def unrun(subjects: Iterable[str]) -> list[str]:
    return sorted(subject for subject in subjects if subject not in RUN and subject not in NOT_RUN)


def help_of_make() -> str:
    return subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def of_help() -> set[str]:
    """Return what the output of `make help` names, examples included."""
    found = re.findall(r"(?m)^make \S+|(?<=\()make [^)\n]*|(?<=: )make .*", help_of_make())
    return {subject for command in found for subject in subjects_of(command)}


def test_every_documented_command_is_run() -> None:
    assert len(documented()) > 50
    assert unrun(documented()) == []


def test_every_command_of_make_help_is_run() -> None:
    assert len(of_help()) > 15
    assert unrun(of_help()) == []


def test_every_target_of_the_makefile_is_run() -> None:
    assert len(RULES) > 25
    assert unrun(f"make {target}" for target in RULES) == []


@pytest.mark.parametrize(
    ("planted", "missing"),
    [
        ("Run `make coffee` first.", ["make coffee"]),
        ("```sh\n.venv/bin/python -m tools.brew --hot\n```", ["python -m tools.brew"]),
        ("`npm --prefix web run brew`", ["npm run brew"]),
        (
            "`continuo store burn FILE` and `continuo brew`",
            ["continuo brew", "continuo store burn"],
        ),
        ("`make test ARGS='-k brew'`", []),
    ],
)
def test_command_that_nothing_runs_is_reported(planted: str, missing: list[str]) -> None:
    found = [command for program in PROGRAMS for command in find_commands(planted, program)]
    assert unrun(subject for command in found for subject in subjects_of(command)) == missing


def test_target_that_ci_does_not_make_is_not_run_by_it() -> None:
    assert made_by(["check"]) >= {"check-format", "docs", "$(BIN)/python"}
    assert not made_by(["check", "test", "quick"]) & {"fuzz", "release", "demo"}


def test_every_test_in_the_table_exists() -> None:
    for subject, test in TESTS.items():
        file, _, name = test.partition("::")
        source = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^(?:async )?def {name}\(", source, re.MULTILINE), test
        assert re.split(r"[ :]", subject)[-1] in source or subject.endswith(".py"), subject


def test_tables_name_only_documented_commands() -> None:
    named = documented() | of_help() | {f"make {target}" for target in RULES}
    assert sorted({*TESTS, *small_forms.FORMS, *NOT_RUN} - named) == []


def test_commands_that_are_not_run_have_a_reason() -> None:
    assert all(len(reason.split()) >= WORDS_MIN for reason in NOT_RUN.values())
    assert sorted(NOT_RUN.keys() & RUN.keys()) == []
