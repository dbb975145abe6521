"""The commands and transcripts of the documentation, pasted in a fresh copy of this repository into
the shell of a user who has run `make demo`, and its JavaScript, run by Node against that server.

Replaced are only addresses, files and models that a user would replace too, and the length of a
benchmark.
"""

import asyncio
import contextlib
import itertools
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from continuo.client import connect
from tests.clients.conftest import NODE, Server, start_command
from tests.clients.terminal import Terminal
from tests.clients.test_examples import CHROMIUM, EXAMPLES, converse_and_reload, open_page
from tests.support.fenced_blocks import ROOT, Block, blocks_in
from tests.support.ports import free_port, wait_until_open
from tests.support.redis_process import REDIS_SERVER, running_redis

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

NAMED_SERVER = "127.0.0.1:8000"
PROMPT = "you> "
MAKE = re.compile(r"make \S+[^\n]*\n")
SERVER = re.compile(r"continuo (serve|engine|gateway) ")
PAGE_SERVER = " -m http.server 8080 "
LISTENING = re.compile(r"wss?://\S+/v1/realtime|  Gateways ")
COPY_IGNORES = (
    ".git",
    ".venv*",
    "node_modules",
    "build",
    "dist",
    "secrets",
    ".*_cache",
    "__pycache__",
)


def is_chat(block: Block) -> bool:
    return block.text == ".venv/bin/continuo chat\n"


SHELL = blocks_in("", "sh")
TRANSCRIPTS = [block for block in SHELL if block.text.startswith(PROMPT)]
CHATS = [block for block in SHELL if is_chat(block)]
MAKES = [block for block in SHELL if MAKE.match(block.text)]
PAGE_SERVERS = [block for block in SHELL if PAGE_SERVER in block.text]
PAGES = blocks_in("html")
COMMANDS = [block for block in SHELL if block not in TRANSCRIPTS + CHATS + MAKES + PAGE_SERVERS]
RECIPES = [block for block in blocks_in("js") if block.page == "docs/recipes.md"]
LIBRARY, TALK, ON_SERVER, ON_PAGE, OTHERS = (
    [block for block in blocks_in("js") if block not in RECIPES and re.match(start, block.text)]
    for start in (
        "import { RealtimeClient } from '@continuo/client'",
        "// talk.mjs",
        "// on your server",
        "// on the page",
        "import .* from '(openai|openai-realtime-api|@mastra/voice-openai-realtime)'",
    )
)


def parametrize(name: str, blocks: list[Block]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(name, [pytest.param(block, id=block.name) for block in blocks])


class User:
    """The folder of a clone with its `.venv`, and the environment of its user."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        kept = {
            name: value
            for name, value in os.environ.items()
            if "CONTINUO" not in name and not name.startswith("MAKE")
        }
        self.environ = {
            **kept,
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "PATH": f"{folder / '.venv/bin'}:{os.environ['PATH']}",
            # A copy has the packages of the page only if this repository has them.
            "npm_config_offline": "true",
        }

    def start(self, command: str, **variables: str) -> subprocess.Popen[str]:
        """Start a server. Returns when it listens."""
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.environ | variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        shown = ""
        for line in process.stdout:
            shown += line
            if LISTENING.search(line):
                return process
        raise AssertionError(f"{command}\n{shown}")

    def run(self, command: str, *, typed: str = "", **variables: str) -> str:
        """Run a command line. Returns its output, and raises if it fails."""
        master, slave = pty.openpty()
        os.write(master, typed.encode())
        try:
            run = subprocess.run(
                ["sh", "-ec", command],
                cwd=self.folder,
                env=self.environ | variables,
                stdin=slave,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        finally:
            os.close(master)
            os.close(slave)
        assert run.returncode == 0, f"{command}\n{run.stdout}"
        return run.stdout


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    home = tmp_path_factory.mktemp("home")
    (home / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    folder = home / "continuo"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*COPY_IGNORES))
    if (ROOT / "web/node_modules").exists():
        (folder / "web/node_modules").symlink_to(ROOT / "web/node_modules")
    venv = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    dependencies = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    # The folder stands before the packages, among which this repository may be installed.
    (packages / "dependencies.pth").write_text("\n".join([str(folder), *dependencies]))
    command = venv / "bin/continuo"
    command.write_text(
        f"#!{venv}/bin/python\nimport sys\n"
        "from continuo.realtime.server.cli import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    (venv / "ready").touch()
    return User(folder, home)


@pytest.fixture(scope="module")
def demo(user: User) -> Iterator[Server]:
    """Run what the first block of the README says."""
    first = MAKES[0].text.splitlines()[0].partition("#")[0].split()
    assert (MAKES[0].page, first) == ("README.md", ["make", "demo"])
    # In a session of its own: a signal to `make` alone would make it report an error.
    running = start_command(["setsid", *first], user.folder, user.environ | {"CONTINUO_PORT": "0"})
    yield running
    os.killpg(running.process.pid, signal.SIGTERM)
    running.process.wait(30)


def address_of(server: Server) -> str:
    return server.url.partition("://")[2].removesuffix("/v1")


# ---------------------------------------------------------------- commands


@parametrize("block", MAKES)
def test_make_has_the_target(block: Block, user: User) -> None:
    """Each target is run elsewhere: `make demo` by `demo`, and `make test` is what runs this."""
    for line in block.text.splitlines():
        assert user.run(line.replace("make ", "make --dry-run ")).strip()


def join_lines(text: str) -> list[str]:
    """Return the commands of a block, each on one line."""
    return re.sub(r" *\\\n *", " ", text).splitlines()


def write_gguf_file(path: Path) -> None:
    """Write the bundled model as a GGUF file."""
    from continuo.engine.config import BUNDLED_MODEL
    from continuo.engine.local_checkpoint import find_local_checkpoint
    from tests.support.gguf_files import KINDS, write_gguf

    folder = find_local_checkpoint(BUNDLED_MODEL)
    assert folder is not None
    path.parent.mkdir()
    whole = {"tokenizer.huggingface.json": (folder / "tokenizer.json").read_text()}
    write_gguf(folder, path, KINDS.BF16, metadata=whole)


async def begin_session(server: Server) -> str:
    async with connect(server.url) as client:
        await client.ask("My name is Ada.")
        assert client.resume_point is not None
        return client.resume_point.session_id


@parametrize("block", COMMANDS)
async def test_commands_succeed(
    block: Block, user: User, demo: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Servers that the block starts listen before its next command, and stop at its end."""
    text = block.text.replace("Qwen/Qwen3-0.6B", "demo").replace("0.0.0.0", "127.0.0.1")
    text = text.replace("--turns 50", "--turns 4")
    text = re.sub(r"10\.0\.0\.5:8100", f"127.0.0.1:{free_port()}", text)
    if "sess_…" in text:
        text = text.replace("sess_…", await begin_session(demo))
    if ".gguf" in text:
        write_gguf_file(user.home / "models/Qwen3-0.6B-Q4_K_M.gguf")
    if "--secret-file" in text:
        (user.folder / "link.secret").write_text("0123456789abcdef0123456789abcdef\n")
        (user.folder / "keys").write_text("sk-one = acme\n")
    port = str(free_port()) if SERVER.search(text) else address_of(demo).partition(":")[2]
    if "node talk.mjs" in text:
        request.getfixturevalue("node")  # skips without the packages
        (user.folder / "node_modules").symlink_to(NODE / "node_modules")
        (user.folder / "talk.mjs").write_text(TALK[0].text.replace(":8000", f":{port}"))
    async with contextlib.AsyncExitStack() as stack:
        if "redis://" in text:
            if REDIS_SERVER is None:
                pytest.skip("redis-server is not installed")
            redis = await stack.enter_async_context(running_redis(tmp_path))
            text = text.replace("redis://10.0.0.5", redis.url)
        text = re.sub(r"127\.0\.0\.1:80[08]0", f"127.0.0.1:{port}", text)
        for command in join_lines(text):
            if SERVER.match(command):
                process = user.start(command, CONTINUO_PORT=port)
                port = str(free_port())  # of the next one
                stack.callback(process.wait, 30)
                stack.callback(process.terminate)
            else:
                await asyncio.to_thread(user.run, command, typed="y\n")


@parametrize("chat", CHATS)
def test_transcript_is_what_the_chat_prints(
    chat: Block, user: User, demo: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of the page that ends in "…" is the beginning of what the chat prints."""
    transcript = next(one for one in TRANSCRIPTS if one[:2] == (chat.page, chat.number + 1))
    monkeypatch.setenv("CONTINUO_URL", demo.url)
    terminal = Terminal(pasted=chat.text.strip(), cwd=user.folder)
    terminal.until_prompt()
    for turn in transcript.text.removeprefix(PROMPT).split(f"\n{PROMPT}"):
        said, *expected = turn.splitlines()
        terminal.type(f"{said}\n")
        terminal.until(rf"(?s){re.escape(said)}\r\n.*?{PROMPT}")
        _, *shown = terminal.matched.removesuffix(PROMPT).split()
        words = " ".join(shown).removeprefix(said.partition(" ")[2]).strip()
        if expected and expected[-1].endswith("…"):
            assert words.startswith(" ".join(expected).removesuffix("…").strip())
        elif expected:
            assert words == " ".join(expected)
        else:
            assert words
    assert terminal.quit() == 0


# ---------------------------------------------------------------- JavaScript

GLOBALS = """\
import * as library from '@continuo/client';
const url = 'ws://127.0.0.1:8000/v1/realtime';
Object.assign(globalThis, library, { url, client: new library.RealtimeClient({ url }) });
globalThis.client.connect();
"""
"""Names that docs/recipes.md gives to its snippets. Their own take precedence."""


@pytest.fixture(scope="module")
def run_javascript(user: User, demo: Server, node: list[str]) -> Callable[[str], str]:
    """Build the library. Returns a function that runs a module and returns its output."""
    if not (ROOT / "web/node_modules").exists():
        pytest.skip("node_modules is missing: make web installs it, with Node.js 20")
    user.run("npm --prefix web/src/client run --silent prepack")
    package = user.folder / "js/node_modules/@continuo/client"
    package.parent.mkdir(parents=True)
    package.symlink_to(user.folder / "web/src/client")
    numbers = itertools.count()

    def run(source: str) -> str:
        file = user.folder / f"js/{next(numbers)}.mjs"
        source = source.replace(NAMED_SERVER, address_of(demo))
        file.write_text(f"{source}\nprocess.exit(0);\n")
        return user.run(f"{shlex.join(node)} --no-warnings {file}")

    return run


@parametrize("block", RECIPES)
def test_recipe_runs_in_node(block: Block, run_javascript: Callable[[str], str]) -> None:
    """A snippet that only subscribes prints what comes while a question is answered."""
    asked = "" if "await" in block.text else "await client.ask('Hello');\n"
    assert run_javascript(GLOBALS + block.text + asked).strip()


@parametrize("block", LIBRARY)
def test_program_with_the_library_runs_in_node(
    block: Block, run_javascript: Callable[[str], str]
) -> None:
    assert "Ada" in run_javascript(block.text)


FIRST_OUTPUT = """\
for (const [stream, status] of [[process.stdout, 0], [process.stderr, 1]]) {
  const write = stream.write.bind(stream);
  stream.write = (text) => write(text, () => String(text).trim() && process.exit(status));
}
"""
"""Ends a program at its first output but space, with which an answer may begin; at an error, as
failed."""


@parametrize("block", OTHERS)
def test_program_of_another_client_prints_the_answer(
    block: Block, user: User, demo: Server, node: list[str]
) -> None:
    folder = user.folder / "others"
    folder.mkdir(exist_ok=True)
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(NODE / "node_modules")
    file = folder / f"{block.number}.mjs"
    file.write_text(FIRST_OUTPUT + block.text.replace(NAMED_SERVER, address_of(demo)))
    assert user.run(f"{shlex.join(node)} --no-warnings {file}").strip()


@pytest.mark.browser
@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"{CHROMIUM} is not installed")
@pytest.mark.parametrize(("mint", "page"), list(zip(ON_SERVER, ON_PAGE, strict=True)))
async def test_page_without_a_library_shows_the_answer(
    mint: Block,
    page: Block,
    demo: Server,
    run_javascript: Callable[[str], str],
    tmp_path: Path,
) -> None:
    minted = run_javascript(f"{mint.text}\nconsole.log(JSON.stringify(minted));")
    program = page.text.replace(NAMED_SERVER, address_of(demo))
    async with (
        asyncio.timeout(60),
        open_page(f"http://{address_of(demo)}/health/live", tmp_path) as evaluate,
    ):
        before = await evaluate("document.body.textContent")
        await evaluate(f"{{ const minted = {minted}; {program} }}")
        while await evaluate("document.body.textContent") == before:
            pass


@pytest.mark.browser
@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"{CHROMIUM} is not installed")
@pytest.mark.parametrize(("served", "page"), list(zip(PAGE_SERVERS, PAGES, strict=True)))
async def test_page_of_the_tutorial_survives_a_reload(
    served: Block, page: Block, user: User, demo: Server, tmp_path: Path
) -> None:
    """The page is the example, served from a folder of the reader's own."""
    assert page.text == (EXAMPLES / "hello.html").read_text()
    if not (ROOT / "web/node_modules").exists():
        pytest.skip("node_modules is missing: make web installs it, with Node.js 20")
    port = free_port()
    *preparation, server = join_lines(served.text.replace("8080", str(port)))
    user.run("\n".join(preparation))
    (user.folder / "my-page/index.html").write_text(page.text)
    process = await asyncio.create_subprocess_shell(
        f"exec {server}",
        cwd=user.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(120):
            await wait_until_open(port)
            url = f"http://127.0.0.1:{port}/?url=http://{address_of(demo)}"
            async with open_page(url, tmp_path) as evaluate:
                await converse_and_reload(evaluate)
    finally:
        process.terminate()
        await process.wait()
