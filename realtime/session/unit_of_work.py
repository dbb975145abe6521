"""History: a session's conversation; the engine's log and the store's, brought up to it; and what
was said of it.

conversation ─┬─ as it stands ──────────────── strand: firm ─────────── ledger: entries
              └─ draft: words not yet final ── strand: provisional ──── ledger: behind them
                                               (without what may still change)

A change goes to both at once. It is told when the store has it; what either refuses, neither keeps.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Required, TypedDict, TypeVar

import msgspec

from continuo.engine import EngineError, EngineLost, TooLong
from continuo.realtime.conversation.context_window import ContextWindow
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import stable_prefix
from continuo.realtime.conversation.text_limits import refuse_if_too_long
from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_log import EventLog
from continuo.realtime.generation.engine_session import EngineSession
from continuo.realtime.generation.tokenizer_threads import TokenizerThreads
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
    ConversationEvent,
    ResponseEnded,
    ResponseStarted,
    Rewind,
)
from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.store import IdempotentRequest, OwnershipLost, ResponseCheckpoint, StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")
ConversationEdit = Callable[[Conversation], Conversation]
EventFactory = Callable[[Conversation, Rewind | None], Sequence[ConversationEvent]]


class SessionOrigin(msgspec.Struct, frozen=True):
    """What a fork begins with."""

    settings: GenerationSettings
    conversation: Conversation
    engine_session: EngineSession | None = None
    """Where its KV is, if that is known here."""

    @classmethod
    def of(
        cls,
        settings: GenerationSettings,
        conversation: Conversation,
        item_id: str | None,
        engine_session: EngineSession | None = None,
    ) -> "SessionOrigin":
        """As the conversation was after an item (None: as it is). Raises Refusal."""
        if item_id is not None:
            find_complete(conversation, item_id, "item_fork_invalid_item_id")
        return cls(settings, conversation.up_to_item(item_id), engine_session)


class ChangeOptions(TypedDict, total=False):
    """How an edit is made, see `History.change`."""

    param: Required[str]
    make_events: Required[EventFactory]
    chars: int
    draft: str
    settings: GenerationSettings
    context_window: ContextWindow


class InitialState(msgspec.Struct, frozen=True):
    """What a session goes on with."""

    settings: GenerationSettings
    conversation: Conversation
    draft: tuple[DraftPiece, ...] = ()
    epoch: int = 0


class UnitOfWork:
    """The history of a session. Items that do not fit into `window` are dropped, oldest first. Long
    texts are tokenised on the threads of `layout`."""

    def __init__(
        self,
        initial: InitialState,
        engine_session: EngineSession,
        session_writer: SessionWriter,
        event_log: EventLog,
        context_window: ContextWindow,
        tokenizer_threads: TokenizerThreads,
    ) -> None:
        self.settings = initial.settings
        self.conversation: Conversation = initial.conversation
        self.engine_session = engine_session
        self.session_writer = session_writer
        self.event_log = event_log
        self.context_window: ContextWindow = context_window
        self._draft_pieces = initial.draft
        self.draft: str = "".join(words.text for words in initial.draft)
        """The input text buffer."""
        self.epoch = initial.epoch
        self.checkpoints: dict[str, ResponseCheckpoint] = {}
        """Answers being made."""
        self._tokenizer_threads = tokenizer_threads
        self._lock = asyncio.Lock()
        """One change at a time: what is written and told has an order."""

    # ------------------------------------------------------------ changes

    async def change(
        self,
        edit: ConversationEdit,
        *,
        should_sync: Callable[[], bool],
        param: str,
        make_events: EventFactory,
        chars: int = 0,
        draft: str | None = None,
        settings: GenerationSettings | None = None,
        context_window: ContextWindow | None = None,
        idempotent_request: IdempotentRequest | None = None,
    ) -> None:
        """Edits the conversation, if it fits, with `draft` the words that are not final, and with
        `window` what is seen; `tells` says what there is to tell then, of the new conversation and
        how far it rewinds the old one; `push` whether the engine hears of it now. Raises Refusal,
        EngineError and StoreError; then nothing is done."""
        context_window = context_window or self.context_window
        while True:
            old = self.conversation
            with refuse_if_too_long(param, context_window.context_tokens):
                new = await self.run_tokenization(
                    chars, old, lambda now=old: context_window.fit(edit(now))
                )
            async with self._lock:
                if self.conversation is not old:
                    continue
                if not context_window.allows_change(old, new):
                    raise _too_long(old, new, context_window.context_tokens, param)
                draft = self.draft if draft is None else draft
                words = self._draft_pieces_of(draft)
                rewind = new.compute_rewind(old)
                told = make_events(new, rewind)
                whole = self._full_state(new, words, settings or self.settings, told)
                news = SessionChanges(
                    is_state_changed=settings is not None, request=idempotent_request
                )
                await self._write_and_sync(whole, news, (new, draft) if should_sync() else None)
                while self.conversation is not old:  # an answer being made has shown an item
                    old = self.conversation
                    new = await self.run_tokenization(
                        chars, old, lambda now=old: context_window.fit(edit(now))
                    )
                    told = make_events(new, rewind)
                    self.session_writer.rewrite_events_from(self.event_log.next_offset)
                self.conversation, self.context_window = new, context_window
                self.draft, self._draft_pieces = draft, words
                self.settings = settings or self.settings
                self._emit(told)
                return

    async def begin_response(
        self,
        response: Response,
        inputs: StoredRequest,
        seed: int,
        prompt_tokens: int,
        idempotent_request: IdempotentRequest | None = None,
    ) -> None:
        """An answer to `prompt` tokens is being made; one of the conversation has its place at the
        end of it. Raises StoreError."""
        async with self._lock:
            new, entry = self.conversation, None
            if response.conversation is not None:
                new, entry = new.open_response(response.id), len(to_entries(new, ()))
            inputs = msgspec.structs.replace(inputs, number=self.event_log.next_offset)
            begun = ResponseCheckpoint(
                id=response.id,
                seed=seed,
                prompt=prompt_tokens,
                entry=entry,
                body=encode_request(inputs),
            )
            told = (ResponseStarted(response),)
            whole = self._full_state(new, self._draft_pieces, self.settings, told)
            await self._write(
                whole, SessionChanges(started_response=begun, request=idempotent_request)
            )
            if entry is not None:  # else it may have changed: one of its own has shown an item
                self.conversation = new
            self.checkpoints[response.id] = begun
            self._emit(told)

    def resume_response(self, checkpoint: ResponseCheckpoint, inputs: StoredRequest) -> None:
        """An answer that was being made is being made again."""
        self.checkpoints[checkpoint.id] = checkpoint
        self.event_log.start_response(checkpoint.id, inputs.number)

    async def restart_response(
        self, checkpoint: ResponseCheckpoint, inputs: StoredRequest, prompt_tokens: int
    ) -> None:
        """An answer whose ids so far are of another model is made from its beginning: what the
        store has of it is replaced. Raises StoreError."""
        async with self._lock:
            body = encode_request(inputs)
            checkpoint = msgspec.structs.replace(checkpoint, prompt=prompt_tokens, body=body)
            whole = self._full_state(self.conversation, self._draft_pieces, self.settings, ())
            await self._write(whole, SessionChanges(restarted_response=checkpoint))
            self.checkpoints[checkpoint.id] = checkpoint

    async def end_response(self, response: Response, sampled: Sequence[int]) -> None:
        """An answer has been made. It is told even if the store cannot be written, which is done
        with the next change then."""
        async with self._lock:
            begun = self.checkpoints.pop(response.id)
            new = self.conversation
            if begun.entry is not None:
                now = new
                new = await self.run_tokenization(
                    0, now, lambda: now.commit_response(response.id, response.items, sampled)
                )
            told = (ResponseEnded(response),)
            whole = self._full_state(new, self._draft_pieces, self.settings, told)
            try:
                await self._write(whole, SessionChanges(ended_response=response.id))
            except OwnershipLost:
                raise
            except StoreError as error:
                log.warning("the end of %s is not written yet: %s", response.id, error)
            if begun.entry is not None:  # else it may have changed, as in `begin`
                self.conversation = new
            self._emit(told)

    async def start_epoch(self) -> None:
        """Positions told before mean nothing any more. Raises StoreError."""
        async with self._lock:
            # A fence is never the same again, even in a store that has lost this step.
            self.epoch = max(self.epoch + 1, self.session_writer.lease.fence)
            whole = self._full_state(self.conversation, self._draft_pieces, self.settings, ())
            await self._write(whole, SessionChanges(is_epoch_changed=True))
            self.event_log.epoch = wire_epoch(self.session_writer.lease.store_epoch, self.epoch)

    async def write_all(self) -> None:
        """What a session begins with, or could not be written before. Raises StoreError."""
        async with self._lock:
            whole = self._full_state(self.conversation, self._draft_pieces, self.settings, ())
            await self._write(whole, SessionChanges())

    async def record_request(self, idempotent_request: IdempotentRequest) -> None:
        """That this was asked; nothing changes by it. Raises Conflict, StoreError."""
        async with self._lock:
            whole = self._full_state(self.conversation, self._draft_pieces, self.settings, ())
            await self._write(whole, SessionChanges(request=idempotent_request))

    async def _write(self, whole: DesiredSession, news: SessionChanges) -> None:
        """Raises StoreError."""
        await self.session_writer.write(whole, news)
        self.engine_session.set_fence(self.session_writer.lease.fence)

    async def _write_and_sync(
        self,
        whole: DesiredSession,
        news: SessionChanges,
        sync_target: tuple[Conversation, str] | None,
    ) -> None:
        writing = asyncio.ensure_future(self._write(whole, news))
        if sync_target is not None:
            try:
                await self._sync(*sync_target)
            except BaseException:
                await self._roll_back(writing, news)
                raise
        try:
            await writing
        except StoreError:
            if sync_target is not None:
                await self.sync_engine()
            raise

    async def _roll_back(self, writing: "asyncio.Future[None]", news: SessionChanges) -> None:
        """The engine has refused what is being written."""
        with contextlib.suppress(StoreError):
            await writing
            old = self._full_state(self.conversation, self._draft_pieces, self.settings, ())
            await self._write(
                old, SessionChanges(is_state_changed=True, revoked_request=news.request)
            )

    def _emit(self, events: Sequence[ConversationEvent]) -> None:
        for tell in events:
            self.event_log.append(tell)

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
        """The text buffer in pieces: what is new is one."""
        if draft == self.draft:
            return self._draft_pieces
        if self._draft_pieces and draft.startswith(self.draft):
            return (*self._draft_pieces, DraftPiece(draft[len(self.draft) :]))
        return (DraftPiece(draft),) if draft else ()

    # ------------------------------------------------------------ the engine

    async def sync_engine(self) -> None:
        """What came while an answer was made goes to the engine now; the next push heals a
        failure. So does what must be computed again because the oldest items are dropped."""
        old, window = self.conversation, self.context_window
        new = await self.run_tokenization(0, old, lambda: window.fit(old))
        if self.conversation is old:
            self.conversation = new
        try:
            await self._sync(self.conversation, self.draft)
        except EngineError as error:
            if isinstance(error, EngineLost):
                self.engine_session.invalidate()
            log.warning(
                "session %s: push failed: %s", self.engine_session.session_id, error.message
            )

    async def run_tokenization(self, chars: int, old: Conversation, work: Callable[[], T]) -> T:
        """Run `make` and return its result, which lays out `chars` new characters, and perhaps all
        of the old conversation anew."""
        return await self._tokenizer_threads.run(chars + old.length, work)

    async def _sync(self, conversation: Conversation, draft: str) -> None:
        limit = self.context_window.context_tokens
        if conversation.length > limit:
            return
        if draft:
            said = stable_prefix(draft)
            ahead = None
            with contextlib.suppress(TooLong):
                ahead = await self.run_tokenization(
                    len(draft), conversation, lambda: conversation.with_draft(said)
                )
            if ahead is not None and ahead.length <= limit:
                *firm, last = ahead.all_spans
                await self.engine_session.sync(firm, draft=last.ids)
                return
        await self.engine_session.sync(conversation.all_spans, draft=())

    # ------------------------------------------------------------ looking

    def find(self, item_id: str, code: str) -> Item:
        return find(self.conversation, item_id, code)

    def find_complete(self, item_id: str, code: str) -> Item:
        return find_complete(self.conversation, item_id, code)


def find(conversation: Conversation, item_id: str, code: str) -> Item:
    """Raises Refusal where there is none."""
    item = conversation.find(item_id)
    if item is None:
        raise Refusal(f"The item with id '{item_id}' does not exist.", code=code, param="item_id")
    return item


def find_complete(conversation: Conversation, item_id: str, code: str) -> Item:
    """Raises Refusal, too, where it is still being made."""
    item = find(conversation, item_id, code)
    if conversation.is_in_open_response(item_id):
        raise Refusal(
            f"The item with id '{item_id}' is still being made; cancel the response first.",
            code=code,
            param="item_id",
        )
    return item


def wire_epoch(store: str, epoch: int) -> str:
    """Of the positions clients are told: other ones in another store."""
    return f"{store[:8]}{epoch:02x}"


def _too_long(old: Conversation, new: Conversation, limit: int, param: str) -> Refusal:
    return Refusal(
        f"'{param}' adds {new.length - old.length:,} tokens to the {old.length:,} of the "
        f"conversation; together {new.length:,} are over the context of the model, which holds "
        f"{limit:,} (max_model_len).",
        code="context_length_exceeded",
        param=param,
    )
