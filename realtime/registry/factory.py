"""Creation of sessions: new, loaded from the store, or as a fork of a stored one."""

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from continuo.engine import BadRequest, ChatTemplate, EngineClient, SessionGroup, SessionInfo
from continuo.realtime.conversation.context_window import ContextWindow
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import count_chars, count_head_chars
from continuo.realtime.errors import Refusal, context_length_exceeded
from continuo.realtime.event_log.event_id import session_tag
from continuo.realtime.event_log.event_log import EventLog
from continuo.realtime.generation.engine_session import EngineSession
from continuo.realtime.generation.tokenizer_threads import TokenizerThreads
from continuo.realtime.ids import conversation_id_of
from continuo.realtime.limits import Limits
from continuo.realtime.persistence.event_codec import decode_events
from continuo.realtime.persistence.session_codec import (
    StoredState,
    decode_conversation,
    decode_state,
)
from continuo.realtime.persistence.session_writer import SessionWriter, StoredLog
from continuo.realtime.persistence.token_journal import JournalFlusher
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.open_sessions import SessionObserver
from continuo.realtime.session.idempotency_keys import IdempotencyKeys
from continuo.realtime.session.session import Session
from continuo.realtime.session.state import SessionState
from continuo.realtime.session.status import SessionStatus
from continuo.realtime.session.unit_of_work import (
    InitialState,
    SessionOrigin,
    UnitOfWork,
    wire_epoch,
)
from continuo.realtime.store import IdempotentRequest, NewSession, SessionLease, Snapshot, Store
from continuo.realtime.tenants.tenants import Tenant, Tenants

logger = logging.getLogger(__name__)


class SessionFactory(msgspec.Struct, frozen=True):
    """The dependencies that all sessions of a gateway share."""

    engine: EngineClient
    template: ChatTemplate
    limits: Limits
    store: Store
    journal_flusher: JournalFlusher
    tenants: Tenants
    tokenizer_threads: TokenizerThreads

    @property
    def model_digest(self) -> str:
        """Digest of the model, tokenizer and chat template."""
        return self.engine.ready.digest

    def context_window(self, settings: GenerationSettings) -> ContextWindow:
        return ContextWindow(self.engine.ready.max_model_len, settings.truncation)


def create(
    factory: SessionFactory,
    lease: SessionLease,
    new: NewSession,
    initial: InitialState,
    group: SessionGroup,
    parent_engine_session: EngineSession | None,
    observer: SessionObserver,
) -> Session:
    """Create the `Session` object for a session that was just created in the store."""
    recorded: dict[str, IdempotentRequest] = {}
    session_writer = SessionWriter(
        factory.store,
        lease,
        new,
        model_digest=factory.model_digest,
        completed_requests=recorded,
        on_replaced=observer.on_replaced,
    )
    engine_session = EngineSession(
        factory.engine,
        lease.session,
        group=group,
        parent=parent_engine_session,
        fence=lease.fence,
    )
    event_log = EventLog(
        wire_epoch(lease.store_epoch, 0), on_gap=observer.on_gap, tag=session_tag(lease.session)
    )
    tenant = factory.tenants.of(new.tenant)
    return _build_session(
        factory,
        session_writer,
        initial,
        engine_session,
        event_log,
        _make_keys(session_writer, recorded, tenant, is_complete=True),
        tenant,
    )


async def load(
    factory: SessionFactory,
    lease: SessionLease,
    new: NewSession,
    snapshot: Snapshot,
    group: SessionGroup,
    observer: SessionObserver,
) -> Session:
    """Load a session from the store. If its token ids are of another model, the conversation is
    rendered again, event ids issued before can no longer be resumed from, and the first write
    replaces all that is stored. Raises Refusal if this model cannot continue the session."""
    state = decode_state(snapshot.state)
    decoded = decode_conversation(snapshot.entries, factory.template, state.settings)
    conversation, epoch = decoded.conversation, snapshot.metadata.epoch
    next_offset = state.first + snapshot.events.next_offset
    stored = StoredLog(decoded.entries, next_offset)
    is_other_model = state.model != factory.model_digest
    if is_other_model:
        conversation = await _rerender(factory, snapshot, state, conversation)
        stored, events, epoch = None, [], max(epoch + 1, lease.fence)
    else:
        conversation_id = conversation_id_of(snapshot.metadata.id)
        events = decode_events(
            snapshot.events.bodies, state.settings, conversation, conversation_id
        )
    event_log = EventLog(
        wire_epoch(lease.store_epoch, epoch),
        next_offset - len(events),
        events,
        observer.on_gap,
        session_tag(lease.session),
    )
    recorded: dict[str, IdempotentRequest] = {}
    session_writer = SessionWriter(
        factory.store,
        lease,
        new,
        stored=stored,
        base_offset=state.first,
        model_digest=factory.model_digest,
        completed_requests=recorded,
        on_replaced=observer.on_replaced,
    )
    engine_session = EngineSession(
        factory.engine, lease.session, group=group, fence=lease.fence, may_exist=True
    )
    initial = InitialState(state.settings, conversation, decoded.draft, epoch)
    tenant = factory.tenants.of(new.tenant)
    session = _build_session(
        factory,
        session_writer,
        initial,
        engine_session,
        event_log,
        _make_keys(session_writer, recorded, tenant, is_complete=False),
        tenant,
    )
    session.resume_responses(snapshot.running_responses)
    return session


async def fork_origin(
    factory: SessionFactory, snapshot: Snapshot, item_id: str | None
) -> SessionOrigin:
    """Make the origin (initial content) of a fork of a stored session. The stored session is not
    changed. `item_id`: the last item to copy; None: all. Raises Refusal."""
    state = decode_state(snapshot.state)
    settings = state.settings
    conversation = decode_conversation(snapshot.entries, factory.template, settings).conversation
    if state.model == factory.model_digest:
        return SessionOrigin.of(settings, conversation, item_id)

    def cut(whole: Conversation) -> Conversation:
        return SessionOrigin.of(settings, whole, item_id).conversation

    return SessionOrigin(settings, await _rerender(factory, snapshot, state, conversation, cut))


async def _rerender(
    factory: SessionFactory,
    snapshot: Snapshot,
    state: StoredState,
    conversation: Conversation,
    cut: Callable[[Conversation], Conversation] = lambda whole: whole,
) -> Conversation:
    """Tokenize again, for this model, the part of the conversation that `cut` keeps, without its
    oldest items if it is too long. Raises Refusal."""
    session_id, window = snapshot.metadata.id, factory.context_window(state.settings)
    logger.warning(
        "session %s was begun on another model (%s, this one is %s): it is rendered again",
        session_id,
        state.model,
        factory.model_digest,
    )

    def render() -> tuple[Conversation, int]:
        rendered = window.fit(cut(conversation.retokenize()))
        return rendered, window.fit(rendered.without_open_responses()).length

    chars = count_head_chars(state.settings) + sum(
        map(count_chars, conversation.items_with_reasoning())
    )
    try:
        rendered, length = await factory.tokenizer_threads.run(chars, render)
    except BadRequest as error:
        raise Refusal(
            f"The session with id '{session_id}' was begun on another model, and the chat template "
            f"of this one cannot render it: {error.message}",
            code="other_model",
            param="session_id",
        ) from error
    if length > window.context_tokens:
        raise context_length_exceeded(
            window.context_tokens,
            f"The session with id '{session_id}' was begun on another model; for this one it is "
            f"{length:,} tokens.",
            "session_id",
        )
    return rendered


def stored_status(
    snapshot: Snapshot, info: SessionInfo | None, template: ChatTemplate
) -> SessionStatus:
    """Make the status of a stored session. `info`: the engine's report of its engine session; None
    if no engine holds it."""
    decoded = decode_conversation(snapshot.entries, template, decode_state(snapshot.state).settings)
    is_responding = any(
        response.checkpoint.entry is not None for response in snapshot.running_responses
    )
    state = SessionState.RESPONDING if is_responding else SessionState.IDLE
    return SessionStatus.of(state.value, decoded.conversation, info)


def _make_keys(
    session_writer: SessionWriter,
    recorded: dict[str, IdempotentRequest],
    tenant: Tenant,
    *,
    is_complete: bool,
) -> IdempotencyKeys:
    hold = partial(tenant.ledger.hold, "idempotency_keys")
    return IdempotencyKeys(session_writer, recorded, is_complete=is_complete, hold=hold)


def _build_session(
    factory: SessionFactory,
    session_writer: SessionWriter,
    initial: InitialState,
    engine_session: EngineSession,
    event_log: EventLog,
    idempotency_keys: IdempotencyKeys,
    tenant: Tenant,
) -> Session:
    context_window = factory.context_window(initial.settings)
    unit_of_work = UnitOfWork(
        initial,
        engine_session,
        session_writer,
        event_log,
        context_window,
        factory.tokenizer_threads,
        tenant.rate_limits.has_tokens,
    )
    session_id = session_writer.lease.session
    return Session(
        session_id,
        factory.engine,
        factory.limits,
        factory.journal_flusher,
        unit_of_work,
        idempotency_keys,
        tenant,
    )
