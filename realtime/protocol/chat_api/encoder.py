"""Encoding of responses as chat completions, and of their events as chunks. Pure."""

from collections.abc import Iterator, Sequence
from typing import assert_never

import msgspec
from msgspec import UNSET

from continuo.realtime.protocol.chat_api import replies
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
from continuo.realtime.protocol.response import (
    Response,
    ResponseError,
    TokenLogprob,
    Usage,
)
from continuo.realtime.protocol.token_logprobs import encode_logprobs

_encoder = msgspec.json.Encoder()
SSE_DONE = b"data: [DONE]\n\n"


class Encoder:
    """Encode one response. `include_usage`: whether a last chunk with the usage is sent."""

    def __init__(self, model: str, *, include_usage: bool = False) -> None:
        self._model = model
        self._include_usage = include_usage
        self._id = ""
        self._created = 0
        self._tool_calls = 0

    def encode_completion(self, response: Response) -> replies.Completion:
        """Encode a response that has ended and has not failed."""
        texts = [item for item in response.items if isinstance(item, MessageItem)]
        calls = [item for item in response.items if isinstance(item, FunctionCallItem)]
        text = "".join(part.text for item in texts for part in item.parts)
        reasoning = "\n\n".join(
            item.text for item in response.items if isinstance(item, ReasoningItem)
        )
        message = replies.MessageOut(
            content=text if text or not calls else None,
            reasoning_content=reasoning or UNSET,
            tool_calls=[
                replies.ToolCallOut(
                    id=call.call_id,
                    type="function",
                    function=replies.FunctionCallOut(name=call.name, arguments=call.arguments),
                )
                for call in calls
            ]
            or UNSET,
        )
        return replies.Completion(
            id=_completion_id(response),
            created=response.created_s,
            model=self._model,
            choices=[
                replies.Choice(
                    message=message,
                    logprobs=_encode_response_logprobs(response, texts),
                    finish_reason=_finish_reason(response),
                )
            ],
            usage=_encode_usage(response),
        )

    def encode(self, event: ResponseEvent) -> Iterator[bytes]:
        """Encode an event as server-sent events."""
        match event:
            case ResponseStarted(response=response):
                self._id, self._created = _completion_id(response), response.created_s
                yield self._encode_chunk(replies.Delta(role="assistant", content=""))
            case OutputItemStarted(item=FunctionCallItem(call_id=call_id, name=name)):
                self._tool_calls += 1
                function = replies.FunctionCallOut(name=name, arguments="")
                yield self._encode_tool_call(
                    replies.ToolCallOut(id=call_id, type="function", function=function)
                )
            case TextDelta(text=text, logprobs=tokens):
                yield self._encode_chunk(replies.Delta(content=text), logprobs=tokens)
            case ReasoningDelta(text=text):
                yield self._encode_chunk(replies.Delta(reasoning_content=text))
            case ArgumentsDelta(text=text):
                yield self._encode_tool_call(
                    replies.ToolCallOut(function=replies.FunctionCallOut(arguments=text))
                )
            case ResponseEnded(response=response):
                yield from self._encode_end(response)
            case OutputItemStarted() | OutputItemEnded() | ResponseSteered():
                pass
            case _:
                assert_never(event)

    def _encode_end(self, response: Response) -> Iterator[bytes]:
        if response.status == "failed":
            yield _encode_sse(replies.Error(error=encode_error(response)))
            return
        yield self._encode_chunk(replies.Delta(), _finish_reason(response))
        if self._include_usage:
            yield _encode_sse(
                replies.CompletionChunk(
                    id=self._id,
                    created=self._created,
                    model=self._model,
                    choices=[],
                    usage=_encode_usage(response),
                )
            )
        yield SSE_DONE

    def _encode_tool_call(self, call: replies.ToolCallOut) -> bytes:
        numbered = msgspec.structs.replace(call, index=self._tool_calls - 1)
        return self._encode_chunk(replies.Delta(tool_calls=[numbered]))

    def _encode_chunk(
        self,
        delta: replies.Delta,
        finish: replies.FinishReason | None = None,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> bytes:
        return _encode_sse(
            replies.CompletionChunk(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=[
                    replies.ChunkChoice(
                        delta=delta,
                        logprobs=replies.LogprobsOut(content=encode_logprobs(logprobs))
                        if logprobs
                        else None,
                        finish_reason=finish,
                    )
                ],
                usage=None if self._include_usage else UNSET,
            )
        )


def _encode_response_logprobs(
    response: Response, messages: Sequence[MessageItem]
) -> replies.LogprobsOut | None:
    """Encode the tokens of all messages. Returns None if they were not requested."""
    if response.settings.sampling.logprobs is None:
        return None
    tokens = [token for item in messages for token in response.logprobs.get(item.id, ())]
    return replies.LogprobsOut(content=encode_logprobs(tokens))


def encode_error(response: Response) -> replies.ErrorBody:
    error = response.error or ResponseError("server_error", "The response failed.")
    return replies.ErrorBody(message=error.message, code=error.code)


def _encode_sse(event: replies.CompletionChunk | replies.Error) -> bytes:
    return b"data: %s\n\n" % _encoder.encode(event)


def _completion_id(response: Response) -> str:
    return "chatcmpl-" + response.id.removeprefix("resp_")


def _finish_reason(response: Response) -> replies.FinishReason:
    if response.reason == "max_output_tokens":
        return "length"
    has_calls = any(isinstance(item, FunctionCallItem) for item in response.items)
    return "tool_calls" if has_calls else "stop"


def _encode_usage(response: Response) -> replies.UsageOut:
    usage = response.usage or Usage()
    return replies.UsageOut(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        prompt_tokens_details=replies.PromptDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=replies.CompletionDetails(reasoning_tokens=usage.reasoning_tokens)
        if usage.reasoning_tokens
        else UNSET,
    )
