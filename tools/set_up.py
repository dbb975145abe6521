"""Install Continuo, or other requirements, into the virtual environment that runs this program.

Usage: .venv/bin/python tools/set_up.py [--page] STAGE ...

Prints a line per stage: what it is for, how much was downloaded and how long it took. With
`--page`, the web page is built meanwhile. A stage is one of

    torch       PyTorch: the CPU build, unless this machine has an NVIDIA GPU
    continuo    Continuo, editable, with its dependencies
    dev         what tests and checks need besides
    FILE.txt    a file of requirements
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
from collections import deque
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_TIMEOUT_S = 3.0
REDRAW_S = 0.2
NAME_CHARS = 14
UNIT_BYTES = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
PIP_WITH_RAW_PROGRESS = (24, 1)
"""First version of pip that can report the progress of a download to a program."""
PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
NOISE = re.compile(r"^Progress \d|^WARNING: Retrying|^\s*$")
FETCHED = re.compile(r"(Downloading|Using cached) \S+ \(([\d.]+) (bytes|kB|MB|GB)\)")
LOCAL_WHEEL = re.compile(r"Processing (/\S+\.whl)(?: \(from .*\))?$")
INSTALLED = re.compile(r"Successfully installed (.+)")
OFFLINE = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name|Network is unreachable"
    r"|ConnectTimeoutError|Read timed out|No matching distribution found|ProxyError"
)
OFFLINE_ADVICE = (
    "The package index cannot be reached, or lacks a package: check the network, and `pip config "
    "list`.\nThen run the same command again; what was downloaded is kept."
)
TAIL_LINES = 5


class SetupFailed(Exception):
    """A stage failed. The message says why, and what to do."""


class Stage:
    """A line of output, which is redrawn while the stage runs if the output is a terminal."""

    def __init__(self, name: str, text: str) -> None:
        self._start_s = self._drawn_s = time.monotonic()
        self._in_terminal = sys.stdout.isatty()
        self._head = f"  {name:<{NAME_CHARS}}{text}"
        print(self._head, end="", flush=True)

    def show(self, detail: str) -> None:
        if self._in_terminal and time.monotonic() - self._drawn_s > REDRAW_S:
            self._drawn_s = time.monotonic()
            print(f"\r\x1b[K{self._head}{self._rest(detail)}", end="", flush=True)

    def end(self, *details: str) -> None:
        start = f"\r\x1b[K{self._head}" if self._in_terminal else ""
        print(f"{start}{self._rest(*details)}", flush=True)

    def _rest(self, *details: str) -> str:
        seconds = f"{time.monotonic() - self._start_s:.0f} s"
        return "".join(f", {detail}" for detail in (*details, seconds) if detail)


class PipOutput:
    """The sizes and packages in the output of pip."""

    def __init__(self) -> None:
        self.package_count = 0
        self._new_bytes, self._cached_bytes, self._missing_bytes = 0.0, 0.0, 0.0

    def read(self, line: str) -> None:
        if found := PROGRESS.search(line):
            self._missing_bytes = float(found[2]) - float(found[1])
        elif found := FETCHED.search(line):
            size_bytes = float(found[2]) * UNIT_BYTES[found[3]]
            if found[1] == "Downloading":
                self._new_bytes += size_bytes
            else:
                self._cached_bytes += size_bytes
        elif found := LOCAL_WHEEL.match(line):
            self._cached_bytes += Path(found[1]).stat().st_size
        elif found := INSTALLED.match(line):
            self.package_count = len(found[1].split())

    def size(self) -> str:
        """Return what was fetched so far, and from where."""
        new_bytes = self._new_bytes - self._missing_bytes
        sizes = ((new_bytes, "downloaded"), (self._cached_bytes, "cached"))
        return ", ".join(f"{size / 1e6:,.0f} MB {how}" for size, how in sizes if size >= 5e5)


def run_pip(stage: Stage, *arguments: str) -> PipOutput:
    """Run `pip install`. Raises SetupFailed."""
    can_report = tuple(map(int, re.findall(r"\d+", version("pip"))[:2])) >= PIP_WITH_RAW_PROGRESS
    command = (
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"),
        # Modules are compiled when they are first imported: most never are.
        *("--no-compile", "--progress-bar", "raw" if can_report else "off"),
    )
    output, tail = PipOutput(), deque[str](maxlen=TAIL_LINES)
    with subprocess.Popen(
        (*command, *arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            output.read(line.strip())
            stage.show(output.size())
            if not NOISE.search(line):
                tail.append(line.rstrip())
    if pip.returncode:
        text = "\n".join(tail)
        advice = f"\n{OFFLINE_ADVICE}" if OFFLINE.search(text) else ""
        raise SetupFailed(f"{text}{advice}")
    return output


def install_torch() -> None:
    """Install PyTorch alone. Its dependencies are those of Continuo too. Raises SetupFailed."""
    stage = Stage("PyTorch", "computes the model; the largest download")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (requirement,) = (one for one in project["dependencies"] if one.startswith("torch>"))
    options = ("--index-url", CPU_INDEX) if prefers_cpu_index() else ()
    try:
        output = run_pip(stage, "--no-deps", *options, requirement)
    except SetupFailed:
        if not options:
            raise
        output = run_pip(stage, "--no-deps", requirement)
    stage.end(version("torch"), output.size())


def prefers_cpu_index() -> bool:
    """Whether PyTorch should come from its index of CPU builds: the default one for Linux includes
    CUDA, some 3 GB. An index that the user has configured takes precedence."""
    has_gpu = Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None
    if sys.platform != "linux" or has_gpu:
        return False
    pip = (sys.executable, "-m", "pip", "config", "list")
    configured = subprocess.run(pip, capture_output=True, text=True, check=False).stdout
    if re.search(r"[.:]index-url=", configured, re.IGNORECASE) or "PIP_INDEX_URL" in os.environ:
        return False
    # In a thread, because nothing bounds the time of a name lookup.
    answered = threading.Event()
    threading.Thread(target=_probe, args=(f"{CPU_INDEX}/torch/", answered), daemon=True).start()
    return answered.wait(PROBE_TIMEOUT_S)


def _probe(url: str, answered: threading.Event) -> None:
    """Set `answered` if a server responds at `url`."""
    with contextlib.suppress(OSError):
        probe = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(probe, timeout=PROBE_TIMEOUT_S):
            answered.set()


def install(name: str, text: str, *arguments: str) -> None:
    """Run `pip install` as one stage. Raises SetupFailed."""
    stage = Stage(name, text)
    output = run_pip(stage, *arguments)
    stage.end(f"{output.package_count} packages", output.size())


class PageBuild:
    """Builds the web page, while other stages run."""

    def __init__(self) -> None:
        self._build = subprocess.Popen(
            ("sh", "tools/build_web.sh"),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> None:
        """Wait for the build. Without Node.js or a network there is no page, which is no error."""
        stage = Stage("page", "the web page, built meanwhile with Node.js")
        _, output = self._build.communicate()
        problem = output.strip().rpartition("\n")[2] or "not built"
        stage.end(problem if self._build.returncode else "")


def main(arguments: Sequence[str]) -> int:
    """Run the stages. Returns the exit status."""
    page = PageBuild() if "--page" in arguments else None
    try:
        for stage in arguments:
            match stage:
                case "--page":
                    pass
                case "torch":
                    install_torch()
                case "continuo":
                    install("Continuo", "the server and what it needs", "-e", ".")
                case "dev":
                    install("tests", "what tests and checks need", "-e", ".[test,dev]")
                case file:
                    name = Path(sys.prefix).name.removeprefix(".venv-")
                    install(name, f"what {file} lists", "-r", file)
        if page is not None:
            page.finish()
    except SetupFailed as failure:
        print(f"\n\n{failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
