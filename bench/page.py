"""How smoothly the page shows a long answer while it streams: the tasks of its main thread.

A gateway with an engine whose device writes one given answer streams it to the page in a headless
Chromium, once for each kind of answer: prose, lists, tables, code, formulas, and all of them in
turn. A trace of Chromium says how long each task of the page's main thread took. A task of more
than 50 ms is one that a reader can notice; what loads the page, before the answer begins, is not
counted. The answer is complete on the page when its last word is in the document.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import itertools
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop
from websockets.asyncio.client import ClientConnection, connect

from continuo.bench import scripted_engine
from continuo.bench.gateway_server import serving
from continuo.bench.processes import Process
from continuo.bench.report import Report, ReportRow
from continuo.engine import find_local_checkpoint
from continuo.engine.batch import Batch, BatchRow, Geometry
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.text import ModelText
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.page import ASSETS_DIR
from continuo.realtime.store import open_store

CONTEXT, PAGE_SIZE = 65_536, 16
LONG_MS = 50.0
LAST_WORD = "Finis."
LOADED_S_MAX, COMPLETE_S_MAX = 30.0, 120.0
POLL_S = 0.1
TRACED = "disabled-by-default-devtools.timeline"
"""Category of the trace that has the tasks of each thread. Each trace has the names of threads."""

PROSE = (
    "A *conversation* keeps what was said, and **nothing** of it is computed again: see the "
    "`cache` and [its pages](https://example.org/pages), which hold keys and values of a layer. "
)
PARTS: Mapping[str, str] = {
    "prose": PROSE * 4 + "\n\n",
    "lists": "".join(f"{n}. The step {n}: {PROSE}\n   - a part of it\n" for n in range(1, 5))
    + "\n",
    "tables": "| name | pages | share |\n|:--|--:|:-:|\n"
    + "".join(f"| session {n} | {n * 37} | {n % 10 * 10} % |\n" for n in range(24))
    + "\n",
    "code": "```python\n"
    + "".join(
        f"def page_{n}(ids: list[int]) -> int:\n    return sum(ids) % {n + 2}\n\n"
        for n in range(12)
    )
    + "```\n\n",
    "formulas": "The share of page $n$ is $p_n = \\frac{a_n}{\\sum_k a_k}$, and so\n\n"
    "$$\\int_0^1 x^n \\, dx = \\frac{1}{n + 1}$$\n\n" + PROSE + "\n\n",
}


def write_answer(kinds: Sequence[str], length: int) -> str:
    """Return Markdown of at least `length` characters, of the parts of PARTS in turn."""
    text = ""
    for number, kind in enumerate(itertools.cycle(kinds), 1):
        if len(text) >= length:
            return f"{text}\n\n{LAST_WORD}"
        text += f"## Section {number}\n\n{PARTS[kind]}"
    raise AssertionError("kinds is empty")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--length", type=int, default=24_000, help="characters of an answer (default: %(default)s)"
    )
    parser.add_argument(
        "--rate", type=float, default=400.0, help="tokens a second (default: %(default)s)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=[*PARTS, "all"], help="kinds of answers (default: each)"
    )
    parser.add_argument(
        "--chromium",
        default=os.environ.get("CONTINUO_CHROMIUM") or shutil.which("chromium") or "chromium",
        metavar="FILE",
        help="Chromium to run (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> Report:
    if shutil.which(options.chromium) is None:
        raise SystemExit(f"--chromium: there is no {options.chromium}; apt-get install chromium")
    if not (ASSETS_DIR / "index.html").exists():
        raise SystemExit("The page has not been built: make web")
    return uvloop.run(_measure(options))


async def _measure(options: argparse.Namespace) -> Report:
    kinds = options.only or [*PARTS, "all"]
    answers = {
        kind: write_answer([*PARTS] if kind == "all" else [kind], options.length) for kind in kinds
    }
    async with (
        _serving(list(answers.values()), options.rate) as port,
        Chromium.running(options.chromium) as chromium,
    ):
        rows: list[ReportRow] = [
            {"answer": kind, **await _show(chromium, f"http://127.0.0.1:{port}/")}
            for kind in answers
        ]
    return Report(
        "A long answer on the page",
        rows,
        notes=[
            f"Answers of {options.length:,} characters at {options.rate:g} tokens a second; tasks "
            "of the page's main thread, in milliseconds. On a busy machine each takes longer."
        ],
    )


async def _show(chromium: Chromium, url: str) -> ReportRow:
    """Have an answer streamed to a new page, and return the figures of its tasks."""
    page = await chromium.open(url)
    await page.wait_until("document.querySelector('form.composer textarea') !== null", LOADED_S_MAX)
    await page.wait_until("document.readyState === 'complete'", LOADED_S_MAX)
    await page.evaluate(
        "localStorage.clear(); const field = document.querySelector('form.composer textarea');"
        "field.value = 'Go on.'; field.dispatchEvent(new Event('input', {bubbles: true}));"
    )
    await chromium.start_trace()
    started_s = time.monotonic()
    await page.evaluate("document.querySelector('form.composer').requestSubmit()")
    await page.wait_until(f"document.body.textContent.includes('{LAST_WORD}')", COMPLETE_S_MAX)
    shown_s = time.monotonic() - started_s
    events = await chromium.stop_trace()
    await page.close()
    durations_ms = sorted(task_durations_ms(events))
    return {
        "seconds": shown_s,
        "longest_ms": durations_ms[-1],
        "p99_ms": durations_ms[len(durations_ms) * 99 // 100],
        "tasks": len(durations_ms),
        "above_50_ms": sum(ms > LONG_MS for ms in durations_ms),
        "busy_share": sum(durations_ms) / 1e3 / shown_s,
    }


def task_durations_ms(events: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the durations of the tasks of a page's main thread, from a trace of Chromium: those of
    the busiest one, since the tab that Chromium starts with has one too."""
    threads = {
        (event["pid"], event["tid"]): list[float]()
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    for event in events:
        if event["name"] == "RunTask" and (event["pid"], event["tid"]) in threads:
            threads[event["pid"], event["tid"]].append(event.get("dur", 0) / 1e3)
    return max(threads.values(), key=sum)


class Chromium:
    """A headless Chromium, driven by its DevTools protocol: https://chromedevtools.github.io"""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._traced: list[dict[str, Any]] = []
        self._has_traced = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, command: str) -> AsyncIterator[Chromium]:
        """Run a Chromium with a profile of its own, which is deleted."""
        folder = Path(tempfile.mkdtemp())
        process = Process(
            folder,
            *(command, "--headless", "--no-sandbox", "--disable-dev-shm-usage"),
            *("--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"),
        )
        try:
            url = await process.wait_for_output(r"DevTools listening on (ws://\S+)")
            async with connect(url, max_size=None, compression=None) as connection:
                chromium = cls(connection)
                reading = asyncio.create_task(chromium._read())
                yield chromium
                reading.cancel()
        finally:
            process.kill()
            shutil.rmtree(folder, ignore_errors=True)

    async def _read(self) -> None:
        async for message in self._connection:
            received = json.loads(message)
            if "id" in received:
                self._replies.pop(received["id"]).set_result(received)
            elif received["method"] == "Tracing.dataCollected":
                self._traced += received["params"]["value"]
            elif received["method"] == "Tracing.tracingComplete":
                self._has_traced.set()

    async def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method, of one page if `session` is given. Raises RuntimeError if it fails."""
        number = next(self._numbers)
        request = {"id": number, "method": method, "params": params}
        self._replies[number] = asyncio.get_running_loop().create_future()
        await self._connection.send(
            json.dumps(request if session is None else {**request, "sessionId": session})
        )
        reply = await self._replies[number]
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    async def open(self, url: str) -> Page:
        target = (await self.call("Target.createTarget", url=url))["targetId"]
        attached = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        return Page(self, target, attached["sessionId"])

    async def start_trace(self) -> None:
        self._traced.clear()
        self._has_traced.clear()
        await self.call("Tracing.start", traceConfig={"includedCategories": [TRACED]})

    async def stop_trace(self) -> list[dict[str, Any]]:
        """Return the events since `start_trace`."""
        await self.call("Tracing.end")
        await self._has_traced.wait()
        return list(self._traced)


class Page:
    def __init__(self, chromium: Chromium, target: str, session: str) -> None:
        self._chromium, self._target, self._session = chromium, target, session

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in JavaScript. Raises RuntimeError if it throws."""
        reply = await self._chromium.call(
            "Runtime.evaluate", self._session, expression=expression, returnByValue=True
        )
        if "exceptionDetails" in reply:
            raise RuntimeError(f"{expression}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    async def wait_until(self, condition: str, seconds_max: float) -> None:
        """Wait until an expression is true. Raises TimeoutError if it stays false."""
        async with asyncio.timeout(seconds_max):
            while not await self.evaluate(condition):
                await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        await self._chromium.call("Target.closeTarget", targetId=self._target)


class WritingRunner(scripted_engine.TimedRunner):
    """A device whose n-th turn draws the n-th of `outputs`, an id at each tick of the clock, and
    then `stop_id`. There is one session at a time."""

    def __init__(
        self, rate: float, outputs: Sequence[Sequence[int]], stop_id: int, vocab_size: int
    ) -> None:
        super().__init__(rate)
        self._outputs = iter(outputs)
        self._output: Iterator[int] = iter(())
        self._stop_id, self._vocab_size = stop_id, vocab_size
        self._has_stopped = True

    @property
    def geometry(self) -> Geometry:
        return Geometry(
            CONTEXT // PAGE_SIZE, PAGE_SIZE, CONTEXT, self._vocab_size, 8192, self.steps_ahead
        )

    def _draw_ids(self, batch: Batch) -> Iterable[int]:
        return [self._draw(row) if row.sample else self._stop_id for row in batch.rows]

    def _draw(self, row: BatchRow) -> int:
        if self._has_stopped and len(row.ids):  # a row of a turn that has stopped is fed by another
            self._output = iter(next(self._outputs))
        id = next(self._output, self._stop_id)
        self._has_stopped = id == self._stop_id
        return id


@contextlib.asynccontextmanager
async def _serving(answers: Sequence[str], rate: float) -> AsyncIterator[int]:
    """Serve a model that gives these answers in turn, on a port of the loopback interface."""
    folder = find_local_checkpoint("demo")
    assert folder is not None
    text = ModelText(str(folder))
    outputs = [text.encode(answer) for answer in answers]
    runner = WritingRunner(rate, outputs, text.stop_ids[0], text.vocab_size)
    parts, ready = scripted_engine.assemble_engine(runner, str(folder))
    engines: list[asyncio.Task[None]] = []

    async def launch() -> socket.socket:
        ours, theirs = socket.socketpair()
        await scripted_engine.serve_client(
            parts.clients, ready, theirs.detach(), io.StringIO(), parts.loop.stop
        )
        engines.append(asyncio.create_task(parts.run()))
        return ours

    client = EngineClient(launch)
    await client.connect()
    store = await open_store("sqlite:///:memory:")
    async with serving(client, store, GatewaySettings(served_model_name=("bench",))) as port:
        yield port
    await client.stop()
    await asyncio.gather(*engines)
    await store.aclose()
