"""What clients ask, to what the session layer does. Pure; raises Refusal for what the shapes alone
cannot forbid."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.commands import GoOn
from continuo.realtime.protocol.items import (
    CallItem,
    CallOutputItem,
    Item,
    ItemReference,
    ItemRole,
    MessageItem,
    Part,
)
from continuo.realtime.protocol.responses_api import client_events
from continuo.realtime.protocol.responses_api.extras import Extras
from continuo.realtime.protocol.sampling import missing, sampling_of
from continuo.realtime.protocol.settings import Settings, Tool, ToolChoice, Truncation
from continuo.realtime.protocol.tools_and_formats import grammar_of, named, required, tools_of

T = TypeVar("T")
Fresh = Callable[[str], str]
"""Makes an id from a prefix."""
_ROLES: dict[str, ItemRole] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


def hear(create: client_events.Create, default: Settings, model: str, fresh: Fresh) -> GoOn:
    """`default` is how answers are made that wish for nothing, `model` what is served."""
    _unsupported(create)
    settings = settings_of(create, default, create.model or model)
    items = items_of("" if create.input is None else create.input, "input", fresh)
    if not items and create.previous_response_id is None and create.generate is not False:
        raise missing("input")
    return GoOn(
        settings=settings,
        metadata=create.metadata,
        previous=create.previous_response_id,
        input=items,
        keep=create.store is not False,
        generate=create.generate is not False,
        background=bool(create.background),
    )


def settings_of(create: client_events.Create, default: Settings, model: str) -> Settings:
    tools = _tools(create.tools or [])
    text = _text(create.text or client_events.TextIn())
    form = text.format or client_events.FormatIn(type="text")
    extras = Extras(
        model=model,
        background=bool(create.background),
        text=msgspec.Raw(msgspec.json.encode(text)),
    )
    return Settings(
        instructions=create.instructions or "",
        tools=tools,
        tool_choice=_tool_choice(create.tool_choice, tools, given=bool(create.tools)),
        parallel_tool_calls=create.parallel_tool_calls is not False,
        max_output_tokens=create.max_output_tokens,
        sampling=msgspec.structs.replace(
            sampling_of(create, default.sampling, default.sampling),
            grammar=grammar_of(form.type, form.schema, "text.format.schema"),
        ),
        truncation=Truncation(mode=create.truncation or "disabled"),
        extras=extras.encode(),
    )


def items_of(
    given: client_events.Input, where: str, fresh: Fresh
) -> tuple[Item | ItemReference, ...]:
    """A text is a user's message. What a model has thought is left out."""
    if isinstance(given, str):
        part = Part("input_text", given)
        return (MessageItem(id=fresh("msg"), role="user", parts=(part,)),) if given else ()
    return tuple(
        _item(item, f"{where}[{n}]", fresh)
        for n, item in enumerate(given)
        if item.type != "reasoning"
    )


def steering(given: client_events.Input, fresh: Fresh) -> tuple[Item, ...]:
    """What may be said to an answer while it is made: user's messages."""
    items = items_of(given, "input", fresh)
    if not items:
        raise missing("input")
    said: list[Item] = []
    for n, item in enumerate(items):
        if not isinstance(item, MessageItem) or item.role != "user":
            raise Refusal(
                f"Invalid 'input[{n}]': only messages of the role 'user' can steer a response.",
                code="invalid_value",
                param=f"input[{n}]",
            )
        said.append(item)
    return tuple(said)


# ---------------------------------------------------------------- settings


def _unsupported(create: client_events.Create) -> None:
    for name, instead in (
        ("conversation", "go on from a response with 'previous_response_id'"),
        ("prompt", "say it in 'instructions' and 'input'"),
    ):
        if bytes(getattr(create, name)) != b"null":
            raise Refusal(
                f"'{name}' is not supported by this server: {instead}.",
                code="unsupported_parameter",
                param=name,
            )


def _tools(tools: Sequence[client_events.ToolIn]) -> tuple[Tool, ...]:
    return tools_of(
        (f"tools[{n}]", tool) for n, tool in enumerate(tools) if tool.type == "function"
    )


def _tool_choice(
    choice: Literal["auto", "none", "required"] | client_events.ToolChoiceIn | None,
    tools: Sequence[Tool],
    *,
    given: bool,
) -> ToolChoice:
    """A choice among tools that we left out is no choice."""
    match choice:
        case client_events.ToolChoiceIn(type="function", name=name):
            return named(name, tools, "tool_choice.name")
        case "required" | client_events.ToolChoiceIn(type="allowed_tools", mode="required"):
            return required(tools, "tool_choice", given=given)
        case client_events.ToolChoiceIn() | None:
            return ToolChoice()
        case mode:
            return ToolChoice(mode)


def _text(text: client_events.TextIn) -> client_events.TextIn:
    """As it is reported."""
    form = text.format or client_events.FormatIn(type="text")
    if form.type == "json_schema" and form.name is None:
        raise missing("text.format.name")
    return msgspec.structs.replace(text, format=form)


# ---------------------------------------------------------------- items


def _item(item: client_events.ItemIn, where: str, fresh: Fresh) -> Item | ItemReference:
    match item.type:
        case "message":
            return _message(item, where, fresh)
        case "function_call":
            return CallItem(
                id=item.id or fresh("fc"),
                call_id=_given(item.call_id, f"{where}.call_id"),
                name=_given(item.name, f"{where}.name"),
                arguments=_given(item.arguments, f"{where}.arguments"),
            )
        case "function_call_output":
            output = _given(item.output, f"{where}.output")
            return CallOutputItem(
                id=item.id or fresh("fco"),
                call_id=_given(item.call_id, f"{where}.call_id"),
                output="\n".join(_texts(output, f"{where}.output")),
            )
        case "item_reference":
            return ItemReference(_given(item.id, f"{where}.id"))
        case kind:
            listed = ", ".join(map(repr, client_events.ITEM_TYPES))
            raise Refusal(
                f"Invalid value for '{where}.type': {kind[:64]!r}. Supported values are: {listed}.",
                code="invalid_value",
                param=f"{where}.type",
            )


def _message(item: client_events.ItemIn, where: str, fresh: Fresh) -> MessageItem:
    role = _given(item.role, f"{where}.role")
    kind = "output_text" if role == "assistant" else "input_text"
    texts = _texts(_given(item.content, f"{where}.content"), f"{where}.content")
    return MessageItem(
        id=item.id or fresh("msg"),
        role=_ROLES[role],
        parts=tuple(Part(kind, text) for text in texts),
    )


def _texts(content: client_events.Content, where: str) -> list[str]:
    """Any spelling of text is text."""
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for n, part in enumerate(content):
        match part.type:
            case "input_text" | "output_text" | "text":
                texts.append(_given(part.text, f"{where}[{n}].text"))
            case "refusal":
                texts.append(_given(part.refusal, f"{where}[{n}].refusal"))
            case kind:
                raise Refusal(
                    f"Invalid '{where}[{n}].type': this server takes text only, not {kind[:64]!r}.",
                    code="invalid_value",
                    param=f"{where}[{n}].type",
                )
    return texts


def _given(value: T | None, param: str) -> T:
    if value is None:
        raise missing(param)
    return value
