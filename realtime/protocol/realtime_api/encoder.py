"""Tells to server events, in the order every client understands."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypedDict, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.errors import Refusal
from continuo.realtime.ids import fresh
from continuo.realtime.protocol.events import (
    AnswerEnded,
    AnswerInterrupted,
    AnswerStarted,
    ArgumentsDelta,
    Configured,
    ItemAdded,
    ItemDropped,
    ItemFetched,
    ItemTruncated,
    Level,
    Opened,
    OutputEnded,
    OutputStarted,
    Resume,
    Resumed,
    Rewind,
    Tell,
    TextAppended,
    TextCleared,
    TextCommitted,
    TextDelta,
)
from continuo.realtime.protocol.items import CallItem, CallOutputItem, Item, MessageItem, Part
from continuo.realtime.protocol.realtime_api import server_events
from continuo.realtime.protocol.realtime_api.extras import INTERRUPTED, Extras
from continuo.realtime.protocol.response import Answer, AnswerError, Usage
from continuo.realtime.protocol.settings import Settings, Tool, ToolChoice, Truncation

Name = Callable[[int], str]
"""The event id of the nth event, from 1, that a Tell becomes."""


class Voice:
    """One connection's."""

    def __init__(
        self, session_id: str, model: str, levels: Callable[[], Sequence[Level]] = tuple
    ) -> None:
        """`levels`: what the client may still do."""
        self._levels = levels
        self.session_id = session_id
        self.model = model
        self._name: Name = str
        self._said = 0
        self._include: tuple[str, ...] = ()
        """Of the session, as its client has been told last."""

    def say(self, tell: Tell, name: Name) -> list[server_events.ServerEvent]:
        if isinstance(tell, TextDelta):  # nearly all there is to say
            return [_text_delta(tell, name(1))]
        self._name, self._said = name, 0
        return list(self._say(tell))

    def _say(self, tell: Tell) -> Iterator[server_events.ServerEvent]:
        if isinstance(tell, Opened | Resumed | Configured):
            self._include = Extras.of(tell.settings).include
        match tell:
            case Opened(settings=settings, resume=resume):
                session = self.session(settings, resume)
                yield server_events.SessionCreated(event_id=self._id(), session=session)
            case Resumed(settings=settings, resume=resume):
                session = self.session(settings, resume)
                yield server_events.SessionUpdated(event_id=self._id(), session=session)
            case Configured(settings=settings, rewind=rewind):
                yield server_events.SessionUpdated(
                    event_id=self._id(),
                    session=self.session(settings),
                    rewind=rewind_out(rewind),
                )
            case ItemAdded(item=item, previous=previous, rewind=rewind):
                shape = item_out(item)
                yield server_events.ItemAdded(
                    event_id=self._id(),
                    previous_item_id=previous,
                    item=shape,
                    rewind=rewind_out(rewind),
                )
                yield server_events.ItemDone(
                    event_id=self._id(), previous_item_id=previous, item=shape
                )
            case ItemFetched(item=item):
                yield server_events.ItemRetrieved(event_id=self._id(), item=item_out(item))
            case ItemDropped(item_id=item_id, rewind=rewind):
                yield server_events.ItemDeleted(
                    event_id=self._id(), item_id=item_id, rewind=rewind_out(rewind)
                )
            case ItemTruncated(item_id=item_id, content_index=index):
                yield server_events.ItemTruncated(
                    event_id=self._id(),
                    item_id=item_id,
                    content_index=index,
                    audio_end_ms=tell.audio_end_ms or 0,
                    text_end=UNSET if tell.text_end is None else tell.text_end,
                    rewind=rewind_out(tell.rewind),
                )
            case TextAppended(length=length):
                yield server_events.TextAppended(event_id=self._id(), length=length)
            case TextCleared():
                yield server_events.TextCleared(event_id=self._id())
            case TextCommitted(item_id=item_id, previous=previous):
                yield server_events.TextCommitted(
                    event_id=self._id(), item_id=item_id, previous_item_id=previous
                )
            case AnswerStarted(answer=answer):
                yield server_events.ResponseCreated(
                    event_id=self._id(), response=response_out(answer)
                )
            case OutputStarted():
                yield from self._output_started(tell)
            case TextDelta():
                yield _text_delta(tell, self._id())
            case ArgumentsDelta():
                yield server_events.ArgumentsDelta(
                    event_id=self._id(),
                    response_id=tell.answer_id,
                    item_id=tell.item_id,
                    output_index=tell.index,
                    call_id=tell.call_id,
                    delta=tell.text,
                )
            case OutputEnded():
                yield from self._output_ended(tell)
            case AnswerEnded(answer=answer):
                yield server_events.ResponseDone(event_id=self._id(), response=response_out(answer))
                yield server_events.RateLimitsUpdated(
                    event_id=self._id(),
                    rate_limits=[_rate_limit(level) for level in self._levels()],
                )
            case AnswerInterrupted(answer_id=answer_id, item_id=item_id, upto=upto):
                if INTERRUPTED in self._include:
                    yield server_events.ResponseInterrupted(
                        event_id=self._id(), response_id=answer_id, item_id=item_id, upto=upto
                    )
            case _:
                assert_never(tell)

    def refuse(
        self, refusal: Refusal, event_id: str | None, name: str | None = None
    ) -> server_events.Error:
        """`name`: its own event id."""
        return server_events.Error(
            event_id=name or fresh("event"),
            error=server_events.ErrorBody(
                type=refusal.kind,
                code=refusal.code,
                message=refusal.message,
                param=refusal.param,
                event_id=refusal.event_id or event_id,
            ),
        )

    def audio_cleared(self, name: str) -> server_events.AudioCleared:
        return server_events.AudioCleared(event_id=name)

    def closed(self, name: str, reason: str) -> server_events.SessionClosed:
        return server_events.SessionClosed(event_id=name, reason=reason)

    def _output_started(self, tell: OutputStarted) -> Iterator[server_events.ServerEvent]:
        shape = item_out(tell.item)
        yield server_events.OutputItemAdded(
            event_id=self._id(), response_id=tell.answer_id, output_index=tell.index, item=shape
        )
        if not tell.apart:
            yield server_events.ItemAdded(
                event_id=self._id(), previous_item_id=tell.previous, item=shape
            )
        if isinstance(tell.item, MessageItem):
            yield server_events.ContentPartAdded(
                event_id=self._id(),
                response_id=tell.answer_id,
                item_id=tell.item.id,
                output_index=tell.index,
                content_index=0,
                part=server_events.PartOut(type="text", text=""),
            )

    def _output_ended(self, tell: OutputEnded) -> Iterator[server_events.ServerEvent]:
        item, answer_id, index = tell.item, tell.answer_id, tell.index
        match item:
            case MessageItem():
                text = "".join(part.text for part in item.parts)
                yield server_events.TextDone(
                    event_id=self._id(),
                    response_id=answer_id,
                    item_id=item.id,
                    output_index=index,
                    content_index=0,
                    text=text,
                )
                yield server_events.ContentPartDone(
                    event_id=self._id(),
                    response_id=answer_id,
                    item_id=item.id,
                    output_index=index,
                    content_index=0,
                    part=server_events.PartOut(type="text", text=text),
                )
            case CallItem():
                yield server_events.ArgumentsDone(
                    event_id=self._id(),
                    response_id=answer_id,
                    item_id=item.id,
                    output_index=index,
                    call_id=item.call_id,
                    name=item.name,
                    arguments=item.arguments,
                )
            case _:
                assert_never(item)
        shape = item_out(item)
        yield server_events.OutputItemDone(
            event_id=self._id(), response_id=answer_id, output_index=index, item=shape
        )
        if not tell.apart:
            yield server_events.ItemDone(
                event_id=self._id(), previous_item_id=tell.previous, item=shape
            )

    def session(self, settings: Settings, resume: Resume | None = None) -> server_events.SessionOut:
        extras = Extras.of(settings)
        return server_events.SessionOut(
            id=self.session_id,
            model=self.model,
            instructions=settings.instructions,
            tools=[tool_out(tool) for tool in settings.tools],
            tool_choice=_choice(settings.tool_choice),
            parallel_tool_calls=settings.parallel_tool_calls,
            max_output_tokens=_tokens(settings),
            output_modalities=["text"],
            audio=server_events.SessionAudio(output=server_events.AudioOut(voice=extras.voice)),
            truncation=_truncation(settings.truncation),
            include=list(extras.include) or None,
            resume=UNSET if resume is None else resume_out(resume),
            **_sampling(settings),
        )

    def _id(self) -> str:
        self._said += 1
        return self._name(self._said)


def _text_delta(tell: TextDelta, name: str) -> server_events.TextDelta:
    return server_events.TextDelta(
        event_id=name,
        response_id=tell.answer_id,
        item_id=tell.item_id,
        output_index=tell.index,
        content_index=0,
        delta=tell.text,
    )


def resume_out(resume: Resume) -> server_events.ResumeOut:
    return server_events.ResumeOut(
        session_id=resume.session_id,
        epoch=resume.epoch,
        window_s=resume.window_s,
        expires_at=resume.expires_at,
        token=UNSET if resume.token is None else resume.token,
        resumed=resume.resumed,
        kv=resume.kv,
    )


def _rate_limit(level: Level) -> server_events.RateLimit:
    return server_events.RateLimit(
        name=level.name,
        limit=level.limit,
        remaining=level.remaining,
        reset_seconds=round(level.reset_s, 3),
    )


def rewind_out(rewind: Rewind | None) -> server_events.RewindOut | UnsetType:
    if rewind is None:
        return UNSET
    return server_events.RewindOut(
        kept_tokens=rewind.kept_tokens, prefill_tokens=rewind.prefill_tokens
    )


def response_out(answer: Answer) -> server_events.ResponseOut:
    return server_events.ResponseOut(
        id=answer.id,
        status=answer.status,
        status_details=_details(answer),
        output=[item_out(item) for item in answer.items],
        conversation_id=answer.conversation,
        output_modalities=["text"],
        max_output_tokens=_tokens(answer.settings),
        audio=server_events.ResponseAudio(
            output=server_events.AudioOut(voice=Extras.of(answer.settings).voice)
        ),
        usage=None if answer.usage is None else usage_out(answer.usage),
        metadata=answer.metadata,
        **_sampling(answer.settings),
    )


def item_out(item: Item) -> server_events.ItemOut:
    match item:
        case MessageItem():
            return server_events.MessageOut(
                id=item.id,
                status=item.status,
                role=item.role,
                content=[_part(part) for part in item.parts],
            )
        case CallItem():
            return server_events.FunctionCallOut(
                id=item.id,
                status=item.status,
                call_id=item.call_id,
                name=item.name,
                arguments=item.arguments,
            )
        case CallOutputItem():
            return server_events.FunctionCallOutputOut(
                id=item.id, status=item.status, call_id=item.call_id, output=item.output
            )
        case _:
            assert_never(item)


def tool_out(tool: Tool) -> server_events.ToolOut:
    return server_events.ToolOut(
        name=tool.name,
        description=UNSET if tool.description is None else tool.description,
        parameters=msgspec.Raw(tool.parameters.encode()),
        strict=tool.strict or UNSET,
    )


def usage_out(usage: Usage) -> server_events.UsageOut:
    return server_events.UsageOut(
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        input_token_details=server_events.InputDetails(
            text_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            cached_tokens_details=server_events.CachedDetails(text_tokens=usage.cached_tokens),
        ),
        output_token_details=server_events.OutputDetails(text_tokens=usage.output_tokens),
        timing=server_events.Timing(
            queued_s=usage.queued_s, prefill_s=usage.prefill_s, model_s=usage.model_s
        ),
        residency=usage.residency,
    )


def _part(part: Part) -> server_events.PartOut:
    if part.kind == "input_audio":
        return server_events.PartOut(type="input_audio", transcript=part.text)
    return server_events.PartOut(type=part.kind, text=part.text)


def _details(answer: Answer) -> server_events.StatusDetails | None:
    reason = UNSET if answer.reason is None else answer.reason
    match answer.status:
        case "in_progress" | "completed":
            return None
        case "cancelled" | "incomplete":
            return server_events.StatusDetails(type=answer.status, reason=reason)
        case "failed":
            error = answer.error or AnswerError("server_error", "The answer failed.")
            return server_events.StatusDetails(
                type="failed",
                error=server_events.ErrorDetail(code=error.code, message=error.message),
            )
        case _:
            assert_never(answer.status)


def _choice(choice: ToolChoice) -> str | server_events.ToolChoiceOut:
    return server_events.ToolChoiceOut(name=choice.name) if choice.name is not None else choice.mode


def _truncation(
    truncation: Truncation,
) -> Literal["auto", "disabled"] | server_events.RetentionOut:
    if truncation.mode != "retention_ratio":
        return truncation.mode
    after = truncation.after_instructions
    return server_events.RetentionOut(
        retention_ratio=truncation.ratio,
        token_limits=UNSET if after is None else server_events.TokenLimits(post_instructions=after),
    )


def _tokens(settings: Settings) -> int | Literal["inf"]:
    return "inf" if settings.max_output_tokens is None else settings.max_output_tokens


class _Sampling(TypedDict):
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    stop: list[str]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    ignore_eos: bool


def _sampling(settings: Settings) -> _Sampling:
    sampling = settings.sampling
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop),
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": sampling.ignore_eos,
    }
