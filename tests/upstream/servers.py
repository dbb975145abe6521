"""Real servers of the bundled model: llama-server and vLLM, each in a process of its own."""

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import urlopen

from continuo.engine.local_checkpoint import find_local_checkpoint
from tests.support.ports import free_port
from tests.upstream.install import BUILD, VERSIONS, ensure_llama_server, ensure_vllm

SLOTS = 4
CONTEXT_TOKENS = 2048
"""Context of each session: that of the bundled model."""
START_S_MAX = 300.0


class RealServer(ABC):
    """A server with the bundled model in fp32, which a test may kill and start again."""

    kind: str
    poll_s: float
    """Seconds between two questions whether the server has started."""

    def __init__(self, port: int, folder: Path, version: str | None = None) -> None:
        """`folder`: for its log, and for what it writes. `version`: None for the one of
        VERSIONS."""
        self.port = port
        self.version = version or VERSIONS[self.kind]
        self.url = f"http://127.0.0.1:{port}"
        self.start_s = 0.0
        """Seconds that the last start took, until the server answered."""
        self._folder = folder
        self._log = folder / f"{self.kind}-{port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]: ...

    def environment(self) -> dict[str, str]:
        return {}

    async def start(self) -> None:
        """Start the server, and wait until it answers."""
        began_s = time.monotonic()
        self._process = await asyncio.to_thread(self._spawn)
        async with asyncio.timeout(START_S_MAX):
            while not await asyncio.to_thread(self._is_healthy, self._process):
                pass
        self.start_s = time.monotonic() - began_s

    def _spawn(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as output:
            return subprocess.Popen(
                self.command(),
                env={**os.environ, **self.environment()},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _is_healthy(self, process: "subprocess.Popen[bytes]") -> bool:
        """Return whether the server answers; waits a little before it returns False."""
        try:
            with urlopen(f"{self.url}/health", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.poll_s)
                raise AssertionError(self.read_log()) from None
            return False

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the server."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """Kill all processes of the server, and wait for its exit."""
        self.send_signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def read_log(self) -> str:
        """Return the last lines of the log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])


class LlamaServerProcess(RealServer):
    kind = "llama-server"
    poll_s = 0.02

    def command(self) -> list[str]:
        return [
            *(str(ensure_llama_server(self.version)), "-m", str(demo_gguf())),
            *("--host", "127.0.0.1", "--port", str(self.port), "--threads", "1"),
            *("-np", str(SLOTS), "-c", str(SLOTS * CONTEXT_TOKENS), "-b", "512"),
            *("--no-kv-unified", "--no-cache-idle-slots", "--slots"),
            *("--slot-save-path", str(self._folder), "--no-warmup"),
            # As our engine in fp32; the default is fp16.
            *("--cache-type-k", "f32", "--cache-type-v", "f32"),
        ]


class VllmProcess(RealServer):
    kind = "vllm"
    poll_s = 0.5

    def command(self) -> list[str]:
        return [
            *(str(ensure_vllm(self.version)), "serve", str(find_local_checkpoint("demo"))),
            *("--served-model-name", "demo", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--dtype", "float32", "--max-model-len", str(CONTEXT_TOKENS), "--block-size", "32"),
            *("--enable-prompt-tokens-details", "--scheduling-policy", "priority"),
            *("--structured-outputs-config", '{"backend": "guidance"}'),
            # Compiling takes most of a start, and makes no difference to what is tested.
            "--enforce-eager",
        ]

    def environment(self) -> dict[str, str]:
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            # Without it a process for each core polls, and turns on two cores take 0.7 s.
            "OMP_NUM_THREADS": "1",
            # Without it the first request for log-probabilities waits for a C++ compiler.
            "TORCHDYNAMO_DISABLE": "1",
        }


SERVERS: dict[str, type[RealServer]] = {"llama-server": LlamaServerProcess, "vllm": VllmProcess}


@functools.cache
def demo_gguf() -> Path:
    """Return the GGUF file of the bundled model, with fp32 matrices."""
    from tests.support.gguf_files import write_gguf

    path = BUILD / "demo.gguf"
    folder = find_local_checkpoint("demo")
    assert folder is not None
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        write_gguf(folder, path, pre="gpt-2")
    return path


@contextlib.asynccontextmanager
async def running_server(
    kind: str, folder: Path, version: str | None = None
) -> AsyncIterator[RealServer]:
    server = SERVERS[kind](free_port(), folder, version)
    try:
        await server.start()
        yield server
    finally:
        server.stop()
