"""F32: a key is revoked or expires, or a token expires, while its connection is in use."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidStatus

from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings, SettingsSource
from continuo.realtime.server.process.reload import Reloader
from continuo.realtime.session.state import SessionState
from tests.faults.caller import ReconnectingClient
from tests.faults.cluster import TIMEOUT_FACTOR, continue_and_close
from tests.faults.deployment import Deployment, running_deployment
from tests.faults.outages import Outages, counted_outages
from tests.faults.row import FaultRow
from tests.faults.stopwatch import Stopwatch
from tests.faults.stores import open_conversation
from tests.support.clients import RealtimeClient, connect_responses
from tests.support.digest_runner import oracle
from tests.support.identity_provider import AUDIENCE, IdentityProvider, bearer
from tests.support.waiting import wait_until
from tests.support.web_servers import ACME, API_KEY

TENANT = "default"
RESPONSE_TOKENS = 600
RESPONSE_STEP_S = 0.005
"""Duration of a step, so that a response of RESPONSE_TOKENS outlasts the end of its credentials."""
LIFETIME_S = 1.2
"""Time until the credentials that expire do."""
DETACH_GRACE_S = 0.5
CLOSE_S_MAX = 1.0 * TIMEOUT_FACTOR
"""Time from the end of the credentials to the close of the connection."""
CANCEL_S_MAX = 1.0 * TIMEOUT_FACTOR

Ending = Literal["revoked", "revoked with its client secrets", "expired", "token expired"]
Phase = Literal["idle", "requesting", "responding"]


class Guarded(msgspec.Struct):
    """A deployment whose gateways reload their keys file."""

    deployment: Deployment
    provider: IdentityProvider
    keys_file: Path
    outages: Outages
    used_keys: int = 0
    clients: list[ReconnectingClient] = []

    def make_key(self) -> str:
        self.used_keys += 1
        return f"key-{self.used_keys}"

    def permit(self, key: str = "", expires_s: float | None = None) -> None:
        """Write the keys file: with the key of the other clients, and with `key`."""
        tables = [f'[[keys]]\nkey = "{API_KEY}"\ntenant = "{TENANT}"']
        if key:
            tables.append(f'[[keys]]\nkey = "{key}"\ntenant = "{TENANT}"')
        if expires_s is not None:
            tables.append(f"expires = {datetime.fromtimestamp(expires_s, UTC).isoformat()}")
        self.keys_file.write_text("\n".join(tables))


async def end_credentials(guarded: Guarded, rng: Random, lifetime_s: float = LIFETIME_S) -> None:
    """Revoke a key, or let it expire: its connection is closed and its response ends in time."""
    deployment, gateway = guarded.deployment, rng.randrange(2)
    while guarded.clients:
        await guarded.clients.pop().disconnect()
    ending: Ending = rng.choice(
        ["revoked", "revoked with its client secrets", "expired", "token expired"]
    )
    phase: Phase = rng.choice(["idle", "requesting", "responding", "responding"])
    is_revoked = ending in ("revoked", "revoked with its client secrets")
    runner = deployment.engine_harness.runner
    runner.step_s = RESPONSE_STEP_S
    other = await open_conversation(deployment, gateway)
    headers, ends_s = await make_credentials(guarded, ending, gateway, lifetime_s)
    stopwatch, allowed_s = Stopwatch(), max(0.0, ends_s - time.time()) + CLOSE_S_MAX
    client = deployment.create_client(gateway)
    guarded.clients.append(client)
    client.headers = headers
    serving = asyncio.create_task(continue_and_close(*other))
    try:
        response = await begin_phase(client, phase)
    except (ConnectionClosed, InvalidStatus):
        assert not is_revoked
        await serving
        await client.disconnect()
        await end_credentials(guarded, rng, 3 * lifetime_s)  # the machine is too busy
        return
    items = client.item_ids[:]
    if is_revoked:
        await asyncio.sleep(rng.uniform(0, 0.2))
        guarded.permit()
        stopwatch = Stopwatch()
    assert await client.wait_close_code() == 4004
    assert time.time() > ends_s - 0.1
    assert stopwatch.elapsed_s < allowed_s
    await serving
    await assert_refused(deployment, headers, gateway)
    await assert_computing_ends(deployment, client, is_revoked=is_revoked)
    runner.step_s = 0
    client.headers = ACME
    await client.reconnect()
    assert client.resume_outcomes[-1] == "exact"
    assert client.item_ids[: len(items)] == items
    await check_response(deployment, client, response, is_revoked=is_revoked)
    await continue_with_any_context(deployment, client)
    await client.close_session()
    await deployment.assert_balanced()


async def make_credentials(
    guarded: Guarded, ending: Ending, gateway: int, lifetime_s: float
) -> tuple[dict[str, str], float]:
    """Return headers with credentials, and the Unix time at which they expire; 0: never."""
    ends_s = time.time() + lifetime_s
    if ending == "token expired":
        return bearer(guarded.provider.sign(tenant=TENANT, exp=ends_s)), ends_s
    key = guarded.make_key()
    guarded.permit(key, ends_s if ending == "expired" else None)
    await wait_until_permitted(guarded, key)
    if ending == "revoked with its client secrets":
        _, minted = await guarded.deployment.gateways[gateway].request(
            "POST", "/v1/realtime/client_secrets", headers=bearer(key)
        )
        return bearer(minted["value"]), 0.0
    return bearer(key), ends_s if ending == "expired" else 0.0


async def wait_until_permitted(guarded: Guarded, key: str) -> None:
    for server in guarded.deployment.gateways:
        async with asyncio.timeout(60):
            while (await server.request("GET", "/v1/models", headers=bearer(key)))[0] != 200:
                await asyncio.sleep(0.05)


async def begin_phase(client: ReconnectingClient, phase: Phase) -> str | None:
    """Open a session with an item and bring it into `phase`, without a reconnect. Returns the id of
    its response, if it has one. Raises ConnectionClosed or InvalidStatus."""
    while (await client.connect())["type"] == "error":
        await client.disconnect()  # the machine is too busy for Redis
    await client.send_message("hello", "item_hello")
    await client.wait_for("conversation.item.done")
    request = {"max_output_tokens": RESPONSE_TOKENS, "ignore_eos": True}
    if phase == "requesting":
        await client.send("response.create", response=request)
    if phase != "responding":
        return None
    response = await RealtimeClient.start_response(client, **request)
    await client.wait_deltas(3)
    return response


async def assert_refused(deployment: Deployment, headers: dict[str, str], gateway: int) -> None:
    """Assert that the credentials open nothing any more."""
    client = ReconnectingClient(deployment.urls[gateway])
    client.headers = headers
    try:
        await client.connect()
        # A token is accepted for a few seconds more, because clocks differ, and closed at once.
        refused_with = await client.wait_close_code()
    except InvalidStatus as denied:
        refused_with = denied.response.status_code
    assert refused_with in (401, 4004)


async def assert_computing_ends(
    deployment: Deployment, client: ReconnectingClient, *, is_revoked: bool
) -> None:
    """Assert that the response of a revoked key has ended, and that of an expired one has paused
    after the grace for clients that disconnect."""
    allowed_s = CANCEL_S_MAX if is_revoked else DETACH_GRACE_S + CANCEL_S_MAX
    await wait_until_computing_ends(deployment, allowed_s)
    session = deployment.find_session(client)
    assert session is not None
    if is_revoked:
        await wait_until(lambda: session.state is SessionState.IDLE, 60)


async def wait_until_computing_ends(deployment: Deployment, allowed_s: float) -> None:
    stopwatch = Stopwatch()
    while (await deployment.engine_harness.engine.fleet.stats()).active_turns:
        assert stopwatch.elapsed_s < allowed_s
        await asyncio.sleep(0.02)


async def check_response(
    deployment: Deployment, client: ReconnectingClient, response: str | None, *, is_revoked: bool
) -> None:
    """Check the end of the response, or of the one that was requested and may have begun."""
    response = response or next(iter(client.response_texts), None)
    if response is None:
        return
    expected = deployment.expected_conversation()
    expected.add_user_message("hello")
    text = expected.compute_response(RESPONSE_TOKENS, ignore_eos=True)
    if is_revoked:
        assert client.ended_responses[response]["status"] == "cancelled"
        assert text.startswith(client.response_texts[response])
    else:
        assert await client.wait_response(response) == text


async def continue_with_any_context(deployment: Deployment, client: ReconnectingClient) -> None:
    """Assert that the next response is that of a fresh prefill of the conversation as it is."""
    await client.add_message("go on")
    registries = [gateway.registry for gateway in deployment.gateways]
    found = [registry.find_connected(client.session_id, TENANT) for registry in registries]
    (session,) = filter(None, found)  # another gateway may hold a copy that it has not unloaded
    prompt, header = session.conversation.render_header()
    output = oracle(prompt.ids() + header, 6, stop_ids=[0])
    text = deployment.engine_harness.engine.text.decode(output[:-1] if output[-1] == 0 else output)
    assert await client.complete_response(max_output_tokens=6) == text


async def revoke_during_response(guarded: Guarded, rng: Random) -> None:
    """Revoke the key of a connection of the Responses API: its stored response is cancelled."""
    deployment, gateway = guarded.deployment, rng.randrange(2)
    server, key = deployment.gateways[gateway], guarded.make_key()
    deployment.engine_harness.runner.step_s = RESPONSE_STEP_S
    guarded.permit(key)
    await wait_until_permitted(guarded, key)
    async with connect_responses(server, bearer(key)) as client:
        request: dict[str, Any] = {"max_output_tokens": RESPONSE_TOKENS, "ignore_eos": True}
        await client.send(model="demo", input="hello", store=True, **request)
        created = (await client.receive_until("response.created"))[-1]["response"]["id"]
        await asyncio.sleep(rng.uniform(0, 0.2))
        guarded.permit()
        stopwatch = Stopwatch()
        assert await client.wait_close_code() == 4004
        assert stopwatch.elapsed_s < CLOSE_S_MAX
    await wait_until_computing_ends(deployment, CANCEL_S_MAX)
    deployment.engine_harness.runner.step_s = 0
    async with asyncio.timeout(60):
        while (stored := await server.request("GET", f"/v1/responses/{created}"))[0] == 200:
            if stored[1]["status"] != "in_progress":
                break
    assert stored[0] == 200
    assert stored[1]["incomplete_details"] == {"reason": "cancelled"}
    await deployment.assert_balanced()


async def end_access(guarded: Guarded, rng: Random) -> None:
    trial = revoke_during_response if rng.random() < 0.2 else end_credentials
    await guarded.outages.repeat_disturbed(lambda: trial(guarded, rng))


@asynccontextmanager
async def deployment_with_keys_file(folder: Path) -> AsyncIterator[Guarded]:
    keys_file, provider = folder / "keys.toml", IdentityProvider()
    settings = GatewaySettings(
        api_keys_file=str(keys_file),
        jwt_jwks_url=provider.url,
        jwt_audience=AUDIENCE,
        served_model_name=("demo",),
        limits=Limits(detach_grace_s=DETACH_GRACE_S),
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(provider.close)
        keys_file.write_text(f'[[keys]]\nkey = "{API_KEY}"\ntenant = "{TENANT}"')
        deployment = await stack.enter_async_context(running_deployment(folder, settings=settings))
        for server in deployment.gateways:
            source = SettingsSource(lambda: settings)
            reloader = Reloader(source, settings, server.app.state, None)
            reloading = asyncio.create_task(reloader.run(asyncio.Event()))
            stack.callback(reloading.cancel)
        outages = stack.enter_context(counted_outages())
        yield Guarded(deployment, provider, keys_file, outages)


ROWS = (
    FaultRow(
        id="F32",
        fault="the key of a connection is revoked, with its client secrets, or it or a token "
        "expires: idle, as a response is requested, during it",
        expectation="close 4004 within 1 s and no way back; a revoked key's response is cancelled, "
        "an expired one's pauses after the grace; with another key of the tenant the session "
        "resumes exactly; other connections notice nothing",
        environment=deployment_with_keys_file,
        trial=end_access,
        full_trials=50,
        quick_trials=2,
    ),
)
