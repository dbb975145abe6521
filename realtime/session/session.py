"""A session: executes conversation commands against engine and store, by the state table.

Commands are executed one at a time; a response is generated in its own task meanwhile. All events
pass through the event log to the attached connection. Limits are checked before anything changes: a
Refusal leaves the session unchanged.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence

import msgspec

from continuo.engine import (
    EngineClient,
    EngineError,
    SessionInfo,
    StaleEngineFence,
)
from continuo.realtime import metrics
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.text_limits import TextLimits
from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_id import EventId
from continuo.realtime.event_log.event_log import EventListener
from continuo.realtime.event_log.replay import ReplayGap
from continuo.realtime.generation.engine_session import EngineSession
from continuo.realtime.generation.error_mapping import (
    make_replaced_refusal,
    make_timeout_refusal,
    map_engine_error,
    map_store_error,
)
from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_writer import SessionWriter
from continuo.realtime.persistence.token_journal import JournalFlusher
from continuo.realtime.protocol.commands import ConversationCommand
from continuo.realtime.protocol.events import (
    ConversationEvent,
    ItemAdded,
    ResponseStarted,
    ResumeInfo,
    SessionOpened,
    SessionResumed,
    TextAppended,
)
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.session.active_responses import ActiveResponses
from continuo.realtime.session.commands import HANDLERS
from continuo.realtime.session.commands.context import CommandContext, SessionParts
from continuo.realtime.session.idempotency_keys import IdempotencyKeys
from continuo.realtime.session.state import SessionState, Trigger
from continuo.realtime.session.status import KVStatus, SessionStatus
from continuo.realtime.session.unit_of_work import SessionOrigin, UnitOfWork
from continuo.realtime.store import IdempotentRequest, LeaseLost, RunningResponse, StoreError
from continuo.realtime.tenants.tenants import Tenant

log = logging.getLogger(__name__)

ENDING_RESPONSE_WAIT_S_MAX = 5.0
"""Maximum time that the next response waits for the end of one whose items are complete."""


class Session:
    """A conversation with its settings, its engine session and its copy in the store."""

    def __init__(
        self,
        session_id: str,
        engine: EngineClient,
        limits: Limits,
        journal_flusher: JournalFlusher,
        unit_of_work: UnitOfWork,
        idempotency_keys: IdempotencyKeys,
        tenant: Tenant,
    ) -> None:
        """Args:
        session_id: the same in the store, in the engine and on the wire.
        engine: all engines of the gateway.
        limits: timeouts of commands and of closing, in seconds; bounds of ActiveResponses.
        journal_flusher: writes the journals of all sessions of the gateway periodically.
        unit_of_work: of this session alone, with its lease, its engine session and its event log.
        idempotency_keys: the keys that clients of this session have used, as far as they are
            remembered.
        tenant: the owner, whose limits the session shares with its other sessions.
        """
        self.id = session_id
        self._engine = engine
        self._limits = limits
        self._unit_of_work = unit_of_work
        self._state_machine = unit_of_work.state_machine
        self._event_log = unit_of_work.event_log
        self._is_paused = False
        self._is_taken_over = False
        self.has_refused_audio = False
        """Whether a client of this session has received the error that there is no audio."""
        self._active_responses = ActiveResponses(
            session_id, engine, journal_flusher, unit_of_work, limits, tenant
        )
        self._parts = SessionParts(
            unit_of_work=unit_of_work,
            active_responses=self._active_responses,
            idempotency_keys=idempotency_keys,
            model_text=engine.text,
            grammar_trials=engine.grammar_trials,
            tenant_rate_limits=tenant.rate_limits,
            text_limits=TextLimits.for_model(engine.ready, unit_of_work.conversation.template),
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
        self,
        listener: EventListener,
        cursor: EventId | None,
        resume: ResumeInfo,
        info: SessionInfo | None,
    ) -> None:
        """Attach a connection and replay the events after `cursor`, then emit new ones.

        Sends a snapshot if `cursor` is None or cannot be replayed from exactly. `info`: the
        engine's report of the session; None if there is none. Raises Refusal."""
        await self.resume_generation()
        kv = KVStatus.of(self.conversation, info).residency
        resume = msgspec.structs.replace(resume, kv_residency=kv)
        if cursor is not None:
            exact = SessionResumed(self.settings, msgspec.structs.replace(resume, resumed="exact"))
            try:
                self._event_log.resume(listener, cursor, exact, self.conversation.previous_item_id)
            except ReplayGap:
                pass
            else:
                metrics.resumes.labels("exact").inc()
                return
        await self._write_or_refuse(self._unit_of_work.start_epoch())
        epoch = self._event_log.epoch
        resume = msgspec.structs.replace(resume, resumed="snapshot", epoch=epoch)
        self._event_log.attach_with_snapshot(listener, self._snapshot_events(resume))
        metrics.resumes.labels("snapshot").inc()

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

    async def wait_for_ending_response(self) -> None:
        """Wait until the active response of the conversation has ended, if none of its items is in
        progress; at most ENDING_RESPONSE_WAIT_S_MAX."""
        main = self._active_responses.main
        if main is not None and main.is_between_items:
            await self._active_responses.wait_until_committed(ENDING_RESPONSE_WAIT_S_MAX)

    def detach(self) -> None:
        """Detach the connection; active responses continue."""
        self._event_log.detach()

    async def wait_until_idle(self) -> None:
        """Wait until no response is active."""
        await self._active_responses.wait_until_idle()

    @property
    def epoch(self) -> str:
        """Epoch of the event ids."""
        return self._event_log.epoch

    @property
    def stored(self) -> SessionWriter:
        """The session in the store: its lease, its deadline, and whether data was lost."""
        return self._unit_of_work.session_writer

    async def write_again(self) -> None:
        """Write the session though it has not changed, to repair a store that has lost data.
        Raises StoreError."""
        await self._unit_of_work.write_all()

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
        handler, keys = HANDLERS[type(command)], self._parts.idempotency_keys
        try:
            async with asyncio.timeout(self._limits.command_timeout_s) as timeout:
                context = CommandContext(self._parts, idempotent_request, timeout)
                if idempotent_request is not None:
                    result = await keys.find_result(idempotent_request)
                    if result is not None and handler.replay(
                        context, command, result.decode(errors="ignore")
                    ):
                        return
                if handler.trigger is not None:
                    self._state_machine.check(handler.trigger)
                await handler.execute(context, command)
        except EngineError as error:
            if isinstance(error, StaleEngineFence):
                self._unit_of_work.session_writer.on_replaced()
            raise map_engine_error(error) from error
        except StoreError as error:
            raise self._refusal_of_store_error(error) from error
        except TimeoutError:
            raise make_timeout_refusal(self._limits.command_timeout_s) from None
        except Refusal:
            if self._is_taken_over:  # while the command was executed
                raise make_replaced_refusal() from None
            raise

    async def status(self) -> SessionStatus:
        """Return the status, with a fresh report of the engine. If no engine reports the session in
        time, its KV counts as lost."""
        session_id = self._unit_of_work.engine_session.session_id
        within_s = self._limits.command_timeout_s
        info = await self._engine.fleet.inspect(session_id, within_s)
        return self.status_from({} if info is None else {info.session: info})

    @property
    def engine_session_id(self) -> str:
        return self._unit_of_work.engine_session.session_id

    def status_from(self, infos: Mapping[str, SessionInfo]) -> SessionStatus:
        """Return the status. `infos`: reports of the engine by engine session id."""
        info = infos.get(self.engine_session_id)
        return SessionStatus.of(self.state.value, self.conversation, info)

    async def cancel_responses(self) -> None:
        """Cancel active responses, within an engine step, and wait until they have ended."""
        if self.state is SessionState.RESPONDING:
            self._state_machine.advance(Trigger.CANCEL)
        await self._active_responses.cancel_all()

    async def close(self) -> None:
        """End the session and delete it from the store. Cancels active responses, within an engine
        step.

        Never raises. If the engine is unreachable, its sessions are closed later; if the store is
        unreachable, the session expires there.
        """
        self._parts.idempotency_keys.release()
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
        self._is_taken_over = is_taken_over
        self._parts.idempotency_keys.release()
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
        """Cancel active responses and close the engine sessions. What was computed ahead of a
        response that never began is charged."""
        self._state_machine.advance(Trigger.CLOSE)
        self._parts.tenant_rate_limits.charge_tokens(
            self._unit_of_work.engine_session.pushed_tokens
        )
        self._unit_of_work.engine_session.pushed_tokens = 0
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
        """Pause active responses until a client resumes the session, or `resume_generation`."""
        self._is_paused = True
        with contextlib.suppress(EngineError):
            await self._active_responses.pause_all()

    async def resume_generation(self) -> None:
        """Continue active responses that were paused."""
        if self._is_paused:
            self._is_paused = False
            with contextlib.suppress(EngineError):
                await self._active_responses.resume_all()

    def resume_responses(self, stored_responses: Sequence[RunningResponse]) -> None:
        """Resume the responses that were active when the session was last written."""
        self._active_responses.resume_stored(stored_responses)
        if self._active_responses.main is not None:
            self._state_machine.advance(Trigger.CREATE_RESPONSE)


async def _close_engine_sessions(engine_sessions: Iterable[EngineSession]) -> None:
    for engine_session in engine_sessions:
        with contextlib.suppress(EngineError):
            await engine_session.close()
