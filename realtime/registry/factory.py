"""A session from the store, as another gateway or another life of this one has left it, or has it
now."""

import logging
from collections.abc import Callable

import msgspec

from continuo.engine import BadRequest, ChatTemplate, SessionInfo
from continuo.realtime.conversation.context_window import Window
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import chars_of, chars_of_head
from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_log import Transcript
from continuo.realtime.generation.engine_port import Door
from continuo.realtime.generation.engine_session import Strand
from continuo.realtime.generation.tokenizer_threads import LayoutThreads
from continuo.realtime.ids import conversation_of
from continuo.realtime.limits import Limits
from continuo.realtime.persistence.event_codec import records_of
from continuo.realtime.persistence.session_codec import State as Stored
from continuo.realtime.persistence.session_codec import is_of, log_of, unpack_state
from continuo.realtime.persistence.session_writer import Ledger
from continuo.realtime.persistence.token_journal import Scribe
from continuo.realtime.protocol.settings import Settings
from continuo.realtime.rate_limit import Allowance, Rates
from continuo.realtime.session.session import Session
from continuo.realtime.session.state import State
from continuo.realtime.session.status import Status
from continuo.realtime.session.unit_of_work import History, Origin, Saved, wire_epoch
from continuo.realtime.store import Lease, NewSession, Snapshot, Store

logger = logging.getLogger(__name__)


class House(msgspec.Struct, frozen=True):
    """What all sessions here have in common."""

    door: Door
    template: ChatTemplate
    limits: Limits
    store: Store
    scribe: Scribe
    rates: Rates
    layout: LayoutThreads

    @property
    def digest(self) -> str:
        """Digest of the model, tokenizer and chat template."""
        return self.door.ready.digest

    def window(self, settings: Settings) -> Window:
        return Window(self.door.ready.max_model_len, settings.truncation)


def made(
    house: House, lease: Lease, new: NewSession, saved: Saved, scope: str, parent: Strand | None
) -> Session:
    """A new session, which the store knows already."""
    ledger = Ledger(house.store, lease, new, model=house.digest)
    strand = Strand(house.door, lease.session, scope=scope, parent=parent, fence=lease.fence)
    transcript = Transcript(wire_epoch(lease.store, 0))
    allowance = house.rates.of(new.tenant)
    return _session(house, ledger, saved, strand, scope, transcript, allowance, left=False)


async def loaded(
    house: House, lease: Lease, new: NewSession, found: Snapshot, scope: str
) -> Session:
    """One that was in the store. Where it was begun on another model, its ids are made anew, no
    event id of before is known, and the store gets all of it with the first write. Raises Refusal
    for one that this model cannot go on with."""
    state = unpack_state(found.state)
    log = log_of(found.log, house.template, state.settings)
    pieces, conversation, epoch = log.pieces, log.conversation, found.card.epoch
    next = state.first + found.events.next
    renews = not is_of(state.model, house.digest)
    if renews:
        conversation = await _renewed(house, found, state, conversation)
        pieces, records, epoch = (), [], max(epoch + 1, lease.fence)
    else:
        name = conversation_of(found.card.id)
        records = records_of(found.events.bodies, state.settings, conversation, name)
    transcript = Transcript(wire_epoch(lease.store, epoch), next - len(records), records)
    ledger = Ledger(
        house.store,
        lease,
        new,
        pieces=pieces,
        told=next,
        base=state.first,
        model=house.digest,
        renews=renews,
    )
    strand = Strand(house.door, lease.session, scope=scope, fence=lease.fence, left=True)
    saved = Saved(state.settings, conversation, log.words, epoch)
    allowance = house.rates.of(new.tenant)
    session = _session(house, ledger, saved, strand, scope, transcript, allowance, left=True)
    session.go_on(found.answers)
    return session


async def origin_in(house: House, found: Snapshot, at: str | None) -> Origin:
    """What a session begins with that was forked from this one, which goes on undisturbed. Raises
    Refusal."""
    state = unpack_state(found.state)
    settings = state.settings
    conversation = log_of(found.log, house.template, settings).conversation
    if is_of(state.model, house.digest):
        return Origin.of(settings, conversation, at)

    def cut(whole: Conversation) -> Conversation:
        return Origin.of(settings, whole, at).conversation

    return Origin(settings, await _renewed(house, found, state, conversation, cut))


async def _renewed(
    house: House,
    found: Snapshot,
    state: Stored,
    conversation: Conversation,
    cut: Callable[[Conversation], Conversation] = lambda whole: whole,
) -> Conversation:
    """Render the conversation with ids of this model: as much of it as `cut` leaves, without the
    oldest items if it is too long. Raises Refusal."""
    session, window = found.card.id, house.window(state.settings)
    logger.warning(
        "session %s was begun on another model (%s, this one is %s): it is rendered anew",
        session,
        state.model or "not known",
        house.digest,
    )

    def render() -> tuple[Conversation, int]:
        made = window.fitted(cut(conversation.rendered()))
        return made, window.fitted(made.closed()).length

    chars = chars_of_head(state.settings) + sum(map(chars_of, conversation.items()))
    try:
        made, length = await house.layout.run(chars, render)
    except BadRequest as error:
        raise Refusal(
            f"The session with id '{session}' was begun on another model, and the chat template of "
            f"this one cannot write it: {error.message}",
            code="other_model",
            param="session_id",
        ) from error
    if length > window.limit:
        raise Refusal(
            f"The session with id '{session}' was begun on another model; for this one it is "
            f"{length:,} tokens, and the context holds {window.limit:,} (max_model_len).",
            code="context_length_exceeded",
            param="session_id",
        )
    return made


def status_in(found: Snapshot, info: SessionInfo | None, template: ChatTemplate) -> Status:
    """`info`: what an engine says of it, if one has it."""
    log = log_of(found.log, template, unpack_state(found.state).settings)
    answering = any(answer.begun.entry is not None for answer in found.answers)
    state = State.ANSWERING if answering else State.IDLE
    return Status.of(state.value, log.conversation, info)


def _session(
    house: House,
    ledger: Ledger,
    saved: Saved,
    strand: Strand,
    scope: str,
    transcript: Transcript,
    allowance: Allowance,
    *,
    left: bool,
) -> Session:
    window = house.window(saved.settings)
    history = History(saved, strand, ledger, transcript, window, house.layout)
    session = ledger.lease.session
    return Session(
        session,
        house.door,
        house.limits,
        house.scribe,
        history,
        allowance,
        scope=scope,
        left=left,
    )
