"""A competitor's engine, in a process of its own, with the ids and weights of this engine's.

    llama.cpp      slots                 a sequence with its KV per session; all batched
    transformers   session-cache         generate() with a DynamicCache per session
                   resend                generate() on the whole context, without a cache
                   continuous-batching   whole context resent; KV pages shared by prefix

The process runs with the first of these Python interpreters that has the modules it requires: the
one named by CONTINUO_PEERS_PYTHON, the one that runs Continuo, and the one of `.venv-peers` in the
root of the repository.
"""

import asyncio
import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from continuo.bench.competitors.checkpoint import is_all_attention
from continuo.bench.random_checkpoints import CACHE_FOLDER
from continuo.bench.targets.target import Ids, Output, Session, Target, Turn

ROOT = Path(__file__).resolve().parents[2]
REPLY_BYTES_MAX = 1 << 26
START_S_MAX = 900.0
"""Time to load, and before the first time to convert, the weights."""


class Competitor(NamedTuple):
    """Another engine. `modes`: the ways to compute the turns of a session, listed above, the best
    first. `required_modules`: the packages that `module`, which its process runs, imports."""

    name: str
    modes: tuple[str, ...]
    module: str
    required_modules: tuple[str, ...]
    how_to_install: str


COMPETITORS = {
    competitor.name: competitor
    for competitor in (
        Competitor(
            "llama.cpp",
            ("slots",),
            "continuo.bench.competitors.run_llama_cpp",
            ("llama_cpp", "gguf"),
            "python3 -m venv .venv-peers && "
            ".venv-peers/bin/python -m pip install -r bench/competitors/requirements.txt",
        ),
        Competitor(
            "transformers",
            ("session-cache", "resend", "continuous-batching"),
            "continuo.bench.competitors.run_transformers",
            ("torch", "transformers"),
            "pip install transformers",
        ),
    )
}


class CompetitorError(Exception):
    """Raised when a competitor is not installed, or its process has failed."""


def find_interpreter(required_modules: tuple[str, ...]) -> Path | None:
    """Return the first Python interpreter that has all these modules. Returns None if none has."""
    configured = os.environ.get("CONTINUO_PEERS_PYTHON")
    preferred = [Path(configured)] if configured else []
    script = "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    for python in [*preferred, Path(sys.executable), ROOT / ".venv-peers" / "bin" / "python"]:
        # -I: folders of the current directory must not be importable as packages.
        if (
            python.exists()
            and not subprocess.run(
                [python, "-I", "-c", script, *required_modules], check=False, capture_output=True
            ).returncode
        ):
            return python
    return None


class CompetitorTarget(Target):
    def __init__(
        self, name: str, competitor: Competitor, mode: str, folder: Path, dtype: str, threads: int
    ) -> None:
        self.name = name
        self._competitor = competitor
        self._threads = threads
        self.keeps_kv = mode in ("slots", "session-cache")
        self.can_cut = is_all_attention(folder)
        """Whether what is kept can be cut to its beginning; else it is computed again."""
        self._setup = {
            "folder": str(folder),
            "mode": mode,
            "dtype": dtype,
            "threads": threads,
            "gguf": str(_gguf_path(folder, dtype)),
        }
        self._replies: dict[int, deque[asyncio.Future[dict[str, Any]]]] = {}
        """Replies that are awaited, in the order of the requests, by session."""
        self._resized: asyncio.Future[None] | None = None
        self._free: list[int] = []
        self._failure: CompetitorError | None = None

    async def __aenter__(self) -> "CompetitorTarget":
        """Start the process and wait until it has loaded the model. Raises CompetitorError."""
        python = find_interpreter(self._competitor.required_modules)
        if python is None:
            raise CompetitorError(f"not installed: {self._competitor.how_to_install}")
        env = dict(os.environ, PYTHONPATH=str(ROOT), TRANSFORMERS_VERBOSITY="error")
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            env[name] = str(self._threads)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = await asyncio.create_subprocess_exec(
            *(python, "-m", self._competitor.module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=env,
            limit=REPLY_BYTES_MAX,
            # A session of its own, as this engine has: Linux shares processors between sessions.
            start_new_session=True,
        )
        self._send(self._setup)
        try:
            async with asyncio.timeout(START_S_MAX):
                ready = await self._receive()
        except BaseException:
            await self._kill()
            raise
        self.note = f"{ready['version']}; {self._setup['dtype']}"
        self.step_bytes = ready["step_bytes"]
        self._reading = asyncio.create_task(self._read_replies())
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._reading.cancel()
        await self._kill()

    async def resize(self, sessions: int, context: int) -> None:
        self._resized = asyncio.get_running_loop().create_future()
        self._send({"resize": [sessions, context]})
        await self._resized
        self._free = list(range(sessions))

    async def open(self, scope: str) -> Session:
        """Open a session in the room that `resize` has made; its KV is its own, whatever the
        `scope`."""
        del scope
        return _CompetitorSession(self, self._free.pop(0))

    def release(self, session: int) -> None:
        """Make the place of a session free for another."""
        self._free.append(session)

    def request(
        self, session: int, kept: int, ids: Ids, output: Output, until_s: float
    ) -> asyncio.Future[dict[str, Any]]:
        """Request a turn of the session with this number, which begins after those requested
        before, unless it is later than `until_s` then. Returns the reply of the process."""
        times = {"sent_s": time.perf_counter(), "until_s": until_s}
        self._send({"session": session, "kept": kept, "ids": ids, **output._asdict(), **times})
        reply = asyncio.get_running_loop().create_future()
        self._replies.setdefault(session, deque()).append(reply)
        return reply

    def _send(self, value: Any) -> None:
        if self._failure is not None:
            raise self._failure
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")

    async def _receive(self) -> dict[str, Any]:
        """Return the next reply. Raises CompetitorError if the process ends instead."""
        assert self._process.stdout is not None
        if line := await self._process.stdout.readline():
            return json.loads(line)
        code = await self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines() or ["no message"]
        raise CompetitorError(f"failed ({code}): {lines[-1]}")

    async def _read_replies(self) -> None:
        """Hand each reply to the session that waits for it."""
        try:
            while True:
                reply = await self._receive()
                if "resized" in reply:
                    assert self._resized is not None
                    self._resized.set_result(None)
                else:
                    self._replies[reply["session"]].popleft().set_result(reply)
        except CompetitorError as error:
            self._failure = error
            replies = itertools.chain.from_iterable(self._replies.values())
            waiting = [*replies, *filter(None, [self._resized])]
            for future in waiting:
                if not future.done():
                    future.set_exception(error)

    async def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._errors.close()


class _CompetitorSession(Session):
    def __init__(self, target: CompetitorTarget, number: int) -> None:
        self._target = target
        self._number = number
        self._length = 0
        self._cached = 0
        """Ids of the session whose KV is computed."""

    async def turn(self, ids: Ids, output: Output) -> Turn:
        [turn] = await self.turns([ids], output, math.inf)
        return turn

    async def turns(self, prompts: Sequence[Ids], output: Output, until_s: float) -> list[Turn]:
        """Run turns, all of which are sent ahead, so that the client costs no time between."""
        requests: list[tuple[int, int | None, asyncio.Future[dict[str, Any]]]] = []
        for ids in prompts:
            kept = self._length
            cached = self._cached if self._target.keeps_kv else None
            reply = self._target.request(self._number, kept, ids, output, until_s)
            requests.append((kept + len(ids), cached, reply))
            self._length += len(ids) + output.tokens
            # The KV of the last token drawn is computed with the next turn.
            self._cached = self._length - 1
        turns: list[Turn] = []
        for prompt_tokens, cached, reply in requests:
            ended = await reply
            if not ended["ids"]:
                break
            turns.append(
                Turn(ended["begin_s"], ended["token_s"], ended["ids"], prompt_tokens, cached)
            )
        return turns

    async def interrupted_turn(self, ids: Ids, output: Output, received: int, kept: int) -> None:
        await self.turn(ids, output._replace(tokens=received))
        self._length -= received - min(kept, received)
        if self._length < self._cached:
            self._cached = self._length if self._target.can_cut else 0

    async def close(self) -> None:
        self._target.release(self._number)


def _gguf_path(folder: Path, dtype: str) -> Path:
    """Return where the converted weights of a checkpoint are kept."""
    changed = int((folder / "model.safetensors").stat().st_mtime)
    return CACHE_FOLDER / "gguf" / f"{folder.name}-{changed}-{dtype}.gguf"
