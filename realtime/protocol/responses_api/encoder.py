"""What is told of an answer, to server events. Pure.

The events of a response are a function of what was told of it, number by number: whoever hears the
recording again hears the same events under the same numbers.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, TypedDict, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.errors import Refusal
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
from continuo.realtime.protocol.items import CallItem, CallOutputItem, Item, MessageItem
from continuo.realtime.protocol.response import Answer, AnswerError, AnswerStatus, Usage
from continuo.realtime.protocol.responses_api import server_events
from continuo.realtime.protocol.responses_api.extras import Extras
from continuo.realtime.protocol.settings import Tool, ToolChoice


class Voice:
    """Of one response: numbers its events. `stream_id` is its lane."""

    def __init__(self, stream_id: str | None = None) -> None:
        self._stream_id: str | UnsetType = UNSET if stream_id is None else stream_id
        self._next = 0

    def say(self, told: Told) -> Iterator[server_events.ResponseEvent]:
        match told:
            case AnswerStarted(answer=answer):
                response = response_out(answer)
                yield server_events.Created(**self._numbered(), response=response)
                yield server_events.InProgress(**self._numbered(), response=response)
            case OutputStarted(index=index, item=item):
                yield server_events.ItemAdded(
                    **self._numbered(), output_index=index, item=item_out(item)
                )
                if isinstance(item, MessageItem):
                    yield server_events.PartAdded(
                        **self._numbered(),
                        item_id=item.id,
                        output_index=index,
                        part=server_events.TextPart(text=""),
                    )
            case TextDelta(index=index, item_id=item_id, text=text):
                yield server_events.TextDelta(
                    **self._numbered(), item_id=item_id, output_index=index, delta=text
                )
            case ArgumentsDelta(index=index, item_id=item_id, text=text):
                yield server_events.ArgumentsDelta(
                    **self._numbered(), item_id=item_id, output_index=index, delta=text
                )
            case OutputEnded(index=index, item=item):
                yield from self._item_ended(index, item)
            case Steered(answer_id=answer_id, steer_id=steer_id):
                steer = server_events.SteerOut(id=steer_id, previous_response_id=answer_id)
                yield server_events.SteerAccepted(**self._numbered(), steer=steer)
            case AnswerEnded(answer=answer):
                yield self._ended(answer)
            case _:
                assert_never(told)

    def pending(
        self, steer_id: str, answer_id: str, owed: Sequence[CallItem]
    ) -> server_events.SteerPending:
        return server_events.SteerPending(
            **self._numbered(),
            steer=server_events.SteerOut(id=steer_id, previous_response_id=answer_id),
            required_input=[
                server_events.OwedOutput(call_id=call.call_id, name=call.name) for call in owed
            ],
        )

    def steer_failed(
        self, answer_id: str, given: msgspec.Raw, refusal: Refusal, steer_id: str | None = None
    ) -> server_events.SteerFailed:
        return server_events.SteerFailed(
            **self._numbered(),
            steer=server_events.SteerReturned(
                previous_response_id=answer_id,
                input=given,
                id=UNSET if steer_id is None else steer_id,
            ),
            error=server_events.SteerError(code=refusal.code, message=refusal.message),
        )

    def _item_ended(
        self, index: int, item: MessageItem | CallItem
    ) -> Iterator[server_events.ResponseEvent]:
        if isinstance(item, MessageItem):
            text = "".join(part.text for part in item.parts)
            yield server_events.TextDone(
                **self._numbered(), item_id=item.id, output_index=index, text=text
            )
            yield server_events.PartDone(
                **self._numbered(),
                item_id=item.id,
                output_index=index,
                part=server_events.TextPart(text=text),
            )
        else:
            yield server_events.ArgumentsDone(
                **self._numbered(),
                item_id=item.id,
                output_index=index,
                name=item.name,
                arguments=item.arguments,
            )
        yield server_events.ItemDone(**self._numbered(), output_index=index, item=item_out(item))

    def _ended(self, answer: Answer) -> server_events.ResponseEvent:
        response = response_out(answer)
        match response.status:
            case "completed":
                return server_events.Completed(**self._numbered(), response=response)
            case "incomplete":
                return server_events.IncompleteEvent(**self._numbered(), response=response)
            case "failed":
                return server_events.Failed(**self._numbered(), response=response)
            case "in_progress":
                raise AssertionError("an answer that has ended is not in progress")
            case _:
                assert_never(response.status)

    def _numbered(self) -> "_Numbered":
        self._next += 1
        return {"sequence_number": self._next - 1, "stream_id": self._stream_id}


class _Numbered(TypedDict):
    sequence_number: int
    stream_id: str | UnsetType


def error_out(refusal: Refusal, stream_id: str | None = None) -> server_events.Error:
    return server_events.Error(
        status=refusal.status,
        error=server_events.ErrorBody(
            type=refusal.kind, code=refusal.code, message=refusal.message, param=refusal.param
        ),
        stream_id=UNSET if stream_id is None else stream_id,
    )


def response_out(answer: Answer) -> server_events.ResponseOut:
    settings, extras = answer.settings, Extras.of(answer.settings)
    return server_events.ResponseOut(
        id=answer.id,
        created_at=answer.created_s,
        completed_at=answer.ended_s if answer.status == "completed" else None,
        status=_status(answer.status),
        background=extras.background,
        error=_error(answer),
        incomplete_details=_incomplete(answer),
        instructions=settings.instructions or None,
        max_output_tokens=settings.max_output_tokens,
        model=extras.model,
        output=[item_out(item) for item in answer.items],
        parallel_tool_calls=settings.parallel_tool_calls,
        previous_response_id=answer.previous,
        store=answer.kept,
        temperature=settings.sampling.temperature,
        text=extras.text,
        tool_choice=_choice(settings.tool_choice),
        tools=[_tool(tool) for tool in settings.tools],
        top_p=settings.sampling.top_p,
        truncation="disabled" if settings.truncation.mode == "disabled" else "auto",
        usage=None if answer.usage is None else usage_out(answer.usage),
        metadata=answer.metadata or {},
    )


def item_out(item: Item) -> server_events.ItemOut:
    match item:
        case MessageItem():
            return server_events.MessageOut(
                id=item.id,
                status=item.status,
                role=item.role,
                content=[server_events.TextPart(text=part.text) for part in item.parts],
            )
        case CallItem():
            return server_events.CallOut(
                id=item.id,
                status=item.status,
                call_id=item.call_id,
                name=item.name,
                arguments=item.arguments,
            )
        case CallOutputItem():
            raise AssertionError("models do not answer calls")
        case _:
            assert_never(item)


def usage_out(usage: Usage) -> server_events.UsageOut:
    return server_events.UsageOut(
        input_tokens=usage.input_tokens,
        input_tokens_details=server_events.InputDetails(
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.input_tokens - usage.cached_tokens,
        ),
        output_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        timing=server_events.Timing(
            queued_s=usage.queued_s, prefill_s=usage.prefill_s, model_s=usage.model_s
        ),
        residency=usage.residency,
    )


def _status(status: AnswerStatus) -> server_events.Status:
    return "incomplete" if status == "cancelled" else status


def _incomplete(answer: Answer) -> server_events.Incomplete | None:
    if answer.status not in ("incomplete", "cancelled"):
        return None
    reason = answer.reason or "cancelled"
    return server_events.Incomplete(reason="cancelled" if reason == "client_cancelled" else reason)


def _error(answer: Answer) -> server_events.ErrorOut | None:
    if answer.status != "failed":
        return None
    error = answer.error or AnswerError("server_error", "The answer failed.")
    return server_events.ErrorOut(code="server_error", message=f"{error.message} ({error.code})")


def _tool(tool: Tool) -> server_events.ToolOut:
    return server_events.ToolOut(
        name=tool.name,
        description=tool.description,
        parameters=msgspec.Raw(tool.parameters.encode()),
        strict=tool.strict,
    )


def _choice(
    choice: ToolChoice,
) -> Literal["auto", "none", "required"] | str | server_events.ToolChoiceOut:
    return server_events.ToolChoiceOut(name=choice.name) if choice.name is not None else choice.mode
