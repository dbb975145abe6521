"""Responses to browsers, proxies and mistaken clients: CORS, path prefixes, and errors in JSON."""

import json
import logging
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import connect

from continuo.realtime.server.config.settings import GatewaySettings, load_access_policy
from continuo.realtime.server.http.app import build_app
from continuo.realtime.server.http.readiness import ReadinessGate
from continuo.realtime.server.logging_setup import RedactingFormatter
from tests.support.engines import EngineHarness
from tests.support.sessions import shared_store
from tests.support.web_servers import (
    ACME,
    API_KEY,
    TENANTS,
    RunningServer,
    exchange_raw,
    serve_app,
)

ALLOWED, OTHER = "https://app.example.org", "https://evil.example.org"
SETTINGS = GatewaySettings(
    tenants=TENANTS,
    allowed_origins=frozenset({ALLOWED}),
    served_model_name=("demo",),
    root_path="/llm",
)
ENDPOINTS = [
    ("GET", "/v1/models"),
    ("GET", "/v1/stats"),
    ("GET", "/v1/realtime/sessions"),
    ("POST", "/v1/realtime/client_secrets"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/chat/completions"),
    ("DELETE", "/v1/responses/resp_x"),
    ("GET", "/health"),
    ("GET", "/health/ready"),
    ("GET", "/v1/nothing"),
]


@pytest.fixture
async def gate(harness: EngineHarness) -> ReadinessGate:
    store = await shared_store(harness)
    gate = ReadinessGate(load_access_policy(SETTINGS), root_path=SETTINGS.root_path)
    app = build_app(harness.engine, SETTINGS, store)
    gate.set_app(app, harness.engine.fleet, store, app.state.registry.recovery)
    return gate


@pytest.fixture
async def server(gate: ReadinessGate) -> AsyncIterator[RunningServer]:
    async with serve_app(gate, gate.state.registry, SETTINGS) as server:
        yield server


async def preflight(server: RunningServer, path: str, origin: str) -> tuple[int, dict[str, str]]:
    head = (
        f"OPTIONS {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nOrigin: {origin}\r\n"
        "Access-Control-Request-Method: POST\r\n"
        "Access-Control-Request-Headers: authorization,content-type,x-stainless-lang\r\n\r\n"
    )
    lines = (await exchange_raw(server, head.encode())).partition(b"\r\n\r\n")[0].decode()
    status, *fields = lines.split("\r\n")
    return int(status.split()[1]), dict(field.lower().split(": ", 1) for field in fields)


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
async def test_page_of_an_allowed_origin_can_read_every_response(
    server: RunningServer, method: str, path: str
) -> None:
    for origin in (ALLOWED, "http://localhost:5173"):
        _, headers, _ = await server.exchange(method, path, {}, {**ACME, "Origin": origin})
        assert headers["access-control-allow-origin"] == origin
        assert "retry-after" in headers["access-control-expose-headers"]
        assert "origin" in headers["vary"]
    for without in ({}, {"Origin": OTHER}):
        _, headers, _ = await server.exchange(method, path, {}, {**ACME, **without})
        assert "access-control-allow-origin" not in headers
        assert "origin" in headers["vary"], "a cache must not answer one origin for another"


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
async def test_preflight_needs_no_key_and_an_allowed_origin(
    server: RunningServer, method: str, path: str
) -> None:
    status, headers = await preflight(server, path, ALLOWED)
    assert (status, headers["access-control-allow-origin"]) == (204, ALLOWED)
    assert method.lower() in headers["access-control-allow-methods"]
    assert headers["access-control-allow-headers"].endswith("x-stainless-lang")
    status, headers = await preflight(server, path, OTHER)
    assert (status, "access-control-allow-origin" in headers) == (403, False)


async def test_page_can_read_that_the_server_is_stopping(
    server: RunningServer, gate: ReadinessGate
) -> None:
    gate.is_draining = True
    status, headers, body = await server.exchange("GET", "/v1/models", None, {"Origin": ALLOWED})
    assert (status, body["error"]["type"]) == (503, "server_error")
    assert headers["access-control-allow-origin"] == ALLOWED


async def test_page_can_read_that_the_server_is_starting(gate: ReadinessGate) -> None:
    starting = ReadinessGate(load_access_policy(SETTINGS), wait_s_max=0.01)
    async with serve_app(starting, gate.state.registry, SETTINGS) as server:
        for path, code in (("/v1/models", "server_not_ready"), ("/health/ready", None)):
            for origin, allowed in ((ALLOWED, True), (OTHER, False)):
                status, headers, body = await server.exchange("GET", path, None, {"Origin": origin})
                assert (status, body.get("error", {}).get("code")) == (503, code)
                assert headers.get("access-control-allow-origin") == (ALLOWED if allowed else None)
                assert "origin" in headers["vary"]
        assert (await preflight(server, "/v1/models", ALLOWED))[0] == 204
        assert (await preflight(server, "/v1/models", OTHER))[0] == 403


async def test_page_can_read_an_internal_error(
    server: RunningServer, gate: ReadinessGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(gate.state.responses, "_runs")  # a bug: it has no such field
    status, headers, body = await server.exchange(
        "GET", "/v1/responses/resp_x", None, {**ACME, "Origin": ALLOWED}
    )
    assert (status, body["error"]["code"]) == (500, "server_error")
    assert headers["access-control-allow-origin"] == ALLOWED
    assert "x-request-id" in headers["access-control-expose-headers"]


@pytest.mark.parametrize("path", ["/v1/realtime?model=demo", "/v1/responses"])
async def test_get_of_a_websocket_without_upgrade_names_the_proxy(
    server: RunningServer, path: str
) -> None:
    status, headers, body = await server.exchange("GET", path)
    assert (status, headers["upgrade"]) == (426, "websocket")
    assert body["error"]["code"] == "upgrade_required"
    assert "proxy" in body["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/responses", "get, head, post"),
        ("POST", "/v1/responses/resp_x", "delete, get, head"),
        ("POST", "/v1/models", "get, head"),
        ("GET", "/v1/chat/completions", "post"),
    ],
)
async def test_method_that_is_not_allowed_is_refused_in_json(
    server: RunningServer, method: str, path: str, allowed: str
) -> None:
    status, headers, body = await server.exchange(method, path)
    assert (status, body["error"]["code"]) == (405, "method_not_allowed")
    assert headers["allow"] == allowed


async def test_bytes_that_are_not_http_are_refused_in_json(server: RunningServer) -> None:
    head, _, body = (await exchange_raw(server, b"\x00nonsense\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["code"] == "invalid_http"


async def test_tls_on_the_plain_port_is_logged_with_its_remedy(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    hello = bytes.fromhex("16030100c5010000c10303") + bytes(190)
    with caplog.at_level(logging.WARNING):
        body = (await exchange_raw(server, hello)).partition(b"\r\n\r\n")[2]
    assert json.loads(body)["error"]["code"] == "tls_on_plain_port"
    shown = [RedactingFormatter(()).format(record) for record in caplog.records]
    assert [line for line in shown if "tls_on_plain_port" in line and "--ssl-certfile" in line]
    assert "Invalid HTTP" not in caplog.text


async def test_body_that_begins_like_tls_is_read(server: RunningServer) -> None:
    status, body = await server.request("POST", "/v1/chat/completions", b"\x16\x03\x01")
    assert (status, body["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_every_path_works_with_and_without_the_root_path(
    server: RunningServer, prefix: str
) -> None:
    assert (await server.request("GET", f"{prefix}/v1/models"))[0] == 200
    assert (await server.request("GET", f"{prefix}/health/ready"))[0] == 200
    url = server.url.replace("/v1/realtime", f"{prefix}/v1/realtime")
    headers = {"Authorization": f"Bearer {API_KEY}"}
    async with connect(url, additional_headers=headers) as websocket:
        assert json.loads(await websocket.recv())["type"] == "session.created"
    url = server.url.replace("/v1/realtime", f"{prefix}/v1/responses")
    async with connect(url, additional_headers=headers) as websocket:
        await websocket.send("x" * 3 * 1024 * 1024)  # over the limit of a Realtime frame
        assert json.loads(await websocket.recv())["error"]["code"] == "invalid_json"


async def test_page_at_the_root_path_is_redirected_to_its_folder(server: RunningServer) -> None:
    received = await exchange_raw(
        server, b"GET /llm HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    assert received.startswith(b"HTTP/1.1 307")
    assert b"location: /llm/\r\n" in received


async def test_path_that_only_begins_like_the_root_path_is_unknown(server: RunningServer) -> None:
    status, body = await server.request("GET", "/llms/v1/models")
    assert (status, body["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("prefix", ["", "/llm"])
@pytest.mark.parametrize(
    ("method", "path"), [endpoint for endpoint in ENDPOINTS if endpoint[1] != "/v1/nothing"]
)
async def test_trailing_slash_is_the_same_endpoint(
    server: RunningServer, prefix: str, method: str, path: str
) -> None:
    status, _, body = await server.exchange(method, prefix + path, {}, ACME)
    with_slash = await server.exchange(method, f"{prefix}{path}/", {}, ACME)
    assert with_slash[0] == status
    assert "location" not in with_slash[1]
    assert with_slash[2].keys() == body.keys()
    assert with_slash[2].get("error") == body.get("error")


@pytest.mark.parametrize("prefix", ["", "/llm"])
@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/responses"])
async def test_websocket_with_a_trailing_slash_is_accepted(
    server: RunningServer, prefix: str, path: str
) -> None:
    url = server.url.replace("/v1/realtime", f"{prefix}{path}/")
    async with connect(url, additional_headers={"Authorization": f"Bearer {API_KEY}"}) as websocket:
        await websocket.send("{")
        types = [json.loads(await websocket.recv())["type"]]
        if types == ["session.created"]:
            types.append(json.loads(await websocket.recv())["type"])
        assert types[-1] == "error"


async def test_unknown_path_with_a_trailing_slash_is_an_error_in_json(
    server: RunningServer,
) -> None:
    status, headers, body = await server.exchange("POST", "/v1/nothing/", {}, ACME)
    assert (status, body["error"]["code"], "location" in headers) == (404, "not_found", False)
