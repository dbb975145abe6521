"""Texts that cannot fit are refused by their length, before they are tokenised; what may fit is
counted while it is tokenised, and work done for nothing counts against the limits a minute.

The model here has a context of 400 tokens, one a character; its longest token has 12 characters."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from continuo.engine import ChatTemplate, TooLong
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.text_limits import TextLimits
from continuo.realtime.errors import ErrorType, Refusal
from continuo.realtime.limits import REQUEST_CHARS_MAX, Limits
from continuo.realtime.protocol.settings import GenerationSettings, Truncation
from continuo.realtime.rate_limit import RateLimits, TenantRateLimits
from continuo.realtime.server.config.settings import GatewaySettings
from tests.realtime.server.auth.test_tenants import ask
from tests.support.engines import Bench
from tests.support.sessions import Talk, message
from tests.support.web_servers import KEY, Running, first, serve

Event = dict[str, Any]
HEADERS = {"Authorization": f"Bearer {KEY}"}
OVER = "x" * 4_801
"""At least 401 tokens."""
COUNTED = "x" * 4_700
"""May be as few as 392 tokens, and are 4,700."""


def tools(count: int, chars: int) -> list[Event]:
    return [
        {
            "type": "function",
            "name": f"tool_{n}",
            "description": "x" * chars,
            "parameters": {"type": "object", "properties": {}},
        }
        for n in range(count)
    ]


def said(text: str) -> Event:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def called(arguments: str) -> Event:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}


def output(text: str) -> Event:
    return {"type": "function_call_output", "call_id": "c", "output": text}


async def post(running: Running, body: Event, path: str = "/v1/responses") -> Event:
    status, answer = await ask(running, "POST", path, {"max_output_tokens": 2, **body}, HEADERS)
    assert status == 400, answer
    return answer["error"]


async def send(socket: ClientConnection, event: Event) -> Event:
    """What is answered to it, or the error."""
    await socket.send(json.dumps(event))
    answer: Event = await first(socket)
    while answer["type"].startswith(("session.created", "rate_limits")):
        answer = await first(socket)
    return answer


# ---------------------------------------------------------------- by characters


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": OVER}, "input"),
        ({"input": "x", "instructions": OVER}, "instructions"),
        ({"input": "x", "tools": tools(1, 5_000)}, "tools"),
        ({"input": "x", "tools": tools(128, 100)}, "tools"),
        ({"input": [said("x" * 100) for _ in range(60)]}, "input"),
        ({"input": "x" * 1_700, "instructions": "x" * 1_700, "tools": tools(1, 1_700)}, "input"),
        ({"input": [called(json.dumps({"a": OVER}))]}, "input"),
        ({"input": [called("{}"), output(OVER)]}, "input"),
    ],
)
async def test_a_request_is_refused_by_all_its_texts_together(
    running: Running, body: Event, param: str
) -> None:
    error = await post(running, body)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "characters of text, at least" in error["message"]
    assert "the context of the model holds 400 (max_model_len)" in error["message"]


async def test_chat_completions_are_refused_by_characters(running: Running) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": OVER}], "max_tokens": 2}
    status, answer = await ask(running, "POST", "/v1/chat/completions", body, HEADERS)
    assert status == 400
    assert "characters of text, at least 401 tokens" in answer["error"]["message"]


async def test_texts_of_a_request_have_a_bound_in_characters(running: Running) -> None:
    error = await post(running, {"input": "x", "tools": tools(128, 100_000)})
    assert (error["code"], error["param"]) == ("string_above_max_length", "tools")
    assert f"the limit is {REQUEST_CHARS_MAX:,}" in error["message"]


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ({"type": "session.update", "session": {"instructions": OVER}}, "session.instructions"),
        ({"type": "session.update", "session": {"tools": tools(128, 100)}}, "session.tools"),
        ({"type": "conversation.item.create", "item": said(OVER)}, "item"),
        ({"type": "conversation.item.create", "item": called(OVER)}, "item"),
        ({"type": "conversation.item.create", "item": output(OVER)}, "item"),
        ({"type": "input_text_buffer.append", "text": OVER}, "text"),
        ({"type": "input_text_buffer.replace", "text": OVER}, "text"),
        ({"type": "response.create", "response": {"instructions": OVER}}, "response.instructions"),
        ({"type": "response.create", "response": {"tools": tools(128, 100)}}, "response.tools"),
        ({"type": "response.create", "response": {"input": [said(OVER)]}}, "response.input"),
    ],
)
async def test_an_event_is_refused_by_characters(
    running: Running, event: Event, param: str
) -> None:
    if "session" in event:
        event["session"]["type"] = "realtime"
    async with connect(running.url, additional_headers=HEADERS) as socket:
        refused = await send(socket, event)
        assert refused["type"] == "error"
        error = refused["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert "characters of text, at least" in error["message"]
        done = await send(socket, {"type": "conversation.item.create", "item": said("hello")})
        assert done["type"] == "conversation.item.added", "nothing has changed"
        assert done["previous_item_id"] is None


async def test_a_client_secret_is_refused_by_characters(running: Running) -> None:
    session = {"type": "realtime", "instructions": OVER}
    path = "/v1/realtime/client_secrets"
    status, answer = await ask(running, "POST", path, {"session": session}, HEADERS)
    assert (status, answer["error"]["param"]) == (400, "session.instructions")
    assert answer["error"]["code"] == "context_length_exceeded"


def bounds(template: ChatTemplate) -> TextLimits:
    return TextLimits(context_tokens=400, token_chars_max=template.token_chars_max)


async def test_with_truncation_each_item_must_fit(talk: Talk) -> None:
    texts = bounds(talk.session.conversation.template)
    items = [message(f"i{n}", "x" * 4_000) for n in range(50)]
    truncating, fixed = (
        GenerationSettings(truncation=Truncation(mode=mode)) for mode in ("auto", "disabled")
    )
    texts.check_input(truncating, items, "input")
    with pytest.raises(Refusal, match="200,000 characters of text"):
        texts.check_input(fixed, items, "input")
    with pytest.raises(Refusal, match="4,801 characters of text"):
        texts.check_input(truncating, [*items, message("long", OVER)], "input")


async def test_what_truncation_drops_is_not_tokenised(running: Running) -> None:
    """Of 400 items of 100 tokens each the newest are seen, at the cost of a few."""
    words = [said(f"{n:03} " + "x" * 40) for n in range(400)]
    body = {"input": words, "truncation": "auto", "max_output_tokens": 2, "ignore_eos": True}
    status, answer = await ask(running, "POST", "/v1/responses", body, HEADERS)
    assert status == 200, answer
    assert 200 <= answer["usage"]["input_tokens"] <= 400


# ---------------------------------------------------------------- by tokens


async def test_counting_stops(running: Running) -> None:
    error = await post(running, {"input": COUNTED})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert "more than 4,096 tokens" in error["message"]
    error = await post(running, {"input": [said("hello") for _ in range(800)]})
    assert "more than 800 tokens" in error["message"], "of all items together"


async def test_of_many_items_only_so_many_are_laid_out(talk: Talk) -> None:
    template = talk.session.conversation.template
    items = [message(f"i{n}", "hello") for n in range(100_000)]
    with pytest.raises(TooLong, match="more than 800 tokens"):
        Conversation.start(template, GenerationSettings()).with_items(items, 800)


async def test_a_refused_event_names_its_field(running: Running) -> None:
    async with connect(running.url, additional_headers=HEADERS) as socket:
        item = {"type": "conversation.item.create", "item": said(COUNTED)}
        error = (await send(socket, item))["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "item")
        assert "more than 4,096 tokens" in error["message"]
        update = {"type": "realtime", "instructions": COUNTED}
        error = (await send(socket, {"type": "session.update", "session": update}))["error"]
        assert error["param"] == "session.instructions"


async def test_a_draft_that_does_not_fit_stays_a_draft(running: Running) -> None:
    async with connect(running.url, additional_headers=HEADERS) as socket:
        await send(socket, {"type": "input_text_buffer.append", "text": COUNTED})
        error = (await send(socket, {"type": "input_text_buffer.commit"}))["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "text")


# ---------------------------------------------------------------- limits a minute


def allowance(requests: int = 0, tokens: int = 0) -> TenantRateLimits:
    limits = Limits(requests_per_minute=requests, tokens_per_minute=tokens)
    return RateLimits(limits, lambda: 0.0).for_tenant("acme")


def left(allowed: TenantRateLimits) -> dict[str, int]:
    return {level.name: level.remaining for level in allowed.levels()}


def refusal(kind: ErrorType) -> Refusal:
    return Refusal("no", code="c", kind=kind)


def test_a_request_that_is_refused_counts_unless_the_fault_is_ours() -> None:
    allowed = allowance(requests=10)
    for error in (refusal("invalid_request_error"), TooLong("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)), allowed.charge_request():
            raise error
    assert left(allowed) == {"requests": 7}
    for error in (refusal("server_error"), KeyError()):
        with pytest.raises(type(error)), allowed.charge_request():
            raise error
    assert left(allowed) == {"requests": 7}


def test_text_that_is_refused_is_charged_by_its_length() -> None:
    allowed = allowance(tokens=10_000)
    with allowed.charge_text(4_000, 800):
        pass
    assert left(allowed) == {"tokens": 10_000}, "what is accepted is counted elsewhere"
    with pytest.raises(Refusal), allowed.charge_text(400, 800):
        raise refusal("invalid_request_error")
    assert left(allowed) == {"tokens": 9_900}
    with pytest.raises(Refusal), allowed.charge_text(400_000, 800):
        raise refusal("invalid_request_error")
    assert left(allowed) == {"tokens": 9_100}, "no more than was tokenised"
    with pytest.raises(Refusal), allowed.charge_text(4_000, 800):
        raise refusal("server_error")
    assert left(allowed) == {"tokens": 9_100}


def test_in_debt_no_long_text_is_looked_at() -> None:
    allowed = allowance(tokens=60)
    allowed.charge_tokens(100)
    with allowed.charge_text(100, 800):
        pass
    with (
        pytest.raises(Refusal, match="60 tokens a minute") as told,
        allowed.charge_text(100_000, 800),
    ):
        raise AssertionError("not looked at")
    assert (told.value.code, told.value.retry_after_s) == ("rate_limit_exceeded", 41)


@pytest.fixture
async def limited(bench: Bench) -> AsyncIterator[Running]:
    limits = Limits(requests_per_minute=20, tokens_per_minute=1_000, off_loop_chars_min=500)
    settings = GatewaySettings(tenants={KEY: "acme"}, served_model_name=("demo",), limits=limits)
    async with serve(bench, settings) as running:
        yield running


async def test_updates_in_a_loop_use_up_the_limit(limited: Running) -> None:
    """Accepted or refused, with a key of a server or of a browser: they are one tenant's."""
    minted = await ask(limited, "POST", "/v1/realtime/client_secrets", {}, HEADERS)
    browser = {"Authorization": f"Bearer {minted[1]['value']}"}
    codes: list[str] = []
    async with (
        connect(limited.url, additional_headers=HEADERS) as one,
        connect(limited.url, additional_headers=browser) as other,
    ):
        await first(one)
        await first(other)
        for n, socket in enumerate([one, other] * 8):
            session = {"type": "realtime", "instructions": f"{n} " + "x" * (COUNTED_OR[n % 4])}
            answer = await send(socket, {"type": "session.update", "session": session})
            codes.append(answer["error"]["code"] if answer["type"] == "error" else "")
    assert codes[0] == ""
    assert codes[-1] == "rate_limit_exceeded"
    assert codes.index("rate_limit_exceeded") <= 8


COUNTED_OR = (350, 4_000, 380, 3_000)
"""Fits, does not, ..."""


async def test_refused_requests_are_counted(limited: Running) -> None:
    codes = [
        (await ask(limited, "POST", "/v1/responses", {"input": OVER}, HEADERS)) for _ in range(22)
    ]
    kinds = [answer["error"]["code"] for _, answer in codes]
    assert kinds[:19] == ["context_length_exceeded"] * 19
    assert kinds[-1] == "rate_limit_exceeded"
    assert codes[-1][0] == 429
