"""Encoding of responses as messages, of their events, and of errors. Pure. Each type validates
against the Anthropic SDK's own."""

from collections.abc import Iterator
from typing import Literal, assert_never

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.events import (
    ArgumentsDelta,
    OutputItemEnded,
    OutputItemStarted,
    ReasoningDelta,
    ResponseEnded,
    ResponseEvent,
    ResponseStarted,
    ResponseSteered,
    TextDelta,
)
from continuo.realtime.protocol.items import FunctionCallItem, MessageItem, ReasoningItem
from continuo.realtime.protocol.response import Response, ResponseError, Usage

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    text: str
    citations: None = None


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


BlockOut = TextBlock | ToolUseBlock


class UsageOut(msgspec.Struct, frozen=True, kw_only=True):
    """Token usage. As in Anthropic's API, `input_tokens` leaves out those read from the cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class Message(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[BlockOut]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: UsageOut


class TextDeltaOut(msgspec.Struct, frozen=True, kw_only=True, tag="text_delta"):
    text: str


class InputJsonDelta(msgspec.Struct, frozen=True, kw_only=True, tag="input_json_delta"):
    partial_json: str


class StopDelta(msgspec.Struct, frozen=True, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageStart(msgspec.Struct, frozen=True, kw_only=True, tag="message_start"):
    message: Message


class BlockStart(msgspec.Struct, frozen=True, kw_only=True, tag="content_block_start"):
    index: int
    content_block: BlockOut


class BlockDelta(msgspec.Struct, frozen=True, kw_only=True, tag="content_block_delta"):
    index: int
    delta: TextDeltaOut | InputJsonDelta


class BlockStop(msgspec.Struct, frozen=True, kw_only=True, tag="content_block_stop"):
    index: int


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True, tag="message_delta"):
    delta: StopDelta
    usage: UsageOut


class MessageStop(msgspec.Struct, frozen=True, kw_only=True, tag="message_stop"):
    pass


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    message: str


class Error(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    error: ErrorBody


StreamEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Error
)


class Encoder:
    """Encodes the events of one response as server-sent events."""

    def __init__(self, model: str) -> None:
        self._model = model

    def encode(self, event: ResponseEvent) -> Iterator[bytes]:
        for one in self._encode(event):
            name = str(one.__struct_config__.tag)
            yield b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(one))

    def _encode(self, event: ResponseEvent) -> Iterator[StreamEvent]:
        match event:
            case ResponseStarted(response=response):
                yield MessageStart(message=encode_message(response, self._model))
            case OutputItemStarted(item=ReasoningItem()) | OutputItemEnded(item=ReasoningItem()):
                pass  # reasoning is not sent: a thinking block needs Anthropic's signature
            case OutputItemStarted(index=index, item=MessageItem() | FunctionCallItem() as item):
                yield BlockStart(index=index, content_block=_encode_block(item))
            case TextDelta(index=index, text=text):
                yield BlockDelta(index=index, delta=TextDeltaOut(text=text))
            case ArgumentsDelta(index=index, text=text):
                yield BlockDelta(index=index, delta=InputJsonDelta(partial_json=text))
            case OutputItemEnded(index=index):
                yield BlockStop(index=index)
            case ResponseEnded(response=response):
                yield from _encode_end(response)
            case ReasoningDelta() | OutputItemStarted() | ResponseSteered():
                pass
            case _:
                assert_never(event)


def encode_message(response: Response, model: str) -> Message:
    """Encode a response; one that is in progress has no content and no stop reason yet."""
    return Message(
        id="msg_" + response.id.removeprefix("resp_"),
        model=model,
        content=[
            _encode_block(item)
            for item in response.items
            if isinstance(item, MessageItem | FunctionCallItem)
        ],
        stop_reason=None if response.status == "in_progress" else _stop_reason(response),
        stop_sequence=response.stop_string,
        usage=_encode_usage(response.usage or Usage()),
    )


def encode_error(refusal: Refusal) -> Error:
    """Encode a refusal. An overflow of the context also says so in Anthropic's words."""
    is_overflow = refusal.code == "context_length_exceeded"
    message = f"prompt is too long: {refusal.message}" if is_overflow else refusal.message
    kind = _ERROR_TYPES.get(refusal.http_status, "api_error")
    return Error(error=ErrorBody(type=kind, message=message))


def encode_failure(response: Response) -> Error:
    """Encode the failure of a response."""
    error = response.error or ResponseError("server_error", "The response failed.")
    kind = "overloaded_error" if error.is_transient else "api_error"
    return Error(error=ErrorBody(type=kind, message=f"{error.message} ({error.code})"))


def _encode_end(response: Response) -> Iterator[StreamEvent]:
    if response.status == "failed":
        yield encode_failure(response)
        return
    delta = StopDelta(stop_reason=_stop_reason(response), stop_sequence=response.stop_string)
    yield MessageDelta(delta=delta, usage=_encode_usage(response.usage or Usage()))
    yield MessageStop()


def _encode_block(item: MessageItem | FunctionCallItem) -> BlockOut:
    if isinstance(item, MessageItem):
        return TextBlock(text="".join(part.text for part in item.parts))
    return ToolUseBlock(id=item.call_id, name=item.name, input=_encode_input(item.arguments))


def _encode_input(arguments: str) -> msgspec.Raw:
    """Encode the arguments of a call as an object; empty if they are incomplete."""
    try:
        msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        return msgspec.Raw(b"{}")
    return msgspec.Raw(arguments.encode())


def _stop_reason(response: Response) -> StopReason:
    if response.reason == "max_output_tokens":
        return "max_tokens"
    if any(isinstance(item, FunctionCallItem) for item in response.items):
        return "tool_use"
    return "end_turn" if response.stop_string is None else "stop_sequence"


def _encode_usage(usage: Usage) -> UsageOut:
    return UsageOut(
        input_tokens=usage.input_tokens - usage.cached_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
    )
