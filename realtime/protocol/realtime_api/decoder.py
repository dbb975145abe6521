"""Client events to Asks. Pure; raises Refusal for what the shapes alone cannot forbid."""

from collections.abc import Callable
from typing import Literal, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import within
from continuo.realtime.protocol.commands import (
    AddItem,
    AppendText,
    Ask,
    Cancel,
    ClearText,
    CommitText,
    Configure,
    DropItem,
    FetchItem,
    ReplaceText,
    Respond,
    TruncateItem,
)
from continuo.realtime.protocol.items import (
    CallItem,
    CallOutputItem,
    Item,
    ItemReference,
    ItemRole,
    MessageItem,
    Part,
)
from continuo.realtime.protocol.realtime_api import client_events
from continuo.realtime.protocol.realtime_api.extras import INTERRUPTED, Extras
from continuo.realtime.protocol.sampling import missing, pick, sampling_of
from continuo.realtime.protocol.settings import Settings, Tool, ToolChoice, Truncation
from continuo.realtime.protocol.tools_and_formats import named, standing, tools_of

Fresh = Callable[[str], str]
"""Makes an id from a prefix."""


class NoAudio(msgspec.Struct, frozen=True):
    """An audio event: answered here, the core hears nothing of it."""

    cleared: bool = False


class Farewell(msgspec.Struct, frozen=True):
    """The client ends its session: the connection's business."""


def hear(
    event: client_events.ClientEvent, now: Settings, default: Settings, fresh: Fresh
) -> Ask | NoAudio | Farewell:
    """`now` is how the session is set, `default` what a cleared key falls back to."""
    match event:
        case client_events.SessionUpdate(session=session):
            return Configure(settings_of(session, now, default))
        case client_events.ItemCreate(item=item, previous_item_id=after):
            return AddItem(_item(item, "item", fresh), after)
        case client_events.ItemRetrieve(item_id=item_id):
            return FetchItem(item_id)
        case client_events.ItemTruncate(item_id=item_id, content_index=index):
            if event.audio_end_ms is None and event.text_end is None:
                raise missing("audio_end_ms")
            return TruncateItem(item_id, index, event.audio_end_ms, event.text_end)
        case client_events.ItemDelete(item_id=item_id):
            return DropItem(item_id)
        case client_events.ResponseCreate(response=response):
            return _respond(response or client_events.ResponseIn(), now, fresh)
        case client_events.ResponseCancel(response_id=answer_id):
            return Cancel(answer_id)
        case client_events.AudioAppend() | client_events.OutputAudioClear():
            return NoAudio()
        case client_events.AudioClear():
            return NoAudio(cleared=True)
        case client_events.AudioCommit():
            raise Refusal(
                "Error committing input audio buffer: it is empty, this server takes text only.",
                code="input_audio_buffer_commit_empty",
            )
        case client_events.SessionClose():
            return Farewell()
        case client_events.TextAppend(text=text):
            return AppendText(text)
        case client_events.TextReplace(text=text):
            return ReplaceText(text)
        case client_events.TextClear():
            return ClearText()
        case client_events.TextCommit():
            return CommitText(fresh("item"))
        case _:
            assert_never(event)


def _respond(response: client_events.ResponseIn, now: Settings, fresh: Fresh) -> Respond:
    context: tuple[Item | ItemReference, ...] | None = None
    if response.input is not None:
        context = tuple(
            ItemReference(item.id)
            if isinstance(item, client_events.ItemReferenceIn)
            else _item(item, f"response.input[{n}]", fresh)
            for n, item in enumerate(response.input)
        )
    wanted = response.conversation
    return Respond(
        settings=_settings(response, now, now, "response"),
        metadata=response.metadata,
        apart=wanted == "none",
        conversation=None if wanted in ("auto", "none") else wanted,
        context=context,
    )


# ---------------------------------------------------------------- settings


def settings_of(session: client_events.SessionIn, now: Settings, default: Settings) -> Settings:
    """A session set up as it wishes. Raises Refusal."""
    settings = _settings(session, now, default, "session")
    truncation = _truncation(session.truncation, now.truncation, default.truncation)
    return msgspec.structs.replace(settings, truncation=truncation)


def _settings(
    wishes: client_events.Wishes, now: Settings, default: Settings, where: str
) -> Settings:
    tokens = now.max_output_tokens
    if wishes.max_output_tokens is None:
        tokens = default.max_output_tokens
    elif not isinstance(wishes.max_output_tokens, UnsetType):
        tokens = None if wishes.max_output_tokens == "inf" else wishes.max_output_tokens
    tools = now.tools
    if wishes.tools is None:
        tools = default.tools
    elif not isinstance(wishes.tools, UnsetType):
        tools = _tools(wishes.tools, where)
    if wishes.tool_choice is None:
        choice = standing(default.tool_choice, tools)
    elif isinstance(wishes.tool_choice, UnsetType):
        choice = standing(now.tool_choice, tools)
    else:
        choice = _tool_choice(wishes.tool_choice, tools, where)
    return Settings(
        instructions=pick(wishes.instructions, now.instructions, default.instructions),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=pick(
            wishes.parallel_tool_calls, now.parallel_tool_calls, default.parallel_tool_calls
        ),
        max_output_tokens=tokens,
        sampling=sampling_of(wishes, now.sampling, default.sampling),
        truncation=now.truncation,
        extras=_extras(wishes, now),
    )


def _truncation(
    wish: str | client_events.RetentionIn | UnsetType | None,
    now: Truncation,
    default: Truncation,
) -> Truncation:
    match wish:
        case "auto" | "disabled":
            return Truncation(mode=wish)
        case client_events.RetentionIn(retention_ratio=ratio, token_limits=limits):
            after = None if limits is None else limits.post_instructions
            return Truncation(mode="retention_ratio", ratio=ratio, after_instructions=after)
        case None:
            return default
        case _:
            return now


def _tools(tools: list[client_events.ToolIn], where: str) -> tuple[Tool, ...]:
    kept = (
        (f"{where}.tools[{n}]", tool) for n, tool in enumerate(tools) if tool.type == "function"
    )
    return tools_of(kept)


def _tool_choice(
    choice: Literal["auto", "none", "required"] | client_events.ToolChoiceIn,
    tools: tuple[Tool, ...],
    where: str,
) -> ToolChoice:
    """A choice among tools that we left out is no choice."""
    match choice:
        case client_events.ToolChoiceIn(type="function", name=name):
            return named(name, tools, f"{where}.tool_choice.name")
        case client_events.ToolChoiceIn():
            return ToolChoice()
        case mode:
            return ToolChoice(mode)


def _extras(wishes: client_events.Wishes, now: Settings) -> str:
    was = Extras.of(now)
    include = was.include
    if isinstance(wishes, client_events.SessionIn) and wishes.include is not UNSET:
        include = _included(wishes.include)
    return Extras(voice=_voice(wishes.audio) or was.voice, include=include).text()


def _included(wish: object) -> tuple[str, ...]:
    """What we know of it."""
    return (INTERRUPTED,) if isinstance(wish, list) and INTERRUPTED in wish else ()


class _Voiced(msgspec.Struct):
    voice: str


class _Spoken(msgspec.Struct):
    output: _Voiced


def _voice(audio: object) -> str | None:
    """We never speak; but a client may compare what it asked for with what we report."""
    try:
        return msgspec.convert(audio, _Spoken).output.voice[:64]
    except msgspec.ValidationError:
        return None


# ---------------------------------------------------------------- items


def _item(item: client_events.ItemIn, where: str, fresh: Fresh) -> Item:
    item_id = item.id or fresh("item")
    match item:
        case client_events.MessageIn(role=role, content=content):
            parts = tuple(
                _part(part, role, f"{where}.content[{n}]") for n, part in enumerate(content)
            )
            return MessageItem(id=item_id, role=role, parts=parts)
        case client_events.FunctionCallIn(name=name, arguments=arguments, call_id=call_id):
            return CallItem(
                id=item_id,
                call_id=call_id or within(item_id)("call"),
                name=name,
                arguments=arguments,
            )
        case client_events.FunctionCallOutputIn(call_id=call_id, output=output):
            return CallOutputItem(id=item_id, call_id=call_id, output=output)
        case _:
            assert_never(item)


def _part(part: client_events.PartIn, role: ItemRole, where: str) -> Part:
    """Any spelling of text is text; audio counts by its transcript."""
    match part.type:
        case "input_text" | "output_text" | "text":
            if part.text is None:
                raise missing(f"{where}.text")
            return Part("output_text" if role == "assistant" else "input_text", part.text)
        case "input_audio" | "output_audio" | "audio":
            if part.transcript is None:
                raise Refusal(
                    f"Invalid '{where}': this server takes text only; audio needs a 'transcript'.",
                    code="invalid_value",
                    param=f"{where}.transcript",
                )
            if role == "user":
                return Part("input_audio", part.transcript)
            kind = "output_text" if role == "assistant" else "input_text"
            return Part(kind, part.transcript)
        case "input_image":
            raise Refusal(
                f"Invalid '{where}.type': this server takes text only, no images.",
                code="invalid_value",
                param=f"{where}.type",
            )
        case _:
            assert_never(part.type)
