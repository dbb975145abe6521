"""Output formats of chat completions: OpenAI's `response_format`, and what vLLM has beside it. Each
is kept, or refused by name. Pure; raises Refusal."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from continuo.engine import Grammar, build_regex_grammar
from continuo.realtime.protocol.chat_api import requests
from continuo.realtime.protocol.tools_and_formats import build_grammar
from continuo.realtime.protocol.validation import (
    invalid_parameter,
    missing_parameter,
    unsupported_parameter,
    unsupported_value,
)

_INSTEAD = "use 'guided_json', 'guided_regex' or 'guided_choice'"


def decode_output_format(
    request: requests.ChatCompletionRequest,
) -> tuple[Grammar | None, str]:
    """Return the grammar that a request asks for, and the field that it is in. None: the text is
    free."""
    given = list(_list_given(request))
    if len(given) > 1:
        (first, _), (second, _), *_ = given
        raise invalid_parameter(second, f"give either '{first}' or '{second}'.")
    if not given:
        return None, "response_format.json_schema.schema"
    ((field, grammar),) = given
    if grammar.kind == "lark" and request.tools:
        raise unsupported_value(field, "with 'tools', the text can follow a JSON schema only")
    return grammar, field


def _list_given(request: requests.ChatCompletionRequest) -> Iterator[tuple[str, Grammar]]:
    if request.response_format is not None and request.response_format.type != "text":
        yield _decode_response_format(request.response_format)
    fields = {
        "guided_json": request.guided_json,
        "guided_regex": request.guided_regex,
        "guided_choice": request.guided_choice,
        "guided_grammar": request.guided_grammar,
    }
    if request.structured_outputs is not None:
        fields |= {
            f"structured_outputs.{name}": value
            for name, value in msgspec.structs.asdict(request.structured_outputs).items()
        }
    for field, value in fields.items():
        if value is not None and value is not False:
            yield field, _BUILDERS[field.rpartition(".")[2].removeprefix("guided_")](field, value)


def _decode_response_format(given: requests.FormatIn) -> tuple[str, Grammar]:
    field, schema = "response_format.json_schema.schema", None
    if given.type == "json_object":
        field, schema = "response_format.schema", given.schema
    elif given.json_schema is None:
        raise missing_parameter("response_format.json_schema")
    else:
        schema = given.json_schema.schema
    kind = given.type if schema is None else "json_schema"
    grammar = build_grammar(kind, schema, field)
    assert grammar is not None, "the type is not text"
    return field, grammar


def _build_json(_field: str, schema: Mapping[str, object] | str) -> Grammar:
    source = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return Grammar("json_schema", source)


def _build_json_object(_field: str, _value: bool) -> Grammar:  # noqa: FBT001 - as the others
    return Grammar("json")


def _build_regex(_field: str, regex: str) -> Grammar:
    return build_regex_grammar(regex)


def _build_choice(_field: str, choices: Sequence[str]) -> Grammar:
    return Grammar("lark", "start: " + " | ".join(map(json.dumps, choices)))


def _refuse(field: str, _value: object) -> Grammar:
    raise unsupported_parameter(field, _INSTEAD)


_BUILDERS: dict[str, Callable[..., Grammar]] = {
    "json": _build_json,
    "json_object": _build_json_object,
    "regex": _build_regex,
    "choice": _build_choice,
    "grammar": _refuse,
    "structural_tag": _refuse,
}
"""Builds the grammar of a field of vLLM's, given its path and value."""
