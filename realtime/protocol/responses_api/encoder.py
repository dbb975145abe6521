"""Encoding of the events of a response as server events. Pure.

The encoding is deterministic: a replay of the event stream yields the same server events with the
same sequence numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypedDict, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.encoded_array import EMPTY_ARRAY, EncodedArray
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
from continuo.realtime.protocol.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    OutputItem,
    ReasoningItem,
)
from continuo.realtime.protocol.reasoning import encode_reasoning
from continuo.realtime.protocol.response import (
    Response,
    ResponseError,
    ResponseStatus,
    Usage,
)
from continuo.realtime.protocol.responses_api import server_events
from continuo.realtime.protocol.responses_api.extras import Extras
from continuo.realtime.protocol.settings import GenerationSettings, Tool, ToolChoice
from continuo.realtime.protocol.token_logprobs import add_logprobs, encode_logprobs


class Encoder:
    """Encode and number the events of one response. `stream_id` names its stream queue."""

    def __init__(self, stream_id: str | None = None) -> None:
        self._stream_id: str | UnsetType = UNSET if stream_id is None else stream_id
        self._next_sequence_number = 0
        self._reasoning_items = 0
        """Number of reasoning items so far, which are output items here."""
        self._logprobs = EncodedArray()
        """Tokens of the current message; empty if they were not requested."""
        self._logprobs_of_items: dict[str, msgspec.Raw] = {}
        """Tokens of the messages that have ended, by the id of the item."""

    def encode(self, event: ResponseEvent) -> Iterator[server_events.ResponseStreamEvent]:
        shift = self._reasoning_items
        match event:
            case ResponseStarted(response=response):
                response_out = encode_response(response)
                yield server_events.ResponseCreated(
                    **self._next_sequence_fields(), response=response_out
                )
                yield server_events.ResponseInProgress(
                    **self._next_sequence_fields(), response=response_out
                )
            case OutputItemStarted(index=index, item=item):
                if isinstance(item, MessageItem):
                    self._logprobs = EncodedArray()
                yield from self._encode_output_item_started(index + shift, item)
            case TextDelta(index=index, item_id=item_id, text=text, logprobs=tokens):
                add_logprobs(self._logprobs, tokens)
                yield server_events.TextDelta(
                    **self._next_sequence_fields(),
                    item_id=item_id,
                    output_index=index + shift,
                    delta=text,
                    logprobs=self._logprobs.take_new(),
                )
            case ReasoningDelta(index=index, item_id=item_id, text=text):
                yield server_events.ReasoningTextDelta(
                    **self._next_sequence_fields(),
                    item_id=item_id,
                    output_index=index + shift,
                    delta=text,
                )
            case ArgumentsDelta(index=index, item_id=item_id, text=text):
                yield server_events.ArgumentsDelta(
                    **self._next_sequence_fields(),
                    item_id=item_id,
                    output_index=index + shift,
                    delta=text,
                )
            case OutputItemEnded(index=index, item=item):
                yield from self._encode_output_item_ended(index + shift, item)
                self._reasoning_items += isinstance(item, ReasoningItem)
            case ResponseSteered(response_id=response_id, steer_id=steer_id):
                steer = server_events.SteerOut(id=steer_id, previous_response_id=response_id)
                yield server_events.SteerAccepted(**self._next_sequence_fields(), steer=steer)
            case ResponseEnded(response=response):
                yield self._encode_response_ended(response)
            case _:
                assert_never(event)

    def encode_steer_pending(
        self, steer_id: str, response_id: str, required_calls: Sequence[FunctionCallItem]
    ) -> server_events.SteerPending:
        return server_events.SteerPending(
            **self._next_sequence_fields(),
            steer=server_events.SteerOut(id=steer_id, previous_response_id=response_id),
            required_input=[
                server_events.RequiredFunctionOutput(call_id=call.call_id, name=call.name)
                for call in required_calls
            ],
        )

    def encode_steer_failed(
        self,
        response_id: str,
        rejected_input: msgspec.Raw,
        refusal: Refusal,
        steer_id: str | None = None,
    ) -> server_events.SteerFailed:
        return server_events.SteerFailed(
            **self._next_sequence_fields(),
            steer=server_events.ReturnedSteer(
                previous_response_id=response_id,
                input=rejected_input,
                id=UNSET if steer_id is None else steer_id,
            ),
            error=server_events.SteerError(code=refusal.code, message=refusal.message),
        )

    def _encode_output_item_started(
        self, index: int, item: OutputItem
    ) -> Iterator[server_events.ResponseStreamEvent]:
        yield server_events.OutputItemAdded(
            **self._next_sequence_fields(), output_index=index, item=encode_item(item)
        )
        if isinstance(item, FunctionCallItem):
            return
        is_message = isinstance(item, MessageItem)
        yield server_events.ContentPartAdded(
            **self._next_sequence_fields(),
            item_id=item.id,
            output_index=index,
            part=server_events.TextPart(text="")
            if is_message
            else server_events.ReasoningTextPart(text=""),
        )

    def _encode_output_item_ended(
        self, index: int, item: OutputItem
    ) -> Iterator[server_events.ResponseStreamEvent]:
        if isinstance(item, ReasoningItem):
            yield server_events.ReasoningTextDone(
                **self._next_sequence_fields(), item_id=item.id, output_index=index, text=item.text
            )
            yield server_events.ContentPartDone(
                **self._next_sequence_fields(),
                item_id=item.id,
                output_index=index,
                part=server_events.ReasoningTextPart(text=item.text),
            )
        elif isinstance(item, MessageItem):
            text = "".join(part.text for part in item.parts)
            logprobs = self._logprobs_of_items[item.id] = self._logprobs.read()
            yield server_events.TextDone(
                **self._next_sequence_fields(),
                item_id=item.id,
                output_index=index,
                text=text,
                logprobs=logprobs,
            )
            yield server_events.ContentPartDone(
                **self._next_sequence_fields(),
                item_id=item.id,
                output_index=index,
                part=server_events.TextPart(text=text, logprobs=logprobs),
            )
        else:
            yield server_events.ArgumentsDone(
                **self._next_sequence_fields(),
                item_id=item.id,
                output_index=index,
                name=item.name,
                arguments=item.arguments,
            )
        yield server_events.OutputItemDone(
            **self._next_sequence_fields(),
            output_index=index,
            item=encode_item(item, self._logprobs_of_items.get(item.id, EMPTY_ARRAY)),
        )

    def _encode_response_ended(self, response: Response) -> server_events.ResponseStreamEvent:
        response_out = encode_response(response, self._logprobs_of_items)
        match response_out.status:
            case "completed":
                return server_events.ResponseCompleted(
                    **self._next_sequence_fields(), response=response_out
                )
            case "incomplete" | "cancelled":
                return server_events.ResponseIncomplete(
                    **self._next_sequence_fields(), response=response_out
                )
            case "failed":
                return server_events.ResponseFailed(
                    **self._next_sequence_fields(), response=response_out
                )
            case "in_progress":
                raise AssertionError("a response that has ended is not in progress")
            case _:
                assert_never(response_out.status)

    def _next_sequence_fields(self) -> "_SequenceFields":
        self._next_sequence_number += 1
        return {"sequence_number": self._next_sequence_number - 1, "stream_id": self._stream_id}


class _SequenceFields(TypedDict):
    sequence_number: int
    stream_id: str | UnsetType


def encode_error(refusal: Refusal, stream_id: str | None = None) -> server_events.Error:
    return server_events.Error(
        status=refusal.http_status,
        error=server_events.ErrorBody(
            type=refusal.kind, code=refusal.code, message=refusal.message, param=refusal.param
        ),
        stream_id=UNSET if stream_id is None else stream_id,
    )


def encode_response(
    response: Response, logprobs: Mapping[str, msgspec.Raw] | None = None
) -> server_events.ResponseOut:
    """Encode a response. `logprobs`: tokens that are encoded already, by the id of their item."""
    encoded = dict(logprobs or {})
    for item_id, tokens in response.logprobs.items():
        if item_id not in encoded:
            encoded[item_id] = encode_logprobs(tokens)
    settings, extras = response.settings, Extras.from_settings(response.settings)
    return server_events.ResponseOut(
        id=response.id,
        created_at=response.created_s,
        completed_at=response.ended_s if response.status == "completed" else None,
        conversation=(
            UNSET
            if response.conversation is None
            else server_events.ConversationRef(id=response.conversation)
        ),
        status=_encode_status(response.status, background=extras.background),
        background=extras.background,
        error=_encode_response_error(response),
        incomplete_details=_encode_incomplete_details(response, background=extras.background),
        instructions=settings.instructions or None,
        max_output_tokens=settings.max_output_tokens,
        model=extras.model,
        output=[encode_item(item, encoded.get(item.id, EMPTY_ARRAY)) for item in response.items],
        parallel_tool_calls=settings.parallel_tool_calls,
        previous_response_id=response.previous,
        reasoning=_encode_reasoning(settings),
        store=response.is_stored,
        temperature=settings.sampling.temperature,
        text=extras.text,
        tool_choice=_encode_tool_choice(settings.tool_choice),
        tools=[_encode_tool(tool) for tool in settings.tools],
        top_logprobs=UNSET if settings.sampling.logprobs is None else settings.sampling.logprobs,
        top_p=settings.sampling.top_p,
        truncation="disabled" if settings.truncation.mode == "disabled" else "auto",
        usage=None if response.usage is None else encode_usage(response.usage),
        metadata=response.metadata or {},
    )


def encode_item(item: Item, logprobs: msgspec.Raw = EMPTY_ARRAY) -> server_events.ItemOut:
    """Encode an item of the output. `logprobs`: tokens of a message, which has one part."""
    match item:
        case MessageItem():
            return server_events.MessageOut(
                id=item.id,
                status=item.status,
                role=item.role,
                content=[
                    server_events.TextPart(text=part.text, logprobs=logprobs) for part in item.parts
                ],
            )
        case FunctionCallItem():
            return server_events.FunctionCallOut(
                id=item.id,
                status=item.status,
                call_id=item.call_id,
                name=item.name,
                arguments=item.arguments,
            )
        case ReasoningItem():
            return server_events.ReasoningItemOut(
                id=item.id,
                status=item.status,
                content=[server_events.ReasoningTextPart(text=item.text)] if item.text else [],
            )
        case FunctionCallOutputItem():
            raise AssertionError("responses contain no function call outputs")
        case _:
            assert_never(item)


def encode_input_item(item: Item) -> server_events.InputItemOut:
    """Encode an item of the input, or of a conversation."""
    match item:
        case MessageItem(role="assistant") | FunctionCallItem() | ReasoningItem():
            return encode_item(item)
        case MessageItem():
            return server_events.MessageOut(
                id=item.id,
                status=item.status,
                role=item.role,
                content=[server_events.InputPart(text=part.text) for part in item.parts],
            )
        case FunctionCallOutputItem():
            return server_events.FunctionCallOutputOut(
                id=item.id, status=item.status, call_id=item.call_id, output=item.output
            )
        case _:
            assert_never(item)


def encode_item_page(items: Sequence[Item], *, has_more: bool) -> server_events.ItemList:
    """Encode a page of a list of items."""
    return server_events.ItemList(
        data=[encode_input_item(item) for item in items],
        first_id=items[0].id if items else None,
        last_id=items[-1].id if items else None,
        has_more=has_more,
    )


def encode_usage(usage: Usage) -> server_events.UsageOut:
    return server_events.UsageOut(
        input_tokens=usage.input_tokens,
        input_tokens_details=server_events.InputDetails(
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.input_tokens - usage.cached_tokens,
        ),
        output_tokens=usage.output_tokens,
        output_tokens_details=server_events.OutputDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.input_tokens + usage.output_tokens,
        timing=server_events.Timing(
            queued_s=usage.queued_s, prefill_s=usage.prefill_s, model_s=usage.model_s
        ),
        residency=usage.residency,
    )


def _encode_reasoning(settings: GenerationSettings) -> server_events.Reasoning:
    reasoning = encode_reasoning(settings.reasoning)
    if reasoning is None:
        return server_events.Reasoning()
    return server_events.Reasoning(effort=reasoning.effort, max_tokens=reasoning.max_tokens)


def _encode_status(status: ResponseStatus, *, background: bool) -> server_events.ResponseStatusOut:
    """Encode a status. Only a background response is `cancelled`: clients that wait for the end of
    a stream know no such status."""
    return "incomplete" if status == "cancelled" and not background else status


def _encode_incomplete_details(
    response: Response, *, background: bool
) -> server_events.IncompleteDetails | None:
    if _encode_status(response.status, background=background) != "incomplete":
        return None
    reason = response.reason or "cancelled"
    return server_events.IncompleteDetails(
        reason="cancelled" if reason == "client_cancelled" else reason
    )


def _encode_response_error(response: Response) -> server_events.ErrorOut | None:
    if response.status != "failed":
        return None
    error = response.error or ResponseError("server_error", "The response failed.")
    return server_events.ErrorOut(code="server_error", message=f"{error.message} ({error.code})")


def _encode_tool(tool: Tool) -> server_events.ToolOut:
    return server_events.ToolOut(
        name=tool.name,
        description=tool.description,
        parameters=msgspec.Raw(tool.parameters.encode()),
        strict=tool.strict,
    )


def _encode_tool_choice(
    choice: ToolChoice,
) -> Literal["auto", "none", "required"] | str | server_events.ToolChoiceOut:
    return server_events.ToolChoiceOut(name=choice.name) if choice.name is not None else choice.mode
