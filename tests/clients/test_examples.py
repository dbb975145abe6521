"""The programs of examples/, as they stand, with a real server and the bundled model."""

import asyncio
import contextlib
import itertools
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from continuo.realtime.server.config.settings import GatewaySettings
from tests.clients.conftest import KEY, ROOT, Server
from tests.engine.server.test_several_gateways import front
from tests.realtime.conftest import chat_folder
from tests.support.engines import digest_engine
from tests.support.sessions import shared_store
from tests.support.web_servers import API_KEY, TENANTS, serve_engine, serve_harness

pytestmark = pytest.mark.process

EXAMPLES = ROOT / "examples"
LINES_MAX = 65
PREFILLED_TOKENS = 32
"""Tokens of a message that are computed before it is sent; vLLM caches blocks of so many."""
CHROMIUM = os.environ.get("CONTINUO_CHROMIUM", "/usr/bin/chromium")
REPLY_S_MAX = 5
"""Seconds after which a page is asked again."""
SHOWN = {
    "hello.py": r"Ada.*\n.*Ada",
    "agent_with_tools.py": r"^\[get_weather .*Rome.*\]\n.*21",
    "interrupt_and_resume.py": r"… \[interrupted\]\n\[resumed: 2 items are still there\]\n.*\S",
    "fork_and_compare.py": r"temperature 0.0: .*\n.*shared\)\ntemperature 1.0: .*\n.*shared\)",
    "structured_form.py": r"name +\S.*\ncity +(Lisbon|Oslo|Rome)\nnights +\d+\nroom +\w+",
    "load_generator.py": r"2 conversations of 1 turns .*\n[\d,]+ tokens a second\nfirst text after",
}
"""Pattern of the output of each program; programs that are missing here have their own tests."""
WITH_TESTS_OF_THEIR_OWN = {
    "engine_alone.py",
    "hello_browser.py",
    "two_gateways.py",
    "type_ahead.py",
}
OPTIONS = {"load_generator.py": ["--conversations", "2", "--turns", "1"]}


def command(name: str, *options: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), *options]


def environ(key: str = KEY) -> dict[str, str]:
    return {**os.environ, "CONTINUO_API_KEY": key}


def address(server: Server) -> str:
    return server.url.removesuffix("/v1")


@pytest.mark.parametrize("name", SHOWN)
def test_example_runs_as_it_stands(name: str, server: Server, tmp_path: Path) -> None:
    run = subprocess.run(
        command(name, "--url", address(server), *OPTIONS.get(name, [])),
        env=environ(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert re.search(SHOWN[name], run.stdout, re.MULTILINE), run.stdout


def test_engine_alone_needs_no_server(tmp_path: Path) -> None:
    run = subprocess.run(
        command("engine_alone.py"), cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    assert re.search(r"Ada.*\n.*Ada.*\nOnce upon a time \w+", run.stdout), run.stdout


def wait_for_newest_session(server: Server, tokens: int) -> None:
    """Wait until the newest session has at least so many tokens in KV."""
    request = urllib.request.Request(
        f"{server.url}/realtime/sessions", headers={"Authorization": f"Bearer {KEY}"}
    )
    deadline = time.monotonic() + 60
    computed = 0
    while computed < tokens:
        assert time.monotonic() < deadline, computed
        with urllib.request.urlopen(request, timeout=60) as reply:
            computed = json.load(reply)["data"][0]["kv"]["tokens"]


def test_type_ahead_sends_each_key(server: Server) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command("type_ahead.py", "--url", address(server)),
        env=environ(),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    shown = ""

    def until(pattern: str) -> re.Match[str]:
        nonlocal shown
        while not (found := re.search(pattern, shown)):
            ready, _, _ = select.select([master], [], [], 60)
            assert ready, shown
            shown += os.read(master, 4096).decode()
        shown = shown[found.end() :]
        return found

    until("> ")
    for key in f"My name is Adam\x7fm. {'I like the sea and the sun. ' * 8}":
        os.write(master, key.encode())
        until(re.escape(key) if key != "\x7f" else "\x08 \x08")
    wait_for_newest_session(server, PREFILLED_TOKENS)
    os.write(master, b"\n")
    ready, total = map(int, until(r"\((\d+) of (\d+) tokens were ready\)").groups())
    assert PREFILLED_TOKENS <= ready < total
    until("> ")
    os.write(master, b"\x04")
    assert process.wait(20) == 0
    os.close(master)


@contextlib.asynccontextmanager
async def two_gateways(folder: Path) -> AsyncIterator[list[str]]:
    """Two gateways with one store, on a null device. Yields their addresses."""
    settings = GatewaySettings(tenants=TENANTS, served_model_name=("demo",))
    async with (
        digest_engine(chat_folder(folder), pages=256, page_size=4, max_model_len=400) as harness,
        front(await harness.listen()) as engine,
        serve_harness(harness, settings) as one,
        serve_engine(engine, settings, await shared_store(harness)) as two,
    ):
        yield [f"http://127.0.0.1:{server.port}" for server in (one, two)]


async def test_two_gateways_share_the_conversation(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as (one, two):
        process = await asyncio.create_subprocess_exec(
            *command("two_gateways.py", "--url", one, "--other-url", two),
            env=environ(API_KEY),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, stderr.decode()) == (0, "")
    lines = sorted(
        line.partition(": ")[0] for line in stdout.decode().splitlines() if " at " in line
    )
    assert lines == sorted([f"Ada at {one}", f"Ada at {two}", f"Bob at {two}", f"Bob at {two}"])


@pytest.fixture(scope="module")
def library() -> None:
    """Build the JavaScript library, as the program says."""
    if not (ROOT / "web/node_modules").is_dir() or shutil.which("npm") is None:
        pytest.skip("node_modules is missing: make web installs it, with Node.js 20")
    build = ["npm", "--prefix", str(ROOT / "web/src/client"), "run", "--silent", "prepack"]
    subprocess.run(build, check=True, timeout=100)


@contextlib.asynccontextmanager
async def open_page(url: str, folder: Path) -> AsyncIterator[Callable[[str], Awaitable[Any]]]:
    """Open a page in Chromium. Yields a function that evaluates an expression there."""
    options = ("--headless=new", "--no-sandbox", "--remote-debugging-port=0", "--disable-gpu")
    browser = await asyncio.create_subprocess_exec(
        *(CHROMIUM, *options, f"--user-data-dir={folder}", url),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert browser.stderr is not None
    try:
        async for line in browser.stderr:
            if found := re.search(rb"DevTools listening on ws://([^/]+)/", line):
                break
        targets = f"http://{found[1].decode()}/json"  # type: ignore[index]
        while not (pages := [t for t in await fetch_json(targets) if t["url"].startswith(url)]):
            await asyncio.sleep(0.1)
        async with connect(pages[0]["webSocketDebuggerUrl"]) as socket:
            numbers = itertools.count()

            async def evaluate(expression: str) -> Any:
                """Returns None if the page is being replaced: it may then answer with an error, or
                not at all."""
                number = next(numbers)
                parameters = {"expression": expression, "returnByValue": True}
                request = {"id": number, "method": "Runtime.evaluate", "params": parameters}
                await socket.send(json.dumps(request))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REPLY_S_MAX):
                        while (reply := json.loads(await socket.recv())).get("id") != number:
                            pass
                        return reply.get("result", {}).get("result", {}).get("value")
                return None

            yield evaluate
    finally:
        browser.kill()
        await browser.wait()


async def fetch_json(url: str) -> Any:
    def fetch() -> Any:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)

    return await asyncio.to_thread(fetch)


@pytest.mark.browser
@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"{CHROMIUM} is not installed")
async def test_hello_in_a_browser(library: None, server: Server, tmp_path: Path) -> None:
    program = await asyncio.create_subprocess_exec(
        *command("hello_browser.py", "--port", "0", "--url", address(server)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert program.stdout is not None
    url = (await program.stdout.readline()).decode().removeprefix("Open ").strip()
    try:
        async with asyncio.timeout(60), open_page(f"{url}&key={KEY}", tmp_path) as evaluate:
            await converse_and_reload(evaluate)
    finally:
        program.kill()
        await program.wait()


async def converse_and_reload(evaluate: Callable[[str], Awaitable[Any]]) -> None:
    """Use hello.html as a reader does, and reload it in the middle of a story."""

    async def until(expression: str) -> str:
        while not (value := await evaluate(expression)):
            await asyncio.sleep(0.05)
        return value

    async def say(text: str) -> None:
        await evaluate(
            f"input = document.querySelector('input'); input.value = '{text}'; input.oninput();"
            "document.querySelector('form').requestSubmit();"
        )

    shown = "document.querySelector('pre').textContent"
    turns = "(onpagehide(), JSON.parse(sessionStorage.saved).conversation.turns)"
    is_answered = f"{turns}.at(-1).response.status === 'completed'"
    await until("!!document.querySelector('form')?.onsubmit")
    await say("")
    await say("My name is Ada.")
    await until(f"{shown}.includes('Hello Ada')")
    await until(is_answered)
    await say("Tell me a story.")
    before = await until(f"/story\\.\\s+\\S/.test({shown}) && {shown}")
    await evaluate("old = true; location.reload()")
    await until("globalThis.old === undefined && !!document.querySelector('form')?.onsubmit")
    assert (await evaluate(shown)).startswith(before), "the page shows what it has stored"
    await until(is_answered)
    story = (await evaluate(shown)).partition("Tell me a story.")[2].strip()
    assert story.endswith(".")
    assert len(story.split()) > 50
    await say("What is my name?")
    after = await until(f"/name is Ada\\.$/.test({shown}) && {shown}")
    assert after.startswith(before)
    assert [after.count(said) for said in ("My name is Ada.", "Tell me a story.", story)] == [1] * 3


def test_examples_are_short_and_listed() -> None:
    table = (EXAMPLES / "README.md").read_text()
    programs = sorted(EXAMPLES.glob("*.py"))
    assert len(programs) == 10
    assert {program.name for program in programs} == {*SHOWN, *WITH_TESTS_OF_THEIR_OWN}
    for program in programs:
        source = program.read_text()
        assert f"({program.name})" in table
        assert len(source.splitlines()) <= LINES_MAX, program.name
        assert "argparse" in source, f"{program.name} has --help"
