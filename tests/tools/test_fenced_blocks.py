"""Each fenced block of the documentation is run or checked by a test, or says why it is not; and
the commands, options and metrics that the documentation names exist.
"""

import argparse
import contextlib
import importlib
import io
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from continuo.bench import main as bench
from continuo.realtime.server import cli
from continuo.realtime.server.auth.access_policy import read_keys_file
from continuo.realtime.server.config import options
from tests.clients import test_documented_commands as commands
from tests.clients import test_documented_programs as programs
from tests.clients import test_recipes as recipes
from tests.deploy import test_proxies as proxies
from tests.realtime.protocol import test_protocol_doc as protocol
from tests.support.documented_commands import PAGES, TEXTS, find_all, find_commands
from tests.support.fenced_blocks import ROOT, Block, blocks_in, blocks_of, read_blocks

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
DIRECTIVE = re.compile(r"\{\w+\}$|mermaid$")
"""Languages of what Sphinx reads: `make docs` fails if it cannot."""
WORDS_MIN = 3
"""Words of a reason why a block is not run."""

TOML = blocks_in("toml")
QUOTED = [block for block in blocks_in("python") if block.page == "docs/models.md"]
TYPES = [block for block in blocks_in("ts") if block.page == "web/src/client/README.md"]
RUN = {
    "tests/clients/test_documented_programs.py": programs.PROGRAMS,
    "tests/clients/test_documented_commands.py": [
        *(commands.MAKES + commands.CHATS + commands.TRANSCRIPTS + commands.COMMANDS),
        *(commands.RECIPES + commands.LIBRARY + commands.TALK),
        *(commands.PAGE_SERVERS + commands.PAGES),
        *(commands.ON_SERVER + commands.ON_PAGE + commands.OTHERS),
    ],
    "tests/clients/test_recipes.py": [
        block for block in blocks_in("python") if block.page == recipes.PAGE_NAME
    ],
    "tests/realtime/protocol/test_protocol_doc.py": [
        block for block in blocks_in("json", "sse") if block.page == "docs/protocol.md"
    ],
    "tests/deploy/test_proxies.py": proxies.CONFIGURATIONS,
    "web/tests/client/snippets.test.ts": TYPES,
    "this test": TOML + QUOTED,
}
"""The blocks that each test runs or checks."""


def unclaimed(blocks: list[Block]) -> list[str]:
    """Return the places of the blocks that nothing runs and that give no reason."""
    claimed = {block.name for those in RUN.values() for block in those}
    return [
        block.place
        for block in blocks
        if block.name not in claimed
        and len((block.not_run or "").split()) < WORDS_MIN
        and not DIRECTIVE.match(block.language)
    ]


def test_every_block_is_run_or_says_why_not() -> None:
    assert len(BLOCKS) > 150
    assert unclaimed(BLOCKS) == []


@pytest.mark.parametrize(
    "planted",
    [
        "```ruby\nputs 1\n```",
        "~~~yaml\na: 1\n~~~",
        "- a\n\n  ```json\n  {}\n  ```",
        "```\n$ ls\n```",
    ],
)
def test_block_without_a_test_is_reported(planted: str) -> None:
    def report(page: str) -> list[str]:
        return unclaimed(list(read_blocks("docs/planted.md", page)))

    page = f"# A page\n\n{planted}\n"
    assert len(report(page)) == 1
    fence = re.compile(r"^ *(?:```|~~~).*\n", re.MULTILINE)
    assert report(fence.sub(r"<!-- not run: it needs a cluster -->\n\g<0>", page, 1)) == []
    assert len(report(fence.sub(r"<!-- not run: later -->\n\g<0>", page, 1))) == 1


def test_runners_have_as_many_blocks_as_their_pages() -> None:
    """The runners find their blocks themselves, by patterns of their own."""
    assert len(recipes.RECIPES) == len(RUN["tests/clients/test_recipes.py"])
    assert len(protocol.EXAMPLES) == len(RUN["tests/realtime/protocol/test_protocol_doc.py"])
    source = (ROOT / "web/tests/client/snippets.test.ts").read_text()
    assert "'src/client/README.md', /^```ts" in source


def test_quoted_source_is_that_of_the_program() -> None:
    source = (ROOT / "engine/architectures/families.py").read_text()
    assert [block.place for block in QUOTED if block.text not in source] == []


# ---------------------------------------------------------------- TOML


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in TOML])
def test_configuration_is_read_by_the_server(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text(block.text)
    if "keys" in tomllib.loads(block.text):
        assert read_keys_file(file).keys
    else:
        read = options.merge_sources({"config": str(file)}, {})
        assert len(read) == len(tomllib.loads(block.text))


# ---------------------------------------------------------------- commands


def parser_of_bench(workload: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    module = importlib.import_module(f"continuo.bench.{workload.replace('-', '_')}")
    module.add_options(parser)
    bench._add_common_options(parser)
    return parser


def parse(words: list[str]) -> str:
    """Parse a command of `continuo`. Returns the error of the parser, if any."""
    parser = cli._build_parser()
    if words == ["bench", "--help"]:
        words = ["bench"]  # prints the list of workloads
    elif words[:1] == ["bench"] and len(words) > 1:
        assert words[1] in bench.BENCHES, words
        parser, words = parser_of_bench(words[1]), words[2:]
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(io.StringIO()):
        try:
            parser.parse_args(words)
        except SystemExit as end:
            return output.getvalue() if end.code else ""
    return ""


@pytest.mark.parametrize("command", find_all("continuo"))
def test_command_is_one_that_the_parser_accepts(command: str) -> None:
    """In prose, a command may stand for all of its actions (`continuo store`)."""
    error = parse(shlex.split(command.replace("WORKLOAD", "gateway"))[1:])
    assert error == "" or "the following arguments are required: ACTION" in error


def test_a_wrong_command_is_found() -> None:
    text = "`continuo serve --no-such-option`\n```sh\n.venv/bin/continuo store burn FILE\n```\n"
    found = list(find_commands(text, "continuo"))
    assert len(found) == 2
    assert all(parse(shlex.split(command)[1:]) for command in found)


MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"\$[({](?:if \$\()?([A-Z]+)\b", MAKEFILE))


@pytest.mark.parametrize("command", find_all("make"))
def test_make_has_the_targets_and_variables(command: str) -> None:
    for word in shlex.split(command)[1:]:
        name, assigned, _ = word.partition("=")
        assert name in (VARIABLES if assigned else TARGETS), command


# ---------------------------------------------------------------- options

OTHER_PROGRAMS = {
    "docker": {"--build", "--build-arg", "--env", "--profile", "--publish", "--tag", "--volume"},
    "npm": {"--prefix"},
    "http.server": {"--bind", "--directory"},
    "llama-server": {"--no-kv-unified", "--no-cache-idle-slots", "--slot-save-path", "--slots"},
    "pip": {"--index-url", "--no-deps", "--wheel-dir"},
    "vllm": {
        "--distributed-executor-backend",
        "--enable-prompt-tokens-details",
        "--pipeline-parallel-size",
        "--scheduling-policy",
        "--structured-outputs-config",
        "--tensor-parallel-size",
    },
}
IMAGINED = {"--top-p"}
"""Options that a page only imagines."""
OF_PROGRAMS = re.compile(r"(?:add_argument|addoption)\(\s*\"(--[\w-]+)\"")


def known_options() -> set[str]:
    """Return the options of `continuo`, and of the programs in the folders of this repository."""
    folders = ("bench", "examples", "tests", "tools", "realtime/server")
    sources = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {option for source in sources for option in OF_PROGRAMS.findall(source)}
    return found | {f"--{option.name}" for option in options.OPTIONS} | {"--help", "--version"}


def test_every_named_option_exists() -> None:
    known = known_options().union(IMAGINED, *OTHER_PROGRAMS.values())
    named = {
        (page, option)
        for page, text in TEXTS.items()
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text)
    }
    assert len(named) > 100
    assert sorted((page, option) for page, option in named if option not in known) == []


# ---------------------------------------------------------------- metrics


def test_every_named_metric_exists() -> None:
    """Metrics are named by strings in the source, counters without `_total`."""
    folders = ("engine", "realtime")
    sources = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    source = "".join(sources)
    named = {
        (page, name)
        for page, text in TEXTS.items()
        if "/decisions/" not in page  # which also name what was
        for name in re.findall(r"`((?:vllm:|continuo_)[a-z0-9_]+)", text)
    }
    assert len(named) > 50
    stems = {name: name.removesuffix("_total") for _, name in named}
    assert sorted((page, name) for page, name in named if f'"{stems[name]}"' not in source) == []
