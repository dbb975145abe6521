"""The web server over real sockets, in this process, with a real engine on a null device."""

import asyncio
import socket
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from continuo.realtime.errors import SetupError
from continuo.realtime.server.auth.access_policy import AccessPolicy
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.app import build_app
from continuo.realtime.server.http.readiness import ReadinessGate
from continuo.realtime.server.process.web_server import PORTS_TRIED, bind, bind_next_free
from tests.support.clients import open_realtime_session
from tests.support.engines import EngineHarness, digest_engine
from tests.support.sessions import shared_store
from tests.support.web_servers import ACME, API_KEY, RunningServer, serve_app, serve_harness

# ---------------------------------------------------------------- http


async def test_models_are_listed_and_retrieved_by_name(server: RunningServer) -> None:
    status, listed = await server.request("GET", "/v1/models")
    assert status == 200
    assert isinstance(listed["data"], list)
    assert [model["id"] for model in listed["data"]] == ["demo", "alias"]
    assert {model["max_model_len"] for model in listed["data"]} == {400}
    status, one = await server.request("GET", "/v1/models/alias")
    assert (status, one["id"]) == (200, "alias")
    status, none = await server.request("GET", "/v1/models/gpt-9")
    assert status == 404
    assert isinstance(none["error"], dict)
    assert none["error"]["code"] == "model_not_found"


async def test_health_requires_no_key_and_models_do(server: RunningServer) -> None:
    assert await server.request("GET", "/health", headers={}) == (
        200,
        {"status": "ok", "engine": "up"},
    )
    for path in ("/v1/models", "/v1/models/demo", "/v1/models/gpt-9"):
        status, denied = await server.request("GET", path, headers={})
        assert status == 401
        assert isinstance(denied["error"], dict)
        assert denied["error"]["code"] == "missing_api_key"


async def test_readiness_requires_no_key(harness: EngineHarness) -> None:
    settings = GatewaySettings(tenants={API_KEY: "default"})
    store = await shared_store(harness)
    app, gate = build_app(harness.engine, settings, store), ReadinessGate(AccessPolicy())
    async with serve_app(gate, app.state.registry, settings) as server:
        for open, draining, expected in (
            (False, False, (503, {"status": "starting"})),
            (True, False, (200, {"status": "ready"})),
            (True, True, (503, {"status": "draining"})),
        ):
            if open:
                gate.set_app(app, harness.engine.fleet, store, app.state.registry.recovery)
            gate.is_draining = draining
            for path in ("/ready", "/health/ready"):
                assert await server.request("GET", path, headers={}) == expected


async def test_kept_connection_of_a_draining_server_is_told_to_close(
    harness: EngineHarness,
) -> None:
    """So that the next request of its client, or of a proxy, goes to another server."""
    settings = GatewaySettings(tenants={API_KEY: "default"})
    store = await shared_store(harness)
    app, gate = build_app(harness.engine, settings, store), ReadinessGate(AccessPolicy())
    gate.set_app(app, harness.engine.fleet, store, app.state.registry.recovery)
    head = f"Host: x\r\nAuthorization: Bearer {API_KEY}\r\n\r\n"
    async with serve_app(gate, app.state.registry, settings) as server:
        for path in ("/v1/models", "/health/ready", "/metrics"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for draining in (False, True):
                gate.is_draining = draining
                writer.write(f"GET {path} HTTP/1.1\r\n{head}".encode())
                received = await reader.readuntil(b"\r\n\r\n")
                fields = received.decode().lower().splitlines()
                assert ("connection: close" in fields) is draining
                length = next(line for line in fields if line.startswith("content-length: "))
                await reader.readexactly(int(length.split()[1]))
            assert await reader.read() == b"", "the server has closed the connection"
            writer.close()


async def test_unknown_path_is_404_over_http_and_websocket(server: RunningServer) -> None:
    for path in ("/v1/nothing", "/v2/responses"):
        status, body = await server.request("GET", path)
        assert isinstance(body["error"], dict)
        assert (status, body["error"]["code"]) == (404, "not_found")
        url = f"ws://127.0.0.1:{server.port}{path}"
        with pytest.raises(InvalidStatus) as refused:
            async with connect(url, additional_headers=ACME):
                pass
        assert refused.value.response.status_code == 404


# ---------------------------------------------------------------- the handshake


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["realtime"], "realtime"),
        (["realtime", "openai-beta.realtime-v1"], "realtime"),
        (["realtime.msgpack", "realtime"], "realtime"),
        (["realtime.msgpack"], None),
        (["something-else"], None),
        (None, None),
    ],
)
async def test_subprotocol_realtime_is_selected_if_offered(
    server: RunningServer, offered: list[Subprotocol] | None, chosen: str | None
) -> None:
    async with open_realtime_session(server.url, subprotocols=offered) as client:
        assert client.socket.subprotocol == chosen


async def test_key_in_a_subprotocol_is_accepted_and_not_echoed(server: RunningServer) -> None:
    offered = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{API_KEY}")]
    async with connect(server.url, subprotocols=offered) as socket:
        assert socket.subprotocol == "realtime"
        assert API_KEY not in str(socket.response and socket.response.headers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({**ACME, "Origin": "https://evil.example"}, 403),
        ({**ACME, "Origin": "null"}, 403),
    ],
)
async def test_invalid_key_or_origin_is_refused_before_the_upgrade(
    server: RunningServer, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(server.url, additional_headers=headers)
    assert caught.value.response.status_code == status


async def test_compression_offer_is_declined(server: RunningServer) -> None:
    async with connect(server.url, additional_headers=ACME, compression="deflate") as socket:
        assert socket.response is not None
        assert "Sec-WebSocket-Extensions" not in socket.response.headers


async def test_session_is_created_under_an_alias_of_the_model(server: RunningServer) -> None:
    async with open_realtime_session(f"{server.url}?model=alias") as client:
        assert client.session["model"] == "alias"


# ---------------------------------------------------------------- start and stop


async def test_stopping_server_closes_connections_with_1012(harness: EngineHarness) -> None:
    async with (
        serve_harness(harness, GatewaySettings()) as server,
        open_realtime_session(server.url) as client,
    ):
        await client.send("response.create")
        server.web_server.should_exit = True
        assert await client.wait_close_code() == 1012
    assert await harness.engine.fleet.list_sessions() == []


async def test_model_without_a_chat_template_is_not_served(letters: Path) -> None:
    async with digest_engine(letters) as harness:
        with pytest.raises(SetupError, match="no chat template"):
            build_app(harness.engine, GatewaySettings(), await shared_store(harness))


def test_next_free_port_is_taken() -> None:
    with bind("127.0.0.1", 0) as taken, bind_next_free("127.0.0.1", port_of(taken)) as sock:
        assert 0 < port_of(sock) - port_of(taken) < PORTS_TRIED
    with pytest.raises(SetupError, match="--host"):
        bind_next_free("no such host", 1)


def port_of(sock: socket.socket) -> int:
    return sock.getsockname()[1]


def test_bind_error_names_the_option_to_change() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SetupError, match="choose another with --port"):
            bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(SetupError, match="--host"):
        bind("no such host", 1)
