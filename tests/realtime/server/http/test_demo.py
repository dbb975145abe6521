"""`continuo serve --demo`: the page can kill the engine, and responses survive."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from continuo.realtime.server.config.settings import GatewaySettings
from tests.browser.vitest import needs_page
from tests.support.clients import open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.processes import Process, is_running
from tests.support.web_servers import serve_harness

pytestmark = pytest.mark.process

PATH = "/v1/demo/kill_engine"
QUESTION = "Tell me a short story."


class DemoServer:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.page = process.wait_for_output(r"Open +(\S+)")
        self.origin, _, self.token = self.page.partition("/#demo=")
        process.wait_for_output("(Stop)")

    @property
    def socket_url(self) -> str:
        return f"{self.origin.replace('http', 'ws', 1)}/v1/realtime"

    @property
    def engine_pid(self) -> int:
        (pid,) = self.process.children()
        return pid

    @property
    def own_headers(self) -> dict[str, str]:
        """Headers of a request by the page."""
        return {"Origin": self.origin, "X-Demo-Token": self.token}

    def request(
        self, headers: dict[str, str], method: str = "POST", query: str = ""
    ) -> tuple[int, Any]:
        url = f"{self.origin}{PATH}{query}"
        request = urllib.request.Request(url, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            body = json.loads(error.read())
            return error.code, {**body["error"], "retry_after": error.headers.get("Retry-After")}


@pytest.fixture(scope="module")
def server() -> Iterator[DemoServer]:
    """The model is slowed down, so that a response in progress can be observed."""
    process = Process(
        *("serve", "--demo", "--port", "0", "--threads", "1", "--store", "memory"),
        *("--dtype", "float32", "--log-level", "debug"),
        module="tests.browser.paced",
    )
    try:
        yield DemoServer(process)
    finally:
        process.stop()


@needs_page
def test_only_the_own_page_with_the_token_can_kill_the_engine(server: DemoServer) -> None:
    assert len(server.token) >= 20
    own = server.own_headers
    port = server.origin.rpartition(":")[2]
    pid = server.engine_pid
    for origin in (
        "https://example.org",
        "http://127.0.0.1:1",
        f"http://localhost:{port}",  # may use the API, but is not the page at this address
        f"https://127.0.0.1:{port}",
        f"{server.origin}.example.org",
        f"{server.origin}/",
        "null",
        "",
    ):
        status, error = server.request({**own, "Origin": origin})
        assert (status, error["code"]) == (403, "origin_not_allowed"), origin
    without_origin = {"X-Demo-Token": server.token}
    assert server.request(without_origin)[0] == 403
    for headers in (
        {"Origin": server.origin},
        {**own, "X-Demo-Token": ""},
        {**own, "X-Demo-Token": server.token[:-1]},
        {**own, "X-Demo-Token": f"{server.token}x"},
        {**own, "X-Demo-Token": "\xe9" * len(server.token)},
        {"Origin": server.origin, "Authorization": f"Bearer {server.token}"},
    ):
        status, error = server.request(headers)
        assert (status, error["code"]) == (403, "insufficient_scope"), headers
        assert "address that the server printed" in error["message"]
    assert server.request({"Origin": server.origin}, query=f"?demo={server.token}")[0] == 403
    status, error = server.request(own, query="?when=later")
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "when")
    foreign_host = {**own, "Host": "rebound.example.org", "Origin": "http://rebound.example.org"}
    assert server.request(foreign_host)[0] == 403
    for method in ("GET", "PUT", "DELETE", "HEAD"):
        request = urllib.request.Request(f"{server.origin}{PATH}", method=method, headers=own)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert (refused.value.code, refused.value.headers["Allow"]) == (405, "POST")
    assert server.engine_pid == pid
    assert is_running(pid)


@needs_page
async def test_response_continues_after_the_kill_with_the_same_text(server: DemoServer) -> None:
    own = server.own_headers
    async with open_realtime_session(server.socket_url, {}) as client:
        await client.send_message(QUESTION)
        expected = await client.complete_response()
    async with open_realtime_session(server.socket_url, {}) as client:
        await client.send(
            "session.update", session={"type": "realtime", "include": ["response.interrupted"]}
        )
        await client.send_message(QUESTION)
        pid = server.engine_pid
        killing = asyncio.create_task(
            asyncio.to_thread(server.request, own, query="?when=responding")
        )
        response = await client.start_response()
        status, body = await killing
        assert (status, body) == (202, {"object": "engine.killed", "pid": pid})
        interrupted = await client.wait_for("response.interrupted")
        assert 0 < interrupted["upto"] < len(expected)
        status, error = await asyncio.to_thread(server.request, own)
        assert (status, error["code"]) == (503, "engine_unavailable")
        assert await client.wait_response(response) == expected
        assert client.ended_responses[response]["status"] == "completed"
        status, error = await asyncio.to_thread(server.request, own)
        assert (status, error["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(error["retry_after"]) <= 10
        assert re.fullmatch(
            r"The engine was killed a moment ago\. Try again in \d+ s\.", error["message"]
        )
    assert not is_running(pid)
    assert server.engine_pid != pid
    log = server.process.output
    assert f"killed the engine process {pid}" in log
    after_start = log[log.index("Stop") :]
    assert server.token not in after_start


async def test_route_does_not_exist_without_the_option(harness: EngineHarness) -> None:
    async with serve_harness(harness, GatewaySettings()) as server:
        status, body = await server.request("POST", PATH, headers={"X-Demo-Token": ""})
        assert (status, body["error"]["code"]) == (404, "not_found")
        assert server.app.state.demo_token is None
