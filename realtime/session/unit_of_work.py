"""Unit of work: one atomic change of conversation, engine session, stored session and event log.

conversation ─┬─ spans ──────────────── engine session: final ───────── session writer: entries
              └─ draft (text buffer) ── engine session: provisional ─── session writer: draft pieces
                                        (without its unstable end)      (after the entries)

A change is sent to engine and store at the same time. Its events are emitted once the store has the
change. If engine or store refuses the change, it is rolled back in the other. If the engine is
away, the change is made without it: the engine session is attached, with the whole log, when it is
used next.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from continuo.engine import EngineError, EngineLost, TooLong
from continuo.realtime import metrics
from continuo.realtime.conversation.context_window import ContextWindow
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import stable_prefix
from continuo.realtime.conversation.text_limits import refuse_if_too_long
from continuo.realtime.errors import Refusal, context_length_exceeded
from continuo.realtime.event_log.event_log import EventLog
from continuo.realtime.generation.engine_session import EngineSession
from continuo.realtime.generation.tokenizer_threads import TokenizerThreads
from continuo.realtime.ids import deterministic_id
from continuo.realtime.persistence.event_codec import encode_event
from continuo.realtime.persistence.session_codec import (
    DraftPiece,
    StoredRequest,
    encode_request,
    to_entries,
)
from continuo.realtime.persistence.session_writer import (
    DesiredSession,
    SessionChanges,
    SessionWriter,
)
from continuo.realtime.protocol.events import (
    ContinuityReported,
    ConversationEvent,
    ResponseEnded,
    ResponseStarted,
    Rewind,
)
from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.session.state import SessionState, StateMachine, Trigger
from continuo.realtime.store import IdempotentRequest, LeaseLost, ResponseCheckpoint, StoreError

log = logging.getLogger(__name__)

SYNC_TIMEOUT_S = 2.0
"""Time that an edit waits for the engine. After that, the edit is made without it."""

T = TypeVar("T")
ConversationChange = Callable[[Conversation], Conversation]
EventFactory = Callable[[Conversation, Rewind | None], Sequence[ConversationEvent]]


class SessionOrigin(msgspec.Struct, frozen=True):
    """Initial content of a new session, which may be a fork."""

    settings: GenerationSettings
    conversation: Conversation
    engine_session: EngineSession | None = None
    """For a fork: the engine session of the original session, to share its KV. None: not a fork, or
    the original is not on this gateway."""

    @classmethod
    def of(
        cls,
        settings: GenerationSettings,
        conversation: Conversation,
        item_id: str | None,
        engine_session: EngineSession | None = None,
    ) -> "SessionOrigin":
        """Make the origin of a fork of `conversation` up to and including an item. `item_id` None:
        all items. Raises Refusal."""
        if item_id is not None:
            find_complete(conversation, item_id, "item_fork_invalid_item_id")
        return cls(settings, conversation.up_to_item(item_id), engine_session)


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a session, which a command asks for and `UnitOfWork.apply` makes."""

    param: str
    """Field that a refusal names."""
    make_events: EventFactory
    """Makes the events to emit, from the new conversation and its rewind of the old one."""
    change: ConversationChange = lambda now: now
    """Makes the new conversation from the present one."""
    chars: int = 0
    """Characters that `change` tokenizes."""
    only_appends: bool = False
    """Whether `change` changes nothing but the end of the conversation."""
    draft: str | None = None
    """New content of the text buffer. None: unchanged."""
    settings: GenerationSettings | None = None
    """New settings. None: unchanged."""
    result: str = ""
    """Result to record under the idempotency key of the command: the id of what it creates."""


class InitialState(msgspec.Struct, frozen=True):
    """Content of a new, forked or loaded session."""

    settings: GenerationSettings
    conversation: Conversation
    draft: tuple[DraftPiece, ...] = ()
    epoch: int = 0


class UnitOfWork:
    """Conversation, settings and text buffer of a session, kept equal in engine and store."""

    def __init__(
        self,
        initial: InitialState,
        engine_session: EngineSession,
        session_writer: SessionWriter,
        event_log: EventLog,
        context_window: ContextWindow,
        tokenizer_threads: TokenizerThreads,
        has_tokens: Callable[[int], bool],
    ) -> None:
        """Args:
        initial: content to begin with: empty, copied from another session, or as the store has it.
        engine_session: that of the conversation; opened or attached with the first change.
        session_writer: writes the changes, under the lease of the session.
        event_log: receives the events of a change once the store has the change.
        context_window: items that do not fit into it move out of window, oldest first.
        tokenizer_threads: those of the gateway, which tokenize long texts.
        has_tokens: returns whether the tenant may compute more than this number of tokens now. As
            long as it may not, nothing is computed ahead of a response.
        """
        self.state_machine = StateMachine()
        self.settings = initial.settings
        self.conversation: Conversation = initial.conversation
        self.engine_session = engine_session
        self.session_writer = session_writer
        self.event_log = event_log
        self.context_window: ContextWindow = context_window
        self._draft_pieces = initial.draft
        self.draft: str = "".join(piece.text for piece in initial.draft)
        """The text buffer."""
        self.epoch = initial.epoch
        self.checkpoints: dict[str, ResponseCheckpoint] = {}
        """Checkpoints of the active responses, by response id."""
        self._tokenizer_threads = tokenizer_threads
        self._has_tokens = has_tokens
        self._lock = asyncio.Lock()
        """Serializes changes: writes and events have the same order."""

    # ------------------------------------------------------------ changes

    async def apply(self, edit: Edit, idempotent_request: IdempotentRequest | None = None) -> None:
        """Make an edit, if the resulting conversation fits into the context window. It is sent to
        the engine now, or when the active response has ended. `idempotent_request`: the request to
        record with it.

        Raises Refusal, EngineError and StoreError; then nothing has changed.
        """
        settings, context_window = self.settings, self.context_window
        if edit.settings is not None:
            settings = edit.settings
            context_window = ContextWindow(context_window.context_tokens, settings.truncation)

        async def change_and_fit(now: Conversation) -> Conversation:
            again = now.rendered_length if edit.only_appends else now.length
            new = await self.run_tokenization(edit.chars + again, lambda: edit.change(now))
            return await self._fit(context_window, new)

        while True:
            old = self.conversation
            with refuse_if_too_long(edit.param, context_window.context_tokens):
                new = await change_and_fit(old)
            async with self._lock:
                if self.conversation is not old:
                    continue
                if not context_window.allows_change(old, new):
                    raise _too_long(old, new, context_window.context_tokens, edit.param)
                draft = self.draft if edit.draft is None else edit.draft
                draft_pieces = self._draft_pieces_of(draft)
                rewind = new.compute_rewind(old)
                events = edit.make_events(new, rewind)
                desired = self._full_state(new, draft_pieces, settings, events)
                changes = SessionChanges(
                    is_state_changed=edit.settings is not None, request=idempotent_request
                )
                self.state_machine.check(Trigger.EDIT)
                is_idle = self.state_machine.state is SessionState.IDLE
                await self._write_and_sync(desired, changes, (new, draft) if is_idle else None)
                while self.conversation is not old:  # an active response has added an item
                    old = self.conversation
                    new = await change_and_fit(old)
                    events = edit.make_events(new, rewind)
                    self.session_writer.rewrite_events_from(self.event_log.next_offset)
                self.conversation, self.context_window = new, context_window
                self.draft, self._draft_pieces = draft, draft_pieces
                self.settings = settings
                if rewind is not None:
                    metrics.rewinds.inc()
                    metrics.rewound_tokens.inc(rewind.prefill_tokens)
                self._emit(events)
                return

    async def begin_response(
        self,
        response: Response,
        inputs: StoredRequest,
        seed: int,
        prompt_tokens: int,
        idempotent_request: IdempotentRequest | None = None,
    ) -> None:
        """Record that a response begins: write its checkpoint, and append its open span to the
        conversation unless it is out of band.

        `prompt_tokens`: length of its prompt. Raises StoreError.
        """
        async with self._lock:
            new, entry = self.conversation, None
            if response.conversation is not None:
                new, entry = new.open_response(response.id), len(to_entries(new, ()))
            inputs = msgspec.structs.replace(inputs, number=self.event_log.next_offset)
            checkpoint = ResponseCheckpoint(
                id=response.id,
                seed=seed,
                prompt=prompt_tokens,
                entry=entry,
                body=encode_request(inputs),
            )
            events = (ResponseStarted(response),)
            desired = self._full_state(new, self._draft_pieces, self.settings, events)
            await self._write(
                desired, SessionChanges(started_response=checkpoint, request=idempotent_request)
            )
            # out of band, `new` may be outdated: an active response may have added an item
            if entry is not None:
                self.conversation = new
            self.checkpoints[response.id] = checkpoint
            self._emit(events)

    def resume_response(self, checkpoint: ResponseCheckpoint, inputs: StoredRequest) -> None:
        """Add a stored response, whose generation resumes in this process, to the active responses
        and to the event log. Writes nothing to the store."""
        self.checkpoints[checkpoint.id] = checkpoint
        self.event_log.start_response(checkpoint.id, inputs.number)

    async def restart_response(
        self, checkpoint: ResponseCheckpoint, inputs: StoredRequest, prompt_tokens: int
    ) -> None:
        """Replace the checkpoint of a stored response whose token ids are of another model, because
        its generation restarts from the beginning. Raises StoreError."""
        async with self._lock:
            body = encode_request(inputs)
            checkpoint = msgspec.structs.replace(checkpoint, prompt=prompt_tokens, body=body)
            desired = self._full_state(self.conversation, self._draft_pieces, self.settings, ())
            await self._write(desired, SessionChanges(restarted_response=checkpoint))
            self.checkpoints[checkpoint.id] = checkpoint

    async def end_response(
        self,
        response: Response,
        sampled: Sequence[int],
        closing_events: Sequence[ConversationEvent] = (),
    ) -> None:
        """Commit a response that has ended, and emit the rest of its output, `closing_events`, and
        its end.

        If the store is unavailable, they are emitted anyway, and written with the next change.
        Raises LeaseLost.
        """
        async with self._lock:
            checkpoint = self.checkpoints.pop(response.id)
            new = self.conversation
            if checkpoint.entry is not None:
                now = new
                is_last = now.spans[-1].response_id == response.id
                new = await self.run_tokenization(
                    now.rendered_length if is_last else now.length,
                    lambda: now.commit_response(
                        response.id, response.items, sampled, response.settings.reasoning.effort
                    ),
                )
            events = (ResponseEnded(response),)
            desired = self._full_state(new, self._draft_pieces, self.settings, events)
            try:
                await self._write(desired, SessionChanges(ended_response=response.id))
            except LeaseLost:
                raise
            except StoreError as error:
                log.warning("the end of response %s is not written yet: %s", response.id, error)
            # out of band, `new` may be outdated, as in `begin_response`
            if checkpoint.entry is not None:
                self.conversation = new
            for event in closing_events:
                self.event_log.append_output(response.id, event)
            self._emit(events)

    async def start_epoch(self) -> None:
        """Start a new epoch: event ids issued before can no longer be resumed from. Raises
        StoreError."""
        async with self._lock:
            # No fence is granted twice, so the epoch is new even if the store loses this write.
            self.epoch = max(self.epoch + 1, self.session_writer.lease.fence)
            desired = self._full_state(self.conversation, self._draft_pieces, self.settings, ())
            await self._write(desired, SessionChanges(is_epoch_changed=True))
            self.event_log.epoch = wire_epoch(self.session_writer.lease.store_epoch, self.epoch)

    async def write_all(self) -> None:
        """Write everything that the store lacks, without a new change: when a fork starts, or after
        data loss. Raises StoreError."""
        async with self._lock:
            desired = self._full_state(self.conversation, self._draft_pieces, self.settings, ())
            await self._write(desired, SessionChanges())

    async def record_request(self, idempotent_request: IdempotentRequest) -> None:
        """Write the outcome of a request that changes nothing else.

        Raises IdempotencyConflict and StoreError.
        """
        async with self._lock:
            desired = self._full_state(self.conversation, self._draft_pieces, self.settings, ())
            await self._write(desired, SessionChanges(request=idempotent_request))

    async def _write(self, desired: DesiredSession, changes: SessionChanges) -> None:
        """Write to the store, and give the engine session the fence of the lease. Reports what has
        become of the session if the store was replaced since the last write. Raises StoreError."""
        store_epoch = self.session_writer.lease.store_epoch
        try:
            await self.session_writer.write(desired, changes)
        except LeaseLost:
            if self.session_writer.is_of_other_store:
                self.event_log.emit_unlogged(ContinuityReported("lost"))
            raise
        self.engine_session.set_fence(self.session_writer.lease.fence)
        if self.session_writer.lease.store_epoch != store_epoch:
            self.event_log.emit_unlogged(ContinuityReported("restored"))

    async def _write_and_sync(
        self,
        desired: DesiredSession,
        changes: SessionChanges,
        sync_target: tuple[Conversation, str] | None,
    ) -> None:
        writing = asyncio.ensure_future(self._write(desired, changes))
        if sync_target is not None:
            try:
                async with asyncio.timeout(SYNC_TIMEOUT_S):
                    await self._sync(*sync_target)
            except (EngineLost, TimeoutError) as error:
                name = self.engine_session.session_id
                log.info("session %s: edited without the engine: %r", name, error)
            except BaseException:
                await self._roll_back(writing, changes)
                raise
        try:
            await writing
        except StoreError:
            if sync_target is not None:
                await self.sync_engine()
            raise

    async def _roll_back(self, writing: "asyncio.Future[None]", changes: SessionChanges) -> None:
        """Undo a write whose change the engine has refused."""
        with contextlib.suppress(StoreError):
            await writing
            old = self._full_state(self.conversation, self._draft_pieces, self.settings, ())
            await self._write(
                old, SessionChanges(is_state_changed=True, revoked_request=changes.request)
            )

    def _emit(self, events: Sequence[ConversationEvent]) -> None:
        for event in events:
            self.event_log.append(event)

    def _full_state(
        self,
        conversation: Conversation,
        draft: tuple[DraftPiece, ...],
        settings: GenerationSettings,
        new_events: Sequence[ConversationEvent],
    ) -> DesiredSession:
        def events(number: int) -> list[bytes]:
            records = [
                *self.event_log.events_since(number),
                *self.event_log.to_logged_events(new_events),
            ]
            return [encode_event(record) for record in records]

        return DesiredSession(
            entries=to_entries(conversation, draft),
            settings=settings,
            epoch=self.epoch,
            first_offset=self.event_log.first_offset,
            next_offset=self.event_log.next_offset + len(new_events),
            encode_events_since=events,
            started_responses=tuple(self.checkpoints.values()),
        )

    def _draft_pieces_of(self, draft: str) -> tuple[DraftPiece, ...]:
        """Split the text buffer into pieces: the current pieces and one for appended text, or a
        single piece after any other change."""
        if draft == self.draft:
            return self._draft_pieces
        if self._draft_pieces and draft.startswith(self.draft):
            return (*self._draft_pieces, DraftPiece(draft[len(self.draft) :]))
        return (DraftPiece(draft),) if draft else ()

    # ------------------------------------------------------------ the engine

    async def sync_engine(self) -> None:
        """Move items out of window if the conversation is too long, and send the changes made
        during a response to the engine.

        A failure is logged; the next sync repairs it.
        """
        old = self.conversation
        new = await self._fit(self.context_window, old)
        if self.conversation is old:
            self.conversation = new
        try:
            await self._sync(self.conversation, self.draft)
        except EngineError as error:
            log.warning(
                "session %s: sync with the engine failed: %s",
                self.engine_session.session_id,
                error.message,
            )

    async def _fit(self, window: ContextWindow, conversation: Conversation) -> Conversation:
        if not window.overflows(conversation):
            return conversation
        return await self.run_tokenization(conversation.length, lambda: window.fit(conversation))

    async def run_tokenization(self, size: int, work: Callable[[], T]) -> T:
        """Run `work` and return its result. It runs on a thread if it may take long.

        `size`: number of the characters that `work` tokenizes, and of the ids whose text it
        tokenizes again.
        """
        return await self._tokenizer_threads.run(size, work)

    async def _sync(self, conversation: Conversation, draft: str) -> None:
        limit = self.context_window.context_tokens
        if conversation.length > limit or not self._has_tokens(self.engine_session.pushed_tokens):
            return
        if draft:
            stable_text = stable_prefix(draft)
            with_draft = None
            with contextlib.suppress(TooLong):
                with_draft = await self.run_tokenization(
                    len(draft) + conversation.rendered_length,
                    lambda: conversation.with_draft(stable_text),
                )
            if with_draft is not None and with_draft.length <= limit:
                *final_spans, draft_span = with_draft.all_spans
                await self.engine_session.sync(final_spans, draft=draft_span.ids)
                return
        await self.engine_session.sync(conversation.all_spans, draft=())

    # ------------------------------------------------------------ lookup

    def place_output(self, response_id: str, items: tuple[Item, ...]) -> str | None:
        """Put the items that an active response has so far into the conversation. Returns the id of
        the item before the last of them; None if there is none."""
        self.conversation = self.conversation.update_open_response(response_id, items)
        return self.conversation.previous_item_id(items[-1].id)

    def previous_item_id(self, now: Conversation, item_id: str) -> str | None:
        """Return the id of the item before `item_id` in the conversation `now`, as the client sees
        it: a response that is being generated again may have items that this gateway does not have
        yet. Returns None if there is no item before. Raises KeyError if there is no item
        `item_id`."""
        response_id = now.open_response_before(item_id)
        if response_id is not None:
            count = self.event_log.received_item_count(response_id)
            if count:
                return deterministic_id(response_id, "item", count)
        return now.previous_item_id(item_id)

    def find(self, item_id: str, code: str) -> Item:
        return find(self.conversation, item_id, code)

    def find_complete(self, item_id: str, code: str) -> Item:
        return find_complete(self.conversation, item_id, code)


def find(conversation: Conversation, item_id: str, code: str) -> Item:
    """Return an item of the conversation. Raises Refusal if there is none with this id."""
    item = conversation.find(item_id)
    if item is None:
        raise Refusal(f"The item with id '{item_id}' does not exist.", code=code, param="item_id")
    return item


def find_complete(conversation: Conversation, item_id: str, code: str) -> Item:
    """Return a finished item. Raises Refusal if it is not found, or is still being generated."""
    item = find(conversation, item_id, code)
    if conversation.is_in_open_response(item_id):
        raise Refusal(
            f"The item with id '{item_id}' is still being generated; cancel the response first.",
            code=code,
            param="item_id",
        )
    return item


def wire_epoch(store: str, epoch: int) -> str:
    """Return the epoch part of event ids. It contains a part of the store epoch `store`, because
    event ids issued under another store cannot be resumed from."""
    return f"{store[:8]}{epoch:02x}"


def _too_long(old: Conversation, new: Conversation, limit: int, param: str) -> Refusal:
    return context_length_exceeded(
        limit,
        f"'{param}' adds {new.length - old.length:,} tokens to the {old.length:,} of the "
        f"conversation, together {new.length:,}.",
        param,
    )
