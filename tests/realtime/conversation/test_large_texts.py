"""Large texts: refused by their length before they are tokenized, else counted during tokenization.

Text that is tokenized and then refused counts against the rate limits. The model has a context of
400 tokens, one token per character; its longest token has 12 characters.
"""

import json
from collections.abc import AsyncIterator

import pytest

from continuo.engine import ChatTemplate, TooLong
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.text_limits import TextLimits
from continuo.realtime.errors import ErrorType, Refusal
from continuo.realtime.limits import REQUEST_CHARS_MAX, Limits
from continuo.realtime.protocol.settings import GenerationSettings, Truncation
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.tenants.ledger import TenantLedger
from continuo.realtime.tenants.rate_limits import TenantRateLimits
from tests.support.clients import (
    JsonEvent,
    RealtimeClient,
    message_item,
    open_realtime_session,
)
from tests.support.engines import EngineHarness
from tests.support.sessions import SessionDriver, user_message
from tests.support.web_servers import TENANTS, RunningServer, serve_harness

pytestmark = pytest.mark.slow

TOO_LONG = "x" * 4_801
"""At least 401 tokens."""
COUNTED = "x" * 4_700
"""Could be as few as 392 tokens; has 4,700."""


def tools(count: int, chars: int) -> list[JsonEvent]:
    return [
        {
            "type": "function",
            "name": f"tool_{n}",
            "description": "x" * chars,
            "parameters": {"type": "object", "properties": {}},
        }
        for n in range(count)
    ]


def function_call(arguments: str) -> JsonEvent:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}


def function_call_output(text: str) -> JsonEvent:
    return {"type": "function_call_output", "call_id": "c", "output": text}


async def post(server: RunningServer, body: JsonEvent, path: str = "/v1/responses") -> JsonEvent:
    status, response = await server.request("POST", path, {"max_output_tokens": 2, **body})
    assert status == 400, response
    return response["error"]


async def send(client: RealtimeClient, event: JsonEvent) -> JsonEvent:
    """Send an event. Returns the server event that acknowledges or refuses it."""
    await client.send(**event)
    response = await client.receive()
    while response["type"].startswith("rate_limits"):
        response = await client.receive()
    return response


# ---------------------------------------------------------------- by characters


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": TOO_LONG}, "input"),
        ({"input": "x", "instructions": TOO_LONG}, "instructions"),
        ({"input": "x", "tools": tools(1, 5_000)}, "tools"),
        ({"input": "x", "tools": tools(128, 100)}, "tools"),
        ({"input": [message_item("x" * 100) for _ in range(60)]}, "input"),
        ({"input": "x" * 1_700, "instructions": "x" * 1_700, "tools": tools(1, 1_700)}, "input"),
        ({"input": [function_call(json.dumps({"a": TOO_LONG}))]}, "input"),
        ({"input": [function_call("{}"), function_call_output(TOO_LONG)]}, "input"),
    ],
)
async def test_request_is_refused_by_the_length_of_all_its_texts(
    server: RunningServer, body: JsonEvent, param: str
) -> None:
    error = await post(server, body)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "characters of text, at least" in error["message"]
    assert "maximum context length is 400 tokens" in error["message"]


@pytest.mark.parametrize(("role", "param"), [("user", "messages"), ("system", "messages[0]")])
async def test_chat_completion_is_refused_by_characters(
    server: RunningServer, role: str, param: str
) -> None:
    body = {"model": "demo", "messages": [{"role": role, "content": TOO_LONG}], "max_tokens": 2}
    status, response = await server.request("POST", "/v1/chat/completions", body)
    assert (status, response["error"]["param"]) == (400, param)
    message = response["error"]["message"]
    assert f"'{param}' is 4,801 characters of text, at least 401 tokens" in message


async def test_texts_of_a_request_are_limited_in_characters(server: RunningServer) -> None:
    error = await post(server, {"input": "x", "tools": tools(128, 100_000)})
    assert (error["code"], error["param"]) == ("string_above_max_length", "tools")
    assert f"the limit is {REQUEST_CHARS_MAX:,}" in error["message"]


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ({"type": "session.update", "session": {"instructions": TOO_LONG}}, "session.instructions"),
        ({"type": "session.update", "session": {"tools": tools(128, 100)}}, "session.tools"),
        ({"type": "conversation.item.create", "item": message_item(TOO_LONG)}, "item"),
        ({"type": "conversation.item.create", "item": function_call(TOO_LONG)}, "item"),
        ({"type": "conversation.item.create", "item": function_call_output(TOO_LONG)}, "item"),
        ({"type": "input_text_buffer.append", "text": TOO_LONG}, "text"),
        ({"type": "input_text_buffer.replace", "text": TOO_LONG}, "text"),
        (
            {"type": "response.create", "response": {"instructions": TOO_LONG}},
            "response.instructions",
        ),
        ({"type": "response.create", "response": {"tools": tools(128, 100)}}, "response.tools"),
        (
            {"type": "response.create", "response": {"input": [message_item(TOO_LONG)]}},
            "response.input",
        ),
    ],
)
async def test_client_event_is_refused_by_characters(
    server: RunningServer, event: JsonEvent, param: str
) -> None:
    if "session" in event:
        event["session"]["type"] = "realtime"
    async with open_realtime_session(server.url) as client:
        refused = await send(client, event)
        assert refused["type"] == "error"
        error = refused["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert "characters of text, at least" in error["message"]
        done = await send(
            client, {"type": "conversation.item.create", "item": message_item("hello")}
        )
        assert done["type"] == "conversation.item.added", "the refused event was applied"
        assert done["previous_item_id"] is None


async def test_client_secret_is_refused_by_characters(server: RunningServer) -> None:
    session = {"type": "realtime", "instructions": TOO_LONG}
    path = "/v1/realtime/client_secrets"
    status, response = await server.request("POST", path, {"session": session})
    assert (status, response["error"]["param"]) == (400, "session.instructions")
    assert response["error"]["code"] == "context_length_exceeded"


def text_limits(template: ChatTemplate) -> TextLimits:
    return TextLimits(context_tokens=400, token_chars_max=template.token_chars_max)


async def test_with_truncation_each_item_must_fit(driver: SessionDriver) -> None:
    texts = text_limits(driver.session.conversation.template)
    items = [user_message(f"i{n}", "x" * 4_000) for n in range(50)]
    truncating, disabled = (
        GenerationSettings(truncation=Truncation(mode=mode)) for mode in ("auto", "disabled")
    )
    texts.check_input(truncating, items, "input")
    with pytest.raises(Refusal, match="200,000 characters of text"):
        texts.check_input(disabled, items, "input")
    with pytest.raises(Refusal, match="4,801 characters of text"):
        texts.check_input(truncating, [*items, user_message("long", TOO_LONG)], "input")


async def test_items_that_truncation_removes_are_not_tokenized(server: RunningServer) -> None:
    """The newest of 400 items of about 50 characters each are in the prompt."""
    items = [message_item(f"{n:03} " + "x" * 40) for n in range(400)]
    body = {"input": items, "truncation": "auto", "max_output_tokens": 2, "ignore_eos": True}
    status, response = await server.request("POST", "/v1/responses", body)
    assert status == 200, response
    assert 200 <= response["usage"]["input_tokens"] <= 400


# ---------------------------------------------------------------- by tokens


async def test_counting_tokens_stops_at_a_limit(server: RunningServer) -> None:
    error = await post(server, {"input": COUNTED})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert "more than 4,096 tokens" in error["message"]
    error = await post(server, {"input": [message_item("hello") for _ in range(800)]})
    assert "more than 800 tokens" in error["message"], "the items are not counted together"


async def test_tokenization_of_many_items_stops_at_a_limit(driver: SessionDriver) -> None:
    template = driver.session.conversation.template
    items = [user_message(f"i{n}", "hello") for n in range(100_000)]
    with pytest.raises(TooLong, match="more than 800 tokens"):
        Conversation.start(template, GenerationSettings()).with_items(items, 800)


async def test_refused_client_event_names_its_field(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        item = {"type": "conversation.item.create", "item": message_item(COUNTED)}
        error = (await send(client, item))["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "item")
        assert "more than 4,096 tokens" in error["message"]
        update = {"type": "realtime", "instructions": COUNTED}
        error = (await send(client, {"type": "session.update", "session": update}))["error"]
        assert error["param"] == "session.instructions"


async def test_text_buffer_longer_than_the_context_is_not_committed(server: RunningServer) -> None:
    async with open_realtime_session(server.url) as client:
        await send(client, {"type": "input_text_buffer.append", "text": COUNTED})
        error = (await send(client, {"type": "input_text_buffer.commit"}))["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "text")


# ---------------------------------------------------------------- rate limits


def tenant_rate_limits(requests: int = 0, tokens: int = 0) -> TenantRateLimits:
    limits = Limits(requests_per_minute=requests, tokens_per_minute=tokens)
    return TenantRateLimits(TenantLedger("acme"), limits, lambda: 0.0)


def remaining(rate_limits: TenantRateLimits) -> dict[str, int]:
    return {level.name: level.remaining for level in rate_limits.levels()}


def refusal(kind: ErrorType) -> Refusal:
    return Refusal("no", code="c", kind=kind)


def test_refused_request_counts_except_for_server_errors() -> None:
    rate_limits = tenant_rate_limits(requests=10)
    for error in (refusal("invalid_request_error"), TooLong("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)), rate_limits.charge_request():
            raise error
    assert remaining(rate_limits) == {"requests": 7}
    for error in (refusal("server_error"), KeyError()):
        with pytest.raises(type(error)), rate_limits.charge_request():
            raise error
    assert remaining(rate_limits) == {"requests": 7}


def test_refused_text_is_charged_by_its_length() -> None:
    rate_limits = tenant_rate_limits(tokens=10_000)
    with rate_limits.charge_text(4_000, 800):
        pass
    assert remaining(rate_limits) == {"tokens": 10_000}, "accepted text was charged"
    with pytest.raises(Refusal), rate_limits.charge_text(400, 800):
        raise refusal("invalid_request_error")
    assert remaining(rate_limits) == {"tokens": 9_900}
    with pytest.raises(Refusal), rate_limits.charge_text(400_000, 800):
        raise refusal("invalid_request_error")
    assert remaining(rate_limits) == {"tokens": 9_100}, "more was charged than was tokenized"
    with pytest.raises(Refusal), rate_limits.charge_text(4_000, 800):
        raise refusal("server_error")
    assert remaining(rate_limits) == {"tokens": 9_100}


def test_long_text_is_not_processed_while_the_bucket_is_in_debt() -> None:
    rate_limits = tenant_rate_limits(tokens=60)
    rate_limits.charge_tokens(100)
    with rate_limits.charge_text(100, 800):
        pass
    with (
        pytest.raises(Refusal, match="60 tokens a minute") as caught,
        rate_limits.charge_text(100_000, 800),
    ):
        raise AssertionError("the text was processed")
    assert (caught.value.code, caught.value.retry_after_s) == ("rate_limit_exceeded", 41)


@pytest.fixture
async def limited_server(harness: EngineHarness) -> AsyncIterator[RunningServer]:
    limits = Limits(requests_per_minute=20, tokens_per_minute=1_000, off_loop_chars_min=500)
    settings = GatewaySettings(tenants=TENANTS, served_model_name=("demo",), limits=limits)
    async with serve_harness(harness, settings) as server:
        yield server


async def test_repeated_session_updates_exhaust_the_rate_limit(
    limited_server: RunningServer,
) -> None:
    """Updates count whether accepted or refused, and under the API key as under a client secret."""
    _, secret = await limited_server.request("POST", "/v1/realtime/client_secrets", {})
    browser = {"Authorization": f"Bearer {secret['value']}"}
    codes: list[str] = []
    async with (
        open_realtime_session(limited_server.url) as one,
        open_realtime_session(limited_server.url, browser) as other,
    ):
        for n, client in enumerate([one, other] * 8):
            session = {
                "type": "realtime",
                "instructions": f"{n} " + "x" * (INSTRUCTIONS_CHARS[n % 4]),
            }
            response = await send(client, {"type": "session.update", "session": session})
            codes.append(response["error"]["code"] if response["type"] == "error" else "")
    assert codes[0] == ""
    assert codes[-1] == "rate_limit_exceeded"
    assert codes.index("rate_limit_exceeded") <= 8


INSTRUCTIONS_CHARS = (350, 4_000, 380, 3_000)
"""Alternately short enough for the context and too long for it."""


async def test_refused_requests_exhaust_the_rate_limit(limited_server: RunningServer) -> None:
    responses = [
        (await limited_server.request("POST", "/v1/responses", {"input": TOO_LONG}))
        for _ in range(22)
    ]
    codes = [body["error"]["code"] for _, body in responses]
    assert codes[:19] == ["context_length_exceeded"] * 19
    assert codes[-1] == "rate_limit_exceeded"
    assert responses[-1][0] == 429
