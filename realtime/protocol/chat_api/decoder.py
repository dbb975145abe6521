"""Decoding of requests to commands. Pure; raises Refusal for requests that pass the type checks of
msgspec but are invalid."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from continuo.engine import Grammar
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.chat_api import requests
from continuo.realtime.protocol.commands import CreateResponse
from continuo.realtime.protocol.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
)
from continuo.realtime.protocol.sampling import merge_sampling, missing_parameter
from continuo.realtime.protocol.settings import GenerationSettings, Tool, ToolChoice, Truncation
from continuo.realtime.protocol.tools_and_formats import (
    build_grammar,
    build_tools,
    choose_named_tool,
    choose_required_tool,
)

IdFactory = Callable[[str], str]
"""Makes an id that begins with the given prefix."""


def decode_command(
    request: requests.ChatCompletionRequest, default: GenerationSettings, new_id: IdFactory
) -> CreateResponse:
    """Decode a request. The first message becomes the instructions if its role is system or
    developer. Raises Refusal."""
    messages, instructions, skipped = request.messages, "", 0
    if messages[0].role in ("system", "developer"):
        instructions = "\n".join(_decode_texts(messages[0], "messages[0]"))
        skipped = 1
    tools = build_tools(_decode_tools(request.tools or []))
    settings = GenerationSettings(
        instructions=instructions,
        tools=tools,
        tool_choice=_decode_tool_choice(
            request.tool_choice, tools, has_declared_tools=bool(request.tools)
        ),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_output_tokens=request.max_completion_tokens or request.max_tokens,
        sampling=msgspec.structs.replace(
            merge_sampling(request, default.sampling, default.sampling),
            grammar=_decode_grammar(request.response_format),
        ),
        truncation=Truncation(mode="disabled"),
    )
    items = tuple(
        item
        for n, message in enumerate(messages[skipped:], skipped)
        for item in _decode_message_items(message, f"messages[{n}]", new_id)
    )
    return CreateResponse(settings=settings, input=items, store=False)


def _decode_message_items(
    message: requests.MessageIn, where: str, new_id: IdFactory
) -> Iterator[Item]:
    if message.role == "tool":
        if message.tool_call_id is None:
            raise missing_parameter(f"{where}.tool_call_id")
        output = "\n".join(_decode_texts(message, where))
        yield FunctionCallOutputItem(id=new_id("item"), call_id=message.tool_call_id, output=output)
        return
    calls = message.tool_calls or []
    if message.content is not None or not calls:
        yield _decode_message(message, where, new_id)
    for call in calls:
        yield FunctionCallItem(
            id=new_id("item"),
            call_id=call.id,
            name=call.function.name,
            arguments=call.function.arguments,
        )


def _decode_message(message: requests.MessageIn, where: str, new_id: IdFactory) -> MessageItem:
    match message.role:
        case "user" | "assistant" as role:
            kind = "output_text" if role == "assistant" else "input_text"
        case _:
            role, kind = "system", "input_text"
    parts = tuple(ContentPart(kind, text) for text in _decode_texts(message, where))
    return MessageItem(id=new_id("item"), role=role, parts=parts)


def _decode_texts(message: requests.MessageIn, where: str) -> list[str]:
    content = message.content
    if content is None:
        raise missing_parameter(f"{where}.content")
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for n, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "refusal"):
            raise Refusal(
                f"Invalid '{where}.content[{n}].type': this server takes text only, not "
                f"{part.type[:64]!r}.",
                code="invalid_value",
                param=f"{where}.content[{n}].type",
            )
        if text is None:
            raise missing_parameter(f"{where}.content[{n}].{part.type}")
        texts.append(text)
    return texts


def _decode_tools(tools: Sequence[requests.ToolIn]) -> Iterator[tuple[str, requests.FunctionIn]]:
    for n, tool in enumerate(tools):
        if tool.type != "function":
            continue
        if tool.function is None:
            raise missing_parameter(f"tools[{n}].function")
        yield f"tools[{n}].function", tool.function


def _decode_grammar(response_format: requests.FormatIn | None) -> Grammar | None:
    if response_format is None:
        return None
    if response_format.type == "json_schema" and response_format.json_schema is None:
        raise missing_parameter("response_format.json_schema")
    schema = response_format.json_schema.schema if response_format.json_schema else None
    return build_grammar(response_format.type, schema, "response_format.json_schema.schema")


def _decode_tool_choice(
    choice: Literal["auto", "none", "required"] | requests.ToolChoiceIn | None,
    tools: Sequence[Tool],
    *,
    has_declared_tools: bool,
) -> ToolChoice:
    """Decode a tool choice. The choice of a tool of an ignored kind becomes `auto`."""
    match choice:
        case requests.ToolChoiceIn(type="function", function=None):
            raise missing_parameter("tool_choice.function")
        case requests.ToolChoiceIn(type="function", function=requests.FunctionNameIn(name=name)):
            return choose_named_tool(name, tools, "tool_choice.function.name")
        case "required":
            return choose_required_tool(tools, "tool_choice", has_declared_tools=has_declared_tools)
        case requests.ToolChoiceIn() | None:
            return ToolChoice()
        case mode:
            return ToolChoice(mode)


_PARAM_NAMES = {"input": "messages", "text.format.schema": "response_format.json_schema.schema"}


def translate_refusal(refusal: Refusal) -> Refusal:
    """Replace the field name in a refusal of the response service by the name in chat
    completions."""
    param = refusal.param
    if param not in _PARAM_NAMES:
        return refusal
    message = refusal.message.replace(f"'{param}'", f"'{_PARAM_NAMES[param]}'")
    return Refusal(message, code=refusal.code, param=_PARAM_NAMES[param], kind=refusal.kind)
