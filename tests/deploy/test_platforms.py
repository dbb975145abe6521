"""Platforms that lack something: an event loop of uvloop, or a server at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import CONTINUO, start, stop

pytestmark = pytest.mark.process

ON_WINDOWS = """
import sys
sys.modules.update(uvloop=None, resource=None, termios=None)
from continuo.realtime.server.cli import main
sys.platform = "win32"
sys.exit(main(["serve"]))
"""


def test_server_and_chat_run_without_uvloop(tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError('no wheel')")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    running = start(env=environment)
    try:
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
        for pid in (running.process.pid, int(children.read_text())):
            assert "/uvloop/" not in Path(f"/proc/{pid}/maps").read_text()
        chat = [*CONTINUO, "chat", "--url", running.url.replace("http", "ws") + "/realtime"]
        answered = subprocess.run(
            chat,
            input="My name is Zorban.\nWhat is my name?\n",
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )
        assert answered.returncode == 0, answered.stderr
        assert "Zorban" in answered.stdout
    finally:
        assert stop(running) == 0


def test_windows_gets_one_sentence() -> None:
    refused = subprocess.run(
        [sys.executable, "-c", ON_WINDOWS], capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "continuo: Windows is not supported; install and run Continuo in WSL 2, as on Linux\n"
    )
