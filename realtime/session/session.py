"""A session: executes conversation commands against engine and store, by the state table.

Commands are executed one at a time; a response is generated in its own task meanwhile. All events
pass through the event log to the attached connection. Limits are checked before anything changes: a
Refusal leaves the session unchanged.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Unpack, assert_never

import msgspec

from continuo.engine import (
    EngineError,
    EngineLost,
    SessionInfo,
    StaleEngineFence,
    UnknownEngineSession,
)
from continuo.realtime.conversation.context_window import ContextWindow
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.item_truncation import (
    require_assistant_message,
    truncate_message,
)
from continuo.realtime.conversation.rendering import count_chars, count_head_chars
from continuo.realtime.conversation.text_limits import TextLimits, inline_items
from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_id import EventId
from continuo.realtime.event_log.event_log import EventListener, ReplayGap
from continuo.realtime.generation.engine_port import EnginePort
from continuo.realtime.generation.engine_session import EngineSession
from continuo.realtime.generation.error_mapping import (
    make_timeout_refusal,
    map_engine_error,
    map_store_error,
)
from continuo.realtime.generation.output_grammar import check_enforceable
from continuo.realtime.limits import TEXT_CHARS_MAX, Limits
from continuo.realtime.persistence.token_journal import JournalFlusher
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
    ReplaceText,
    TextBufferCommand,
    TruncateItem,
)
from continuo.realtime.protocol.events import (
    ConversationEvent,
    ItemAdded,
    ItemDeleted,
    ItemFetched,
    ItemTruncated,
    ResponseStarted,
    ResumeInfo,
    Rewind,
    SessionConfigured,
    SessionOpened,
    SessionResumed,
    TextAppended,
    TextCleared,
    TextCommitted,
)
from continuo.realtime.protocol.items import ROOT, ContentPart, MessageItem
from continuo.realtime.protocol.response import KVResidency
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.rate_limit import TenantRateLimits, is_server_fault
from continuo.realtime.session.active_responses import ActiveResponses
from continuo.realtime.session.idempotency_keys import IdempotencyKeys
from continuo.realtime.session.retry_replay import replay
from continuo.realtime.session.state import Action, SessionState, StateMachine, Trigger
from continuo.realtime.session.status import KVStatus, SessionStatus
from continuo.realtime.session.unit_of_work import (
    ChangeOptions,
    ConversationEdit,
    SessionOrigin,
    UnitOfWork,
)
from continuo.realtime.store import IdempotentRequest, LeaseLost, RunningResponse, StoreError

log = logging.getLogger(__name__)

_RESIDENCY_TIMEOUT_S = 0.5
"""Timeout for the engine to report where the KV of a resumed session is."""


class Session:
    """A conversation with its settings, its engine session and its copy in the store."""

    def __init__(
        self,
        session_id: str,
        engine: EnginePort,
        limits: Limits,
        journal_flusher: JournalFlusher,
        unit_of_work: UnitOfWork,
        tenant_rate_limits: TenantRateLimits,
        *,
        cache_scope: str = "",
        is_loaded: bool = False,
    ) -> None:
        """`is_loaded`: the session was loaded from the store, not created by this process."""
        self.id = session_id
        self._engine = engine
        self._limits = limits
        self._tenant_rate_limits = tenant_rate_limits
        self._state_machine = StateMachine()
        self._unit_of_work = unit_of_work
        self._event_log = unit_of_work.event_log
        self._text_limits = TextLimits.for_model(engine.ready, unit_of_work.conversation.template)
        self._idempotency_keys = IdempotencyKeys(
            unit_of_work.session_writer, is_complete=not is_loaded
        )
        self._is_paused = False
        self._idempotent_request: IdempotentRequest | None = None
        """The request that carries the current command, if the client gave it an idempotency
        key."""
        self._deadline_s: float | None = None
        """Deadline of the current command, on the clock of the event loop."""
        self._active_responses = ActiveResponses(
            session_id,
            engine,
            journal_flusher,
            unit_of_work,
            limits,
            tenant_rate_limits,
            cache_scope,
            self._state_machine,
        )

    @property
    def settings(self) -> GenerationSettings:
        return self._unit_of_work.settings

    @property
    def conversation(self) -> Conversation:
        return self._unit_of_work.conversation

    @property
    def state(self) -> SessionState:
        return self._state_machine.state

    # ------------------------------------------------------------ connections

    async def start(self, listener: EventListener, resume: ResumeInfo | None = None) -> None:
        """Attach the first connection. Emits SessionOpened and, for a fork, its items. Raises
        Refusal."""
        self._event_log.attach(listener)
        if self.conversation.spans:
            await self._write_or_refuse(self._unit_of_work.write_all())
        self._event_log.emit_opening(SessionOpened(self.settings, resume))
        previous = None
        for item in self.conversation.items():
            self._event_log.append(ItemAdded(item, previous))
            previous = item.id

    async def resume(
        self, listener: EventListener, cursor: EventId | None, resume: ResumeInfo
    ) -> None:
        """Attach a connection and replay the events after `cursor`, then emit new ones.

        Sends a snapshot if `cursor` is None or cannot be replayed from exactly. Raises Refusal.
        """
        kv = await self._kv_residency()
        await self._resume_generation()
        resume = msgspec.structs.replace(resume, kv_residency=kv)
        if cursor is not None:
            exact = SessionResumed(self.settings, msgspec.structs.replace(resume, resumed="exact"))
            try:
                self._event_log.resume(listener, cursor, exact, self.conversation.previous_item_id)
            except ReplayGap:
                pass
            else:
                return
        await self._write_or_refuse(self._unit_of_work.start_epoch())
        epoch = self._event_log.epoch
        resume = msgspec.structs.replace(resume, resumed="snapshot", epoch=epoch)
        self._event_log.attach_with_snapshot(listener, self._snapshot_events(resume))

    def _snapshot_events(self, resume: ResumeInfo) -> Iterator[ConversationEvent]:
        yield SessionResumed(self.settings, resume)
        previous = None
        for item in self.conversation.items():
            if not self.conversation.is_in_open_response(item.id):  # its response emits it
                yield ItemAdded(item, previous)
                previous = item.id
        if self._unit_of_work.draft:
            yield TextAppended(len(self._unit_of_work.draft))
        for generation in self._active_responses:
            yield ResponseStarted(generation.response)

    def make_unlogged_event_id(self) -> str:
        """Return an event id for an event that is not part of the event log."""
        return self._event_log.emitted_id.for_unlogged_event().encode()

    def detach(self) -> None:
        """Detach the connection; active responses continue."""
        self._event_log.detach()

    def watch(self, on_replaced: Callable[[], None], on_gap: Callable[[], None]) -> None:
        """Set the callbacks of the registry.

        `on_replaced`: another gateway owns the session now. `on_gap`: the regenerated output of a
        response differs from what the client has received.
        """
        self._unit_of_work.session_writer.on_replaced = on_replaced
        self._event_log.on_gap = on_gap

    def unwatch(self) -> None:
        """Remove the callbacks, which would keep the session in a reference cycle."""
        self.watch(_no_op, _no_op)

    def call_when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` when no response is active; at once if none is."""
        self._active_responses.call_when_idle(callback)

    @property
    def epoch(self) -> str:
        """Epoch of the event ids."""
        return self._event_log.epoch

    @property
    def fence(self) -> int:
        """Fence of the session lease."""
        return self._unit_of_work.session_writer.lease.fence

    async def retake_ownership(self) -> None:
        """Claim the session again under a new fence, for a newer connection of its client. If a
        takeover for an earlier connection is still in progress, it then fails. Raises
        StoreError."""
        await self._unit_of_work.session_writer.claim()

    async def extend_deadline(self, for_s: float, *, is_parked: bool) -> None:
        """Extend the session's deadline in the store. Raises StoreError."""
        await self._unit_of_work.session_writer.extend_deadline(for_s, is_parked=is_parked)

    async def check_ownership(self) -> None:
        """Raise StoreError unless this process still owns the session."""
        await self._unit_of_work.session_writer.confirm()

    @property
    def is_lost_in_store(self) -> bool:
        """Whether the store has lost data of the session, so that it must be written again."""
        return self._unit_of_work.session_writer.needs_full_write

    async def rewrite_to_store(self) -> None:
        """Write the session again, although it has not changed, to repair a store that has lost
        data. Raises StoreError."""
        await self._unit_of_work.write_all()

    async def _kv_residency(self) -> KVResidency:
        """Return where the KV is. If the engine does not report in time, the KV counts as lost."""
        engine_session = self._unit_of_work.engine_session
        try:
            async with asyncio.timeout(_RESIDENCY_TIMEOUT_S):
                info = await self._engine.info(engine_session.session_id)
        except (EngineError, TimeoutError):
            info = None
        return KVStatus.of(self.conversation, info).residency

    async def _write_or_refuse(self, write: Awaitable[None]) -> None:
        """Await a write. Raises Refusal in place of StoreError."""
        try:
            await write
        except StoreError as error:
            raise self._refusal_of_store_error(error) from error

    def _refusal_of_store_error(self, error: StoreError) -> Refusal:
        if isinstance(error, LeaseLost):
            self._unit_of_work.session_writer.on_replaced()
        return map_store_error(error)

    def fork(self, item_id: str | None) -> SessionOrigin:
        """Return the origin of a session that shares conversation and KV up to and including an
        item. `item_id` None: all items. Raises Refusal."""
        return SessionOrigin.of(
            self.settings, self.conversation, item_id, self._unit_of_work.engine_session
        )

    async def execute(
        self, command: ConversationCommand, idempotent_request: IdempotentRequest | None = None
    ) -> None:
        """Execute a command; under one idempotency key, only once. Raises Refusal."""
        try:
            async with asyncio.timeout(self._limits.command_timeout_s) as timeout:
                self._deadline_s = timeout.when()
                if idempotent_request is not None:
                    result = await self._idempotency_keys.find_result(idempotent_request)
                    if result is not None and self._replay(command, result):
                        return
                self._idempotent_request = idempotent_request
                await self._dispatch(command)
        except EngineError as error:
            if isinstance(error, EngineLost):
                self._invalidate_engine_session()
            if isinstance(error, StaleEngineFence):
                self._unit_of_work.session_writer.on_replaced()
            raise map_engine_error(error) from error
        except StoreError as error:
            raise self._refusal_of_store_error(error) from error
        except TimeoutError:
            self._invalidate_engine_session()
            raise make_timeout_refusal(self._limits.command_timeout_s) from None
        finally:
            self._idempotent_request = None

    def _is_server_fault(self, error: BaseException) -> bool:
        """Whether the current command failed because of a fault of the server; a timeout counts as
        one."""
        if isinstance(error, asyncio.CancelledError) and self._deadline_s is not None:
            return asyncio.get_running_loop().time() >= self._deadline_s
        return is_server_fault(error)

    def _charge_text(self, chars: int) -> AbstractContextManager[None]:
        """Charge a text of `chars` characters to the tenant's rate limit, around its
        tokenization."""
        return self._tenant_rate_limits.charge_text(
            chars, self._text_limits.request_tokens_max, self._is_server_fault
        )

    def _invalidate_engine_session(self) -> None:
        """Invalidate the engine session after a command whose effect in the engine is unknown.

        While a response of the conversation is active, commands send nothing to its engine session.
        """
        if self._active_responses.main is None:
            self._unit_of_work.engine_session.invalidate()

    async def status(self) -> SessionStatus:
        """Return the status, with a fresh report of the engine. Raises Refusal."""
        try:
            async with asyncio.timeout(self._limits.command_timeout_s):
                info = await self._engine.info(self._unit_of_work.engine_session.session_id)
        except TimeoutError:
            raise make_timeout_refusal(self._limits.command_timeout_s) from None
        except UnknownEngineSession:
            info = None
        except EngineError as error:
            raise map_engine_error(error) from error
        return self.status_from({} if info is None else {info.session: info})

    def status_from(self, infos: Mapping[str, SessionInfo]) -> SessionStatus:
        """Return the status. `infos`: reports of the engine by engine session id."""
        info = infos.get(self._unit_of_work.engine_session.session_id)
        return SessionStatus.of(self.state.value, self.conversation, info)

    async def close(self) -> None:
        """End the session and delete it from the store. Cancels active responses, within an engine
        step.

        Never raises. If the engine is unreachable, its sessions are closed later; if the store is
        unreachable, the session expires there.
        """
        await self._release_engine_sessions()
        try:
            await self._unit_of_work.session_writer.delete()
        except StoreError as error:
            log.warning("session %s stays in the store until it expires: %s", self.id, error)

    async def unload(self, *, is_taken_over: bool = False) -> None:
        """Unload the session from this process; the copy in the store stays valid. Never raises.

        `is_taken_over`: another gateway owns the session. Active responses are then only paused in
        the engine, because that gateway may not have attached there yet to continue them.
        """
        await self._active_responses.flush_journals()
        self._unit_of_work.session_writer.stop()
        self.detach()
        if not (is_taken_over and list(self._active_responses)):
            await self._release_engine_sessions()
            return
        self._state_machine.advance(Trigger.CLOSE)
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(self._limits.close_timeout_s):
                await self._active_responses.pause_all()
        self._active_responses.abandon_all()

    async def _release_engine_sessions(self) -> None:
        """Cancel active responses and close the engine sessions."""
        self._state_machine.advance(Trigger.CLOSE)
        engine_sessions = {
            self._unit_of_work.engine_session,
            *(generation.engine_session for generation in self._active_responses),
        }
        try:
            async with asyncio.timeout(self._limits.close_timeout_s):
                await self._active_responses.cancel_all()
                await _close_engine_sessions(engine_sessions)
        except TimeoutError:
            log.warning("session %s: closed without the engine, which does not respond", self.id)
            self._active_responses.abandon_all()
            self._release_task = asyncio.create_task(
                _close_engine_sessions(engine_sessions), name=f"release {self.id}"
            )

    async def pause_generation(self) -> None:
        """Pause active responses until a client resumes the session."""
        self._is_paused = True
        with contextlib.suppress(EngineError):
            await self._active_responses.pause_all()

    async def _resume_generation(self) -> None:
        if self._is_paused:
            self._is_paused = False
            with contextlib.suppress(EngineError):
                await self._active_responses.resume_all()

    # ------------------------------------------------------------ commands

    async def _dispatch(self, command: ConversationCommand) -> None:
        match command:
            case ConfigureSession(settings=settings):
                await self._configure(settings)
            case AddItem():
                await self._add_item(command)
            case FetchItem(item_id=item_id):
                self._state_machine.check(Trigger.RETRIEVE_ITEM)
                item = self._unit_of_work.find(item_id, "item_retrieve_invalid_item_id")
                self._event_log.emit_unlogged(ItemFetched(item))
            case DeleteItem(item_id=item_id):
                self._state_machine.check(Trigger.EDIT)
                self._unit_of_work.find_complete(item_id, "item_delete_invalid_item_id")
                await self._change(
                    lambda now: now.delete_item(item_id),
                    make_events=lambda _now, rewind: [ItemDeleted(item_id, rewind)],
                    param="item_id",
                )
            case TruncateItem():
                await self._truncate(command)
            case CreateSessionResponse():
                await self._create_response(command)
            case CancelResponse(response_id=response_id):
                await self._cancel_response(response_id)
            case AppendText() | ReplaceText() | ClearText() | CommitText():
                await self._edit_draft(command)
            case _:
                assert_never(command)

    async def _configure(self, settings: GenerationSettings) -> None:
        self._state_machine.check(Trigger.CONFIGURE)
        self._text_limits.check_head(settings, "session.")
        old = self.settings
        chars = count_head_chars(settings)
        is_head_replaced = (settings.instructions, settings.tools) != (old.instructions, old.tools)
        with self._charge_text(chars if is_head_replaced else 0):
            await check_enforceable(settings, self.conversation.template, "session.")
            await self._change(
                lambda now: now.with_settings(settings),
                make_events=lambda _now, rewind: [SessionConfigured(settings, rewind)],
                settings=settings,
                context_window=ContextWindow(self._engine.ready.max_model_len, settings.truncation),
                param="session.instructions",
                chars=chars,
            )
        if is_head_replaced:
            self._tenant_rate_limits.charge_tokens(len(self.conversation.head.ids))

    def _should_sync_engine(self) -> bool:
        """Whether a change is sent to the engine at once; if not, it is sent after the active
        response."""
        return Action.SYNC_ENGINE in self._state_machine.check(Trigger.EDIT)

    async def _truncate(self, command: TruncateItem) -> None:
        self._state_machine.check(Trigger.RETRIEVE_ITEM)
        code = "item_truncate_invalid_item_id"
        item = self._unit_of_work.find(command.item_id, code)
        end = command.text_end
        event = ItemTruncated(command.item_id, command.content_index, command.audio_end_ms, end)
        require_assistant_message(item)
        if end is not None:
            if self.state is SessionState.CANCELLING and self.conversation.is_in_open_response(
                command.item_id
            ):
                await self._active_responses.wait_until_committed()
            self._state_machine.check(Trigger.EDIT)
            item = require_assistant_message(
                self._unit_of_work.find_complete(command.item_id, code)
            )
            truncated = truncate_message(item, command, end)
            if truncated is not item:
                await self._change(
                    lambda now: now.truncate_item(truncated, self._engine.text),
                    make_events=lambda _now, rewind: [
                        msgspec.structs.replace(event, rewind=rewind)
                    ],
                    param="text_end",
                    chars=count_chars(truncated),
                )
                return
        self._event_log.emit_unlogged(event)

    async def _edit_draft(self, command: TextBufferCommand) -> None:
        self._state_machine.check(Trigger.EDIT)
        match command:
            case AppendText(text=text):
                await self._set_draft(self._unit_of_work.draft + text)
            case ReplaceText(text=text):
                await self._set_draft(text)
            case ClearText():
                await self._change(
                    _unchanged,
                    make_events=lambda _now, _rewind: [TextCleared()],
                    param="text",
                    draft="",
                )
            case CommitText(item_id=item_id):
                text = self._unit_of_work.draft
                if not text.strip():
                    raise Refusal(
                        "Error committing input text buffer: it is empty.",
                        code="input_text_buffer_commit_empty",
                    )
                part = ContentPart("input_text", text)
                item = MessageItem(id=item_id, role="user", parts=(part,))

                def make_events(
                    now: Conversation, rewind: Rewind | None
                ) -> list[ConversationEvent]:
                    previous = now.previous_item_id(item_id)
                    return [
                        TextCommitted(item_id, previous),
                        ItemAdded(item, previous, rewind),
                    ]

                self._text_limits.check(len(text), "text")
                with self._charge_text(len(text)):
                    await self._change(
                        lambda now: now.add_item(item),
                        item_id,
                        make_events=make_events,
                        param="text",
                        chars=len(text),
                        draft="",
                    )
            case _:
                assert_never(command)

    async def _set_draft(self, text: str) -> None:
        if len(text) > TEXT_CHARS_MAX:
            raise Refusal(
                f"The input text buffer would hold {len(text):,} characters; it holds "
                f"{TEXT_CHARS_MAX:,}.",
                code="string_above_max_length",
                param="text",
            )
        self._text_limits.check(len(text), "text")
        event = TextAppended(len(text))
        with self._charge_text(len(text)):
            await self._change(
                _unchanged, make_events=lambda _now, _rewind: [event], param="text", draft=text
            )

    async def _add_item(self, command: AddItem) -> None:
        item, after = command.item, command.after
        self._state_machine.check(Trigger.EDIT)
        known = self.conversation.find(item.id)
        if known is not None and known != item:
            raise Refusal(
                f"Error adding item: an item with id '{item.id}' already exists.",
                code="item_create_duplicate_item_id",
                param="item.id",
            )
        if after is not None and after != ROOT and self.conversation.find(after) is None:
            raise Refusal(
                f"Error adding item: the previous item with id '{after}' does not exist.",
                code="item_create_invalid_previous_item_id",
                param="previous_item_id",
            )
        if known is not None:
            self._event_log.emit_unlogged(
                ItemAdded(item, self.conversation.previous_item_id(item.id))
            )
            return
        self._text_limits.check(count_chars(item), "item")
        with self._charge_text(count_chars(item)):
            await self._change(
                lambda now: now.add_item(item, after),
                item.id,
                make_events=lambda now, rewind: [
                    ItemAdded(item, now.previous_item_id(item.id), rewind)
                ],
                param="item",
                chars=count_chars(item),
            )

    async def _create_response(self, command: CreateSessionResponse) -> None:
        trigger = (
            Trigger.CREATE_OUT_OF_BAND_RESPONSE
            if command.is_out_of_band
            else Trigger.CREATE_RESPONSE
        )
        self._state_machine.check(trigger)
        context = inline_items(command.context or ())
        chars = count_head_chars(command.settings) + sum(map(count_chars, context))
        with (
            self._tenant_rate_limits.charge_request(self._is_server_fault),
            self._charge_text(chars),
        ):
            self._text_limits.check_response(command.settings, context)
            await check_enforceable(command.settings, self.conversation.template, "response.")
            await self._idempotency_keys.write_pending(self._unit_of_work.record_request)
            response_id = await self._active_responses.create(command, self._idempotent_request)
        self._state_machine.advance(trigger)  # a response may have ended meanwhile
        self._record_result(response_id)

    async def _cancel_response(self, response_id: str | None) -> None:
        try:
            cancelled_id = await self._cancel_active(response_id)
        except Refusal:
            self._defer_result("")
            raise
        self._defer_result(cancelled_id)

    async def _cancel_active(self, response_id: str | None) -> str:
        """Cancel a response and return its id. `response_id` None: the active response of the
        conversation. Raises Refusal if the response is not active."""
        out_of_band = (
            None if response_id is None else self._active_responses.find_out_of_band(response_id)
        )
        if out_of_band is not None:
            await out_of_band.cancel()
            return out_of_band.response.id
        main = self._active_responses.main
        if response_id is not None and main is not None and response_id != main.response.id:
            raise Refusal(
                f"Cancellation failed: response '{response_id}' is not active.",
                code="response_cancel_not_active",
                param="response_id",
            )
        self._state_machine.advance(Trigger.CANCEL)
        assert main is not None, "the state has an active response"
        await main.cancel()
        return main.response.id

    def resume_responses(self, stored_responses: Sequence[RunningResponse]) -> None:
        """Resume the responses that were active when the session was last written."""
        self._active_responses.resume_stored(stored_responses)
        if self._active_responses.main is not None:
            self._state_machine.state = SessionState.RESPONDING

    # ------------------------------------------------------------ idempotency

    async def _change(
        self, edit: ConversationEdit, result: str = "", **more: Unpack[ChangeOptions]
    ) -> None:
        """Change the conversation. `result`: the outcome to record under the idempotency key."""
        await self._idempotency_keys.write_pending(self._unit_of_work.record_request)
        request = self._idempotent_request
        if request is not None:
            self._idempotent_request = request = msgspec.structs.replace(
                request, result=result.encode()[:255]
            )
        await self._unit_of_work.change(
            edit, should_sync=self._should_sync_engine, idempotent_request=request, **more
        )
        self._record_result(result)

    def _record_result(self, result: str) -> None:
        if self._idempotent_request is not None:
            self._idempotency_keys.record(
                msgspec.structs.replace(self._idempotent_request, result=result.encode()[:255])
            )

    def _replay(self, command: ConversationCommand, result: bytes) -> bool:
        return replay(
            command, result.decode(errors="ignore"), self._unit_of_work, self._active_responses
        )

    def _defer_result(self, result: str) -> None:
        """Record the outcome of a command that changed nothing; it is written to the store before
        the next change."""
        if self._idempotent_request is not None:
            self._idempotency_keys.record_unwritten(
                msgspec.structs.replace(self._idempotent_request, result=result.encode())
            )


async def _close_engine_sessions(engine_sessions: Iterable[EngineSession]) -> None:
    for engine_session in engine_sessions:
        with contextlib.suppress(EngineError):
            await engine_session.close()


def _no_op() -> None:
    pass


def _unchanged(conversation: Conversation) -> Conversation:
    return conversation
