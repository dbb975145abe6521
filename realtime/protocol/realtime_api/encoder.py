"""Encoding of conversation events as server events, in the order that all clients of the API
accept."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.protocol.events import (
    ArgumentsDelta,
    ContinuityReported,
    ConversationEvent,
    ItemAdded,
    ItemDeleted,
    ItemFetched,
    ItemTruncated,
    OutputItemEnded,
    OutputItemStarted,
    RateLimitStatus,
    ReasoningDelta,
    ResponseEnded,
    ResponseInterrupted,
    ResponseStarted,
    ResumeInfo,
    Rewind,
    SessionConfigured,
    SessionOpened,
    SessionResumed,
    TextAppended,
    TextCleared,
    TextCommitted,
    TextDelta,
)
from continuo.realtime.protocol.items import (
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
)
from continuo.realtime.protocol.realtime_api import server_events
from continuo.realtime.protocol.realtime_api.extras import (
    INCLUDE_CONTINUITY,
    INCLUDE_INTERRUPTED,
    INCLUDE_REASONING,
    Extras,
)
from continuo.realtime.protocol.reasoning import encode_reasoning
from continuo.realtime.protocol.response import Response, ResponseError, Usage
from continuo.realtime.protocol.sampling import sampling_fields
from continuo.realtime.protocol.settings import GenerationSettings, Tool, ToolChoice, Truncation

EventIdFactory = Callable[[int], str]
"""Returns the event id for the nth server event, counted from 1, that encodes one conversation
event."""


class Encoder:
    """Encode the events of one connection."""

    def __init__(
        self,
        session_id: str,
        model: str,
        rate_limits: Callable[[], Sequence[RateLimitStatus]] = tuple,
    ) -> None:
        """`rate_limits` returns the current levels of the client's token buckets."""
        self._rate_limits = rate_limits
        self.session_id = session_id
        self.model = model
        self._new_event_id: EventIdFactory = str
        self._encoded_events = 0
        self._include: tuple[str, ...] = ()
        """The session's `include`, as last sent to its client."""

    def encode(
        self, event: ConversationEvent, new_event_id: EventIdFactory
    ) -> list[server_events.ServerEvent]:
        if isinstance(event, TextDelta):  # fast path: nearly all events are deltas
            return [_encode_text_delta(event, new_event_id(1))]
        self._new_event_id, self._encoded_events = new_event_id, 0
        return list(self._encode(event))

    def _encode(  # noqa: C901 - one case per conversation event
        self, event: ConversationEvent
    ) -> Iterator[server_events.ServerEvent]:
        if isinstance(event, SessionOpened | SessionResumed | SessionConfigured):
            self._include = Extras.from_settings(event.settings).include
        match event:
            case SessionOpened(settings=settings, resume=resume):
                session = self.encode_session(settings, resume)
                yield server_events.SessionCreated(event_id=self._next_event_id(), session=session)
            case SessionResumed(settings=settings, resume=resume):
                session = self.encode_session(settings, resume)
                yield server_events.SessionUpdated(event_id=self._next_event_id(), session=session)
            case SessionConfigured(settings=settings, rewind=rewind):
                yield server_events.SessionUpdated(
                    event_id=self._next_event_id(),
                    session=self.encode_session(settings),
                    rewind=encode_rewind(rewind),
                )
            case ItemAdded(item=item, previous_item_id=previous, rewind=rewind):
                item_out = encode_item(item)
                yield server_events.ItemAdded(
                    event_id=self._next_event_id(),
                    previous_item_id=previous,
                    item=item_out,
                    rewind=encode_rewind(rewind),
                )
                yield server_events.ItemDone(
                    event_id=self._next_event_id(), previous_item_id=previous, item=item_out
                )
            case ItemFetched(item=item):
                yield server_events.ItemRetrieved(
                    event_id=self._next_event_id(), item=encode_item(item)
                )
            case ItemDeleted(item_id=item_id, rewind=rewind):
                yield server_events.ItemDeleted(
                    event_id=self._next_event_id(), item_id=item_id, rewind=encode_rewind(rewind)
                )
            case ItemTruncated(item_id=item_id, content_index=index):
                yield server_events.ItemTruncated(
                    event_id=self._next_event_id(),
                    item_id=item_id,
                    content_index=index,
                    audio_end_ms=event.audio_end_ms or 0,
                    text_end=UNSET if event.text_end is None else event.text_end,
                    rewind=encode_rewind(event.rewind),
                )
            case TextAppended(length=length):
                yield server_events.TextAppended(event_id=self._next_event_id(), length=length)
            case TextCleared():
                yield server_events.TextCleared(event_id=self._next_event_id())
            case TextCommitted(item_id=item_id, previous_item_id=previous):
                yield server_events.TextCommitted(
                    event_id=self._next_event_id(), item_id=item_id, previous_item_id=previous
                )
            case ResponseStarted(response=response):
                yield server_events.ResponseCreated(
                    event_id=self._next_event_id(), response=encode_response(response)
                )
            case OutputItemStarted():
                yield from self._encode_output_item_started(event)
            case TextDelta():
                yield _encode_text_delta(event, self._next_event_id())
            case ReasoningDelta():
                if INCLUDE_REASONING in self._include:
                    yield server_events.ReasoningTextDelta(
                        event_id=self._next_event_id(),
                        response_id=event.response_id,
                        item_id=event.item_id,
                        delta=event.text,
                    )
            case ArgumentsDelta():
                yield server_events.ArgumentsDelta(
                    event_id=self._next_event_id(),
                    response_id=event.response_id,
                    item_id=event.item_id,
                    output_index=event.index,
                    call_id=event.call_id,
                    delta=event.text,
                )
            case OutputItemEnded():
                yield from self._encode_output_item_ended(event)
            case ResponseEnded(response=response):
                yield server_events.ResponseDone(
                    event_id=self._next_event_id(), response=encode_response(response)
                )
                yield server_events.RateLimitsUpdated(
                    event_id=self._next_event_id(),
                    rate_limits=[_encode_rate_limit(level) for level in self._rate_limits()],
                )
            case ResponseInterrupted(response_id=response_id, item_id=item_id, sent_chars=upto):
                if INCLUDE_INTERRUPTED in self._include:
                    yield server_events.ResponseInterrupted(
                        event_id=self._next_event_id(),
                        response_id=response_id,
                        item_id=item_id,
                        upto=upto,
                    )
            case ContinuityReported(status=status):
                if INCLUDE_CONTINUITY in self._include:
                    yield server_events.SessionContinuity(
                        event_id=self._next_event_id(), status=status
                    )
            case _:
                assert_never(event)

    def encode_refusal(
        self, refusal: Refusal, client_event_id: str | None, own_event_id: str | None = None
    ) -> server_events.Error:
        """Encode a refusal as an `error` event. `client_event_id` is that of the refused event,
        `own_event_id` that of the error itself."""
        return server_events.Error(
            event_id=own_event_id or generate_id("event"),
            error=server_events.ErrorBody(
                type=refusal.kind,
                code=refusal.code,
                message=refusal.message,
                param=refusal.param,
                event_id=refusal.event_id or client_event_id,
            ),
        )

    def encode_audio_cleared(self, event_id: str) -> server_events.AudioCleared:
        return server_events.AudioCleared(event_id=event_id)

    def encode_session_closed(self, event_id: str, reason: str) -> server_events.SessionClosed:
        return server_events.SessionClosed(event_id=event_id, reason=reason)

    def _encode_output_item_started(
        self, event: OutputItemStarted
    ) -> Iterator[server_events.ServerEvent]:
        if isinstance(event.item, ReasoningItem):
            return
        item_out = encode_item(event.item)
        yield server_events.OutputItemAdded(
            event_id=self._next_event_id(),
            response_id=event.response_id,
            output_index=event.index,
            item=item_out,
        )
        if not event.is_out_of_band:
            yield server_events.ItemAdded(
                event_id=self._next_event_id(), previous_item_id=event.previous, item=item_out
            )
        if isinstance(event.item, MessageItem):
            yield server_events.ContentPartAdded(
                event_id=self._next_event_id(),
                response_id=event.response_id,
                item_id=event.item.id,
                output_index=event.index,
                content_index=0,
                part=server_events.PartOut(type="text", text=""),
            )

    def _encode_output_item_ended(
        self, event: OutputItemEnded
    ) -> Iterator[server_events.ServerEvent]:
        item, response_id, index = event.item, event.response_id, event.index
        match item:
            case ReasoningItem():
                if INCLUDE_REASONING in self._include:
                    yield server_events.ReasoningTextDone(
                        event_id=self._next_event_id(),
                        response_id=response_id,
                        item_id=item.id,
                        text=item.text,
                    )
                return
            case MessageItem():
                text = "".join(part.text for part in item.parts)
                yield server_events.TextDone(
                    event_id=self._next_event_id(),
                    response_id=response_id,
                    item_id=item.id,
                    output_index=index,
                    content_index=0,
                    text=text,
                )
                yield server_events.ContentPartDone(
                    event_id=self._next_event_id(),
                    response_id=response_id,
                    item_id=item.id,
                    output_index=index,
                    content_index=0,
                    part=server_events.PartOut(type="text", text=text),
                )
            case FunctionCallItem():
                yield server_events.ArgumentsDone(
                    event_id=self._next_event_id(),
                    response_id=response_id,
                    item_id=item.id,
                    output_index=index,
                    call_id=item.call_id,
                    name=item.name,
                    arguments=item.arguments,
                )
            case _:
                assert_never(item)
        item_out = encode_item(item)
        yield server_events.OutputItemDone(
            event_id=self._next_event_id(),
            response_id=response_id,
            output_index=index,
            item=item_out,
        )
        if not event.is_out_of_band:
            yield server_events.ItemDone(
                event_id=self._next_event_id(), previous_item_id=event.previous, item=item_out
            )

    def encode_session(
        self, settings: GenerationSettings, resume: ResumeInfo | None = None
    ) -> server_events.SessionOut:
        extras = Extras.from_settings(settings)
        return server_events.SessionOut(
            id=self.session_id,
            model=self.model,
            instructions=settings.instructions,
            tools=[encode_tool(tool) for tool in settings.tools],
            tool_choice=_encode_tool_choice(settings.tool_choice),
            parallel_tool_calls=settings.parallel_tool_calls,
            max_output_tokens=_encode_max_tokens(settings),
            output_modalities=["text"],
            audio=server_events.SessionAudioOut(
                output=server_events.OutputAudioOut(voice=extras.voice)
            ),
            truncation=_encode_truncation(settings.truncation),
            include=list(extras.include) or None,
            reasoning=encode_reasoning(settings.reasoning) or UNSET,
            resume=UNSET if resume is None else encode_resume(resume),
            **sampling_fields(settings.sampling),
        )

    def _next_event_id(self) -> str:
        self._encoded_events += 1
        return self._new_event_id(self._encoded_events)


def _encode_text_delta(event: TextDelta, event_id: str) -> server_events.TextDelta:
    return server_events.TextDelta(
        event_id=event_id,
        response_id=event.response_id,
        item_id=event.item_id,
        output_index=event.index,
        content_index=0,
        delta=event.text,
    )


def encode_resume(resume: ResumeInfo) -> server_events.ResumeOut:
    return server_events.ResumeOut(
        session_id=resume.session_id,
        epoch=resume.epoch,
        window_s=resume.window_s,
        expires_at=resume.expires_at,
        token=UNSET if resume.token is None else resume.token,
        resumed=resume.resumed,
        kv=resume.kv_residency,
    )


def _encode_rate_limit(status: RateLimitStatus) -> server_events.RateLimitOut:
    return server_events.RateLimitOut(
        name=status.name,
        limit=status.limit_per_minute,
        remaining=status.remaining,
        reset_seconds=round(status.reset_s, 3),
    )


def encode_rewind(rewind: Rewind | None) -> server_events.RewindOut | UnsetType:
    if rewind is None:
        return UNSET
    return server_events.RewindOut(
        kept_tokens=rewind.kept_tokens, prefill_tokens=rewind.prefill_tokens
    )


def encode_response(response: Response) -> server_events.ResponseOut:
    return server_events.ResponseOut(
        id=response.id,
        status=response.status,
        status_details=_encode_status_details(response),
        output=[
            encode_item(item) for item in response.items if not isinstance(item, ReasoningItem)
        ],
        conversation_id=response.conversation,
        output_modalities=["text"],
        max_output_tokens=_encode_max_tokens(response.settings),
        audio=server_events.ResponseAudioOut(
            output=server_events.OutputAudioOut(voice=Extras.from_settings(response.settings).voice)
        ),
        usage=None if response.usage is None else encode_usage(response.usage),
        metadata=response.metadata,
        **sampling_fields(response.settings.sampling),
    )


def encode_item(item: Item) -> server_events.ItemOut:
    match item:
        case MessageItem():
            return server_events.MessageOut(
                id=item.id,
                status=item.status,
                role=item.role,
                content=[_encode_part(part) for part in item.parts],
            )
        case FunctionCallItem():
            return server_events.FunctionCallOut(
                id=item.id,
                status=item.status,
                call_id=item.call_id,
                name=item.name,
                arguments=item.arguments,
            )
        case FunctionCallOutputItem():
            return server_events.FunctionCallOutputOut(
                id=item.id, status=item.status, call_id=item.call_id, output=item.output
            )
        case ReasoningItem():
            raise AssertionError("reasoning is no item of this API")
        case _:
            assert_never(item)


def encode_tool(tool: Tool) -> server_events.ToolOut:
    return server_events.ToolOut(
        name=tool.name,
        description=UNSET if tool.description is None else tool.description,
        parameters=msgspec.Raw(tool.parameters.encode()),
        strict=tool.strict or UNSET,
    )


def encode_usage(usage: Usage) -> server_events.UsageOut:
    return server_events.UsageOut(
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        input_token_details=server_events.InputDetails(
            text_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            cached_tokens_details=server_events.CachedDetails(text_tokens=usage.cached_tokens),
            prefilled_after_commit=usage.prefilled_after_commit,
        ),
        output_token_details=server_events.OutputDetails(
            text_tokens=usage.output_tokens, reasoning_tokens=usage.reasoning_tokens or UNSET
        ),
        timing=server_events.Timing(
            queued_s=usage.queued_s, prefill_s=usage.prefill_s, model_s=usage.model_s
        ),
        residency=usage.residency,
    )


def _encode_part(part: ContentPart) -> server_events.PartOut:
    if part.kind == "input_audio":
        return server_events.PartOut(type="input_audio", transcript=part.text)
    return server_events.PartOut(type=part.kind, text=part.text)


def _encode_status_details(response: Response) -> server_events.StatusDetails | None:
    reason = UNSET if response.reason is None else response.reason
    match response.status:
        case "in_progress" | "completed":
            return None
        case "cancelled" | "incomplete":
            return server_events.StatusDetails(type=response.status, reason=reason)
        case "failed":
            error = response.error or ResponseError("server_error", "The response failed.")
            return server_events.StatusDetails(
                type="failed",
                error=server_events.ErrorDetail(code=error.code, message=error.message),
            )
        case _:
            assert_never(response.status)


def _encode_tool_choice(choice: ToolChoice) -> str | server_events.ToolChoiceOut:
    return server_events.ToolChoiceOut(name=choice.name) if choice.name is not None else choice.mode


def _encode_truncation(
    truncation: Truncation,
) -> Literal["auto", "disabled"] | server_events.RetentionOut:
    if truncation.mode != "retention_ratio":
        return truncation.mode
    after = truncation.after_instructions
    return server_events.RetentionOut(
        retention_ratio=truncation.ratio,
        token_limits=UNSET
        if after is None
        else server_events.TokenLimitsOut(post_instructions=after),
    )


def _encode_max_tokens(settings: GenerationSettings) -> int | Literal["inf"]:
    return "inf" if settings.max_output_tokens is None else settings.max_output_tokens
