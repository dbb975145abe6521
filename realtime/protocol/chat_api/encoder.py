"""What is told of an answer, to a chat completion or its chunks. Pure."""

from collections.abc import Iterator
from typing import assert_never

import msgspec
from msgspec import UNSET

from continuo.realtime.protocol.chat_api import replies
from continuo.realtime.protocol.events import (
    AnswerEnded,
    AnswerStarted,
    ArgumentsDelta,
    OutputEnded,
    OutputStarted,
    Steered,
    TextDelta,
    Told,
)
from continuo.realtime.protocol.items import CallItem, MessageItem
from continuo.realtime.protocol.response import Answer, AnswerError, Usage

_encoder = msgspec.json.Encoder()
DONE = b"data: [DONE]\n\n"


class Voice:
    """Of one answer. `usage`: it is wanted behind the last chunk."""

    def __init__(self, model: str, *, usage: bool = False) -> None:
        self._model = model
        self._usage = usage
        self._id = ""
        self._created = 0
        self._calls = 0

    def whole(self, answer: Answer) -> replies.Completion:
        """Of an answer that has not failed."""
        texts = [item for item in answer.items if isinstance(item, MessageItem)]
        calls = [item for item in answer.items if isinstance(item, CallItem)]
        text = "".join(part.text for item in texts for part in item.parts)
        message = replies.Message(
            content=text if text or not calls else None,
            tool_calls=[
                replies.Call(
                    id=call.call_id,
                    type="function",
                    function=replies.Called(name=call.name, arguments=call.arguments),
                )
                for call in calls
            ]
            or UNSET,
        )
        return replies.Completion(
            id=_id(answer),
            created=answer.created_s,
            model=self._model,
            choices=[replies.Choice(message=message, finish_reason=_finish(answer))],
            usage=_usage(answer),
        )

    def say(self, told: Told) -> Iterator[bytes]:
        """Server-sent events."""
        match told:
            case AnswerStarted(answer=answer):
                self._id, self._created = _id(answer), answer.created_s
                yield self._chunk(replies.Delta(role="assistant", content=""))
            case OutputStarted(item=CallItem(call_id=call_id, name=name)):
                self._calls += 1
                called = replies.Called(name=name, arguments="")
                yield self._call(replies.Call(id=call_id, type="function", function=called))
            case TextDelta(text=text):
                yield self._chunk(replies.Delta(content=text))
            case ArgumentsDelta(text=text):
                yield self._call(replies.Call(function=replies.Called(arguments=text)))
            case AnswerEnded(answer=answer):
                yield from self._end(answer)
            case OutputStarted() | OutputEnded() | Steered():
                pass
            case _:
                assert_never(told)

    def _end(self, answer: Answer) -> Iterator[bytes]:
        if answer.status == "failed":
            yield _sse(replies.Error(error=failure(answer)))
            return
        yield self._chunk(replies.Delta(), _finish(answer))
        if self._usage:
            yield _sse(
                replies.Chunk(
                    id=self._id,
                    created=self._created,
                    model=self._model,
                    choices=[],
                    usage=_usage(answer),
                )
            )
        yield DONE

    def _call(self, call: replies.Call) -> bytes:
        numbered = msgspec.structs.replace(call, index=self._calls - 1)
        return self._chunk(replies.Delta(tool_calls=[numbered]))

    def _chunk(self, delta: replies.Delta, finish: replies.FinishReason | None = None) -> bytes:
        return _sse(
            replies.Chunk(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=[replies.ChunkChoice(delta=delta, finish_reason=finish)],
                usage=None if self._usage else UNSET,
            )
        )


def failure(answer: Answer) -> replies.ErrorBody:
    error = answer.error or AnswerError("server_error", "The answer failed.")
    return replies.ErrorBody(message=error.message, code=error.code)


def _sse(event: replies.Chunk | replies.Error) -> bytes:
    return b"data: %s\n\n" % _encoder.encode(event)


def _id(answer: Answer) -> str:
    return "chatcmpl-" + answer.id.removeprefix("resp_")


def _finish(answer: Answer) -> replies.FinishReason:
    if answer.reason == "max_output_tokens":
        return "length"
    called = any(isinstance(item, CallItem) for item in answer.items)
    return "tool_calls" if called else "stop"


def _usage(answer: Answer) -> replies.Usage:
    usage = answer.usage or Usage()
    return replies.Usage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        prompt_tokens_details=replies.PromptDetails(cached_tokens=usage.cached_tokens),
    )
