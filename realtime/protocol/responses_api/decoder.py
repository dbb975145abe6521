"""Decoding of client events to commands. Pure; raises Refusal for events that pass the type checks
of msgspec but are invalid."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import CreateResponse, FieldNames
from continuo.realtime.protocol.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    ItemReference,
    ItemRole,
    MessageItem,
    ReasoningItem,
)
from continuo.realtime.protocol.reasoning import merge_reasoning
from continuo.realtime.protocol.responses_api import client_events
from continuo.realtime.protocol.responses_api.extras import Extras
from continuo.realtime.protocol.sampling import merge_sampling
from continuo.realtime.protocol.settings import GenerationSettings, Tool, ToolChoice, Truncation
from continuo.realtime.protocol.tools_and_formats import (
    build_grammar,
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

T = TypeVar("T")
IdFactory = Callable[[str], str]
"""Makes an id that begins with the given prefix."""
_NAMES = FieldNames()
_ROLES: dict[str, ItemRole] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


def decode_command(
    create: client_events.ResponseCreate, default: GenerationSettings, model: str, new_id: IdFactory
) -> CreateResponse:
    """Decode a request. `default` are the settings of a request that sets none, `model` is the name
    of the served model. Raises Refusal."""
    _refuse_unsupported(create)
    settings = decode_settings(create, default, create.model or model)
    items = decode_items("" if create.input is None else create.input, "input", new_id)
    conversation_id = _decode_conversation(create)
    continued = create.previous_response_id or conversation_id
    if not items and continued is None and create.generate is not False:
        raise missing_parameter("input")
    return CreateResponse(
        settings=settings,
        metadata=create.metadata,
        previous_response_id=create.previous_response_id,
        conversation_id=conversation_id,
        input=items,
        store=create.store is not False,
        generate=create.generate is not False,
        background=bool(create.background),
    )


def decode_settings(
    create: client_events.ResponseCreate, default: GenerationSettings, model: str
) -> GenerationSettings:
    tools = _decode_tools(create.tools or [])
    text = _normalize_text(create.text or client_events.TextIn())
    output_format = text.format or client_events.FormatIn(type="text")
    extras = Extras(
        model=model,
        background=bool(create.background),
        text=msgspec.Raw(msgspec.json.encode(text)),
    )
    return GenerationSettings(
        instructions=create.instructions or "",
        tools=tools,
        tool_choice=_decode_tool_choice(
            create.tool_choice, tools, has_declared_tools=bool(create.tools)
        ),
        parallel_tool_calls=create.parallel_tool_calls is not False,
        max_output_tokens=create.max_output_tokens,
        sampling=msgspec.structs.replace(
            merge_sampling(create, default.sampling, default.sampling),
            grammar=build_grammar(output_format.type, output_format.schema, _NAMES.output_schema),
            logprobs=_decode_logprobs(create),
        ),
        truncation=Truncation(mode=create.truncation or "disabled"),
        reasoning=merge_reasoning(
            create.reasoning,
            create.enable_thinking,
            create.chat_template_kwargs,
            default.reasoning,
            default.reasoning,
            _NAMES,
        ),
        extras=extras.to_json(),
    )


def decode_items(
    request_input: client_events.Input, where: str, new_id: IdFactory
) -> tuple[Item | ItemReference, ...]:
    """Decode the input of a request. A string becomes a user message; reasoning items without text
    are skipped."""
    if isinstance(request_input, str):
        part = ContentPart("input_text", request_input)
        return (MessageItem(id=new_id("msg"), role="user", parts=(part,)),) if request_input else ()
    decoded = (
        _decode_reasoning(item, new_id)
        if item.type == "reasoning"
        else _decode_item(item, f"{where}[{n}]", new_id)
        for n, item in enumerate(request_input)
    )
    return tuple(item for item in decoded if item is not None)


def decode_steering_input(
    request_input: client_events.Input, new_id: IdFactory
) -> tuple[Item, ...]:
    """Decode input that steers a running response. Raises Refusal for all but user messages."""
    items = decode_items(request_input, "input", new_id)
    if not items:
        raise missing_parameter("input")
    messages: list[Item] = []
    for n, item in enumerate(items):
        if not isinstance(item, MessageItem) or item.role != "user":
            raise invalid_parameter(
                f"input[{n}]", "only messages of the role 'user' can steer a response."
            )
        messages.append(item)
    return tuple(messages)


# ---------------------------------------------------------------- settings


def _refuse_unsupported(create: client_events.ResponseCreate) -> None:
    refuse_custom_tools(tool.type for tool in create.tools or ())
    if bytes(create.prompt) != b"null":
        raise unsupported_parameter("prompt", "use 'instructions' and 'input'")


def _decode_conversation(create: client_events.ResponseCreate) -> str | None:
    """Return the id of the conversation of a request, if there is one. Raises Refusal."""
    given = create.conversation
    conversation_id = given.id if isinstance(given, client_events.ConversationIn) else given
    if conversation_id is None:
        return None
    if create.previous_response_id is not None:
        raise Refusal(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Ensure you "
            "are only providing one of: 'previous_response_id' or 'conversation'.",
            code="mutually_exclusive_parameters",
            param="conversation",
        )
    if create.generate is False:
        raise unsupported_value("generate", "a response of a conversation has an output")
    return conversation_id


def _decode_logprobs(create: client_events.ResponseCreate) -> int | None:
    """Return the number of likeliest tokens to report with each token of the output. Returns None
    if no log-probabilities are requested."""
    if create.top_logprobs or client_events.INCLUDE_LOGPROBS in (create.include or ()):
        return create.top_logprobs or 0
    return None


def _decode_tools(tools: Sequence[client_events.ToolIn]) -> tuple[Tool, ...]:
    return build_tools(
        (f"tools[{n}]", tool) for n, tool in enumerate(tools) if tool.type == "function"
    )


def _decode_tool_choice(
    choice: Literal["auto", "none", "required"] | client_events.ToolChoiceIn | None,
    tools: Sequence[Tool],
    *,
    has_declared_tools: bool,
) -> ToolChoice:
    """Decode a tool choice. The choice of a tool of an ignored kind becomes `auto`."""
    match choice:
        case client_events.ToolChoiceIn(type="function", name=name):
            return choose_named_tool(name, tools, _NAMES.named_tool)
        case "required" | client_events.ToolChoiceIn(type="allowed_tools", mode="required"):
            return choose_required_tool(
                tools, _NAMES.tool_choice, has_declared_tools=has_declared_tools
            )
        case client_events.ToolChoiceIn() | None:
            return ToolChoice()
        case mode:
            return ToolChoice(mode)


def _normalize_text(text: client_events.TextIn) -> client_events.TextIn:
    """Fill in the default format; the response reports the result to the client."""
    output_format = text.format or client_events.FormatIn(type="text")
    if output_format.type == "json_schema" and output_format.name is None:
        raise missing_parameter("text.format.name")
    return msgspec.structs.replace(text, format=output_format)


# ---------------------------------------------------------------- items


def _decode_item(item: client_events.ItemIn, where: str, new_id: IdFactory) -> Item | ItemReference:
    match item.type:
        case "message":
            return _decode_message(item, where, new_id)
        case "function_call":
            return FunctionCallItem(
                id=item.id or new_id("fc"),
                call_id=_require(item.call_id, f"{where}.call_id"),
                name=_require(item.name, f"{where}.name"),
                arguments=_require(item.arguments, f"{where}.arguments"),
            )
        case "function_call_output":
            output = _require(item.output, f"{where}.output")
            return FunctionCallOutputItem(
                id=item.id or new_id("fco"),
                call_id=_require(item.call_id, f"{where}.call_id"),
                output="\n".join(_decode_texts(output, f"{where}.output")),
            )
        case "item_reference":
            return ItemReference(_require(item.id, f"{where}.id"))
        case kind:
            listed = ", ".join(map(repr, client_events.ITEM_TYPES))
            raise Refusal(
                f"Invalid value for '{where}.type': {kind[:64]!r}. Supported values are: {listed}.",
                code="invalid_value",
                param=f"{where}.type",
            )


def _decode_reasoning(item: client_events.ItemIn, new_id: IdFactory) -> ReasoningItem | None:
    """Decode a reasoning item. Returns None if it has no text: a summary, or encrypted content,
    does not replace it."""
    parts = [] if isinstance(item.content, str) or item.content is None else item.content
    texts = [part.text for part in parts if part.type == "reasoning_text" and part.text]
    return ReasoningItem(id=item.id or new_id("rs"), text="\n".join(texts)) if texts else None


def _decode_message(item: client_events.ItemIn, where: str, new_id: IdFactory) -> MessageItem:
    role = _require(item.role, f"{where}.role")
    kind = "output_text" if role == "assistant" else "input_text"
    texts = _decode_texts(_require(item.content, f"{where}.content"), f"{where}.content")
    return MessageItem(
        id=item.id or new_id("msg"),
        role=_ROLES[role],
        parts=tuple(ContentPart(kind, text) for text in texts),
    )


def _decode_texts(content: client_events.Content, where: str) -> list[str]:
    """Return the texts of the parts of `content`. All types of text part, and refusals, are
    accepted. Raises Refusal for parts of other types."""
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for n, part in enumerate(content):
        match part.type:
            case "input_text" | "output_text" | "text":
                texts.append(_require(part.text, f"{where}[{n}].text"))
            case "refusal":
                texts.append(_require(part.refusal, f"{where}[{n}].refusal"))
            case kind:
                raise invalid_parameter(
                    f"{where}[{n}].type", f"this server takes text only, not {kind[:64]!r}."
                )
    return texts


def _require(value: T | None, param: str) -> T:
    if value is None:
        raise missing_parameter(param)
    return value
