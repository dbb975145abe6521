"""Client events to Asks. Pure; raises Refusal for what the shapes alone cannot forbid."""

from collections.abc import Callable
from typing import Literal, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from realtime.errors import Refusal
from realtime.names import within
from realtime.protocol import core
from realtime.protocol.forms import named, standing, tools_of
from realtime.protocol.realtime_api import client
from realtime.protocol.realtime_api.extras import INTERRUPTED, Extras
from realtime.protocol.wishes import missing, pick, sampling_of

Fresh = Callable[[str], str]
"""Makes an id from a prefix."""


class NoAudio(msgspec.Struct, frozen=True):
    """An audio event: answered here, the core hears nothing of it."""

    cleared: bool = False


class Farewell(msgspec.Struct, frozen=True):
    """The client ends its session: the connection's business."""


def hear(
    event: client.ClientEvent, now: core.Settings, default: core.Settings, fresh: Fresh
) -> core.Ask | NoAudio | Farewell:
    """`now` is how the session is set, `default` what a cleared key falls back to."""
    match event:
        case client.SessionUpdate(session=session):
            return core.Configure(settings_of(session, now, default))
        case client.ItemCreate(item=item, previous_item_id=after):
            return core.AddItem(_item(item, "item", fresh), after)
        case client.ItemRetrieve(item_id=item_id):
            return core.FetchItem(item_id)
        case client.ItemTruncate(item_id=item_id, content_index=index):
            if event.audio_end_ms is None and event.text_end is None:
                raise missing("audio_end_ms")
            return core.TruncateItem(item_id, index, event.audio_end_ms, event.text_end)
        case client.ItemDelete(item_id=item_id):
            return core.DropItem(item_id)
        case client.ResponseCreate(response=response):
            return _respond(response or client.ResponseIn(), now, fresh)
        case client.ResponseCancel(response_id=answer_id):
            return core.Cancel(answer_id)
        case client.AudioAppend() | client.OutputAudioClear():
            return NoAudio()
        case client.AudioClear():
            return NoAudio(cleared=True)
        case client.AudioCommit():
            raise Refusal(
                "Error committing input audio buffer: it is empty, this server takes text only.",
                code="input_audio_buffer_commit_empty",
            )
        case client.SessionClose():
            return Farewell()
        case client.TextAppend(text=text):
            return core.AppendText(text)
        case client.TextReplace(text=text):
            return core.ReplaceText(text)
        case client.TextClear():
            return core.ClearText()
        case client.TextCommit():
            return core.CommitText(fresh("item"))
        case _:
            assert_never(event)


def _respond(response: client.ResponseIn, now: core.Settings, fresh: Fresh) -> core.Respond:
    context: tuple[core.Item | core.ItemReference, ...] | None = None
    if response.input is not None:
        context = tuple(
            core.ItemReference(item.id)
            if isinstance(item, client.ItemReferenceIn)
            else _item(item, f"response.input[{n}]", fresh)
            for n, item in enumerate(response.input)
        )
    wanted = response.conversation
    return core.Respond(
        settings=_settings(response, now, now, "response"),
        metadata=response.metadata,
        apart=wanted == "none",
        conversation=None if wanted in ("auto", "none") else wanted,
        context=context,
    )


# ---------------------------------------------------------------- settings


def settings_of(
    session: client.SessionIn, now: core.Settings, default: core.Settings
) -> core.Settings:
    """A session set up as it wishes. Raises Refusal."""
    settings = _settings(session, now, default, "session")
    truncation = _truncation(session.truncation, now.truncation, default.truncation)
    return msgspec.structs.replace(settings, truncation=truncation)


def _settings(
    wishes: client.Wishes, now: core.Settings, default: core.Settings, where: str
) -> core.Settings:
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
    return core.Settings(
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
    wish: str | client.RetentionIn | UnsetType | None,
    now: core.Truncation,
    default: core.Truncation,
) -> core.Truncation:
    match wish:
        case "auto" | "disabled":
            return core.Truncation(mode=wish)
        case client.RetentionIn(retention_ratio=ratio, token_limits=limits):
            after = None if limits is None else limits.post_instructions
            return core.Truncation(mode="retention_ratio", ratio=ratio, after_instructions=after)
        case None:
            return default
        case _:
            return now


def _tools(tools: list[client.ToolIn], where: str) -> tuple[core.Tool, ...]:
    kept = (
        (f"{where}.tools[{n}]", tool) for n, tool in enumerate(tools) if tool.type == "function"
    )
    return tools_of(kept)


def _tool_choice(
    choice: Literal["auto", "none", "required"] | client.ToolChoiceIn,
    tools: tuple[core.Tool, ...],
    where: str,
) -> core.ToolChoice:
    """A choice among tools that we left out is no choice."""
    match choice:
        case client.ToolChoiceIn(type="function", name=name):
            return named(name, tools, f"{where}.tool_choice.name")
        case client.ToolChoiceIn():
            return core.ToolChoice()
        case mode:
            return core.ToolChoice(mode)


def _extras(wishes: client.Wishes, now: core.Settings) -> str:
    was = Extras.of(now)
    include = was.include
    if isinstance(wishes, client.SessionIn) and wishes.include is not UNSET:
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


def _item(item: client.ItemIn, where: str, fresh: Fresh) -> core.Item:
    item_id = item.id or fresh("item")
    match item:
        case client.MessageIn(role=role, content=content):
            parts = tuple(
                _part(part, role, f"{where}.content[{n}]") for n, part in enumerate(content)
            )
            return core.MessageItem(id=item_id, role=role, parts=parts)
        case client.FunctionCallIn(name=name, arguments=arguments, call_id=call_id):
            return core.CallItem(
                id=item_id,
                call_id=call_id or within(item_id)("call"),
                name=name,
                arguments=arguments,
            )
        case client.FunctionCallOutputIn(call_id=call_id, output=output):
            return core.CallOutputItem(id=item_id, call_id=call_id, output=output)
        case _:
            assert_never(item)


def _part(part: client.PartIn, role: core.ItemRole, where: str) -> core.Part:
    """Any spelling of text is text; audio counts by its transcript."""
    match part.type:
        case "input_text" | "output_text" | "text":
            if part.text is None:
                raise missing(f"{where}.text")
            return core.Part("output_text" if role == "assistant" else "input_text", part.text)
        case "input_audio" | "output_audio" | "audio":
            if part.transcript is None:
                raise Refusal(
                    f"Invalid '{where}': this server takes text only; audio needs a 'transcript'.",
                    code="invalid_value",
                    param=f"{where}.transcript",
                )
            if role == "user":
                return core.Part("input_audio", part.transcript)
            kind = "output_text" if role == "assistant" else "input_text"
            return core.Part(kind, part.transcript)
        case "input_image":
            raise Refusal(
                f"Invalid '{where}.type': this server takes text only, no images.",
                code="invalid_value",
                param=f"{where}.type",
            )
        case _:
            assert_never(part.type)
