"""Schemas that would take minutes and gigabytes to compile, at a real server with two tenants."""

import asyncio
import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attack.target import BYSTANDER_KEY, KEY, Server, serving
from tests.support.processes import is_running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

ORDINARY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}}
PRIMES = (999_983, 999_979, 999_961, 999_959, 999_953)
GROWTH_BYTES_MAX = 64 * 1024 * 1024
GATEWAY_CPU_S_MAX = 1.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        yield server


def endless(title: str) -> dict[str, object]:
    multiples = [{"type": "integer", "multipleOf": prime} for prime in PRIMES]
    count = {"allOf": multiples, "title": title}
    return {"type": "object", "properties": {"count": count}}


def respond(server: Server, key: str, name: str, parameters: object) -> tuple[int, Any]:
    """Request a response with a strict tool. Returns status and body."""
    tool = {"type": "function", "name": name, "strict": True, "parameters": parameters}
    body = {"model": "demo", "input": "Hello!", "max_output_tokens": 8, "tools": [tool]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.address.port}/v1/responses",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def cpu_s(pid: int) -> float:
    """Return the processor time of a process without its children, in seconds."""
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


def trial_processes(server: Server) -> list[int]:
    return [pid for pid in server.process.children() if pid not in server.engines()]


def trials(server: Server) -> list[int]:
    """Return the process ids of the trials that run."""
    listed = [
        Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in trial_processes(server)
    ]
    return [int(pid) for pids in listed for pid in pids.split()]


async def test_costly_schema_is_refused_by_name_and_delays_no_other_tenant(server: Server) -> None:
    def strict(key: str, name: str, parameters: object) -> "asyncio.Task[tuple[int, Any]]":
        return asyncio.create_task(asyncio.to_thread(respond, server, key, name, parameters))

    status, _ = await strict(BYSTANDER_KEY, "weather", ORDINARY)
    assert status == 200
    before_bytes, before_s = server.memory_bytes(), cpu_s(server.process.pid)
    hostile = [strict(KEY, "count", endless(f"{n}")) for n in range(4)]
    await wait_until(lambda: trials(server))
    other = {"type": "object", "properties": {"place": {"type": "string"}}}
    status, _ = await strict(BYSTANDER_KEY, "place", other)
    assert status == 200
    assert not all(request.done() for request in hostile), "it did not wait for them"
    for status, body in await asyncio.gather(*hostile):
        assert status == 400
        error = body["error"]
        assert error["code"] == "invalid_function_parameters"
        assert error["param"] == "tools"
        assert re.search(
            r"strict function 'count' .* (more than 1 s|within 30 s)", error["message"]
        )
    assert server.memory_bytes() - before_bytes < GROWTH_BYTES_MAX
    assert cpu_s(server.process.pid) - before_s < GATEWAY_CPU_S_MAX
    assert server.faults() == []


async def test_server_stops_during_a_trial(server: Server) -> None:
    waiting = [
        asyncio.create_task(asyncio.to_thread(respond, server, KEY, "count", endless(f"{n}")))
        for n in range(8)
    ]
    await wait_until(lambda: trials(server))
    left = [*trials(server), *trial_processes(server)]
    server.process.send_signal(signal.SIGTERM)
    assert await server.process.wait_exit(within_s=30) == 0
    await wait_until(lambda: not any(map(is_running, left)))
    statuses = [status for status, _ in await asyncio.gather(*waiting)]
    assert set(statuses) <= {400, 503}
    assert 503 in statuses
