"""`continuo chat` in a pseudoterminal."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

from tests.clients.conftest import ROOT

CONTINUO = [sys.executable, "-m", "continuo.realtime.server.cli"]


class Terminal:
    """The chat with `arguments`, or a whole command line that was pasted, in a terminal that is too
    wide to wrap its text, unless `columns` are given."""

    def __init__(
        self,
        *arguments: str,
        pasted: str | None = None,
        cwd: Path = ROOT,
        columns: int = 10_000,
    ) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, columns))
        self.process = subprocess.Popen(
            [*CONTINUO, "chat", *arguments] if pasted is None else ["sh", "-c", f"exec {pasted}"],
            cwd=cwd,
            env={**os.environ, "TERM": "dumb", "COLUMNS": ""},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.shown, self.matched = "", ""
        self.received = b""
        """All that the terminal was sent."""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, pattern: str) -> None:
        """Read until the output after the previous match contains the pattern."""
        while True:
            if found := re.search(pattern, self.shown):
                self.matched = found.group()
                self.shown = self.shown[found.end() :]
                return
            assert self._read(), f"expected {pattern!r}, the output is {self.shown!r}"

    def until_end(self) -> int:
        """Read until the command has ended. Returns its exit status."""
        with contextlib.suppress(OSError):  # the last process that wrote to the terminal has ended
            while self._read():
                pass
        return self.close()

    def _read(self) -> bytes:
        """Read what comes next; nothing if nothing comes for a minute."""
        if not select.select([self.master], [], [], 60)[0]:
            return b""
        read = os.read(self.master, 4096)
        self.received += read
        self.shown += read.decode(errors="replace")
        return read

    def until_prompt(self) -> None:
        self.until("you> ")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def stop_response(self) -> None:
        """Interrupt the response, and read until the next prompt."""
        self.interrupt()
        self.until(r"\[stopped\]")
        self.until_prompt()

    def quit(self) -> int:
        """Press Ctrl-D. Returns the exit status."""
        self.type("\x04")
        return self.close()

    def close(self) -> int:
        status = self.process.wait(30)
        os.close(self.master)
        return status
