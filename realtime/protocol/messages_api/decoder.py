"""Decoding of requests to commands. Pure; raises Refusal for requests that pass the type checks of
msgspec but are invalid."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from continuo.engine import Sampling
from continuo.realtime.protocol.commands import CreateResponse, FieldNames
from continuo.realtime.protocol.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
)
from continuo.realtime.protocol.messages_api import requests
from continuo.realtime.protocol.settings import GenerationSettings, Tool, ToolChoice, Truncation
from continuo.realtime.protocol.tools_and_formats import (
    build_grammar,
    build_tools,
    choose_named_tool,
    choose_required_tool,
)
from continuo.realtime.protocol.validation import missing_parameter, unsupported_value

T = TypeVar("T")
IdFactory = Callable[[str], str]
"""Makes an id that begins with the given prefix."""
_NAMES = FieldNames(
    input="messages", instructions="system", output_schema="output_config.format.schema"
)
_SKIPPED = ("thinking", "redacted_thinking")
"""Types of blocks that are left out of the history."""


def decode_command(
    request: requests.CountTokensRequest, default: GenerationSettings, new_id: IdFactory
) -> CreateResponse:
    """Decode a request. If it has no `system`, a system message that comes first becomes the
    instructions; any other one stays in its place. Raises Refusal."""
    messages, instructions, skipped = request.messages, _decode_system(request.system), 0
    if messages[0].role == "system" and not instructions:
        instructions, skipped = _decode_system(messages[0].content, "messages[0].content"), 1
    tools = build_tools(
        (f"tools[{n}]", tool)
        for n, tool in enumerate(request.tools or [])
        if tool.type in (None, "custom")
    )
    choice = request.tool_choice
    settings = GenerationSettings(
        instructions=instructions,
        tools=tools,
        tool_choice=_decode_tool_choice(choice, tools, has_declared_tools=bool(request.tools)),
        parallel_tool_calls=choice is None or choice.disable_parallel_tool_use is not True,
        max_output_tokens=(
            request.max_tokens if isinstance(request, requests.MessagesRequest) else None
        ),
        sampling=_decode_sampling(request, default.sampling),
        truncation=Truncation(mode="disabled"),
    )
    items = tuple(
        item
        for n, message in enumerate(messages[skipped:], skipped)
        for item in _decode_message(message, f"messages[{n}].content", new_id)
    )
    return CreateResponse(settings=settings, input=items, store=False, field_names=_NAMES)


def _decode_sampling(request: requests.CountTokensRequest, default: Sampling) -> Sampling:
    if not isinstance(request, requests.MessagesRequest):
        return default
    given = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": None if request.stop_sequences is None else tuple(request.stop_sequences),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    output = request.output_config.format if request.output_config is not None else None
    grammar = output and build_grammar(output.type, output.schema, _NAMES.output_schema)
    return msgspec.structs.replace(default, **chosen, grammar=grammar)


def _decode_system(system: requests.Content | None, where: str = "system") -> str:
    if system is None or isinstance(system, str):
        return system or ""
    return "\n".join(_require_text(block, f"{where}[{n}]") for n, block in enumerate(system))


def _decode_message(message: requests.MessageIn, where: str, new_id: IdFactory) -> Iterator[Item]:
    """Yield the items of a message: adjacent texts as one message, calls and results apart."""
    content = message.content
    if message.role == "system":
        text = _decode_system(content, where)
        yield MessageItem(
            id=new_id("item"), role="system", parts=(ContentPart("input_text", text),)
        )
        return
    blocks = [requests.Block(type="text", text=content)] if isinstance(content, str) else content
    kind = "output_text" if message.role == "assistant" else "input_text"
    parts: list[ContentPart] = []

    def take_message() -> Iterator[Item]:
        if parts:
            yield MessageItem(id=new_id("item"), role=message.role, parts=tuple(parts))
            parts.clear()

    for n, block in enumerate(blocks):
        at = where if isinstance(content, str) else f"{where}[{n}]"
        match block.type:
            case "text":
                parts.append(ContentPart(kind, _require_text(block, at)))
            case "tool_use":
                yield from take_message()
                arguments = msgspec.json.encode(_require(block.input, f"{at}.input")).decode()
                yield FunctionCallItem(
                    id=new_id("item"),
                    call_id=_require(block.id, f"{at}.id"),
                    name=_require(block.name, f"{at}.name"),
                    arguments=arguments,
                )
            case "tool_result":
                yield from take_message()
                yield FunctionCallOutputItem(
                    id=new_id("item"),
                    call_id=_require(block.tool_use_id, f"{at}.tool_use_id"),
                    output=_decode_result(block, f"{at}.content"),
                )
            case kind_given if kind_given not in _SKIPPED:
                raise unsupported_value(
                    f"{at}.type", f"this server takes text and tools only, not {kind_given[:64]!r}"
                )
            case _:
                pass
    yield from take_message()


def _decode_result(block: requests.Block, where: str) -> str:
    content = block.content
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for n, part in enumerate(content):
        if part.type != "text":
            raise unsupported_value(f"{where}[{n}].type", "this server takes text only")
        texts.append(_require(part.text, f"{where}[{n}].text"))
    return "\n".join(texts)


def _decode_tool_choice(
    choice: requests.ToolChoiceIn | None, tools: Sequence[Tool], *, has_declared_tools: bool
) -> ToolChoice:
    match choice:
        case requests.ToolChoiceIn(type="tool", name=name):
            return choose_named_tool(name, tools, _NAMES.named_tool)
        case requests.ToolChoiceIn(type="any"):
            return choose_required_tool(
                tools, _NAMES.tool_choice, has_declared_tools=has_declared_tools
            )
        case requests.ToolChoiceIn(type="none"):
            return ToolChoice("none")
        case _:
            return ToolChoice()


def _require_text(block: requests.Block, where: str) -> str:
    if block.type != "text":
        raise unsupported_value(f"{where}.type", "this server takes text only here")
    return _require(block.text, f"{where}.text")


def _require(value: T | None, param: str) -> T:
    if value is None:
        raise missing_parameter(param)
    return value
