"""Every command that `make demo` prints, pasted into a shell."""

import os
import re
import socket
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.clients.conftest import CONTINUO, ROOT
from tests.clients.terminal import Terminal

pytestmark = pytest.mark.process

LABELS = {
    *("Open", "Listening on", "Chat", "Stop"),
    *("interrupt", "kill engine", "kill server", "come back"),
}
LAST_LINE = "Each time the conversation goes on where it was."


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Demo:
    """`continuo serve --demo` of a user, with its store in `folder`, and what it prints."""

    def __init__(self, folder: Path, port: int) -> None:
        environ = {**os.environ, "CONTINUO_STORE": f"sqlite:///{folder / 'store.db'}"}
        self.process = subprocess.Popen(
            [*CONTINUO, "serve", "--demo", "--port", str(port)],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.banner = self._read_banner()
        self.labels = dict(
            re.findall(r"^  (\S+(?: \S+)?) {2,}(\S.*)$", "".join(self.banner), re.MULTILINE)
        )

    def _read_banner(self) -> list[str]:
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            if lines or line.startswith("Ready after"):
                lines.append(line)
            if line.startswith(LAST_LINE):
                return lines
        raise AssertionError(f"the server ended, and printed {lines}")


def paste(command: str) -> None:
    subprocess.run(command, shell=True, cwd=ROOT, check=True, timeout=60)


def test_every_printed_command_does_what_it_says(tmp_path: Path, port: int) -> None:
    demo = Demo(tmp_path, port)
    labels = demo.labels
    assert set(labels) == LABELS, "a new line needs its test here"
    assert re.match(r"Ready after \d+\.\d s: demo on ", demo.banner[0])
    assert labels["Listening on"] == f"ws://127.0.0.1:{port}/v1/realtime"
    if found := re.search(r"run `(.+?)`", labels["Open"]):
        paste(f"{found[1]} --dry-run")  # Node.js is not installed
    else:
        with urlopen(labels["Open"].partition("#")[0]) as page:
            assert b'<script type="module"' in page.read()

    chat = Terminal(pasted=labels["Chat"])
    chat.until_prompt()
    chat.type("My name is Zorban.\n")
    chat.until("Zorban")
    chat.until_prompt()

    assert labels["interrupt"].startswith("Ctrl-C in the chat; ")
    chat.type("Tell me a story.\n")
    chat.until("story.\r\n.{20}")
    chat.stop_response()

    chat.type("Tell me a story.\n")
    chat.until("story.\r\n.{5}")
    paste(labels["kill engine"])
    chat.until_prompt()
    assert demo.process.poll() is None

    kill, then = labels["kill server"].split(", ", 1)
    assert then == "then start it again"
    paste(kill)
    demo.process.wait(30)
    chat.until("connection lost")
    again = Demo(tmp_path, port)
    chat.type("What is my name?\n")
    chat.until("name is Zorban")
    chat.until_prompt()

    assert labels["come back"].startswith("Ctrl-D in the chat prints how; ")
    chat.type("\x04")
    chat.until(r"To come back to this conversation: .*\r\n")
    assert chat.close() == 0
    resumed = Terminal(pasted=chat.matched.partition(": ")[2].strip())
    resumed.until("you> What is my name.\r\n.*name is Zorban")
    resumed.until_prompt()
    resumed.type("\x04")
    resumed.until("To come back")
    assert resumed.close() == 0

    assert again.labels["Stop"] == "Ctrl-C"
    again.process.send_signal(2)
    assert again.process.wait(30) == 0


def test_models_names_a_command_that_serves_one(tmp_path: Path) -> None:
    listed = subprocess.run([*CONTINUO, "models"], cwd=ROOT, capture_output=True, text=True)
    found = re.search(r"Serve one with: (.+) --model NAME\n", listed.stdout)
    assert found is not None
    paste(f"{found[1]} --model demo --help")
