"""Text of others that commands terminals, shown by each command in a real terminal: escaped.

The engine's device is scripted, so that the model says what is hostile.
"""

import asyncio
import json
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine.batch import Geometry
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import open_store
from tests.clients.terminal import CONTINUO, Terminal
from tests.support.checkpoints import family_folder, family_text
from tests.support.clients import connect_realtime
from tests.support.engines import running_engine
from tests.support.scripted_runner import ScriptedRunner
from tests.support.store_records import new_session
from tests.support.web_servers import API_KEY, TENANTS, RunningServer, serve_harness

FAMILY = "qwen2_5"
CLIPBOARD, TITLE, CLEAR = "\x1b]52;c;aGk=\x07", "\x1b]0;owned\x07", "\x1b[2J\x1b[H"
HOSTILE = f"{CLIPBOARD}{TITLE}{CLEAR}\x9b2J\r\b\x0e\x7f\u202e\u2066"
ESCAPED = r"\u001b]52;c;aGk=\u0007\u001b]0;owned\u0007\u001b[2J\u001b[H\u009b2J"
ESCAPED += r"\u000d\u0008\u000e\u007f\u202e\u2066"
ALLOWED = "\t\r\n"
"""Controls that a terminal is sent: by the command itself, or for each newline by the system."""


def check(terminal: Terminal) -> None:
    """Assert that the terminal was commanded by nothing that it was sent."""
    received = terminal.received.decode()
    commands = {char for char in received if not char.isprintable() and char not in ALLOWED}
    assert not commands, received


def run_in_terminal(*arguments: str, status: int = 0, **environ: str) -> str:
    """Run a command in a terminal. Returns all that the terminal was sent."""
    settings = [f"{name}={value}" for name, value in environ.items()]
    terminal = Terminal(pasted=shlex.join(["env", *settings, *CONTINUO, *arguments]))
    assert terminal.until_end() == status, terminal.shown
    check(terminal)
    return terminal.received.decode()


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    """Serve a model with a hostile name, which says what is hostile."""
    text = family_text(FAMILY)
    device = ScriptedRunner(
        Geometry(800, 4, 3200, text.vocab_size, 256, 0), text, [f"said {HOSTILE} by the model"]
    )
    settings = GatewaySettings(tenants=TENANTS, served_model_name=(f"demo{HOSTILE}",))
    async with (
        running_engine(family_folder(FAMILY), lambda: device) as harness,
        serve_harness(harness, settings) as running,
    ):
        yield running


async def test_chat_shows_the_text_of_users_models_and_servers_escaped(
    server: RunningServer,
) -> None:
    """The conversation that is resumed, the next response, the name of the model, and an error."""
    async with connect_realtime(server.url) as client:
        await client.wait_for("session.created")
        await client.add_message(f"written {HOSTILE} by a user")
        await client.send("response.create")
        await client.wait_for("response.done")
        session = client.session_id

    def chat() -> Terminal:
        url = server.url.removesuffix("/v1/realtime")
        terminal = Terminal("--url", url, "--api-key", API_KEY, "--session", session)
        terminal.until("Talking to demo")
        terminal.until("by a user")
        terminal.until("by the model")
        terminal.until_prompt()
        terminal.type("more\n")
        terminal.until("by the model")
        terminal.until_prompt()
        terminal.type("/model\n")
        terminal.until_prompt()
        terminal.type("/quit\n")
        assert terminal.until_end() == 0
        return terminal

    terminal = await asyncio.to_thread(chat)
    check(terminal)
    received = terminal.received.decode()
    assert received.count(f"demo{ESCAPED}") == 2
    assert f"written {ESCAPED} by a user" in received
    assert received.count(f"said {ESCAPED} by the model") == 2


async def test_chat_with_piped_input_escapes_for_a_terminal_and_no_file(
    server: RunningServer, tmp_path: Path
) -> None:
    url = server.url.removesuffix("/v1/realtime")
    chat = shlex.join([*CONTINUO, "chat", "--url", url, "--api-key", API_KEY])

    def run(redirection: str) -> Terminal:
        script = f"printf 'hello\\n' | {chat}{redirection}"
        terminal = Terminal(pasted=shlex.join(["sh", "-c", script]))
        assert terminal.until_end() == 0
        return terminal

    shown = await asyncio.to_thread(run, "")
    check(shown)
    assert f"said {ESCAPED} by the model" in shown.received.decode()
    file = tmp_path / "output"
    await asyncio.to_thread(run, f" >{shlex.quote(str(file))}")
    assert file.read_bytes().decode() == f"said {HOSTILE} by the model\n"


async def test_error_of_a_server_is_shown_escaped(server: RunningServer) -> None:
    url = server.url.removesuffix("/v1/realtime")
    options = ("chat", "--url", url, "--api-key", API_KEY, "--session", f"sess{HOSTILE}")
    shown = await asyncio.to_thread(lambda: run_in_terminal(*options, status=1))
    assert r"sess\u001b]52" in shown


def test_configuration_and_models_are_shown_escaped(tmp_path: Path) -> None:
    shown = run_in_terminal("config", "print", "serve", CONTINUO_SERVED_MODEL_NAME=HOSTILE)
    assert ESCAPED in shown
    shown = run_in_terminal("models", f"./nowhere{HOSTILE}", status=1)
    assert f"nowhere{ESCAPED}" in shown
    options = ("--model", f"./nowhere{HOSTILE}", "--store", f"sqlite:///{tmp_path}/{HOSTILE}/none")
    shown = run_in_terminal("config", "check", "serve", *options, status=1)
    assert shown.count(ESCAPED) >= 2


async def test_names_of_tenants_are_shown_escaped(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = await open_store(url)
    await store.create(new_session(tenant=f"acme{HOSTILE}"))
    await store.aclose()

    def run(*arguments: str) -> str:
        return run_in_terminal(*arguments, "--store", url)

    assert f"tenant acme{ESCAPED}: 1 sessions" in await asyncio.to_thread(run, "store", "stats")
    tenant = f"acme{HOSTILE}"
    stats = json.loads(await asyncio.to_thread(run, "store", "stats", "--json"))
    assert stats["tenants"] == {tenant: {"sessions": 1, "entries": 0}}
    usage = json.loads(await asyncio.to_thread(run, "tenant", "usage", tenant, "--json"))
    assert usage["tenant"] == tenant
    assert ESCAPED in await asyncio.to_thread(run, "tenant", "delete", tenant, "--yes")


def test_server_shows_its_model_and_warnings_escaped() -> None:
    """The lines of a server that starts, and those that it logs."""
    arguments = ["serve", "--demo", "--port", "0", "--served-model-name", f"demo{HOSTILE}"]
    terminal = Terminal(pasted=shlex.join(["env", "CONTINUO_STORE=memory", *CONTINUO, *arguments]))
    terminal.until(r"Ready after .*: demo\\u001b")
    terminal.until("Stop")
    terminal.interrupt()
    assert terminal.until_end() == 0
    received = terminal.received.decode()
    # The progress of loading is updated in place.
    assert "\x1b" not in received.replace("\r\x1b[K", "")
