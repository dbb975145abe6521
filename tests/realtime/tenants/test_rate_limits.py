"""Rate limits per minute: their token buckets, and how clients see them on the wire."""

import pytest

from continuo.realtime.errors import Refusal, SetupError
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.response import Usage
from continuo.realtime.server.config.settings import GatewaySettings, make_serve_settings
from continuo.realtime.tenants.ledger import TenantLedger
from continuo.realtime.tenants.rate_limits import TenantRateLimits
from tests.support.clients import JsonEvent, RealtimeClient, open_realtime_session
from tests.support.web_servers import TENANTS, UMBRELLA, RunningServer


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def tenant_limits(clock: Clock, requests: int = 0, tokens: int = 0) -> TenantRateLimits:
    limits = Limits(requests_per_minute=requests, tokens_per_minute=tokens)
    return TenantRateLimits(TenantLedger("acme"), limits, clock)


def begin(tenant: TenantRateLimits) -> None:
    with tenant.charge_request():
        pass


def remaining(tenant: TenantRateLimits) -> dict[str, int]:
    return {level.name: level.remaining for level in tenant.levels()}


# ---------------------------------------------------------------- the buckets


def test_requests_refill_at_their_rate_up_to_the_limit() -> None:
    clock = Clock()
    tenant = tenant_limits(clock, requests=6)
    for left in (5, 4, 3, 2, 1, 0):
        begin(tenant)
        assert remaining(tenant) == {"requests": left}
    with pytest.raises(
        Refusal, match=r"6 requests a minute is reached. Try again in 10.0 s"
    ) as refusal:
        begin(tenant)
    assert (refusal.value.code, refusal.value.retry_after_s) == ("rate_limit_exceeded", 10)
    (level,) = tenant.levels()
    assert (level.limit_per_minute, level.reset_s) == (6, 60)
    clock.now_s = 10
    begin(tenant)
    clock.now_s = 1000
    assert remaining(tenant) == {"requests": 6}, "at most the limit of one minute"


def test_only_computed_tokens_count_and_may_exceed_the_limit() -> None:
    clock = Clock()
    tenant = tenant_limits(clock, tokens=60)
    begin(tenant)
    tenant.charge_usage(Usage(input_tokens=100, computed_tokens=10, output_tokens=5))
    assert remaining(tenant) == {"tokens": 45}
    tenant.charge_usage(Usage(output_tokens=55))
    assert remaining(tenant) == {"tokens": 0}
    with pytest.raises(Refusal) as refusal:
        begin(tenant)
    assert refusal.value.retry_after_s == 11, "ten tokens over the limit, and one needed"
    clock.now_s = 11
    begin(tenant)
    tenant.charge_usage(None)


def test_request_that_fails_to_begin_is_not_charged() -> None:
    tenant = tenant_limits(Clock(), requests=1)
    with pytest.raises(KeyError), tenant.charge_request():
        raise KeyError
    assert remaining(tenant) == {"requests": 1}


def test_no_limits_means_no_refusals_and_no_levels() -> None:
    tenant = tenant_limits(Clock())
    for _ in range(1000):
        begin(tenant)
    tenant.charge_usage(Usage(output_tokens=10**9))
    assert tenant.levels() == []


def test_rate_limit_options_are_read_and_validated() -> None:
    limits = make_serve_settings({"requests_per_minute": 5, "tokens_per_minute": 700}).limits
    assert (limits.requests_per_minute, limits.tokens_per_minute) == (5, 700)
    assert make_serve_settings({}).limits.requests_per_minute == 0
    with pytest.raises(SetupError, match="--tokens-per-minute -1: expected 0 to"):
        make_serve_settings({"tokens_per_minute": -1})


# ---------------------------------------------------------------- the wire


@pytest.fixture
def gateway_settings() -> GatewaySettings:
    limits = Limits(requests_per_minute=2, tokens_per_minute=100_000)
    return GatewaySettings(tenants=TENANTS, served_model_name=("demo",), limits=limits)


async def respond(client: RealtimeClient) -> tuple[JsonEvent, JsonEvent]:
    """Return the response and the limits after it, or the error twice."""
    await client.send("response.create", response={"max_output_tokens": 4, "ignore_eos": True})
    done = await client.wait_for("response.done", "error")
    if done["type"] == "error":
        return done["error"], done["error"]
    updated = await client.wait_for("rate_limits.updated")
    return done["response"], {level["name"]: level for level in updated["rate_limits"]}


async def test_rate_limits_are_reported_and_enforced_per_tenant(server: RunningServer) -> None:
    async with (
        open_realtime_session(server.url) as client,
        open_realtime_session(server.url) as second,
        open_realtime_session(server.url, UMBRELLA) as other,
    ):
        response, limits = await respond(client)
        usage = response["usage"]
        computed = usage["total_tokens"] - usage["input_token_details"]["cached_tokens"]
        assert (limits["requests"]["limit"], limits["tokens"]["limit"]) == (2, 100_000)
        assert limits["requests"]["remaining"] == 1
        assert 0 < limits["requests"]["reset_seconds"] <= 30
        assert limits["tokens"]["remaining"] >= 100_000 - computed
        await respond(second)
        error, _ = await respond(client)
        assert error["code"] == "rate_limit_exceeded"
        assert "2 requests a minute" in error["message"]
        assert "Try again in" in error["message"]
        assert (await respond(other))[0]["status"] == "incomplete", (
            "each tenant has limits of its own"
        )
        for path, body in (
            ("/v1/responses", {"model": "demo", "input": "hi"}),
            (
                "/v1/chat/completions",
                {"model": "demo", "messages": [{"role": "user", "content": "x"}]},
            ),
        ):
            status, headers, refused = await server.exchange("POST", path, body)
            assert (status, refused["error"]["code"]) == (429, "rate_limit_exceeded")
            assert 1 <= int(headers["retry-after"]) <= 30


async def test_session_stays_usable_after_a_rate_limited_response(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        for _ in range(2):
            await respond(client)
        assert (await respond(client))[0]["code"] == "rate_limit_exceeded"
        await client.add_message("hello")
