"""What clients ask, to what the session layer does. Pure; raises Refusal for what the shapes alone
cannot forbid."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from continuo.engine import Grammar
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.chat_api import requests
from continuo.realtime.protocol.commands import GoOn
from continuo.realtime.protocol.items import CallItem, CallOutputItem, Item, MessageItem, Part
from continuo.realtime.protocol.sampling import missing, sampling_of
from continuo.realtime.protocol.settings import Settings, Tool, ToolChoice, Truncation
from continuo.realtime.protocol.tools_and_formats import grammar_of, named, required, tools_of

Fresh = Callable[[str], str]
"""Makes an id from a prefix."""


def hear(create: requests.Create, default: Settings, fresh: Fresh) -> GoOn:
    """The first message, if it is the system's, is the instructions."""
    messages, instructions, skipped = create.messages, "", 0
    if messages[0].role in ("system", "developer"):
        instructions = "\n".join(_texts(messages[0], "messages[0]"))
        skipped = 1
    tools = tools_of(_tools(create.tools or []))
    settings = Settings(
        instructions=instructions,
        tools=tools,
        tool_choice=_tool_choice(create.tool_choice, tools, given=bool(create.tools)),
        parallel_tool_calls=create.parallel_tool_calls is not False,
        max_output_tokens=create.max_completion_tokens or create.max_tokens,
        sampling=msgspec.structs.replace(
            sampling_of(create, default.sampling, default.sampling),
            grammar=_grammar(create.response_format),
        ),
        truncation=Truncation(mode="disabled"),
    )
    items = tuple(
        item
        for n, message in enumerate(messages[skipped:], skipped)
        for item in _items(message, f"messages[{n}]", fresh)
    )
    return GoOn(settings=settings, input=items, keep=False)


def _items(message: requests.MessageIn, where: str, fresh: Fresh) -> Iterator[Item]:
    if message.role == "tool":
        if message.tool_call_id is None:
            raise missing(f"{where}.tool_call_id")
        output = "\n".join(_texts(message, where))
        yield CallOutputItem(id=fresh("item"), call_id=message.tool_call_id, output=output)
        return
    calls = message.tool_calls or []
    if message.content is not None or not calls:
        yield _message(message, where, fresh)
    for call in calls:
        yield CallItem(
            id=fresh("item"),
            call_id=call.id,
            name=call.function.name,
            arguments=call.function.arguments,
        )


def _message(message: requests.MessageIn, where: str, fresh: Fresh) -> MessageItem:
    match message.role:
        case "user" | "assistant" as role:
            kind = "output_text" if role == "assistant" else "input_text"
        case _:
            role, kind = "system", "input_text"
    parts = tuple(Part(kind, text) for text in _texts(message, where))
    return MessageItem(id=fresh("item"), role=role, parts=parts)


def _texts(message: requests.MessageIn, where: str) -> list[str]:
    content = message.content
    if content is None:
        raise missing(f"{where}.content")
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
            raise missing(f"{where}.content[{n}].{part.type}")
        texts.append(text)
    return texts


def _tools(tools: Sequence[requests.ToolIn]) -> Iterator[tuple[str, requests.FunctionIn]]:
    for n, tool in enumerate(tools):
        if tool.type != "function":
            continue
        if tool.function is None:
            raise missing(f"tools[{n}].function")
        yield f"tools[{n}].function", tool.function


def _grammar(form: requests.FormatIn | None) -> Grammar | None:
    if form is None:
        return None
    if form.type == "json_schema" and form.json_schema is None:
        raise missing("response_format.json_schema")
    schema = form.json_schema.schema if form.json_schema else None
    return grammar_of(form.type, schema, "response_format.json_schema.schema")


def _tool_choice(
    choice: Literal["auto", "none", "required"] | requests.ToolChoiceIn | None,
    tools: Sequence[Tool],
    *,
    given: bool,
) -> ToolChoice:
    """A choice among tools that we left out is no choice."""
    match choice:
        case requests.ToolChoiceIn(type="function", function=None):
            raise missing("tool_choice.function")
        case requests.ToolChoiceIn(type="function", function=requests.NamedIn(name=name)):
            return named(name, tools, "tool_choice.function.name")
        case "required":
            return required(tools, "tool_choice", given=given)
        case requests.ToolChoiceIn() | None:
            return ToolChoice()
        case mode:
            return ToolChoice(mode)


_THEIRS = {"input": "messages", "text.format.schema": "response_format.json_schema.schema"}


def worded(refusal: Refusal) -> Refusal:
    """What the session layer refuses, with the fields as they are called here."""
    param = refusal.param
    if param not in _THEIRS:
        return refusal
    message = refusal.message.replace(f"'{param}'", f"'{_THEIRS[param]}'")
    return Refusal(message, code=refusal.code, param=_THEIRS[param], kind=refusal.kind)
