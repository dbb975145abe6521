"""The attacked server and the idle control beside it: two equal `continuo serve` processes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import ROOT, Process, running_process

KEY = "key-of-the-attackers"
TENANT = "attackers"
BYSTANDER_KEY = "key-of-the-bystanders"
KEYS_FILE = f"""
[defaults]
running_responses_max = 8
waiting_responses_max = 256

[[keys]]
key = "{KEY}"
tenant = "{TENANT}"

[[keys]]
key = "{BYSTANDER_KEY}"
tenant = "bystanders"
"""
KEYS_FILE_OF_ANY_VERSION = f"{KEY} = {TENANT}\n{BYSTANDER_KEY} = bystanders\n"
"""Without limits, which versions before the tenants' limits do not know."""


class Address(NamedTuple):
    """The port of a server, and the key of the attackers' tenant."""

    port: int
    key: str

    @property
    def websocket(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/realtime"


class Server:
    def __init__(self, process: Process) -> None:
        self.process = process
        url = process.wait_for_output(r"Listening on +(\S+)")
        match = re.search(r":(\d+)/", url)
        assert match is not None, url
        self.address = Address(int(match[1]), KEY)

    def memory_bytes(self) -> int:
        """Resident memory of the gateway process, without its engine."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert match is not None
        return int(match[1]) * 1024

    def engines(self) -> list[int]:
        """Process ids of the engines; a new one means that an engine has died."""
        return [pid for pid in self.process.children() if _is_engine(pid)]

    def faults(self) -> list[str]:
        """Lines of the log that no client may cause."""
        bad = ("Traceback", "ERROR", "CRITICAL", "Task exception", "never retrieved")
        return [line for line in self.process.output.splitlines() if any(b in line for b in bad)]


def _is_engine(pid: int) -> bool:
    return b"continuo.engine\0" in Path(f"/proc/{pid}/cmdline").read_bytes()


@contextmanager
def serving(folder: Path, *options: str, source: Path = ROOT) -> Iterator[Server]:
    """A server with the bundled model and a SQLite store in `folder`. `source`: root of the source
    code, such as that of another version, which is given no limits of tenants."""
    arguments = ["serve", "--port", "0", "--no-web", "--threads", "1"]
    arguments += ["--store", f"sqlite:///{folder}/store.db", *options]
    keys = folder / ("keys.toml" if source == ROOT else "keys")
    keys.write_text(KEYS_FILE if source == ROOT else KEYS_FILE_OF_ANY_VERSION)
    arguments += ["--api-keys-file", str(keys)]
    with running_process(*arguments, source=source) as process:
        yield Server(process)
