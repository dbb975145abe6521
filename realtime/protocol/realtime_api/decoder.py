"""Decoding of client events to commands. Pure; raises Refusal for events that pass the type checks
of msgspec but are invalid."""

from collections.abc import Callable
from typing import Literal, assert_never, cast

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import deterministic_id_factory
from continuo.realtime.protocol.commands import (
    AddItem,
    AppendText,
    CancelResponse,
    ClearText,
    CommitText,
    ConfigureSession,
    ConversationCommand,
    CreateSessionResponse,
    DeleteItem,
    FetchItem,
    FieldNames,
    ReplaceText,
    TruncateItem,
)
from continuo.realtime.protocol.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    ItemReference,
    ItemRole,
    MessageItem,
)
from continuo.realtime.protocol.realtime_api import client_events
from continuo.realtime.protocol.realtime_api.extras import (
    INCLUDABLE,
    Extras,
)
from continuo.realtime.protocol.reasoning import merge_reasoning
from continuo.realtime.protocol.sampling import merge_sampling, resolve_field
from continuo.realtime.protocol.settings import GenerationSettings, Tool, ToolChoice, Truncation
from continuo.realtime.protocol.tools_and_formats import (
    build_tools,
    choose_named_tool,
    reconcile_tool_choice,
)
from continuo.realtime.protocol.validation import invalid_parameter, missing_parameter

IdFactory = Callable[[str], str]
"""Makes an id that begins with the given prefix."""


class IgnoredAudioEvent(msgspec.Struct, frozen=True):
    """Audio event, which the connection handles without its session: sessions have no audio.

    `append`: audio of the user, the first of which on a connection is refused. `clear`: the buffer
    is cleared, which is acknowledged. `output_clear` has no effect.
    """

    kind: Literal["append", "clear", "output_clear"]


class CloseRequest(msgspec.Struct, frozen=True):
    """Request to close the session, which the connection handles."""


def decode_command(  # noqa: C901 - one case per client event
    event: client_events.ClientEvent,
    current: GenerationSettings,
    default: GenerationSettings,
    new_id: IdFactory,
) -> ConversationCommand | IgnoredAudioEvent | CloseRequest:
    """Decode a client event. `current` are the settings of the session, `default` those that null
    resets to. Raises Refusal."""
    match event:
        case client_events.SessionUpdate(session=session):
            return ConfigureSession(decode_session_settings(session, current, default))
        case client_events.ItemCreate(item=item, previous_item_id=after):
            return AddItem(_decode_item(item, "item", new_id), after)
        case client_events.ItemRetrieve(item_id=item_id):
            return FetchItem(item_id)
        case client_events.ItemTruncate(item_id=item_id, content_index=index):
            if event.audio_end_ms is None and event.text_end is None:
                raise missing_parameter("audio_end_ms")
            return TruncateItem(item_id, index, event.audio_end_ms, event.text_end)
        case client_events.ItemDelete(item_id=item_id):
            return DeleteItem(item_id)
        case client_events.ResponseCreate(response=response):
            return _decode_response_create(response or client_events.ResponseIn(), current, new_id)
        case client_events.ResponseCancel(response_id=response_id):
            return CancelResponse(response_id)
        case client_events.AudioAppend():
            return IgnoredAudioEvent("append")
        case client_events.OutputAudioClear():
            return IgnoredAudioEvent("output_clear")
        case client_events.AudioClear():
            return IgnoredAudioEvent("clear")
        case client_events.AudioCommit():
            raise Refusal(
                "Error committing input audio buffer: it is empty, this server takes text only.",
                code="input_audio_buffer_commit_empty",
            )
        case client_events.SessionClose():
            return CloseRequest()
        case client_events.TextAppend(text=text):
            return AppendText(text)
        case client_events.TextReplace(text=text):
            return ReplaceText(text)
        case client_events.TextClear():
            return ClearText()
        case client_events.TextCommit():
            return CommitText(new_id("item"))
        case _:
            assert_never(event)


def audio_not_supported() -> Refusal:
    """Build the refusal of the first audio of a session."""
    return Refusal(
        "This server has no audio: the session is text, as its output_modalities say. Send text "
        "items instead. Later audio of this session is dropped without an error.",
        code="audio_not_supported",
        param="audio",
    )


def _decode_response_create(
    response: client_events.ResponseIn, current: GenerationSettings, new_id: IdFactory
) -> CreateSessionResponse:
    context: tuple[Item | ItemReference, ...] | None = None
    if response.input is not None:
        context = tuple(
            ItemReference(item.id)
            if isinstance(item, client_events.ItemReferenceIn)
            else _decode_item(item, f"response.input[{n}]", new_id)
            for n, item in enumerate(response.input)
        )
    conversation = response.conversation
    return CreateSessionResponse(
        settings=_decode_settings(response, current, current, CreateSessionResponse.field_names),
        metadata=response.metadata,
        is_out_of_band=conversation == "none",
        conversation_id=None if conversation in ("auto", "none") else conversation,
        context=context,
    )


# ---------------------------------------------------------------- settings


def decode_session_settings(
    session: client_events.SessionIn, current: GenerationSettings, default: GenerationSettings
) -> GenerationSettings:
    """Apply a session object to the current settings; null resets to `default`. Raises Refusal."""
    settings = _decode_settings(session, current, default, ConfigureSession.field_names)
    truncation = _decode_truncation(session.truncation, current.truncation, default.truncation)
    return msgspec.structs.replace(settings, truncation=truncation)


def _decode_settings(
    requested: client_events.GenerationSettingsIn,
    current: GenerationSettings,
    default: GenerationSettings,
    names: FieldNames,
) -> GenerationSettings:
    max_tokens = current.max_output_tokens
    if requested.max_output_tokens is None:
        max_tokens = default.max_output_tokens
    elif not isinstance(requested.max_output_tokens, UnsetType):
        max_tokens = None if requested.max_output_tokens == "inf" else requested.max_output_tokens
    tools = current.tools
    if requested.tools is None:
        tools = default.tools
    elif not isinstance(requested.tools, UnsetType):
        tools = _decode_tools(requested.tools, names.tools)
    if requested.tool_choice is None:
        choice = reconcile_tool_choice(default.tool_choice, tools)
    elif isinstance(requested.tool_choice, UnsetType):
        choice = reconcile_tool_choice(current.tool_choice, tools)
    else:
        choice = _decode_tool_choice(requested.tool_choice, tools, names.named_tool)
    return GenerationSettings(
        instructions=resolve_field(
            requested.instructions, current.instructions, default.instructions
        ),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=resolve_field(
            requested.parallel_tool_calls, current.parallel_tool_calls, default.parallel_tool_calls
        ),
        max_output_tokens=max_tokens,
        sampling=merge_sampling(requested, current.sampling, default.sampling),
        truncation=current.truncation,
        reasoning=merge_reasoning(
            requested.reasoning,
            requested.enable_thinking,
            requested.chat_template_kwargs,
            current.reasoning,
            default.reasoning,
            names,
        ),
        extras=_merge_extras(requested, current),
    )


def _decode_truncation(
    requested: str | client_events.RetentionIn | UnsetType | None,
    current: Truncation,
    default: Truncation,
) -> Truncation:
    match requested:
        case "auto" | "disabled":
            return Truncation(mode=requested)
        case client_events.RetentionIn(retention_ratio=ratio, token_limits=limits):
            after = None if limits is None else limits.post_instructions
            return Truncation(mode="retention_ratio", ratio=ratio, after_instructions=after)
        case None:
            return default
        case _:
            return current


def _decode_tools(tools: list[client_events.ToolIn], where: str) -> tuple[Tool, ...]:
    functions = ((f"{where}[{n}]", tool) for n, tool in enumerate(tools) if tool.type == "function")
    return build_tools(functions)


def _decode_tool_choice(
    choice: Literal["auto", "none", "required"] | client_events.ToolChoiceIn,
    tools: tuple[Tool, ...],
    name_param: str,
) -> ToolChoice:
    """Decode a tool choice. The choice of a tool of an ignored kind becomes `auto`."""
    match choice:
        case client_events.ToolChoiceIn(type="function", name=name):
            return choose_named_tool(name, tools, name_param)
        case client_events.ToolChoiceIn():
            return ToolChoice()
        case mode:
            return ToolChoice(mode)


def _merge_extras(
    requested: client_events.GenerationSettingsIn, current: GenerationSettings
) -> str:
    extras = Extras.from_settings(current)
    include = extras.include
    if isinstance(requested, client_events.SessionIn) and requested.include is not UNSET:
        include = _known_includes(requested.include)
    return Extras(voice=_decode_voice(requested.audio) or extras.voice, include=include).to_json()


def _known_includes(requested: object) -> tuple[str, ...]:
    """Keep the values of `include` that this server knows."""
    listed = cast(list[object], requested) if isinstance(requested, list) else []
    return tuple(name for name in INCLUDABLE if name in listed)


class _OutputAudioIn(msgspec.Struct):
    voice: str


class _AudioIn(msgspec.Struct):
    output: _OutputAudioIn


def _decode_voice(audio: object) -> str | None:
    """Decode the requested voice. Returns None if it is absent or invalid.

    A text server reports the voice without using it, because a client may compare the settings that
    it requested with those reported.
    """
    try:
        return msgspec.convert(audio, _AudioIn).output.voice[:64]
    except msgspec.ValidationError:
        return None


# ---------------------------------------------------------------- items


def _decode_item(item: client_events.ItemIn, where: str, new_id: IdFactory) -> Item:
    item_id = item.id or new_id("item")
    match item:
        case client_events.MessageIn(role=role, content=content):
            parts = tuple(
                _decode_part(part, role, f"{where}.content[{n}]") for n, part in enumerate(content)
            )
            return MessageItem(id=item_id, role=role, parts=parts)
        case client_events.FunctionCallIn(name=name, arguments=arguments, call_id=call_id):
            return FunctionCallItem(
                id=item_id,
                call_id=call_id or deterministic_id_factory(item_id)("call"),
                name=name,
                arguments=arguments,
            )
        case client_events.FunctionCallOutputIn(call_id=call_id, output=output):
            return FunctionCallOutputItem(id=item_id, call_id=call_id, output=output)
        case _:
            assert_never(item)


def _decode_part(part: client_events.PartIn, role: ItemRole, where: str) -> ContentPart:
    """Decode a content part. All text types are treated alike; of audio, the transcript is used."""
    match part.type:
        case "input_text" | "output_text" | "text":
            if part.text is None:
                raise missing_parameter(f"{where}.text")
            return ContentPart("output_text" if role == "assistant" else "input_text", part.text)
        case "input_audio" | "output_audio" | "audio":
            if part.transcript is None:
                raise Refusal(
                    f"Invalid '{where}': this server takes text only; audio needs a 'transcript'.",
                    code="invalid_value",
                    param=f"{where}.transcript",
                )
            if role == "user":
                return ContentPart("input_audio", part.transcript)
            kind = "output_text" if role == "assistant" else "input_text"
            return ContentPart(kind, part.transcript)
        case "input_image":
            raise invalid_parameter(f"{where}.type", "this server takes text only, no images.")
        case _:
            assert_never(part.type)
