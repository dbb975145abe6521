"""Scopes of keys, JSON Web Tokens, and connections whose key is revoked, over real sockets."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.datastructures import Headers
from starlette.routing import Route
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from continuo.realtime.errors import SetupError
from continuo.realtime.registry.access import Credentials
from continuo.realtime.server.auth.access_policy import AccessPolicy
from continuo.realtime.server.auth.client_secrets import ClientSecrets
from continuo.realtime.server.auth.gate import Authenticator, Denied
from continuo.realtime.server.auth.json_web_tokens import JsonWebTokens
from continuo.realtime.server.config.settings import (
    GatewaySettings,
    SettingsSource,
    make_serve_settings,
)
from continuo.realtime.server.process.reload import Reloader
from tests.support.clients import LONG_RESPONSE, connect_realtime, open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.identity_provider import AUDIENCE, IdentityProvider, bearer
from tests.support.web_servers import RunningServer, serve_harness


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    yield provider
    provider.close()


async def authenticate(gate: Authenticator, token: str) -> Credentials | Denied:
    headers = Headers({"authorization": f"Bearer {token}"})
    await gate.prepare(headers)
    return gate.authenticate(headers, "converse")


def gate_of(provider: IdentityProvider, **options: Any) -> Authenticator:
    tokens = JsonWebTokens(provider.url, AUDIENCE, **options)
    return Authenticator(AccessPolicy(requires_token=True), ClientSecrets(b"secret"), tokens)


# ---------------------------------------------------------------- tokens


async def test_claims_become_tenant_scopes_limits_and_expiry(provider: IdentityProvider) -> None:
    claimed: list[Any] = []
    gate = gate_of(provider, claim_limits=lambda *claim: claimed.append(claim))
    expires_s = time.time() + 30
    token = provider.sign(
        scope="openid read converse", exp=expires_s, iat=7, limits={"connections_max": 3}
    )
    credentials = await authenticate(gate, token)
    assert isinstance(credentials, Credentials)
    assert (credentials.tenant, credentials.scopes) == ("acme", {"read", "converse"})
    assert credentials.expires_s == pytest.approx(expires_s)
    assert claimed[0] == ("acme", {"connections_max": 3}, 7)
    for _ in range(3):
        await authenticate(gate, token)
    assert provider.fetch_count == 1, "the public keys are cached"


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": time.time() - 60}, "expired"),
        ({"exp": None}, "exp"),
        ({"aud": "https://other.example"}, "[Aa]udience"),
        ({"aud": None}, "aud"),
        ({"tenant": None}, "tenant"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": 7}, "tenant"),
        ({"iss": "https://other.example"}, "[Ii]ssuer"),
        ({"limits": {"connections": 1}}, "connections"),
        ({"nbf": time.time() + 86_400}, "not yet"),
    ],
)
async def test_invalid_claims_are_denied_with_the_reason(
    provider: IdentityProvider, claims: dict[str, Any], problem: str
) -> None:
    gate = gate_of(provider, issuer="https://id.example")
    valid = {"iss": "https://id.example"}
    assert isinstance(await authenticate(gate, provider.sign(**valid)), Credentials)
    denied = await authenticate(gate, provider.sign(**{**valid, **claims}))
    assert isinstance(denied, Denied)
    assert (denied.status, denied.code) == (401, "invalid_api_key")
    assert re.search(problem, denied.message), denied.message


async def test_forged_tokens_are_denied(provider: IdentityProvider) -> None:
    gate = gate_of(provider)
    token = provider.sign()
    head, body, signature = token.split(".")
    public = provider.jwks()["keys"][0]
    payload = jwt.decode(token, options={"verify_signature": False})
    forged = [
        f"{head}.{body}.{signature[:-6]}AAAAAA",
        f"{head}.{body}.",
        jwt.encode(payload, "", "none", headers={"kid": "first"}),
        jwt.encode(payload, public["x"] + public["y"], "HS256", headers={"kid": "first"}),
        jwt.encode(payload, ec.generate_private_key(ec.SECP256R1()), "ES256"),
        jwt.encode(
            payload, ec.generate_private_key(ec.SECP256R1()), "ES256", headers={"kid": "first"}
        ),
        "eyJ.eyJ.x",
        "eyJ" + "a" * 20_000 + ".b.c",
    ]
    assert isinstance(await authenticate(gate, token), Credentials)
    for each in forged:
        assert isinstance(await authenticate(gate, each), Denied), each


async def test_unknown_key_id_fetches_the_keys_again_but_not_too_often(
    provider: IdentityProvider,
) -> None:
    now_s = [1000.0]
    gate = gate_of(provider, clock=lambda: now_s[0])
    assert isinstance(await authenticate(gate, provider.sign()), Credentials)
    provider.keys["second"] = ec.generate_private_key(ec.SECP256R1())
    rotated = provider.sign("second")
    assert isinstance(await authenticate(gate, rotated), Denied), "fetched a moment before"
    now_s[0] += 5
    both = await asyncio.gather(*(authenticate(gate, rotated) for _ in range(4)))
    assert all(isinstance(one, Credentials) for one in both)
    assert provider.fetch_count == 2
    provider.server.shutdown()
    now_s[0] += 5
    assert isinstance(await authenticate(gate, rotated), Credentials), "without the provider"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"jwt_jwks_url": "https://x/jwks"}, "only together"),
        ({"jwt_audience": "x"}, "only together"),
        ({"jwt_issuer": "x"}, "no effect without --jwt-jwks-url"),
        ({"jwt_jwks_url": "http://x/jwks", "jwt_audience": "x"}, "expected an https:// URL"),
        ({"jwt_jwks_url": "file:///etc/passwd", "jwt_audience": "x"}, "expected an https:// URL"),
    ],
)
def test_invalid_token_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SetupError, match=problem):
        make_serve_settings(options)


@pytest.mark.long
async def test_connection_of_a_token_is_closed_when_the_token_expires(
    harness: EngineHarness, provider: IdentityProvider
) -> None:
    settings = GatewaySettings(jwt_jwks_url=provider.url, jwt_audience=AUDIENCE)
    async with serve_harness(harness, settings) as server:
        token = bearer(provider.sign(exp=time.time() + 1.2))
        async with open_realtime_session(server.url, token) as client:
            token = client.session["resume"]["token"]
            query = f"{client.resume_query}&resume_token={token}"
            assert await client.wait_close_code() == 4004
        with pytest.raises(InvalidStatus) as denied:
            await connect(f"{server.url}?{query}")
        assert denied.value.response.status_code == 401, "the resume token alone is not enough"
        await client.resume(server.url, bearer(provider.sign()))
        event = await client.receive()
        assert event["session"]["resume"]["resumed"] == "exact"


async def test_limits_of_the_newest_token_hold_for_its_tenant(
    harness: EngineHarness, provider: IdentityProvider
) -> None:
    settings = GatewaySettings(jwt_jwks_url=provider.url, jwt_audience=AUDIENCE)
    async with serve_harness(harness, settings) as server:
        old = bearer(provider.sign(iat=1000, limits={"connections_max": 5}))
        new = bearer(provider.sign(iat=2000, limits={"connections_max": 1}))
        other = bearer(provider.sign(tenant="umbrella"))
        async with open_realtime_session(server.url, new):
            for headers in (new, old):
                async with connect_realtime(server.url, headers) as refused:
                    error = (await refused.expect("error"))["error"]
                    assert "the limit is 1" in error["message"]
            async with open_realtime_session(server.url, other):
                pass


# ---------------------------------------------------------------- scopes


SCOPED = """
[[keys]]
key = "all"
tenant = "acme"
scopes = ["converse", "read", "admin"]
[[keys]]
key = "both"
tenant = "acme"
[[keys]]
key = "reads"
tenant = "acme"
scopes = ["read"]
[[keys]]
key = "talks"
tenant = "acme"
scopes = ["converse"]
[[keys]]
key = "nothing"
tenant = "acme"
scopes = []
"""
SGLANG = ("/open_session", "/close_session", "/generate", "/abort_request")
WITHOUT_SCOPE = {"/v1/models", "/v1/models/{name:path}", "/v1/embeddings"}
UPGRADES = {"/v1/realtime", "/v1/responses"}
"""Paths at which a GET without an upgrade is refused before its key is examined."""


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    write(file, SCOPED)
    return file


@pytest.fixture
def gateway_settings(keys_file: Path) -> GatewaySettings:
    return GatewaySettings(api_keys_file=str(keys_file), served_model_name=("demo",))


@pytest.mark.parametrize(
    ("method", "path", "permitted"),
    [
        ("GET", "/v1/stats", {"all", "both", "reads"}),
        ("GET", "/v1/realtime/sessions", {"all", "both", "reads"}),
        ("GET", "/v1/realtime/sessions/x", {"all", "both", "reads"}),
        ("DELETE", "/v1/realtime/sessions/x", {"all", "both", "talks"}),
        ("POST", "/v1/realtime/client_secrets", {"all", "both", "talks"}),
        ("GET", "/v1/responses/x", {"all", "both", "reads"}),
        ("DELETE", "/v1/responses/x", {"all", "both", "talks"}),
        ("POST", "/v1/responses", {"all", "both", "talks"}),
        ("POST", "/v1/chat/completions", {"all", "both", "talks"}),
        ("GET", "/v1/responses/x/input_items", {"all", "both", "reads"}),
        ("POST", "/v1/responses/input_tokens", {"all", "both", "talks"}),
        ("GET", "/v1/conversations/x", {"all", "both", "reads"}),
        ("GET", "/v1/conversations/x/items", {"all", "both", "reads"}),
        ("POST", "/v1/conversations", {"all", "both", "talks"}),
        ("DELETE", "/v1/conversations/x", {"all", "both", "talks"}),
        ("POST", "/v1/completions", {"all", "both", "talks"}),
        ("POST", "/generate", {"all", "both", "talks"}),
        ("POST", "/open_session", {"all", "both", "talks"}),
        ("GET", "/v1/admin/sessions", {"all"}),
        ("GET", "/v1/models", {"all", "both", "reads", "talks"}),
    ],
)
async def test_each_endpoint_needs_its_scope(
    server: RunningServer, method: str, path: str, permitted: set[str]
) -> None:
    for key in ("all", "both", "reads", "talks"):
        status, body = await server.request(method, path, headers=bearer(key))
        is_denied = status == 403 and body["error"]["code"] == "insufficient_scope"
        assert is_denied is (key not in permitted), (key, status, body)


async def test_no_endpoint_is_open_to_a_key_without_scopes(server: RunningServer) -> None:
    examined = set[str]()
    for route in server.app.routes:
        if not isinstance(route, Route) or route.path in WITHOUT_SCOPE:
            continue
        if not route.path.startswith(("/v1/", "/metrics", *SGLANG)):
            continue
        for method in (route.methods or set()) - {"HEAD"}:
            if method == "GET" and route.path in UPGRADES:
                continue
            path = re.sub(r"{[^}]*}", "x", route.path)
            status, body = await server.request(method, path, {}, bearer("nothing"))
            assert status == 403, (method, path, body)
            assert "scope" in body["error"]["message"]
            examined.add(route.path)
    assert len(examined) >= 25


# ---------------------------------------------------------------- reload


def reloader_of(server: RunningServer, settings: GatewaySettings) -> Reloader:
    return Reloader(SettingsSource(lambda: settings), settings, server.app.state, None)


async def test_revoked_key_closes_its_connections(
    server: RunningServer, keys_file: Path, gateway_settings: GatewaySettings
) -> None:
    reloader = reloader_of(server, gateway_settings)
    running = asyncio.create_task(reloader.run(asyncio.Event()))
    _, minted = await server.request("POST", "/v1/realtime/client_secrets", headers=bearer("both"))
    async with (
        open_realtime_session(server.url, bearer("both")) as revoked,
        open_realtime_session(server.url, bearer(minted["value"])) as by_secret,
        open_realtime_session(server.url, bearer("talks")) as other,
    ):
        await revoked.add_message("hello")
        write(keys_file, SCOPED.replace('"both"', '"new"'))
        assert await revoked.wait_close_code() == 4004
        assert await by_secret.wait_close_code() == 4004
        await other.add_message("still here")
        path = f"/v1/realtime/sessions/{revoked.session_id}"
    assert (await server.request("GET", path, headers=bearer("both")))[0] == 401
    assert (await server.request("GET", path, headers=bearer(minted["value"])))[0] == 401
    status, session = await server.request("GET", path, headers=bearer("new"))
    assert (status, session["items"]) == (200, 1), "the session is parked, not deleted"
    await revoked.resume(server.url, bearer("new"))
    event = await revoked.receive()
    assert event["session"]["resume"]["resumed"] == "exact"
    running.cancel()


@pytest.mark.long
async def test_response_of_a_revoked_key_is_cancelled_and_that_of_another_is_not(
    harness: EngineHarness, keys_file: Path, gateway_settings: GatewaySettings
) -> None:
    async with (
        serve_harness(harness, gateway_settings) as server,
        open_realtime_session(server.url, bearer("both")) as revoked,
        open_realtime_session(server.url, bearer("talks")) as other,
    ):
        harness.runner.step_s = 0.02
        responses = [await client.start_response(**LONG_RESPONSE) for client in (revoked, other)]
        await revoked.start_response(conversation="none", **LONG_RESPONSE)
        write(keys_file, SCOPED.replace('"both"', '"new"'))
        reloader_of(server, gateway_settings).reload()
        while (await harness.engine.fleet.stats()).active_turns != 1:
            await asyncio.sleep(0)  # until only the other client's response is generated
        assert responses[1] not in other.ended_responses
        harness.runner.step_s = 0
        assert await revoked.wait_close_code() == 4004
        await revoked.resume(server.url, bearer("new"))
        await revoked.complete_response(max_output_tokens=3, ignore_eos=True)
        ended = list(revoked.ended_responses.values())
        assert [response["status"] for response in ended] == ["cancelled"] * 2 + ["incomplete"]
        await other.wait_response(responses[1])


@pytest.mark.long
async def test_response_of_an_expired_token_goes_on_for_the_next_token(
    harness: EngineHarness, provider: IdentityProvider
) -> None:
    settings = GatewaySettings(jwt_jwks_url=provider.url, jwt_audience=AUDIENCE)
    async with serve_harness(harness, settings) as server:
        harness.runner.step_s = 0.05
        token = bearer(provider.sign(exp=time.time() + 0.7))
        async with open_realtime_session(server.url, token) as client:
            response = await client.start_response(**LONG_RESPONSE)
            assert await client.wait_close_code() == 4004
            assert response not in client.ended_responses
            await client.resume(server.url, bearer(provider.sign()))
            harness.runner.step_s = 0
            await client.wait_response(response)
            usage = client.ended_responses[response]["usage"]
            assert usage["output_tokens"] == LONG_RESPONSE["max_output_tokens"]


async def test_invalid_keys_file_changes_nothing(
    server: RunningServer, keys_file: Path, gateway_settings: GatewaySettings
) -> None:
    reloader = reloader_of(server, gateway_settings)
    for text in ("[[keys]]\nkey = 'both'", "", "[defaults]\n"):
        write(keys_file, text)
        with pytest.raises(SetupError):
            reloader.reload()
        assert (await server.request("GET", "/v1/models", headers=bearer("both")))[0] == 200


async def test_streamed_response_ends_when_its_key_is_revoked(
    harness: EngineHarness, keys_file: Path, gateway_settings: GatewaySettings
) -> None:
    async with serve_harness(harness, gateway_settings) as server:
        harness.runner.step_s = 0.02
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = json.dumps(
            {
                "model": "demo",
                "input": "hi",
                "stream": True,
                "max_output_tokens": 300,
                "ignore_eos": True,
            }
        ).encode()
        writer.write(
            b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer both\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        await reader.readuntil(b"response.created")
        write(keys_file, SCOPED.replace('"both"', '"new"'))
        reloader_of(server, gateway_settings).reload()
        rest = await reader.read()
        assert b"response.completed" not in rest
        writer.close()
