"""Connections to a gateway with TLS whose handshake does not end."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from continuo.realtime.server.auth.access_policy import AccessPolicy
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.hardening.guarded_http import HEAD_TIMEOUT_S
from continuo.realtime.server.http.app import build_app
from continuo.realtime.server.http.readiness import ReadinessGate
from continuo.realtime.server.process import web_server
from tests.support.certificates import create_certificate
from tests.support.engines import EngineHarness
from tests.support.sessions import shared_store
from tests.support.web_servers import API_KEY, encode_request, serve_app

pytestmark = [pytest.mark.process, pytest.mark.server]


async def test_connection_that_begins_no_tls_is_closed_after_a_timeout(
    harness: EngineHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert web_server.TLS_HANDSHAKE_TIMEOUT_S == HEAD_TIMEOUT_S, "as long as without TLS"
    monkeypatch.setattr(web_server, "TLS_HANDSHAKE_TIMEOUT_S", 2.0)
    certificate, key = create_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    settings = GatewaySettings(tenants={API_KEY: "default"})
    app = build_app(harness.engine, settings, await shared_store(harness))
    gate = ReadinessGate(AccessPolicy())
    async with serve_app(gate, app.state.registry, settings, tls=context) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        half = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        for _, writer in half:
            writer.write(b"\x16\x03\x01\x02\x00")
        async with asyncio.timeout(30):
            for reader, writer in (*silent, *half):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
        trust = ssl.create_default_context(cafile=certificate)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=trust, server_hostname="engine"
        )
        writer.write(encode_request("GET", "/health/live", None, {}))
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
