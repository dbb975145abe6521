"""Decoding of requests to commands. Pure; raises Refusal for requests that pass the type checks of
msgspec but are invalid."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET

from continuo.realtime.protocol.chat_api import requests
from continuo.realtime.protocol.chat_api.output_formats import decode_output_format
from continuo.realtime.protocol.commands import CreateResponse, FieldNames
from continuo.realtime.protocol.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
)
from continuo.realtime.protocol.reasoning import ReasoningIn, merge_reasoning
from continuo.realtime.protocol.sampling import merge_sampling
from continuo.realtime.protocol.settings import (
    GenerationSettings,
    ReasoningSettings,
    Tool,
    ToolChoice,
    Truncation,
)
from continuo.realtime.protocol.tools_and_formats import (
    build_tools,
    choose_named_tool,
    choose_required_tool,
    refuse_custom_tools,
)
from continuo.realtime.protocol.validation import (
    invalid_parameter,
    missing_parameter,
    unsupported_parameter,
    unsupported_value,
)

IdFactory = Callable[[str], str]
"""Makes an id that begins with the given prefix."""
_NAMES = FieldNames(
    input="messages",
    instructions="messages[0]",
    named_tool="tool_choice.function.name",
    reasoning_effort="reasoning_effort",
    reasoning_tokens="thinking_token_budget",
)


def decode_command(
    request: requests.ChatCompletionRequest, default: GenerationSettings, new_id: IdFactory
) -> CreateResponse:
    """Decode a request. The first message becomes the instructions if its role is system or
    developer. Raises Refusal."""
    _refuse_unsupported(request)
    messages, instructions, skipped = request.messages, "", 0
    grammar, grammar_field = decode_output_format(request)
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
            grammar=grammar,
            logit_bias=request.logit_bias or {},
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        ),
        truncation=Truncation(mode="disabled"),
        reasoning=_decode_reasoning(request, default),
    )
    items = tuple(
        item
        for n, message in enumerate(messages[skipped:], skipped)
        for item in _decode_message_items(message, f"messages[{n}]", new_id)
    )
    names = msgspec.structs.replace(_NAMES, output_schema=grammar_field)
    return CreateResponse(settings=settings, input=items, store=False, field_names=names)


def _decode_reasoning(
    request: requests.ChatCompletionRequest, default: GenerationSettings
) -> ReasoningSettings:
    requested = ReasoningIn(
        effort=UNSET if request.reasoning_effort is None else request.reasoning_effort,
        max_tokens=UNSET
        if request.thinking_token_budget is None
        else request.thinking_token_budget,
    )
    return merge_reasoning(
        requested,
        request.enable_thinking,
        request.chat_template_kwargs,
        default.reasoning,
        default.reasoning,
        _NAMES,
    )


def _refuse_unsupported(request: requests.ChatCompletionRequest) -> None:
    if request.top_logprobs and not request.logprobs:
        raise invalid_parameter("top_logprobs", "it requires 'logprobs': true.")
    if request.functions:
        raise unsupported_parameter("functions", "use 'tools'")
    if request.function_call is not None:
        raise unsupported_parameter("function_call", "use 'tool_choice'")
    if request.modalities is not None and "audio" in request.modalities:
        raise unsupported_value("modalities", "this server has no audio: ask for 'text'")
    refuse_custom_tools(tool.type for tool in request.tools or ())


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
    reasoning = message.reasoning_content or message.reasoning
    if reasoning and message.role == "assistant":
        yield ReasoningItem(id=new_id("item"), text=reasoning)
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
            raise invalid_parameter(
                f"{where}.content[{n}].type",
                f"this server takes text only, not {part.type[:64]!r}.",
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
            return choose_named_tool(name, tools, _NAMES.named_tool)
        case "required":
            return choose_required_tool(
                tools, _NAMES.tool_choice, has_declared_tools=has_declared_tools
            )
        case requests.ToolChoiceIn() | None:
            return ToolChoice()
        case mode:
            return ToolChoice(mode)
