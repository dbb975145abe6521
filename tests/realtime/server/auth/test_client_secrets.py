"""Access of a client secret (`ek_…`): the sessions that began under it, and those whose resume
token is shown. Over real sockets: gateways whose secrets are signed with the key of their store, or
with a secret that they share.
"""

import asyncio
import base64
import contextlib
import hmac
import json
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from starlette.datastructures import Headers
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import (
    Access,
    Credentials,
    ResumeRequest,
    hash_token,
    make_secret,
)
from continuo.realtime.server.auth.access_policy import plain_policy
from continuo.realtime.server.auth.client_secrets import (
    SECRET_PREFIX,
    ClientSecrets,
)
from continuo.realtime.server.auth.gate import Authenticator, Denied
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import open_store
from tests.engine.server.test_several_gateways import front
from tests.support.clients import RealtimeClient, connect_realtime, open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.in_process_client import InProcessClient
from tests.support.sessions import create_registry
from tests.support.waiting import wait_until
from tests.support.web_servers import ACME, TENANTS, UMBRELLA, RunningServer, serve_engine

pytestmark = pytest.mark.slow

SECRET = b"known to all gateways"
UNKNOWN = "sess_x"
WRONG = "x" * 32
PASSWORD = "my password is hunter2"

Gateways = tuple[RunningServer, RunningServer]


@pytest.fixture(params=["of the store, sqlite", "of the store, redis", "shared, redis"])
def secret_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(request: pytest.FixtureRequest, secret_kind: str, tmp_path: Path) -> str:
    if secret_kind.endswith("redis"):
        return request.getfixturevalue("redis").url
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
async def gateways(secret_kind: str, url: str, harness: EngineHarness) -> AsyncIterator[Gateways]:
    """Two gateways of one store; with SQLite the same gateway twice."""
    secret = SECRET if secret_kind.startswith("shared") else b""
    settings = GatewaySettings(tenants=TENANTS, served_model_name=("demo",), secret=secret)
    port = await harness.listen()
    gateways: list[RunningServer] = []
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2 if secret_kind.endswith("redis") else 1):
            store = await open_store(url)
            stack.push_async_callback(store.aclose)
            engine = await stack.enter_async_context(front(port))
            gateways.append(await stack.enter_async_context(serve_engine(engine, settings, store)))
        yield gateways[0], gateways[-1]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def mint_secret(server: RunningServer) -> dict[str, str]:
    """Return the header with a new client secret of the first tenant."""
    status, secret = await server.request("POST", "/v1/realtime/client_secrets")
    assert status == 200
    return bearer(secret["value"])


def with_query(server: RunningServer, **query: str | None) -> str:
    """Return the server's URL with these query parameters."""
    pairs = "&".join(f"{name}={value}" for name, value in query.items() if value is not None)
    return f"{server.url}?{pairs}"


@contextlib.asynccontextmanager
async def open_session(
    server: RunningServer, headers: dict[str, str]
) -> AsyncIterator[RealtimeClient]:
    async with open_realtime_session(server.url, headers) as client:
        await client.add_message(PASSWORD)
        yield client


def resume_token(client: RealtimeClient) -> str:
    return client.session["resume"]["token"]


async def check_refused_like_unknown(
    server: RunningServer, headers: dict[str, str], verb: str, session: str, token: str | None
) -> None:
    """Check that `verb` with that session is refused exactly like with an unknown id."""
    answers: list[str] = []
    for name in (session, UNKNOWN):
        url = with_query(server, **{verb: name}, resume_token=token)
        async with connect_realtime(url, headers) as client:
            error = (await client.expect("error"))["error"]
            assert error["code"] == "session_not_found"
            answers.append(json.dumps(error | {"message": error["message"].replace(name, "")}))
            assert await client.wait_close_code() == 1008
    assert answers[0] == answers[1]


async def check_unauthorized(
    server: RunningServer, headers: dict[str, str], **query: str | None
) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(with_query(server, **query), additional_headers=headers)
    assert caught.value.response.status_code == 401


# ---------------------------------------------------------------- sessions of others


@pytest.mark.parametrize("token", [None, WRONG, ""])
async def test_client_secret_does_not_open_the_session_of_another_secret(
    gateways: Gateways, token: str | None
) -> None:
    one, two = gateways
    mine, theirs = await mint_secret(one), await mint_secret(two)
    async with open_session(one, mine) as session:
        for server in gateways:
            await check_refused_like_unknown(
                server, theirs, "session_id", session.session_id, token
            )
            await check_refused_like_unknown(server, theirs, "fork", session.session_id, token)
            await check_unknown_over_http(server, theirs, session.session_id, token)
        # The session was not disturbed: the next event answers its own client.
        await session.send("input_audio_buffer.clear")
        await session.expect("input_audio_buffer.cleared")
        await session.add_message("still here")


async def check_unknown_over_http(
    server: RunningServer, headers: dict[str, str], session: str, token: str | None
) -> None:
    query = "" if token is None else f"?resume_token={token}"
    for method in ("GET", "DELETE"):
        answers = [
            await server.request(method, f"/v1/realtime/sessions/{name}{query}", headers=headers)
            for name in (session, UNKNOWN)
        ]
        assert answers[0][0] == answers[1][0] == 404
        assert json.dumps(answers[0][1]).replace(session, UNKNOWN) == json.dumps(answers[1][1])
    status, listed = await server.request("GET", f"/v1/realtime/sessions{query}", headers=headers)
    assert (status, listed["data"], listed["has_more"]) == (200, [], False)


@pytest.mark.parametrize("shown", ["own secret", "token", "token, own secret", "key", "key, token"])
async def test_session_is_opened_by_its_secret_its_token_or_a_full_key(
    gateways: Gateways, shown: str
) -> None:
    one, two = gateways
    mine = await mint_secret(one)
    async with open_session(one, mine) as session, open_session(one, await mint_secret(one)):
        headers = await mint_secret(two)
        if "own secret" in shown:
            headers = mine
        if "key" in shown:
            headers = ACME
        token = resume_token(session) if "token" in shown else None
        query = f"?resume_token={token}" if token else ""
        path = f"/v1/realtime/sessions/{session.session_id}{query}"
        status, description = await two.request("GET", path, headers=headers)
        assert (status, description.get("items")) == (200, 1)
        _, listed = await one.request("GET", f"/v1/realtime/sessions{query}", headers=headers)
        ids = [entry["id"] for entry in listed["data"]]
        assert (session.session_id in ids, len(ids)) == (True, 2 if shown == "key" else 1)
        url = with_query(two, fork=session.session_id, resume_token=token)
        async with open_realtime_session(url, headers) as fork:
            added = await fork.receive()
            assert added["item"]["content"][0]["text"] == PASSWORD
            await fork.send("session.close")
            await fork.wait_close_code()
        url = with_query(two, session_id=session.session_id, resume_token=token)
        async with connect_realtime(url, headers) as resumed:
            await resumed.expect("session.updated")
            assert await session.wait_close_code() == 4001
            status, deleted = await one.request("DELETE", path, headers=headers)
            assert (status, deleted["deleted"]) == (200, True)


async def test_resume_token_of_another_tenants_session_opens_nothing(gateways: Gateways) -> None:
    one, two = gateways
    async with open_session(one, ACME) as session:
        for verb in ("session_id", "fork"):
            await check_refused_like_unknown(
                two, UMBRELLA, verb, session.session_id, resume_token(session)
            )
        await check_unknown_over_http(two, UMBRELLA, session.session_id, resume_token(session))


async def test_session_of_a_full_key_opens_for_a_client_secret_by_token_only(
    gateways: Gateways,
) -> None:
    one, two = gateways
    async with open_session(one, ACME) as session:
        theirs = await mint_secret(two)
        await check_refused_like_unknown(two, theirs, "session_id", session.session_id, None)
        await check_unknown_over_http(one, theirs, session.session_id, None)
        token = resume_token(session)
        url = with_query(two, session_id=session.session_id, resume_token=token)
        async with connect_realtime(url, theirs) as resumed:
            await resumed.expect("session.updated")


async def test_client_secret_is_denied_stats_responses_and_new_secrets(gateways: Gateways) -> None:
    one, _ = gateways
    secret = await mint_secret(one)
    status, response = await one.request(
        "POST", "/v1/responses", {"input": "x", "max_output_tokens": 1}
    )
    assert status == 200
    stored = f"/v1/responses/{response['id']}"
    for method, path in (
        ("GET", "/v1/stats"),
        ("GET", "/admin"),
        ("POST", "/v1/realtime/client_secrets"),
        ("GET", stored),
        ("DELETE", stored),
        ("POST", f"{stored}/cancel"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/chat/completions"),
    ):
        status, denied = await one.request(method, path, headers=secret)
        assert (status, denied["error"]["code"]) == (403, "ephemeral_key"), path
    with pytest.raises(InvalidStatus) as caught:
        await connect(one.url.replace("realtime", "responses"), additional_headers=secret)
    assert caught.value.response.status_code == 403
    assert (await one.request("GET", "/v1/stats"))[0] == 200
    assert (await one.request("GET", stored))[0] == 200
    await one.app.state.responses.close()


# ---------------------------------------------------------------- expiry


async def test_session_outlives_its_client_secret(gateways: Gateways, secret_kind: str) -> None:
    one, two = gateways
    is_shared = secret_kind.startswith("shared")
    mine = bearer(short_lived()) if is_shared else await mint_secret(one)
    async with open_session(one, mine) as session:
        if is_shared:
            await until_expired(mine)
        else:
            mine = bearer(SECRET_PREFIX + "0" * 48)  # unknown, as after the store was emptied
        await session.add_message("the connection stays open")
        token, query = resume_token(session), f"?resume_token={resume_token(session)}"
        await check_unauthorized(two, mine)
        await check_unauthorized(two, mine, session_id=session.session_id)
        await check_unauthorized(two, mine, session_id=session.session_id, resume_token="")
        await check_unauthorized(two, mine, fork=session.session_id, resume_token=token)
        for method, path in (
            ("GET", f"/v1/realtime/sessions/{session.session_id}{query}"),
            ("DELETE", f"/v1/realtime/sessions/{session.session_id}{query}"),
            ("GET", f"/v1/realtime/sessions{query}"),
            ("GET", "/v1/stats"),
        ):
            status, denied = await two.request(method, path, headers=mine)
            assert (status, denied["error"]["code"]) == (401, "invalid_api_key"), path
        await check_refused_like_unknown(two, mine, "session_id", session.session_id, WRONG)
        await session.send("input_audio_buffer.clear")
        cleared = await session.expect("input_audio_buffer.cleared")  # it was not disturbed
        at = {
            "session_id": session.session_id,
            "resume_token": token,
            "last_event_id": cleared["event_id"],
        }
        for headers in (mine, {}):
            async with connect_realtime(with_query(two, **at), headers) as resumed:
                event = await resumed.receive()
                assert event["session"]["resume"]["resumed"] == "exact"
                await resumed.add_message("still here")
        assert await session.wait_close_code() == 4001


def short_lived() -> str:
    return ClientSecrets(SECRET).mint("acme", GenerationSettings(), 3).value


async def until_expired(headers: dict[str, str]) -> None:
    value = headers["Authorization"].removeprefix("Bearer ")
    async with asyncio.timeout(20):
        while ClientSecrets(SECRET).find(value) is not None:
            await asyncio.sleep(0.05)


async def test_resume_token_replaces_neither_a_wrong_key_nor_an_origin(gateways: Gateways) -> None:
    """A token with a wrong key, a foreign origin or an unknown model reveals nothing."""
    one, _ = gateways
    async with open_session(one, ACME) as session:
        at = {"session_id": session.session_id, "resume_token": resume_token(session)}
        await check_unauthorized(one, bearer("key-three"), **at)
        with pytest.raises(InvalidStatus) as caught:
            await connect(with_query(one, **at), origin=Origin("https://evil.example"))
        assert caught.value.response.status_code == 403
        wrong = {"session_id": session.session_id, "resume_token": WRONG, "model": "other"}
        async with connect_realtime(with_query(one, **wrong), {}) as client:
            error = (await client.expect("error"))["error"]
            assert error["code"] == "session_not_found"


async def test_session_expired_is_reported_only_to_clients_with_access(
    harness: EngineHarness,
) -> None:
    registry = await create_registry(harness, Limits(resume_window_s=0))
    mine, theirs = (
        Credentials("acme", is_ephemeral=True, client_secret_digest=bytes([n]) * 32) for n in (1, 2)
    )
    client = InProcessClient(registry)
    client.connect(guest=mine)
    await client.socket.wait_for("session.created")
    await client.disconnect()
    client.receive()
    await wait_until(lambda: not registry.open_sessions.of_tenant("acme"))
    token = client.received[0]["session"]["resume"]["token"]
    for credentials, token_shown, code in (
        (theirs, None, "session_not_found"),
        (theirs, WRONG, "session_not_found"),
        (theirs, token, "session_expired"),
        (mine, None, "session_expired"),
        (Credentials("acme"), None, "session_expired"),
    ):
        client.connect(ResumeRequest(client.session_id, None, token_shown), credentials)
        await client.wait_closed()
        assert [event["error"]["code"] for event in client.socket.sent] == [code]
    await registry.aclose()


# ---------------------------------------------------------------- units


def test_signed_secrets_are_all_different() -> None:
    one, two = ClientSecrets(SECRET, lambda: 1000.0), ClientSecrets(SECRET, lambda: 1000.0)
    values = [one.mint("acme", GenerationSettings(), 60).value for _ in range(100)]
    found = [two.find(value) for value in values]
    assert len({*values}) == 100
    assert len({each.client_secret_digest for each in found if each is not None}) == 100
    assert found[0] == one.find(values[0])


def test_secret_is_void_once_what_its_key_is_made_of_changes() -> None:
    """The store was emptied: it has another epoch."""
    epochs = [b"one"]
    secrets = ClientSecrets(lambda: epochs[-1])
    value = secrets.mint("acme", GenerationSettings(), 60).value
    assert secrets.find(value) is not None
    epochs.append(b"two")
    assert secrets.find(value) is None


def sign(secret: bytes, body: bytes) -> str:
    key = hmac.digest(secret, b"client secrets", "sha256")
    signed = hmac.digest(key, body, "sha256") + body
    return SECRET_PREFIX + base64.urlsafe_b64encode(signed).decode().rstrip("=")


def test_nothing_is_signed_or_accepted_with_an_empty_key() -> None:
    """A store that lost its data has an empty epoch at first: the key would not be secret."""
    identity = [b"one"]
    secrets = ClientSecrets(lambda: identity[-1])
    text = secrets.mint("acme", GenerationSettings(), 60).value.removeprefix(SECRET_PREFIX)
    body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[32:]
    assert secrets.find(sign(b"one", body)) is not None
    identity.append(b"")
    assert secrets.find(sign(b"", body)) is None
    with pytest.raises(Refusal) as refused:
        secrets.mint("acme", GenerationSettings(), 60)
    assert refused.value.code == "store_unavailable"


def test_signed_secret_of_an_older_release_needs_the_resume_token() -> None:
    secrets = ClientSecrets(SECRET)
    body = zlib.compress(msgspec.json.encode(["acme", GenerationSettings(), int(time.time()) + 60]))
    found = secrets.find(sign(SECRET, body))
    assert found is not None
    assert (found.tenant, found.is_ephemeral, found.client_secret_digest) == ("acme", True, b"")
    secret = make_secret("token", found)
    assert not Access.of(found).permits(secret)
    assert Access.of(found, "token").permits(secret)


def test_signed_secret_of_an_older_release_that_inflates_too_far_is_denied() -> None:
    secrets, expires_at = ClientSecrets(SECRET), int(time.time()) + 60
    for chars, is_found in ((60_000, True), (70_000, False), (5_000_000, False)):
        settings = GenerationSettings(instructions="a" * chars)
        body = zlib.compress(msgspec.json.encode(["acme", settings, expires_at, "nonce"]))
        for _ in range(2):
            assert (secrets.find(sign(SECRET, body)) is not None) == is_found


def test_older_record_of_a_session_is_opened_by_its_resume_token() -> None:
    """Such a record holds the digest of the token and no digest of a client secret."""
    record = hash_token("token")
    ephemeral = Credentials(
        "acme", is_ephemeral=True, client_secret_digest=hash_token(SECRET_PREFIX)
    )
    for credentials, token, opens in (
        (Credentials("acme"), None, True),
        (Credentials("acme"), "token", True),
        (Credentials("acme"), "wrong", False),
        (ephemeral, None, False),
        (ephemeral, "token", True),
        (ephemeral, "wrong", False),
        (Credentials("acme", is_ephemeral=True), None, False),
    ):
        assert Access.of(credentials, token).permits(record) is opens


def test_resume_token_is_accepted_with_an_expired_secret() -> None:
    now = [1000.0]
    secrets = ClientSecrets(SECRET, lambda: now[0])
    gate = Authenticator(plain_policy(TENANTS), secrets)
    value = secrets.mint("acme", GenerationSettings(), 10).value
    assert isinstance(gate.authenticate(Headers(bearer(value))), Credentials)
    now[0] = 1010
    for headers, is_accepted in ((bearer(value), True), ({}, True), (bearer("key-three"), False)):
        denied = gate.authenticate(Headers(headers))
        assert isinstance(denied, Denied)
        assert (denied.status, denied.accepts_resume_token) == (401, is_accepted)
    denied = gate.authenticate(Headers({"origin": "https://evil.example"}))
    assert isinstance(denied, Denied)
    assert (denied.status, denied.accepts_resume_token) == (403, False)
