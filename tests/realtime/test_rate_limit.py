"""Limits a minute: what a client is told of them, and what happens at them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from continuo.realtime.errors import Refusal, SetupError
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.response import Usage
from continuo.realtime.rate_limit import RateLimits, TenantRateLimits
from continuo.realtime.server.config.settings import GatewaySettings, make_serve_settings
from tests.support.engines import Bench
from tests.support.web_servers import Running, first, serve

ONE, TWO = ({"Authorization": f"Bearer key-{name}"} for name in ("one", "two"))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def allowance(clock: Clock, requests: int = 0, tokens: int = 0) -> TenantRateLimits:
    limits = Limits(requests_per_minute=requests, tokens_per_minute=tokens)
    return RateLimits(limits, clock).for_tenant("acme")


def begin(allowed: TenantRateLimits) -> None:
    with allowed.charge_request():
        pass


def remaining(allowed: TenantRateLimits) -> dict[str, int]:
    return {level.name: level.remaining for level in allowed.levels()}


# ---------------------------------------------------------------- the buckets


def test_requests_fill_up_again() -> None:
    clock = Clock()
    allowed = allowance(clock, requests=6)
    for left in (5, 4, 3, 2, 1, 0):
        begin(allowed)
        assert remaining(allowed) == {"requests": left}
    with pytest.raises(
        Refusal, match=r"6 requests a minute is reached. Try again in 10.0 s"
    ) as told:
        begin(allowed)
    assert (told.value.code, told.value.retry_after_s) == ("rate_limit_exceeded", 10)
    (level,) = allowed.levels()
    assert (level.limit_per_minute, level.reset_s) == (6, 60)
    clock.now_s = 10
    begin(allowed)
    clock.now_s = 1000
    assert remaining(allowed) == {"requests": 6}, "no more than a minute's"


def test_tokens_are_those_computed_and_may_be_owed() -> None:
    clock = Clock()
    allowed = allowance(clock, tokens=60)
    begin(allowed)
    allowed.charge_usage(Usage(input_tokens=100, cached_tokens=90, output_tokens=5))
    assert remaining(allowed) == {"tokens": 45}
    allowed.charge_usage(Usage(output_tokens=55))
    assert remaining(allowed) == {"tokens": 0}
    with pytest.raises(Refusal) as told:
        begin(allowed)
    assert told.value.retry_after_s == 11, "ten are owed, and one is needed"
    clock.now_s = 11
    begin(allowed)
    allowed.charge_usage(None)


def test_what_does_not_begin_costs_nothing() -> None:
    allowed = allowance(Clock(), requests=1)
    with pytest.raises(KeyError), allowed.charge_request():
        raise KeyError
    assert remaining(allowed) == {"requests": 1}


def test_without_limits_nothing_is_refused_or_told() -> None:
    allowed = allowance(Clock())
    for _ in range(1000):
        begin(allowed)
    allowed.charge_usage(Usage(output_tokens=10**9))
    assert allowed.levels() == []


def test_the_options() -> None:
    made = make_serve_settings({"requests_per_minute": 5, "tokens_per_minute": 700}).limits
    assert (made.requests_per_minute, made.tokens_per_minute) == (5, 700)
    assert make_serve_settings({}).limits.requests_per_minute == 0
    with pytest.raises(SetupError, match="--tokens-per-minute -1: expected 0 to"):
        make_serve_settings({"tokens_per_minute": -1})


# ---------------------------------------------------------------- the wire


@pytest.fixture
async def running(bench: Bench) -> AsyncIterator[Running]:
    settings = GatewaySettings(
        tenants={"key-one": "acme", "key-two": "umbrella"},
        served_model_name=("demo",),
        limits=Limits(requests_per_minute=2, tokens_per_minute=100_000),
    )
    async with serve(bench, settings) as running:
        yield running


async def until(socket: ClientConnection, *kinds: str) -> dict[str, Any]:
    while (event := await first(socket))["type"] not in kinds:
        pass
    return event


async def answer(socket: ClientConnection) -> tuple[dict[str, Any], dict[str, Any]]:
    """The response and the limits after it; or the error, twice."""
    response = {"max_output_tokens": 4, "ignore_eos": True}
    await socket.send(json.dumps({"type": "response.create", "response": response}))
    done = await until(socket, "response.done", "error")
    if done["type"] == "error":
        return done["error"], done["error"]
    told = await until(socket, "rate_limits.updated")
    return done["response"], {level["name"]: level for level in told["rate_limits"]}


async def post(running: Running, path: str, body: object) -> tuple[int, dict[str, str], Any]:
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Authorization: {ONE['Authorization']}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    top, _, text = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *lines = top.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, json.loads(text)


async def test_rate_limits_are_told_and_kept(running: Running) -> None:
    async with (
        connect(running.url, additional_headers=ONE) as socket,
        connect(running.url, additional_headers=ONE) as same,
        connect(running.url, additional_headers=TWO) as other,
    ):
        response, told = await answer(socket)
        usage = response["usage"]
        computed = usage["total_tokens"] - usage["input_token_details"]["cached_tokens"]
        assert (told["requests"]["limit"], told["tokens"]["limit"]) == (2, 100_000)
        assert told["requests"]["remaining"] == 1
        assert 0 < told["requests"]["reset_seconds"] <= 30
        assert told["tokens"]["remaining"] >= 100_000 - computed
        await answer(same)
        error, _ = await answer(socket)
        assert error["code"] == "rate_limit_exceeded"
        assert "2 requests a minute" in error["message"]
        assert "Try again in" in error["message"]
        assert (await answer(other))[0]["status"] == "incomplete", "limits are a tenant's own"
        for path, body in (
            ("/v1/responses", {"model": "demo", "input": "hi"}),
            (
                "/v1/chat/completions",
                {"model": "demo", "messages": [{"role": "user", "content": "x"}]},
            ),
        ):
            status, headers, refused = await post(running, path, body)
            assert (status, refused["error"]["code"]) == (429, "rate_limit_exceeded")
            assert 1 <= int(headers["retry-after"]) <= 30


async def test_a_refused_response_leaves_the_session_good(running: Running) -> None:
    async with connect(running.url, additional_headers=ONE) as socket:
        for _ in range(2):
            await answer(socket)
        assert (await answer(socket))[0]["code"] == "rate_limit_exceeded"
        content = [{"type": "input_text", "text": "hello"}]
        item = {"type": "message", "role": "user", "content": content}
        await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        await until(socket, "conversation.item.done")
