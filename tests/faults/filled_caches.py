"""F53: a server whose caches are filled, over the network, with what takes most memory.

    memory of its processes   ≤   memory at first  +  120 % of what the caches count  +  SLACK_BYTES

What a cache counts is at most its bound. Some entries end with their connection or session: then
the counts fall, and the memory must be given back. The others are replaced by further entries, so
each cache is filled more than once. How exactly each cache counts is tested without the requests
that fill it here, whose own memory the allocators keep: `tests/engine/text/test_grammar.py`,
`test_text_memory.py`, `test_continuation_memory.py` and `test_idempotency_keys.py`.
"""

import asyncio
import contextlib
import http.client
import itertools
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect

from continuo.engine import CacheSize
from continuo.realtime.session.idempotency_keys import IDEMPOTENCY_MEMORY_BYTES_MAX
from tests.faults.row import FaultRow
from tests.faults.soaking import resident_bytes
from tests.support.clients import RealtimeClient, RequestRefused, ResponsesClient
from tests.support.processes import Process, read_gateway_url, running_process, wait_ready
from tests.support.waiting import wait_until
from tests.support.web_servers import ACME, API_KEY

MIB = 1024 * 1024
SLACK_BYTES = 96 * MIB
"""Memory that the two processes may take besides: what the requests took that were processed at the
same time, as far as the allocators keep it."""
FLAT_BYTES = 4 * MIB
"""Growth of what grows by nothing."""
MEASURED_SHARE = 1.2
CONTINUATION_BYTES_MAX = 48 * MIB
KV_BYTES = 16 * MIB
"""Memory of the KV pool, which fills once and stays: the smallest with a whole context."""
CLIENTS = 4
SECRETS = 10_000
CONNECTIONS = 4
SESSIONS = 60
CANCELS = 140
SETTLE_S = 60.0
FILLED_S_MAX = 600.0


class FilledServer:
    """A server with an engine process of its own, and what both held at first."""

    def __init__(self, process: Process, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = parts.hostname, parts.port
        self._pids = [process.pid, *process.children()]
        self._first_bytes = self._first_counted = 0
        self._texts = itertools.count()

    @property
    def responses_url(self) -> str:
        return self.url.replace("/v1/realtime", "/v1/responses")

    def take_baseline(self) -> None:
        self._first_counted = sum(size.held_bytes for size in self.count().values())
        self._first_bytes = self.measure()

    def next_text(self) -> str:
        """Return a short text that differs from all before."""
        return f"{next(self._texts):x}"

    def count(self) -> dict[str, CacheSize]:
        """Return what each cache counts, and its bound."""
        values = {
            (sample.name, sample.labels["cache"]): int(sample.value)
            for family in text_string_to_metric_families(self._get("/metrics").decode())
            for sample in family.samples
            if "cache" in sample.labels
        }
        sizes = {
            cache: CacheSize(held_bytes, values["continuo_cache_bytes_max", cache])
            for (name, cache), held_bytes in values.items()
            if name == "continuo_cache_bytes"
        }
        tenants = json.loads(self._get("/v1/stats"))["tenants"]
        keys_bytes = sum(tenant["held_bytes"]["idempotency_keys"] for tenant in tenants)
        sessions = sum(tenant["sessions"] for tenant in tenants)
        sizes["idempotency_keys"] = CacheSize(keys_bytes, sessions * IDEMPOTENCY_MEMORY_BYTES_MAX)
        return sizes

    async def check(self) -> dict[str, CacheSize]:
        """Assert that no cache, and after a while none of the processes, holds more than it may.
        Returns what the caches count."""
        with contextlib.suppress(TimeoutError):
            await wait_until(lambda: not self._find_excess(), SETTLE_S)
        assert not (excess := self._find_excess()), excess
        return self.count()

    def _find_excess(self) -> str:
        """Return what is held beyond its bound; "" if nothing is."""
        sizes = self.count()
        over = {name: size for name, size in sizes.items() if size.held_bytes > size.bytes_max}
        counted_bytes = sum(size.held_bytes for size in sizes.values()) - self._first_counted
        grown_bytes = self.measure() - self._first_bytes
        if not over and grown_bytes <= MEASURED_SHARE * max(counted_bytes, 0) + SLACK_BYTES:
            return ""
        return f"{grown_bytes:,} bytes more, of which the caches count {counted_bytes:,}: {sizes}"

    def measure(self) -> int:
        """Return the resident bytes of both processes."""
        return sum(map(resident_bytes, self._pids))

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(*self._address, timeout=SETTLE_S)
        connection.request("GET", path, headers=ACME)
        reply = connection.getresponse()
        content = reply.read()
        assert reply.status == 200, content
        return content

    async def post_all(self, path: str, bodies: Iterator[object]) -> Counter[int]:
        """Send requests by several clients at a time. Returns how many had each status."""
        statuses, lock = Counter[int](), threading.Lock()

        def work() -> None:
            connection = http.client.HTTPConnection(*self._address, timeout=SETTLE_S)
            headers = {**ACME, "Content-Type": "application/json"}
            while True:
                with lock:
                    body = next(bodies, None)
                if body is None:
                    return
                status = 503
                while status == 503:  # the machine is too busy for the engine or the store
                    connection.request("POST", path, json.dumps(body), headers)
                    reply = connection.getresponse()
                    reply.read()
                    status = reply.status
                with lock:
                    statuses[status] += 1

        await asyncio.gather(*(asyncio.to_thread(work) for _ in range(CLIENTS)))
        return statuses


def response_body(prompt: str, tokens: int = 1, /, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "input": prompt, "max_output_tokens": tokens, "store": False, **fields}


# ---------------------------------------------------------------- what is filled


async def fill_grammars(server: FilledServer, rng: Random) -> None:
    """JSON schemas of four kinds, each with more memory than the cache has."""
    tokens, schemas = rng.choice(
        (
            (25, [_pattern(server.next_text()) for _ in range(24)]),
            (1, [{"properties": {server.next_text(): {}}} for _ in range(1_000)]),
            (1, [_subschemas(800, server.next_text()) for _ in range(20)]),
            (1, [{"const": server.next_text() + "x" * 10_000} for _ in range(30)]),
        )
    )
    statuses = await server.post_all(
        "/v1/responses",
        (
            response_body(
                "go",
                tokens,
                temperature=2,
                text={"format": {"type": "json_schema", "name": "a", "schema": schema}},
            )
            for schema in schemas
        ),
    )
    assert statuses == {200: len(schemas)}, statuses
    grammars = (await server.check())["grammars"]
    assert grammars.held_bytes > grammars.bytes_max / 2


def _pattern(text: str) -> dict[str, Any]:
    """A schema of 80 characters whose lexer comes to hold megabytes."""
    return {"type": "string", "pattern": f"^(.*a{text}.{{300}}|.*b.{{310}}|.*c.{{320}})$"}


def _subschemas(count: int, text: str) -> dict[str, Any]:
    return {"prefixItems": [{"const": text}, *({"maxLength": n} for n in range(count))]}


async def refuse_large_grammars(server: FilledServer, rng: Random) -> None:
    """JSON schemas that take more memory than one may: each is refused."""
    count = rng.randrange(4, 8)
    statuses = await server.post_all(
        "/v1/responses",
        (
            response_body(
                "go",
                text={
                    "format": {
                        "type": "json_schema",
                        "name": "a",
                        "schema": _subschemas(1_500, server.next_text()),
                    }
                },
            )
            for _ in range(count)
        ),
    )
    assert statuses == {400: count}, statuses
    await server.check()


async def fill_texts(server: FilledServer, rng: Random) -> None:
    """Requests that are refused once they are rendered or tokenized, because they are too long."""
    kind = rng.randrange(3)

    def make_body() -> dict[str, Any]:
        text = server.next_text()
        match kind:
            case 0:  # tools of empty values
                parameters = {"type": "object", "properties": {text: {"enum": [[]] * 8_000}}}
                tool = {"type": "function", "name": "f", "parameters": parameters}
                return response_body("go", tools=[tool])
            case 1:  # short texts
                items = [{"role": "user", "content": f"{text} {n:x}"} for n in range(1_000)]
                return {**response_body(""), "input": items}
            case _:  # long texts
                return response_body(text + "".join(rng.choices("abé漢😀", k=8_000)))

    statuses = await server.post_all("/v1/responses", (make_body() for _ in range(100)))
    assert statuses == {400: 100}, statuses
    await server.check()


async def fill_continuation_points(server: FilledServer, rng: Random) -> None:
    """Responses to continue from, of three kinds. They end with their connections."""
    kind = rng.randrange(3)
    count = (100, 4, 250)[kind]
    text = " ".join(rng.choices("abcdefgh", k=900))
    items = [{"role": "user", "content": f"{n:x}"} for n in range(2_000)]

    async def respond(client: ResponsesClient, previous: str | None) -> str:
        match kind:
            case 0:  # as many tokens as there is room for
                body = response_body(text + server.next_text())
                response = await client.create_response(**body)
            case 1:  # items that are out of the window
                body = {**response_body(""), "input": items, "truncation": "auto"}
                response = await client.create_response(**body)
            case _:  # a chain of short ones
                fields = {} if previous is None else {"previous_response_id": previous}
                response = await client.create_response(**response_body("go"), **fields)
        return response["id"]

    async def respond_patiently(client: ResponsesClient, previous: str | None) -> str:
        while True:
            try:
                return await respond(client, previous)
            except RequestRefused as refused:
                await refused.back_off()

    async def fill() -> None:
        async with connect(
            server.responses_url, additional_headers=ACME, max_size=None, proxy=None
        ) as socket:
            client, previous = ResponsesClient(socket), None
            for _ in range(count):
                previous = await respond_patiently(client, previous)
            filled.append(client)
            await closing.wait()

    filled = list[ResponsesClient]()
    closing = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(fill())
        await wait_until(lambda: len(filled) == CONNECTIONS, FILLED_S_MAX)
        points = (await server.check())["continuation_points"]
        assert points.held_bytes > MIB
        closing.set()
    await _wait_until_back(server, "continuation_points")


async def fill_idempotency_keys(server: FilledServer, rng: Random) -> None:
    """Sessions with more ids of events than they may keep, each as long as permitted. They end with
    the sessions."""
    letter = rng.choice("x漢😀")

    async def fill() -> None:
        async with connect(server.url, additional_headers=ACME, proxy=None) as socket:
            client = RealtimeClient(socket)
            await client.expect("session.created")
            for n in range(CANCELS):
                event_id = f"{n}-".ljust(512, letter)
                await client.send("response.cancel", event_id=event_id)
                await client.expect("error")
            filled.append(client)
            await closing.wait()
            await client.send("session.close")
            await client.wait_for("session.closed")

    filled = list[RealtimeClient]()
    closing = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(SESSIONS):
            group.create_task(fill())
        await wait_until(lambda: len(filled) == SESSIONS, FILLED_S_MAX)
        keys = (await server.check())["idempotency_keys"]
        assert keys.held_bytes > 0.5 * keys.bytes_max
        closing.set()
    await _wait_until_back(server, "idempotency_keys")


async def mint_client_secrets(server: FilledServer, rng: Random) -> None:
    """Client secrets with instructions, of which the server keeps nothing."""
    session = {"type": "realtime", "instructions": "".join(rng.choices("abcdefgh", k=500))}
    before_bytes = server.measure()
    statuses = await server.post_all(
        "/v1/realtime/client_secrets", itertools.repeat({"session": session}, SECRETS)
    )
    assert statuses == {200: SECRETS}, statuses
    assert server.measure() - before_bytes <= FLAT_BYTES


async def _wait_until_back(server: FilledServer, cache: str) -> None:
    """Wait until a cache is empty, and assert that its memory is given back."""
    await wait_until(lambda: not server.count()[cache].held_bytes, SETTLE_S)
    await server.check()


FILLS: tuple[Callable[[FilledServer, Random], Awaitable[None]], ...] = (
    fill_texts,
    fill_idempotency_keys,
    fill_continuation_points,
    fill_grammars,
    refuse_large_grammars,
    mint_client_secrets,
)


async def fill_a_cache(server: FilledServer, rng: Random) -> None:
    await rng.choice(FILLS)(server, rng)


# ---------------------------------------------------------------- the server


@asynccontextmanager
async def running_server(folder: Path) -> AsyncIterator[FilledServer]:
    options = ("--port", "0", "--no-web", "--threads", "1", "--store", f"sqlite:///{folder}/db")
    options += ("--kv-cache-memory-bytes", str(KV_BYTES))
    options += ("--continuation-bytes-max", str(CONTINUATION_BYTES_MAX))
    with running_process("serve", *options, env={"CONTINUO_API_KEY": API_KEY}) as process:
        url = await asyncio.to_thread(read_gateway_url, process)
        await wait_ready(url)
        server = FilledServer(process, url)
        words = " ".join(["go"] * 400)
        await server.post_all(
            "/v1/responses", (response_body(f"{server.next_text()} {words}") for _ in range(40))
        )
        server.take_baseline()
        yield server


ROWS = (
    FaultRow(
        id="F53",
        fault="one cache of a server is filled over the network with what takes most memory: "
        "grammars, texts, continuation points, idempotency keys; 10,000 client secrets are minted",
        expectation="each cache counts no more than its bound, and the two processes have grown by "
        "no more than 120 % of what is counted and 96 MiB; also when the entries have ended",
        environment=running_server,
        trial=fill_a_cache,
        full_trials=20,
        quick_trials=1,
    ),
)
