"""The ledger of a tenant: what is charged to it, what it refuses, and who sees it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import TenantLimits
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.store import CountsElsewhere
from continuo.realtime.tenants.ledger import TenantLedger
from tests.support.clients import connect_realtime, connect_responses, open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.waiting import wait_until
from tests.support.web_servers import ACME, UMBRELLA, RunningServer, serve_harness

KEYS = """
[tenants.acme]
{limits}
[[keys]]
key = "key-one"
tenant = "acme"
[[keys]]
key = "key-two"
tenant = "umbrella"
[[keys]]
key = "key-of-the-operator"
tenant = "operations"
scopes = ["admin"]
"""
OPERATOR = {"Authorization": "Bearer key-of-the-operator"}


@contextlib.asynccontextmanager
async def serve(
    harness: EngineHarness, folder: Path, **limits: float
) -> AsyncIterator[RunningServer]:
    """Serve with `limits` of the tenant acme."""
    file = folder / "keys.toml"
    file.write_text(
        KEYS.format(limits="\n".join(f"{name} = {value}" for name, value in limits.items()))
    )
    settings = GatewaySettings(api_keys_file=str(file), served_model_name=("demo",))
    async with serve_harness(harness, settings) as server:
        yield server


# ---------------------------------------------------------------- the ledger


def ledger_of(**limits: int) -> TenantLedger:
    ledger = TenantLedger("acme")
    ledger.set_limits(TenantLimits(**limits))
    return ledger


def test_connections_here_and_elsewhere_count_until_they_end() -> None:
    ledger = ledger_of(connections_max=3)
    ledger.elsewhere = CountsElsewhere(connections=1)
    with ledger.connected():
        with pytest.raises(KeyError), ledger.connected():
            raise KeyError
        with ledger.connected():
            with pytest.raises(Refusal, match=r"3 connections of .* 3\..*5 s") as refused:
                ledger.connected().__enter__()
            assert (refused.value.code, refused.value.retry_after_s) == ("rate_limit_exceeded", 5)
            assert refused.value.http_status == 429
            assert ledger.connections == 2
    assert ledger.connections == 0
    assert ledger.refused == {"connections_max": 1}
    assert (ledger.take_refusals(), ledger.take_refusals()) == (1, 0)


def test_no_limit_refuses_nothing() -> None:
    ledger = ledger_of()
    ledger.stored_bytes = 1 << 50
    ledger.check_session_count(1 << 30)
    ledger.check_room()
    assert ledger.refused == {}


def test_each_refusal_names_its_limit_and_is_counted_under_it() -> None:
    ledger = ledger_of(sessions_max=2, stored_bytes_max=10, running_responses_max=1)
    ledger.stored_bytes = 11
    with pytest.raises(Refusal, match="has 2 sessions; the limit is 2"):
        ledger.check_session_count(2)
    with pytest.raises(Refusal, match=r"11 bytes .* the limit is 10") as refused:
        ledger.check_room()
    assert refused.value.code == "insufficient_quota"
    assert "1 responses in generation and 256 waiting" in str(ledger.refuse_turn(1, 256))
    assert "60 tokens a minute" in str(ledger.refuse_rate("tokens", 60, 3.0))
    assert ledger.refused == {
        "sessions_max": 1,
        "stored_bytes_max": 1,
        "waiting_responses_max": 1,
        "tokens_per_minute": 1,
    }


def test_bytes_above_the_limit_refuse_what_would_add_to_them_until_they_are_released() -> None:
    ledger = ledger_of(held_bytes_max=100)
    ledger.hold("input", 60)
    ledger.hold("output", 40)
    ledger.check_room()
    ledger.hold("idempotency_keys", 1)
    for admit_one in (ledger.check_room, ledger.connected().__enter__):
        with pytest.raises(Refusal, match=r"holds 101 bytes .* the limit is 100") as refused:
            admit_one()
        assert (refused.value.code, refused.value.retry_after_s) == ("rate_limit_exceeded", 5)
    assert (ledger.connections, ledger.refused) == (0, {"held_bytes_max": 2})
    ledger.hold("input", -60)
    ledger.check_room()


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def admit(ledger: TenantLedger, count: int) -> None:
    for _ in range(count):
        ledger.admit_operation()


def test_operations_of_ten_seconds_may_come_at_once_and_refill_at_their_rate() -> None:
    clock = Clock()
    ledger = TenantLedger("acme", clock)
    ledger.set_limits(TenantLimits(operations_per_second=2))
    admit(ledger, 20)
    with pytest.raises(Refusal, match=r"the limit is 2 a second\. Try again in 0\.5 s") as refused:
        admit(ledger, 1)
    assert (refused.value.code, refused.value.retry_after_s) == ("rate_limit_exceeded", 0.5)
    clock.now_s = 1.0
    admit(ledger, 2)
    with pytest.raises(Refusal):
        admit(ledger, 1)
    ledger.set_limits(TenantLimits(operations_per_second=3))
    admit(ledger, 10)
    with pytest.raises(Refusal):
        admit(ledger, 1)
    ledger.set_limits(TenantLimits())
    admit(ledger, 1000)
    assert (ledger.operations, ledger.refused) == (1032, {"operations_per_second": 3})


# ---------------------------------------------------------------- operations on the wire


def stop_clock(ledger: TenantLedger) -> None:
    """Fill the bucket of operations, which does not refill from now on."""
    limits = ledger.limits
    ledger._clock = Clock()
    ledger.set_limits(TenantLimits())
    ledger.set_limits(limits)


async def test_events_above_the_limit_are_refused_and_the_session_goes_on(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path, operations_per_second=1) as server:
        ledger = server.registry.tenants.of("acme").ledger
        stop_clock(ledger)
        async with open_realtime_session(server.url) as client:
            for _ in range(9):
                await client.send("input_audio_buffer.clear")
            await client.send("conversation.item.retrieve", event_id="mine", item_id="none")
            error = (await client.wait_for("error"))["error"]
            assert (error["code"], error["event_id"]) == ("rate_limit_exceeded", "mine")
            assert "the limit is 1 a second" in error["message"]
            async with open_realtime_session(server.url, UMBRELLA) as other:
                await other.add_message("not of that tenant")
            async with connect_realtime(server.url) as late:
                assert (await late.expect("error"))["error"]["code"] == "rate_limit_exceeded"
                assert await late.wait_close_code() == 1013
            ledger.set_limits(TenantLimits())
            await client.add_message("the session is as it was")
        assert ledger.refused == {"operations_per_second": 2}


async def test_http_requests_above_the_limit_are_refused_with_429(
    harness: EngineHarness, tmp_path: Path
) -> None:
    body = {"model": "demo", "input": "hi", "max_output_tokens": 2}
    async with serve(harness, tmp_path, operations_per_second=1) as server:
        stop_clock(server.registry.tenants.of("acme").ledger)
        statuses = [(await server.request("GET", "/v1/responses/x"))[0] for _ in range(11)]
        assert statuses == [*[404] * 10, 429]
        for method, path, sent in (
            ("POST", "/v1/responses", body),
            ("POST", "/v1/messages", {"model": "demo", "max_tokens": 2, "messages": []}),
            ("POST", "/v1/chat/completions", {"model": "demo", "messages": []}),
            ("POST", "/generate", {"text": "hi"}),
            ("POST", "/v1/conversations", {}),
            ("GET", "/v1/realtime/sessions", None),
            ("GET", "/v1/stats", None),
        ):
            status, headers, reply = await server.exchange(method, path, sent)
            assert status == 429, (path, reply)
            assert int(headers["retry-after"]) > 0, path
        async with connect_responses(server) as client:
            await client.send("response.create", **body)
            assert (await client.expect("error"))["error"]["code"] == "rate_limit_exceeded"
        assert (await server.request("POST", "/v1/responses", body, UMBRELLA))[0] == 200
        assert (await server.request("GET", "/v1/stats", headers=OPERATOR))[0] == 200


# ---------------------------------------------------------------- bytes on the wire


async def test_bytes_of_input_are_held_until_it_is_processed_or_its_connection_is_killed(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path, held_bytes_max=20_000) as server:
        ledger = server.registry.tenants.of("acme").ledger
        async with open_realtime_session(server.url) as client:
            await client.add_message("before")
            assert ledger.held_bytes["input"] == 0
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            head = "POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key-one\r\n"
            writer.write(f"{head}Content-Length: 100000\r\n\r\n".encode() + b"x" * 30_000)
            await wait_until(lambda: ledger.held_bytes["input"] == 30_000)
            async with connect_realtime(server.url) as late:
                error = (await late.expect("error"))["error"]
                assert "holds 30,000 bytes of tenant 'acme'" in error["message"]
                assert await late.wait_close_code() == 1013
            body = {"model": "demo", "input": "hi", "max_output_tokens": 2}
            status, headers, reply = await server.exchange("POST", "/v1/responses", body)
            assert (status, reply["error"]["code"]) == (429, "rate_limit_exceeded")
            assert int(headers["retry-after"]) == 5
            await client.send_message("one more")
            error = (await client.wait_for("error"))["error"]
            assert "the limit is 20,000" in error["message"]
            assert (await server.request("POST", "/v1/responses", body, UMBRELLA))[0] == 200
            _, own = await server.request("GET", "/v1/stats")
            assert own["tenants"][0]["held_bytes"]["input"] == 30_000
            assert own["tenants"][0]["refused"] == {"held_bytes_max": 3}
            writer.transport.abort()
            await wait_until(lambda: ledger.held_bytes["input"] == 0)
            await client.add_message("after")


async def test_bytes_of_a_message_in_pieces_are_released_when_its_connection_is_killed(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path) as server:
        ledger = server.registry.tenants.of("acme").ledger
        async with open_realtime_session(server.url) as client:
            transport = client.socket.transport
            transport.write(b"\x01\xfe\x27\x10" + bytes(4) + b"x" * 10_000)  # FIN is not set
            await wait_until(lambda: ledger.held_bytes["input"] >= 10_000)
            transport.abort()
            await wait_until(lambda: ledger.held_bytes["input"] == 0)


async def test_idempotency_keys_are_held_until_the_session_is_unloaded(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path) as server:
        ledger = server.registry.tenants.of("acme").ledger
        sessions = []
        for _ in range(2):
            async with open_realtime_session(server.url) as client:
                await client.send_message("hello", event_id="mine")
                await client.wait_for("conversation.item.done")
                sessions.append(client.session_id)
        held = ledger.held_bytes["idempotency_keys"]
        assert held > 100, "parked sessions keep them"
        await server.request("DELETE", f"/v1/realtime/sessions/{sessions[0]}")
        assert ledger.held_bytes["idempotency_keys"] == held / 2
        path = f"/v1/admin/sessions/{sessions[1]}/evict"
        assert (await server.request("POST", path, {}, OPERATOR))[0] == 200
        assert ledger.held_bytes == {"input": 0, "output": 0, "idempotency_keys": 0}


# ---------------------------------------------------------------- GET /v1/stats


async def test_stats_show_all_tenants_to_an_operator_and_to_a_tenant_itself_alone(
    harness: EngineHarness, tmp_path: Path
) -> None:
    async with serve(harness, tmp_path, connections_max=1) as server:
        async with (
            open_realtime_session(server.url),
            open_realtime_session(server.url, UMBRELLA),
            connect_realtime(server.url) as refused,
        ):
            assert (await refused.expect("error"))["error"]["code"] == "rate_limit_exceeded"
            status, own = await server.request("GET", "/v1/stats", headers=ACME)
            assert (status, set(own)) == (200, {"object", "tenants"})
            assert own["object"] == "tenant.stats"
            (acme,) = own["tenants"]
            assert acme["tenant"] == "acme"
            assert (acme["connections"], acme["sessions"]) == (1, 1)
            assert acme["refused"] == {"connections_max": 1}
            assert acme["limits"]["connections_max"] == 1
            await server.request("POST", "/open_session", {}, UMBRELLA)
            _, everything = await server.request("GET", "/v1/stats", headers=OPERATOR)
            assert everything["object"] == "server.stats"
            shown = {each["tenant"]: each for each in everything["tenants"]}
            assert shown["acme"] == acme
            assert shown["umbrella"]["token_sessions"] == 1
            assert shown["umbrella"]["limits"]["connections_max"] == 0
        ledger = server.registry.tenants.of("acme").ledger
        await wait_until(lambda: ledger.connections == 0)
        _, own = await server.request("GET", "/v1/stats", headers=ACME)
        assert (own["tenants"][0]["connections"], own["tenants"][0]["sessions"]) == (0, 1), "parked"
