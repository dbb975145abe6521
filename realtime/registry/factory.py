"""A session from the store, as another gateway or another life of this one has left it, or has it
now."""

import logging
from collections.abc import Callable

import msgspec

from continuo.engine import BadRequest, ChatTemplate, SessionInfo
from continuo.realtime.conversation.context_window import ContextWindow
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import count_chars, count_head_chars
from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_log import EventLog
from continuo.realtime.generation.engine_port import EnginePort
from continuo.realtime.generation.engine_session import EngineSession
from continuo.realtime.generation.tokenizer_threads import TokenizerThreads
from continuo.realtime.ids import conversation_id_of
from continuo.realtime.limits import Limits
from continuo.realtime.persistence.event_codec import decode_events
from continuo.realtime.persistence.session_codec import StoredState as Stored
from continuo.realtime.persistence.session_codec import (
    decode_conversation,
    decode_state,
    is_same_model,
)
from continuo.realtime.persistence.session_writer import SessionWriter
from continuo.realtime.persistence.token_journal import JournalFlusher
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.rate_limit import RateLimits, TenantRateLimits
from continuo.realtime.session.session import Session
from continuo.realtime.session.state import SessionState
from continuo.realtime.session.status import SessionStatus
from continuo.realtime.session.unit_of_work import (
    InitialState,
    SessionOrigin,
    UnitOfWork,
    wire_epoch,
)
from continuo.realtime.store import NewSession, SessionLease, Snapshot, Store

logger = logging.getLogger(__name__)


class SessionFactory(msgspec.Struct, frozen=True):
    """What all sessions here have in common."""

    engine: EnginePort
    template: ChatTemplate
    limits: Limits
    store: Store
    journal_flusher: JournalFlusher
    rate_limits: RateLimits
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
    cache_scope: str,
    parent_engine_session: EngineSession | None,
) -> Session:
    """A new session, which the store knows already."""
    ledger = SessionWriter(factory.store, lease, new, model_digest=factory.model_digest)
    strand = EngineSession(
        factory.engine,
        lease.session,
        cache_scope=cache_scope,
        parent=parent_engine_session,
        fence=lease.fence,
    )
    transcript = EventLog(wire_epoch(lease.store_epoch, 0))
    allowance = factory.rate_limits.for_tenant(new.tenant)
    return _build_session(
        factory, ledger, initial, strand, cache_scope, transcript, allowance, is_loaded=False
    )


async def load(
    factory: SessionFactory,
    lease: SessionLease,
    new: NewSession,
    snapshot: Snapshot,
    cache_scope: str,
) -> Session:
    """One that was in the store. Where it was begun on another model, its ids are made anew, no
    event id of before is known, and the store gets all of it with the first write. Raises Refusal
    for one that this model cannot go on with."""
    state = decode_state(snapshot.state)
    log = decode_conversation(snapshot.entries, factory.template, state.settings)
    pieces, conversation, epoch = log.entries, log.conversation, snapshot.metadata.epoch
    next = state.first + snapshot.events.next_offset
    renews = not is_same_model(state.model, factory.model_digest)
    if renews:
        conversation = await _rerender(factory, snapshot, state, conversation)
        pieces, records, epoch = (), [], max(epoch + 1, lease.fence)
    else:
        name = conversation_id_of(snapshot.metadata.id)
        records = decode_events(snapshot.events.bodies, state.settings, conversation, name)
    transcript = EventLog(wire_epoch(lease.store_epoch, epoch), next - len(records), records)
    ledger = SessionWriter(
        factory.store,
        lease,
        new,
        entries=pieces,
        written_offset=next,
        base_offset=state.first,
        model_digest=factory.model_digest,
        replaces_all=renews,
    )
    strand = EngineSession(
        factory.engine, lease.session, cache_scope=cache_scope, fence=lease.fence, may_exist=True
    )
    saved = InitialState(state.settings, conversation, log.draft, epoch)
    allowance = factory.rate_limits.for_tenant(new.tenant)
    session = _build_session(
        factory, ledger, saved, strand, cache_scope, transcript, allowance, is_loaded=True
    )
    session.resume_responses(snapshot.running_responses)
    return session


async def fork_origin(
    factory: SessionFactory, snapshot: Snapshot, item_id: str | None
) -> SessionOrigin:
    """What a session begins with that was forked from this one, which goes on undisturbed. Raises
    Refusal."""
    state = decode_state(snapshot.state)
    settings = state.settings
    conversation = decode_conversation(snapshot.entries, factory.template, settings).conversation
    if is_same_model(state.model, factory.model_digest):
        return SessionOrigin.of(settings, conversation, item_id)

    def cut(whole: Conversation) -> Conversation:
        return SessionOrigin.of(settings, whole, item_id).conversation

    return SessionOrigin(settings, await _rerender(factory, snapshot, state, conversation, cut))


async def _rerender(
    factory: SessionFactory,
    snapshot: Snapshot,
    state: Stored,
    conversation: Conversation,
    cut: Callable[[Conversation], Conversation] = lambda whole: whole,
) -> Conversation:
    """Render the conversation with ids of this model: as much of it as `cut` leaves, without the
    oldest items if it is too long. Raises Refusal."""
    session, window = snapshot.metadata.id, factory.context_window(state.settings)
    logger.warning(
        "session %s was begun on another model (%s, this one is %s): it is rendered anew",
        session,
        state.model or "not known",
        factory.model_digest,
    )

    def render() -> tuple[Conversation, int]:
        made = window.fit(cut(conversation.retokenize()))
        return made, window.fit(made.without_open_responses()).length

    chars = count_head_chars(state.settings) + sum(map(count_chars, conversation.items()))
    try:
        made, length = await factory.tokenizer_threads.run(chars, render)
    except BadRequest as error:
        raise Refusal(
            f"The session with id '{session}' was begun on another model, and the chat template of "
            f"this one cannot write it: {error.message}",
            code="other_model",
            param="session_id",
        ) from error
    if length > window.context_tokens:
        raise Refusal(
            f"The session with id '{session}' was begun on another model; for this one it is "
            f"{length:,} tokens, and the context holds {window.context_tokens:,} (max_model_len).",
            code="context_length_exceeded",
            param="session_id",
        )
    return made


def stored_status(
    snapshot: Snapshot, info: SessionInfo | None, template: ChatTemplate
) -> SessionStatus:
    """`info`: what an engine says of it, if one has it."""
    log = decode_conversation(snapshot.entries, template, decode_state(snapshot.state).settings)
    answering = any(answer.checkpoint.entry is not None for answer in snapshot.running_responses)
    state = SessionState.RESPONDING if answering else SessionState.IDLE
    return SessionStatus.of(state.value, log.conversation, info)


def _build_session(
    factory: SessionFactory,
    session_writer: SessionWriter,
    initial: InitialState,
    engine_session: EngineSession,
    cache_scope: str,
    event_log: EventLog,
    tenant_rate_limits: TenantRateLimits,
    *,
    is_loaded: bool,
) -> Session:
    window = factory.context_window(initial.settings)
    history = UnitOfWork(
        initial, engine_session, session_writer, event_log, window, factory.tokenizer_threads
    )
    session = session_writer.lease.session
    return Session(
        session,
        factory.engine,
        factory.limits,
        factory.journal_flusher,
        history,
        tenant_rate_limits,
        cache_scope=cache_scope,
        is_loaded=is_loaded,
    )
