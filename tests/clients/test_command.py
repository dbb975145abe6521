"""The commands of `continuo`, in a terminal and in scripts."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import KEY, ROOT, Server, start, stop
from tests.clients.terminal import CONTINUO, Terminal
from tests.support.screen import Screen


def run(*arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CONTINUO, *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )


def address(server: Server) -> str:
    return server.url.removesuffix("/v1")


@pytest.fixture(scope="module")
def endless_model(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the model with an end token that it never predicts, so that no response ends before the
    test interrupts it."""
    source = ROOT / "engine/bundled/demo" if model == "demo" else Path(model)
    folder = tmp_path_factory.mktemp("endless") / "model"
    shutil.copytree(source, folder)
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    changes: dict[str, dict[str, object]] = {
        "config.json": {"eos_token_id": tokens[-1]["id"], "max_position_embeddings": 65_536},
        "generation_config.json": {"eos_token_id": tokens[-1]["id"], "max_new_tokens": 60_000},
        "tokenizer_config.json": {"eos_token": tokens[-1]["content"], "model_max_length": 65_536},
    }
    for name, fields in changes.items():
        written = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**written, **fields}))
    return folder


# ---------------------------------------------------------------- help, models, bench


def test_help_lists_the_commands() -> None:
    shown = run("--help").stdout
    for command in ("serve", "chat", "bench", "models"):
        assert re.search(rf"^\s+{command}\s+\w", shown, re.MULTILINE)
    assert run().returncode == 2
    assert run("sing").returncode == 2
    assert "unrecognized" in run("serve", "--prot", "1").stderr


def test_models_lists_the_bundled_model() -> None:
    listed = run("models")
    assert listed.returncode == 0
    assert re.search(r"^demo +2\.3 M ", listed.stdout, re.MULTILINE)
    assert re.search(r"^Qwen/Qwen3-0\.6B +596 M +2\.2 GiB +1\.1 GiB", listed.stdout, re.MULTILINE)
    assert "it has an encoder: T5" in listed.stdout
    [_, row, *_] = run("models", "demo").stdout.splitlines()
    assert row.startswith("demo ")
    assert run("models", "./nowhere").stderr == "continuo: nowhere: no such folder\n"
    assert "memory" in run("models", "--help").stdout


# ---------------------------------------------------------------- serve


def test_port_in_use_is_reported_before_the_model_loads() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = run("serve", "--port", str(port))
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1
    assert f"port {port}" in refused.stderr
    assert "--port" in refused.stderr


def test_serve_beyond_loopback_requires_a_key() -> None:
    refused = run("serve", "--host", "0.0.0.0")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "--api-key" in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ssl-certfile", "/no/such.pem"), "/no/such.pem: cannot be used"),
        (("--ssl-certfile", __file__, "--ssl-keyfile", __file__), "cannot be used"),
        (("--ssl-certfile", str(ROOT / "LICENSE")), "has no private key: give the file with it"),
        (("--ssl-keyfile", "/no/such.pem"), "without --ssl-certfile"),
    ],
)
def test_invalid_certificate_is_reported_before_the_model_loads(
    options: tuple[str, str], message: str
) -> None:
    refused = run("serve", "--port", "0", *options)
    assert (refused.returncode, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert message in line


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "*.safetensors"])
def test_broken_model_folder_is_a_one_line_error(tmp_path: Path, model: str, missing: str) -> None:
    source = ROOT / "engine/bundled/demo" if model == "demo" else Path(model)
    for file in source.iterdir():
        if not file.match(missing):
            (tmp_path / file.name).symlink_to(file)
    refused = run("serve", "--port", "0", "--model", str(tmp_path))
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith("continuo: ")
    assert missing.strip("*") in line


def test_model_without_a_chat_template_is_a_one_line_error(tmp_path: Path, model: str) -> None:
    source = ROOT / "engine/bundled/demo" if model == "demo" else Path(model)
    for file in source.iterdir():
        if "template" in file.name:
            continue
        text = file.read_bytes()
        if file.name == "tokenizer_config.json":
            text = re.sub(rb'"chat_template"', b'"no_template"', text)
        (tmp_path / file.name).write_bytes(text)
    refused = run("serve", "--port", "0", "--model", str(tmp_path))
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "no chat template" in line


def test_server_stops_cleanly_during_a_response(endless_model: Path) -> None:
    running = start("--model", str(endless_model), "--served-model-name", "demo")
    chat = subprocess.Popen(
        [*CONTINUO, "chat", "--url", address(running)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert chat.stdin is not None
    chat.stdin.write("tell me a story\n")
    chat.stdin.flush()
    assert chat.stdout is not None
    assert chat.stdout.read(1)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(30) == 0
    _, stderr = chat.communicate(timeout=30)
    assert chat.returncode == 1
    assert "1012" in stderr


def test_server_stops_while_it_loads(model: str) -> None:
    process = subprocess.Popen(
        [*CONTINUO, "serve", "--port", "0", "--model", model],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Loading")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 2), (signal.SIGINT, 1)])
def test_server_stops_cleanly_when_all_processes_are_signalled(
    model: str, number: signal.Signals, times: int
) -> None:
    """A terminal or supervisor signals every process; a `make` between them forwards the signal."""
    running = start("--model", model)
    engines = children(running.process.pid)
    assert len(engines) == 1, "one engine process"
    for pid in [*engines, *[running.process.pid] * times]:
        os.kill(pid, number)
    assert running.process.wait(30) == 0


def test_make_reports_no_error_when_the_server_stops(tmp_path: Path, model: str) -> None:
    recipe = f"@{sys.executable} -m continuo.realtime.server.cli serve --port 0 --model {model}"
    (tmp_path / "Makefile").write_text(f"demo:\n\t{recipe} --store memory\n")
    make = subprocess.Popen(
        ["make", "-f", tmp_path / "Makefile"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert make.stdout is not None
    shown = ""
    while "  Stop  " not in shown:
        line = make.stdout.readline()
        assert line, shown
        shown += line
    os.killpg(make.pid, signal.SIGTERM)
    shown = make.stdout.read()
    make.wait(30)
    assert "Stopping." in shown
    assert "Error" not in shown


def children(pid: int) -> list[int]:
    listed = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return [int(child) for line in listed for child in line.split()]


# ---------------------------------------------------------------- chat


def test_chat_with_piped_input_prints_responses_only(server: Server) -> None:
    chat = run(
        "chat",
        "--url",
        address(server),
        "--temperature",
        "0",
        stdin="hello\n\n",
        CONTINUO_API_KEY=KEY,
    )
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout.endswith("\n")
    assert "you>" not in chat.stdout
    assert chat.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--api-key", "wrong"], "Incorrect API key"),
        (["--api-key", KEY, "--model", "gpt-9"], "'gpt-9' does not exist"),
        (["--api-key", KEY, "--temperature", "5"], "session.temperature"),
    ],
)
def test_chat_reports_a_wrong_key_model_or_setting(
    server: Server, arguments: list[str], message: str
) -> None:
    refused = run("chat", "--url", address(server), *arguments, stdin="hello\n")
    assert refused.returncode == 1
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


def test_chat_without_a_server_prints_how_to_start_one() -> None:
    refused = run("chat", "--url", "ws://127.0.0.1:9")
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.endswith("-m continuo.realtime.server.cli serve")


def test_chat_trusts_a_self_signed_certificate_that_it_is_given(
    model: str, certificate: tuple[Path, Path]
) -> None:
    pem, key = map(str, certificate)
    running = start("--model", model, "--ssl-certfile", pem, "--ssl-keyfile", key)
    options = ("chat", "--url", address(running))
    refused = run(*options, stdin="hello\n")
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "self-signed certificate" in line
    assert "SSL_CERT_FILE" in line
    chat = run(*options, stdin="hello\n", SSL_CERT_FILE=pem)
    assert (chat.returncode, chat.stderr) == (0, "")
    assert chat.stdout.strip()
    assert stop(running) == 0


def test_ctrl_c_cancels_the_response_and_ctrl_d_quits(endless_model: Path) -> None:
    running = start("--model", str(endless_model), "--served-model-name", "demo")
    terminal = Terminal("--url", address(running))
    terminal.until("Talking to demo, a toy")
    terminal.until_prompt()
    terminal.type("tell me a story\n")
    terminal.until("story\r\n")
    terminal.until(r"\S|\n")
    terminal.stop_response()
    terminal.interrupt()
    terminal.until("Ctrl-D quits")
    assert terminal.quit() == 0
    assert stop(running) == 0


def test_printed_command_comes_back_to_the_conversation(server: Server) -> None:
    where = ("--url", address(server), "--api-key", KEY)
    terminal = Terminal(*where)
    terminal.until_prompt()
    terminal.type("My name is Zorban.\n")
    terminal.until(r"\S.*\r\n.*\S.*\r\n")
    terminal.until_prompt()
    terminal.type("\x04")
    terminal.until(r"To come back .* chat --session \S+ --url \S+ --api-key YOUR_KEY\r\n")
    session = terminal.matched.split("--session ")[1].split()[0]
    assert terminal.close() == 0

    again = Terminal(*where, "--session", session)
    again.until("Talking to demo")
    again.until("you> My name is Zorban.\r\n.*\\S.*\r\n")
    again.until_prompt()
    again.type("What is my name?\n")
    again.until("name is Zorban")
    again.until_prompt()
    assert again.quit() == 0


def test_chat_with_an_unknown_session_is_refused(server: Server) -> None:
    options = ("--url", address(server), "--api-key", KEY, "--session", "sess_none")
    refused = run("chat", *options, stdin="hello\n")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "sess_none" in refused.stderr


def test_chat_ends_when_the_server_stops(model: str) -> None:
    running = start("--model", model)
    terminal = Terminal("--url", address(running))
    terminal.until_prompt()
    assert stop(running) == 0
    terminal.until("connection lost")
    terminal.interrupt()
    terminal.until("closed the connection")
    assert terminal.close() == 1


def test_chat_resumes_after_its_server_is_killed(tmp_path: Path, endless_model: Path) -> None:
    """Input during an outage is sent to the next server, which has the conversation, and a response
    continues in the middle of a word."""
    store = ("--store", f"sqlite:///{tmp_path / 'store.db'}")
    options = ("--model", str(endless_model), "--temperature", "0", *store)
    running = start(*options)
    port = address(running).rpartition(":")[2]
    terminal = Terminal("--url", address(running))
    terminal.until_prompt()
    running.process.kill()
    running.process.wait(30)
    terminal.until("connection lost.*\r\n")
    terminal.type("hello\n")
    terminal.until("hello\r\n")
    running = start("--port", port, *options)
    terminal.until(r"\S{3}")
    terminal.stop_response()
    terminal.type("tell me a story\n")
    terminal.until("story\r\n.{20}")
    running.process.kill()
    running.process.wait(30)
    terminal.until("connection lost.*\r\n")
    running = start("--port", port, *options)
    terminal.until(r"[^\r\n]{20}")
    terminal.stop_response()
    assert terminal.quit() == 0
    assert stop(running) == 0


def test_lines_with_a_slash_are_commands_of_the_chat(server: Server) -> None:
    terminal = Terminal("--url", address(server), "--api-key", KEY)
    terminal.until("/help lists the commands")
    terminal.until_prompt()
    terminal.type("/help\n")
    for command in ("/help", "/model", "/new", "/quit"):
        terminal.until(rf"\n  {command} +\w")
    terminal.until_prompt()
    terminal.type("/model\n")
    terminal.until("\ndemo, a toy")
    terminal.until_prompt()
    terminal.type("/halp\n")
    terminal.until(r"/halp is no command of the chat; /help lists them, //halp sends it")
    terminal.until_prompt()
    terminal.type("//hello\n")
    terminal.until(r"hello\r\n.*\S.*\r\n")
    terminal.until_prompt()
    terminal.type("/quit\n")
    terminal.until("To come back")
    assert terminal.close() == 0


def test_new_conversation_does_not_know_the_one_before(server: Server) -> None:
    terminal = Terminal("--url", address(server), "--api-key", KEY)
    terminal.until_prompt()
    terminal.type("My name is Zorban.\n")
    terminal.until(r"\S.*\r\n.*\S.*\r\n")
    terminal.until_prompt()
    terminal.type("/new\n")
    terminal.until(r"To come back .* chat --session \S+")
    first = terminal.matched.split()[-1]
    terminal.until("Talking to demo")
    terminal.until_prompt()
    terminal.type("What is my name?\n")
    terminal.until(r"What is my name\?\r\n.*\S.*\r\n")
    assert "Zorban" not in terminal.matched
    terminal.until_prompt()
    terminal.type("\x04")
    terminal.until(r"To come back .* chat --session \S+")
    assert terminal.matched.split()[-1] != first
    assert terminal.close() == 0


def test_responses_are_wrapped_at_words_in_a_terminal_and_not_in_a_pipe(server: Server) -> None:
    question = "Tell me a long story."
    where = ("--url", address(server), "--api-key", KEY, "--temperature", "0")
    plain = run("chat", *where, stdin=f"{question}\n").stdout
    assert max(map(len, plain.splitlines())) > 40
    terminal = Terminal(*where, columns=40)
    terminal.until_prompt()
    terminal.type(f"{question}\n")
    terminal.until(r"story\.\r\n(?s:.*?)you> ")
    sent = terminal.matched.partition("\r\n")[2].removesuffix("you> ").replace("\r\n", "\n")
    screen = Screen(sent, 40)
    assert max(map(len, screen.lines())) < 40
    assert screen.words() == plain.split()
    assert terminal.quit() == 0
