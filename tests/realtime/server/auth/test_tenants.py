"""Keys, tenants, client secrets, and sessions over HTTP, all over real sockets."""

import hashlib
import json
import re
import string
import time
import tracemalloc
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from continuo.realtime.errors import Refusal, SetupError
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.server.auth.access_policy import AccessPolicy, read_keys_file
from continuo.realtime.server.auth.client_secrets import ClientSecrets
from continuo.realtime.server.config.settings import (
    GatewaySettings,
    load_access_policy,
    make_serve_settings,
)
from tests.support.clients import connect_realtime, open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.web_servers import ACME, UMBRELLA, RunningServer, serve_harness

# ---------------------------------------------------------------- the keys file


def tenants_of(policy: AccessPolicy, *keys: str) -> dict[str, str | None]:
    found = {key: policy.find(key, time.time()) for key in keys}
    return {key: None if one is None else one.tenant for key, one in found.items()}


def test_keys_file_maps_keys_to_tenants(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nkey-one = acme\n\"key-two\" = 'umbrella'  # toml too\nkey-3=acme\n")
    listed = {"key-one": "acme", "key-two": "umbrella", "key-3": "acme"}
    assert tenants_of(read_keys_file(file), *listed, "mine") == {**listed, "mine": None}
    settings = make_serve_settings(
        {"api_keys_file": str(file), "api_key": ["mine"], "host": "0.0.0.0"}
    )
    found = tenants_of(load_access_policy(settings), *listed, "mine", "other")
    assert found == {**listed, "mine": "default", "other": None}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("secret-1", "line 1: expected KEY = TENANT"),
        ("secret-1 =", "line 1: expected KEY = TENANT"),
        ("secret-1 = a\nsecret-1 = b", "line 2: this key belongs to another tenant"),
        ("# nothing", "has no key"),
    ],
)
def test_invalid_keys_file_is_refused_without_quoting_a_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(SetupError, match=problem) as caught:
        read_keys_file(file)
    assert "secret-1" not in str(caught.value)
    with pytest.raises(SetupError, match="cannot be read"):
        read_keys_file(tmp_path / "none")


# ---------------------------------------------------------------- sessions over HTTP


async def test_get_session_returns_its_state_items_and_kv(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        path = f"/v1/realtime/sessions/{client.session_id}"
        status, before = await server.request("GET", path)
        assert (status, before["id"], before["state"]) == (200, client.session_id, "idle")
        assert (before["items"], before["kv"]["place"]) == (0, "none")
        await client.add_message("hello")
        await client.complete_response(max_output_tokens=1)
        _, after = await server.request("GET", path)
        assert (after["items"], after["kv"]["place"]) == (2, "device")
        assert 0 < after["kv"]["tokens"] <= after["tokens"]


async def test_delete_session_closes_its_connection(
    server: RunningServer, harness: EngineHarness
) -> None:
    async with open_realtime_session(server.url) as client:
        await client.add_message("hello")
        path = f"/v1/realtime/sessions/{client.session_id}"
        status, deleted = await server.request("DELETE", path)
        assert (status, deleted["deleted"]) == (200, True)
        assert await client.wait_close_code() == 4003
    status, _ = await server.request("GET", path)
    assert status == 404
    assert await harness.engine.fleet.list_sessions() == []


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_session_of_another_tenant_is_answered_like_an_unknown_one(
    server: RunningServer, method: str
) -> None:
    async with open_realtime_session(server.url) as client:
        path = f"/v1/realtime/sessions/{client.session_id}"
        theirs = await server.request(method, path, headers=UMBRELLA)
        unknown = await server.request(method, "/v1/realtime/sessions/sess_x", headers=UMBRELLA)
        assert theirs[0] == unknown[0] == 404
        assert json.dumps(theirs[1]).replace(client.session_id, "sess_x") == json.dumps(unknown[1])
        await client.add_message("still here")


async def test_sessions_over_http_require_a_key(server: RunningServer) -> None:
    for method, path in (
        ("GET", "/v1/realtime/sessions/x"),
        ("DELETE", "/v1/realtime/sessions/x"),
        ("POST", "/v1/realtime/client_secrets"),
    ):
        status, denied = await server.request(method, path, headers={})
        assert (status, denied["error"]["code"]) == (401, "missing_api_key")


async def test_kv_is_shared_within_a_tenant_only(
    server: RunningServer, harness: EngineHarness
) -> None:
    computed = []
    for headers in (ACME, UMBRELLA, ACME):
        before = harness.runner.token_count
        async with open_realtime_session(server.url, headers) as client:
            await client.add_message("the same long beginning of a conversation")
            await client.complete_response(max_output_tokens=1)
        computed.append(harness.runner.token_count - before)
    first_session, of_other_tenant, second_session = computed
    assert of_other_tenant == first_session, "KV of another tenant is not shared"
    assert second_session <= first_session / 2, "KV of the same tenant is shared"


# ---------------------------------------------------------------- client secrets


async def test_client_secret_begins_sessions_with_its_settings(server: RunningServer) -> None:
    config = {"type": "realtime", "instructions": "be kind", "max_output_tokens": 3}
    body = {"expires_after": {"anchor": "created_at", "seconds": 60}, "session": config}
    status, minted = await server.request("POST", "/v1/realtime/client_secrets", body)
    assert status == 200
    value = minted["value"]
    assert re.fullmatch(r"ek_[A-Za-z0-9_-]{32,}", value)
    assert minted["session"]["object"] == "realtime.session"
    assert minted["session"]["instructions"] == "be kind"
    bearer = {"Authorization": f"Bearer {value}"}
    for headers, offered in (
        (bearer, None),
        ({}, [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{value}")]),
    ):
        async with open_realtime_session(server.url, headers, subprotocols=offered) as client:
            session = client.session
            assert (session["instructions"], session["max_output_tokens"]) == ("be kind", 3)
            path = f"/v1/realtime/sessions/{session['id']}"
            status, _ = await server.request("GET", path)
            assert status == 200, "the session belongs to the tenant"
            assert (await server.request("GET", path, headers=UMBRELLA))[0] == 404
    status, denied = await server.request("POST", "/v1/realtime/client_secrets", headers=bearer)
    assert (status, denied["error"]["code"]) == (403, "ephemeral_key")


async def test_client_secret_is_created_without_a_body(server: RunningServer) -> None:
    status, minted = await server.request("POST", "/v1/realtime/client_secrets")
    assert status == 200
    assert minted["session"]["instructions"] == ""


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_json", None),
        (
            {"expires_after": {"seconds": 9}},
            400,
            "integer_below_min_value",
            "expires_after.seconds",
        ),
        (
            {"expires_after": {"seconds": 7201}},
            400,
            "integer_above_max_value",
            "expires_after.seconds",
        ),
        ({"session": {"type": "transcription"}}, 400, "invalid_value", "session.type"),
        ({"session": {}}, 400, "missing_required_parameter", "session.type"),
        (b" " * 1_100_000, 413, "body_too_large", None),
    ],
)
async def test_invalid_client_secret_request_is_refused(
    server: RunningServer, body: object, status: int, code: str, param: str | None
) -> None:
    received, denied = await server.request("POST", "/v1/realtime/client_secrets", body)
    assert (received, denied["error"]["code"], denied["error"]["param"]) == (status, code, param)


def test_client_secret_expires() -> None:
    now = [1000.0]

    def clock() -> float:
        return now[0]

    secrets = ClientSecrets(b"x" * 16, clock)
    minted = secrets.mint("acme", GenerationSettings(instructions="x"), 10)
    assert minted.expires_at == 1010
    found = secrets.find(minted.value)
    assert found is not None
    assert (found.tenant, found.is_ephemeral) == ("acme", True)
    assert secrets.find(minted.value + "x") is None
    now[0] = 1010
    assert secrets.find(minted.value) is None


def test_signed_secret_is_valid_at_every_gateway_with_its_key() -> None:
    one, two, stranger = (ClientSecrets(key * 16) for key in (b"x", b"x", b"y"))
    settings = GenerationSettings(instructions="Speak like a pirate. " * 500)
    value = one.mint("acme", settings, 60).value
    assert re.fullmatch(r"ek_[A-Za-z0-9_-]+", value), "valid as the name of a subprotocol"
    found = two.find(value)
    assert found is not None
    assert (found.tenant, found.settings, found.is_ephemeral) == ("acme", settings, True)
    assert stranger.find(value) is None
    for at in range(3, len(value), 7):
        other = "A" if value[at] != "A" else "B"
        assert two.find(value[:at] + other + value[at + 1 :]) is None
    for other in ("ek_", "ek_x", value + "AAAA", value[:-8], "ek_" + "é" * 9, "ek_" + "A" * 99_999):
        assert two.find(other) is None


def test_signed_secret_over_the_header_limit_is_refused() -> None:
    noise = "".join(chr(33 + (n * n * 7919 + n) % 90) for n in range(30_000))
    noise = hashlib.shake_256(noise.encode()).hexdigest(20_000)
    with pytest.raises(Refusal, match="the limit is 8,192") as refused:
        ClientSecrets(b"x" * 16).mint("acme", GenerationSettings(instructions=noise), 60)
    assert refused.value.param == "session"


def test_secret_that_would_inflate_to_over_64_kib_is_refused() -> None:
    secrets = ClientSecrets(b"x" * 16)
    begun = len(secrets.mint("acme", GenerationSettings(instructions="a" * 65_000), 60).value)
    assert begun < 1_000
    with pytest.raises(Refusal, match=r"has 500,\d+ bytes as JSON; the limit is 65,536") as refused:
        secrets.mint("acme", GenerationSettings(instructions="a" * 500_000), 60)
    assert refused.value.code == "session_too_large"


def test_minting_holds_no_memory() -> None:
    """The table of secrets in memory held 17 MB after as many."""
    secrets = ClientSecrets(b"x" * 16)
    settings = GenerationSettings(instructions=string.ascii_letters * 300)
    secrets.mint("acme", settings, 60)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(1_000):
            secrets.mint("acme", settings, 60)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100_000


async def test_minting_counts_as_a_request(server: RunningServer) -> None:
    server.registry.tenants.of("acme").rate_limits.set_limits(2, 0)
    statuses = [
        (await server.request("POST", "/v1/realtime/client_secrets", {}))[0] for _ in range(3)
    ]
    assert statuses == [200, 200, 429]


async def test_unknown_client_secret_is_denied(server: RunningServer) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(server.url, additional_headers={"Authorization": "Bearer ek_x"})
    assert caught.value.response.status_code == 401


# ---------------------------------------------------------------- closing


async def test_session_close_is_acknowledged_and_closes_the_connection(
    server: RunningServer, harness: EngineHarness
) -> None:
    async with open_realtime_session(server.url) as client:
        await client.add_message("hello")
        await client.start_response()
        await client.wait_deltas(1)
        await client.send("session.close")
        done = await client.wait_for("response.done")
        assert done["response"]["status"] in ("cancelled", "completed", "incomplete")
        event = await client.wait_for("session.closed")
        assert event["reason"] == "client_request"
        assert await client.wait_close_code() == 1000
    assert await harness.engine.fleet.list_sessions() == []


async def test_connection_closes_after_its_maximum_duration(harness: EngineHarness) -> None:
    async with (
        serve_harness(
            harness, GatewaySettings(limits=Limits(connection_lifetime_s=0.05))
        ) as server,
        open_realtime_session(server.url) as client,
    ):
        error = (await client.wait_for("error"))["error"]
        assert error["code"] == "session_expired"
        assert await client.wait_close_code() == 1000


async def test_session_reports_when_its_connection_expires(server: RunningServer) -> None:
    """The expiry is one hour after the start of each connection."""
    connected_at = int(time.time())
    async with open_realtime_session(server.url) as client:
        session = client.session
    assert connected_at + 3600 <= session["resume"]["expires_at"] <= time.time() + 3600
    resume_url = f"{server.url}?session_id={session['id']}"
    reconnected_at = int(time.time())
    async with connect_realtime(resume_url) as client:
        resume = (await client.wait_for("session.updated"))["session"]["resume"]
        assert resume["resumed"] == "snapshot"
        assert reconnected_at + 3600 <= resume["expires_at"] <= time.time() + 3600
