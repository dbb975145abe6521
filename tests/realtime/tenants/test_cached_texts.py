"""Cached texts count for the tenant whose request the gateway served."""

from collections.abc import Awaitable, Callable

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.clients import connect_responses, open_realtime_session
from tests.support.engines import EngineHarness
from tests.support.web_servers import ACME, TENANTS, UMBRELLA, RunningServer

pytestmark = pytest.mark.slow


@pytest.fixture
def gateway_settings() -> GatewaySettings:
    limits = Limits(off_loop_chars_min=200)
    return GatewaySettings(tenants=TENANTS, served_model_name=("demo",), limits=limits)


Headers = dict[str, str]


async def over_http(server: RunningServer, text: str, headers: Headers) -> None:
    body = {"model": "demo", "input": text, "max_output_tokens": 1, "store": False}
    status, response = await server.request("POST", "/v1/responses", body, headers)
    assert status == 200, response


async def with_messages(server: RunningServer, text: str, headers: Headers) -> None:
    messages = [{"role": "user", "content": text}]
    body = {"model": "demo", "messages": messages, "max_tokens": 1}
    headers = {**headers, "anthropic-version": "2023-06-01"}
    status, response = await server.request("POST", "/v1/messages", body, headers)
    assert status == 200, response


async def over_responses_socket(server: RunningServer, text: str, headers: Headers) -> None:
    async with connect_responses(server, headers) as client:
        await client.create_response(text, max_output_tokens=1)


async def in_a_session(server: RunningServer, text: str, headers: Headers) -> None:
    async with open_realtime_session(server.url, headers) as client:
        await client.add_message(text, "item_1")


SENDERS = (over_http, with_messages, over_responses_socket, in_a_session)


@pytest.mark.parametrize("chars", [10, 300], ids=["on the loop", "on a thread"])
@pytest.mark.parametrize("send", SENDERS, ids=lambda send: send.__name__)
async def test_texts_count_for_the_tenant_that_sent_them(
    server: RunningServer,
    harness: EngineHarness,
    send: Callable[[RunningServer, str, Headers], Awaitable[None]],
    chars: int,
) -> None:
    encodings = harness.engine.text._tokenizer._encodings  # pyright: ignore[reportPrivateUsage]
    for tenant, headers in (("acme", ACME), ("umbrella", UMBRELLA)):
        text = f"sent by {tenant} " + "go " * (chars // 3)
        await send(server, text, headers)
        groups = {
            group
            for group, keys in encodings._groups.items()  # pyright: ignore[reportPrivateUsage]
            for key in keys
            if f"sent by {tenant}" in key[0]
        }
        assert groups == {tenant}
