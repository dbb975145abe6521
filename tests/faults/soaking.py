"""F40: mixed clients for hours, and whether memory, file descriptors and keys in Redis stay flat.

`python -m tests.faults.soaking [--minutes M] [--seed N]` runs rounds of one deployment for that
time, prints the footprint after each, and fails at the first that exceeds its limits.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from continuo.engine import CacheSize
from continuo.realtime.store import keys
from tests.faults.caller import DISCONNECT_ERRORS, ReconnectingClient
from tests.faults.cluster import Cluster, continue_and_close, running_cluster
from tests.faults.deployment import ExpectedConversation
from tests.faults.row import FaultRow
from tests.support.clients import JsonEvent, RequestRefused, ResponsesClient, output_text
from tests.support.processes import Process
from tests.support.web_servers import ACME

CLIENTS = 8
"""Clients at a time."""
LIVES = 8
"""Conversations and requests of each client in a round."""
WARM_UP_ROUNDS = 2
"""Rounds before the footprint is measured to which later ones are compared: pools of connections
and arenas of the allocator fill."""
GROWTH_BYTES_MAX = 8 * 1024 * 1024
"""How much the resident memory of a process may grow, without what its caches hold, however long
the run is."""
GROWTH_FDS_MAX = keys.CONNECTIONS_MAX
"""How many file descriptors a process may have more: a gateway opens connections to Redis when it
needs them, and keeps them."""
SETTLE_S = 60.0
ROUND_S_MAX = 300.0
"""Time of a round, which takes 4 s: a client whose event does not come reconnects for ever."""
MIB = 1024 * 1024
LEAVING_KEY = "key-of-those-who-leave"
KEYS_FILE = f"""
[[keys]]
key = "{LEAVING_KEY}"
tenant = "leaving"

[tenants.leaving]
retention_s = 3
"""
"""Sessions of clients that will not return are of a tenant for which they are kept for 3 s. Others
are kept as long as ever, because a client on a busy machine may need that to return."""


class Footprint(msgspec.Struct, frozen=True):
    """The memory, file descriptors and keys of a deployment without sessions."""

    resident_bytes: dict[str, int]
    """By process."""
    caches: dict[str, dict[str, CacheSize]]
    """Sizes of the bounded caches of each gateway by their names, as `/metrics` reports them."""
    fds: dict[str, int]
    """Open file descriptors by process."""
    keys: frozenset[str]
    """Names of the keys in Redis, without the tombstones of sessions, which expire in an hour."""
    tombstones: int

    def line(self) -> str:
        sizes = ", ".join(
            f"{name} {size / MIB:.1f} MiB ({self._cached_bytes(name) / MIB:.1f} cached) "
            f"{self.fds[name]} fds"
            for name, size in self.resident_bytes.items()
        )
        return f"{sizes}; {len(self.keys)} keys, {self.tombstones:,} tombstones"

    def growth_since(self, earlier: "Footprint") -> list[str]:
        """Return what has grown by more than its limit."""
        grown = [f"key {name}" for name in sorted(self.keys - earlier.keys)]
        for name in self.resident_bytes:
            more_bytes = self._uncached_bytes(name) - earlier._uncached_bytes(name)
            if more_bytes > GROWTH_BYTES_MAX:
                grown.append(f"{name}: {more_bytes:,} bytes outside of caches")
            more_fds = self.fds[name] - earlier.fds[name]
            if more_fds > GROWTH_FDS_MAX:
                grown.append(f"{name}: {more_fds} file descriptors")
        for name, caches in self.caches.items():
            grown += [
                f"{name}: {cache} hold {size.held_bytes:,} of {size.bytes_max:,} bytes"
                for cache, size in caches.items()
                if size.held_bytes > size.bytes_max
            ]
        return grown

    def _cached_bytes(self, process: str) -> int:
        return sum(size.held_bytes for size in self.caches.get(process, {}).values())

    def _uncached_bytes(self, process: str) -> int:
        return self.resident_bytes[process] - self._cached_bytes(process)


class Soak:
    """A cluster under load, and its footprint when it had warmed up."""

    def __init__(self, cluster: Cluster, model: str) -> None:
        self.cluster = cluster
        self.model = model
        self.baseline: Footprint | None = None

    @property
    def processes(self) -> dict[str, int]:
        """The pid of each process by its name."""
        named: dict[str, Process] = {
            **{f"gateway {n}": process for n, process in enumerate(self.cluster.gateways)},
            **{f"engine {n}": process for n, process in enumerate(self.cluster.engines)},
        }
        pids = {name: process.pid for name, process in named.items()}
        for name, process in named.items():
            pids |= {f"child of {name}": pid for pid in process.children()}
        return pids

    async def run_round(self, rng: Random) -> None:
        """Let all clients live their lives. Raises if one of them is not served as it should be."""

        async def live(seed: float) -> None:
            own = Random(seed)
            for _ in range(LIVES):
                await own.choice(KINDS)(self, own)

        async with asyncio.timeout(ROUND_S_MAX), asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(live(rng.random()))

    async def measure(self) -> Footprint:
        """Return the footprint once no session is left."""
        await self.cluster.assert_balanced()
        names, tombstones = await self._list_keys()
        until_s = time.monotonic() + SETTLE_S
        while self.baseline is not None and (left := names - self.baseline.keys):
            assert time.monotonic() < until_s, (
                f"keys that no session should leave: {await self._describe_keys(left)}\n"
                + "\n".join(process.tail() for process in self.cluster.gateways)
            )
            names, tombstones = await self._list_keys()
        caches = {
            f"gateway {n}": await self._scrape_caches(n) for n in range(len(self.cluster.gateways))
        }
        pids = self.processes
        return Footprint(
            {name: resident_bytes(pid) for name, pid in pids.items()},
            caches,
            {name: open_fds(pid) for name, pid in pids.items()},
            names,
            tombstones,
        )

    async def _scrape_caches(self, gateway: int) -> dict[str, CacheSize]:
        _, content = await self.request("GET", "/metrics", gateway=gateway)
        values = {
            (sample.name, sample.labels["cache"]): int(sample.value)
            for family in text_string_to_metric_families(content.decode())
            for sample in family.samples
            if "cache" in sample.labels
        }
        return {
            cache: CacheSize(held_bytes, values["continuo_cache_bytes_max", cache])
            for (name, cache), held_bytes in values.items()
            if name == "continuo_cache_bytes"
        }

    async def _list_keys(self) -> tuple[frozenset[str], int]:
        """Return the names of all keys but tombstones, and the number of these."""
        async with self.cluster.redis.client() as client:
            listed: Any = await client.keys("*")
            names = sorted(name.decode() for name in listed)
            metas = [name for name in names if name.endswith("}:meta")]
            async with client.pipeline(transaction=False) as pipeline:
                for name in metas:
                    pipeline.hget(name, "owner")
                owners = await pipeline.execute()
        tombstones = {name for name, owner in zip(metas, owners, strict=True) if owner == b""}
        return frozenset(names) - tombstones, len(tombstones)

    async def _describe_keys(self, names: Iterable[str]) -> dict[str, object]:
        """Return each key with the members of a set, or else its type."""
        async with self.cluster.redis.client() as client:
            described = dict[str, object]()
            for name in sorted(names):
                kind: Any = await client.type(name)
                members: Any = await client.smembers(name) if kind == b"set" else kind
                described[name] = members
        return described

    # ------------------------------------------------------------ clients

    def create_client(self, first: int, *, will_leave: bool) -> ReconnectingClient:
        """Create a client of all gateways. `will_leave`: its session ends by expiry, soon after its
        connection; it must not reconnect."""
        client = self.cluster.create_client(first)
        if will_leave:
            client.headers = {"Authorization": f"Bearer {LEAVING_KEY}"}
        return client

    async def open_conversation(
        self, first: int, *, will_leave: bool
    ) -> tuple[ReconnectingClient, ExpectedConversation]:
        client = self.create_client(first, will_leave=will_leave)
        return client, await self.cluster.begin_conversation(client)

    def http_url(self, path: str, gateway: int) -> str:
        return f"http://127.0.0.1:{self.cluster.gateway_ports[gateway]}{path}"

    async def request(
        self, method: str, path: str, body: object = None, gateway: int = 0, **headers: str
    ) -> tuple[int, Any]:
        """Send a request to a gateway, until it is not refused for now: Redis may be slow to answer
        on a busy machine. Returns the status and the body, decoded."""
        data = None if body is None else json.dumps(body).encode()
        all_headers = {**ACME, "Content-Type": "application/json", **headers}
        url = self.http_url(path, gateway)
        request = urllib.request.Request(url, data, all_headers, method=method)
        async with asyncio.timeout(SETTLE_S):
            while (result := await asyncio.to_thread(_fetch, request))[0] == 503:
                await RequestRefused(result[1]["error"]).back_off()
        return result


def _fetch(request: urllib.request.Request) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            status, content = reply.status, reply.read()
    except urllib.error.HTTPError as error:
        status, content = error.code, error.read()
    with contextlib.suppress(ValueError):
        return status, json.loads(content)
    return status, content


def resident_bytes(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def open_fds(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


# ---------------------------------------------------------------- lives of clients


async def hold_conversation(soak: Soak, rng: Random) -> None:
    """A session whose client loses its connection now and then, and closes it or does not."""
    will_leave = rng.random() < 0.5
    client, expected = await soak.open_conversation(rng.randrange(2), will_leave=will_leave)
    for _ in range(rng.randrange(1, 4)):
        tokens = rng.randrange(1, 40)
        response = await client.start_response(max_output_tokens=tokens)
        if not will_leave and rng.random() < 0.8:
            await client.wait_deltas(rng.randrange(3))
            await client.reconnect()
        assert await client.wait_response(response) == expected.compute_response(tokens)
        assert {*client.resume_outcomes} <= {"exact"}, "a gateway had to send a snapshot"
        if rng.random() < 0.3:
            await cancel_response(client)
        await client.add_message("and then")
        expected.add_user_message("and then")
    if will_leave:
        await client.disconnect()  # the session expires
    else:
        await continue_and_close(client, expected)


async def cancel_response(client: ReconnectingClient) -> None:
    """Cancel a response outside of the conversation, which may have ended before."""
    response_id = await client.start_response(conversation="none", max_output_tokens=200)
    await client.send("response.cancel", response_id=response_id)
    with contextlib.suppress(RequestRefused):
        await client.synchronize()


async def continue_stored_responses(soak: Soak, rng: Random) -> None:
    """Responses over HTTP, each stored, continued at any gateway, and deleted where it was made:
    the memory of another gateway keeps one to continue from, for an hour."""
    expected, previous = soak.cluster.expected_conversation(), None
    stored = list[tuple[str, int]]()
    for _ in range(rng.randrange(1, 4)):
        tokens = rng.randrange(1, 20)
        body = {"model": soak.model, "input": "hello", "max_output_tokens": tokens}
        if previous is not None:
            body["previous_response_id"] = previous
        gateway = rng.randrange(2)
        status, response = await soak.request("POST", "/v1/responses", body, gateway)
        assert status == 200, response
        expected.add_user_message("hello")
        assert output_text(response) == expected.compute_response(tokens)
        previous = response["id"]
        stored.append((previous, gateway))
    for response_id, gateway in stored:
        path = f"/v1/responses/{response_id}"
        assert (await soak.request("DELETE", path, gateway=gateway))[0] == 200


async def use_socket_of_responses(soak: Soak, rng: Random) -> None:
    """Responses over one WebSocket, which continue one another."""
    url = soak.http_url("/v1/responses", rng.randrange(2)).replace("http", "ws")
    expected, fields = soak.cluster.expected_conversation(), JsonEvent()
    async with connect(url, additional_headers=ACME, proxy=None) as socket:
        client = ResponsesClient(socket)
        for _ in range(rng.randrange(1, 4)):
            tokens = rng.randrange(1, 20)
            response = await client.create_response(
                "hello", model=soak.model, max_output_tokens=tokens, store=False, **fields
            )
            expected.add_user_message("hello")
            assert output_text(response) == expected.compute_response(tokens)
            fields = {"previous_response_id": response["id"]}


async def keep_conversation(soak: Soak, rng: Random) -> None:
    """A conversation over HTTP, with a response in it, deleted at the end."""
    _, conversation = await soak.request("POST", "/v1/conversations", {})
    path, expected = f"/v1/conversations/{conversation['id']}", soak.cluster.expected_conversation()
    for _ in range(rng.randrange(1, 3)):
        body = {"model": soak.model, "input": "hello", "max_output_tokens": 8, "store": False}
        body["conversation"] = conversation["id"]
        status, response = await soak.request("POST", "/v1/responses", body, rng.randrange(2))
        assert status == 200, response
        expected.add_user_message("hello")
        assert output_text(response) == expected.compute_response(8)
    assert (await soak.request("GET", f"{path}/items"))[0] == 200
    assert (await soak.request("DELETE", path, gateway=rng.randrange(2)))[0] == 200


async def abort_chat(soak: Soak, rng: Random) -> None:
    """A streamed chat completion whose client disconnects before its end."""
    body = {"model": soak.model, "stream": True, "max_tokens": 300}
    content = json.dumps({**body, "messages": [{"role": "user", "content": "hello"}]}).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in ACME.items())
    head += f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    port = soak.cluster.gateway_ports[rng.randrange(2)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n\r\n".encode() + content)
    await reader.readuntil(b"data: ")
    writer.transport.abort()


async def be_refused(soak: Soak, rng: Random) -> None:
    """A client with a wrong key, one that asks for what does not exist, and one whose frames are
    malformed."""
    gateway = rng.randrange(2)
    assert (await soak.request("GET", "/nothing", gateway=gateway))[0] == 404
    with contextlib.suppress(InvalidStatus):
        await connect(soak.cluster.urls[gateway], additional_headers={"Authorization": "Bearer x"})
    client = soak.create_client(gateway, will_leave=True)
    with contextlib.suppress(*DISCONNECT_ERRORS):  # the store may be unavailable for a moment
        await client.connect()
        await client.socket.send("{no")
        while "error" not in client.received_types:
            await client.receive()
    await client.disconnect()


async def monitor(soak: Soak, rng: Random) -> None:
    for path in ("/metrics", "/v1/stats", "/v1/realtime/sessions", "/v1/models"):
        assert (await soak.request("GET", path, gateway=rng.randrange(2)))[0] == 200


KINDS: tuple[Callable[[Soak, Random], Awaitable[None]], ...] = (
    hold_conversation,
    hold_conversation,
    hold_conversation,
    continue_stored_responses,
    use_socket_of_responses,
    keep_conversation,
    abort_chat,
    be_refused,
    monitor,
)


# ---------------------------------------------------------------- rounds


async def soak_for_a_round(soak: Soak, rng: Random) -> None:
    assert soak.baseline is not None
    await soak.run_round(rng)
    grown = (await soak.measure()).growth_since(soak.baseline)
    assert not grown, grown
    await soak.cluster.assert_no_garbage()


@asynccontextmanager
async def warm_cluster(folder: Path) -> AsyncIterator[Soak]:
    keys_file = folder / "keys.toml"
    keys_file.write_text(KEYS_FILE)
    options = ("--api-keys-file", str(keys_file), "--detach-grace-s", "0.5")
    async with running_cluster(folder, *options, gateways=2) as cluster:
        soak = Soak(cluster, "")
        _, models = await soak.request("GET", "/v1/models")
        soak.model = models["data"][0]["id"]
        for n in range(WARM_UP_ROUNDS):
            await soak.run_round(Random(f"warm-up {n}"))
        soak.baseline = await soak.measure()
        yield soak


ROWS = (
    FaultRow(
        id="F40",
        fault="rounds of mixed clients: sessions that lose their connections and are resumed, "
        "closed or left; stored responses, conversations, aborted streams, malformed requests",
        expectation="every response is the expected one, and every resume exact; after each round "
        "no session, leased page or key in Redis is left, and no process has 8 MiB, beside what "
        "its bounded caches hold, or 32 file descriptors more than at first; at the end no gateway "
        "holds anything in a reference cycle",
        environment=warm_cluster,
        trial=soak_for_a_round,
        full_trials=60,
        quick_trials=1,
    ),
)


async def _soak(minutes: float, seed: int) -> None:
    """Run rounds for this time, which begins when the cluster is warm."""
    with tempfile.TemporaryDirectory() as folder:
        async with warm_cluster(Path(folder)) as soak:
            assert soak.baseline is not None
            print(f"warm: {soak.baseline.line()}", flush=True)
            end_s = time.monotonic() + minutes * 60
            for n in itertools.count(seed):
                if time.monotonic() > end_s:
                    break
                await soak.run_round(Random(n))
                footprint = await soak.measure()
                print(f"seed {n}: {footprint.line()}", flush=True)
                grown = footprint.growth_since(soak.baseline)
                assert not grown, grown
            await soak.cluster.assert_no_garbage()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soaking", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, metavar="M")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first round")
    options = parser.parse_args()
    asyncio.run(_soak(options.minutes, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
