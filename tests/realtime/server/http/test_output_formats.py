"""Output formats of chat completions, as OpenAI, vLLM and llama-server have them, on the null
device, whose random ids follow a grammar as those of a model do."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.web_servers import RunningServer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CHOICES = ['a "b"\n', "Öl", "\\d"]


def follows_schema(text: str) -> bool:
    return json.loads(text)["city"] in ("Rome", "Oslo")


def is_digits(text: str) -> bool:
    return re.fullmatch("[0-9]{3}", text) is not None


def is_a_choice(text: str) -> bool:
    return text in CHOICES


async def post(server: RunningServer, **fields: Any) -> tuple[int, dict[str, Any]]:
    message = {"role": "user", "content": "hello"}
    body = {"model": "demo", "messages": [message], "max_tokens": 60, **fields}
    return await server.request("POST", "/v1/chat/completions", body)


@pytest.mark.parametrize(
    ("fields", "follows"),
    [
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, follows_schema),
        ({"guided_json": SCHEMA}, follows_schema),
        ({"guided_json": json.dumps(SCHEMA)}, follows_schema),
        ({"guided_regex": "[0-9]{3}"}, is_digits),
        ({"guided_choice": CHOICES}, is_a_choice),
        ({"structured_outputs": {"json": SCHEMA}}, follows_schema),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, is_digits),
        ({"structured_outputs": {"choice": CHOICES, "json_object": False}}, is_a_choice),
        ({"response_format": {"type": "text"}, "guided_regex": "[0-9]{3}"}, is_digits),
    ],
    ids=str,
)
async def test_text_follows_the_format(
    server: RunningServer, fields: dict[str, Any], follows: Callable[[str], bool]
) -> None:
    status, answer = await post(server, **fields)
    assert status == 200, answer
    text = answer["choices"][0]["message"]["content"]
    assert follows(text), text


TOOLS = [{"type": "function", "function": {"name": "look"}}]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "unsupported_parameter"),
        (
            {"structured_outputs": {"grammar": "root ::= x"}},
            "structured_outputs.grammar",
            "unsupported_parameter",
        ),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            "structured_outputs.structural_tag",
            "unsupported_parameter",
        ),
        ({"guided_regex": "["}, "guided_regex", None),
        ({"guided_json": "{"}, "guided_json", None),
        ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json", None),
        ({"guided_choice": []}, "guided_choice", None),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", None),
        (
            {"response_format": {"type": "json_object"}, "guided_regex": "a"},
            "guided_regex",
            None,
        ),
        ({"guided_regex": "a", "tools": TOOLS}, "guided_regex", "unsupported_value"),
    ],
    ids=str,
)
async def test_format_that_cannot_be_kept_is_refused_by_name(
    server: RunningServer, fields: dict[str, Any], param: str, code: str | None
) -> None:
    status, answer = await post(server, **fields)
    assert status == 400, answer
    assert answer["error"]["param"] == param
    assert code in (None, answer["error"]["code"])


@pytest.mark.parametrize("field", ["guided_json", "structured_outputs", "response_format"])
async def test_completions_refuse_formats_by_name(server: RunningServer, field: str) -> None:
    body = {"model": "demo", "prompt": "hello", field: {"type": "json_object"}}
    status, answer = await server.request("POST", "/v1/completions", body)
    assert (status, answer["error"]["param"]) == (400, field)
