"""A session from the store, as another gateway or another life of this one has left it, or has it
now."""

import msgspec

from engine import ChatTemplate, SessionInfo
from realtime.limits import Limits
from realtime.names import conversation_of
from realtime.session.history import History, Origin, Saved, wire_epoch
from realtime.session.journal import Scribe
from realtime.session.layout_thread import LayoutThread
from realtime.session.ledger import Ledger
from realtime.session.rates import Allowance, Rates
from realtime.session.records import records_of
from realtime.session.session import Session
from realtime.session.state import State
from realtime.session.status import Status
from realtime.session.stored import log_of, unpack_state
from realtime.session.strand import Door, Strand
from realtime.session.transcript import Transcript
from realtime.session.window import Window
from realtime.store import Lease, NewSession, Snapshot, Store


class House(msgspec.Struct, frozen=True):
    """What all sessions here have in common."""

    door: Door
    template: ChatTemplate
    limits: Limits
    store: Store
    scribe: Scribe
    rates: Rates
    layout: LayoutThread


def made(
    house: House, lease: Lease, new: NewSession, saved: Saved, scope: str, parent: Strand | None
) -> Session:
    """A new session, which the store knows already."""
    ledger = Ledger(house.store, lease, new)
    strand = Strand(house.door, lease.session, scope=scope, parent=parent, fence=lease.fence)
    transcript = Transcript(wire_epoch(lease.store, 0))
    allowance = house.rates.of(new.tenant)
    return _session(house, ledger, saved, strand, scope, transcript, allowance, left=False)


def loaded(house: House, lease: Lease, new: NewSession, found: Snapshot, scope: str) -> Session:
    """One that was in the store."""
    state = unpack_state(found.state)
    log = log_of(found.log, house.template, state.settings)
    next = state.first + found.events.next
    name = conversation_of(found.card.id)
    records = records_of(found.events.bodies, state.settings, log.conversation, name)
    epoch = found.card.epoch
    transcript = Transcript(wire_epoch(lease.store, epoch), next - len(records), records)
    ledger = Ledger(house.store, lease, new, pieces=log.pieces, told=next, base=state.first)
    strand = Strand(house.door, lease.session, scope=scope, fence=lease.fence, left=True)
    saved = Saved(state.settings, log.conversation, log.words, epoch)
    allowance = house.rates.of(new.tenant)
    session = _session(house, ledger, saved, strand, scope, transcript, allowance, left=True)
    session.go_on(found.answers)
    return session


def origin_in(found: Snapshot, at: str | None, template: ChatTemplate) -> Origin:
    """What a session begins with that was forked from this one, which goes on undisturbed. Raises
    Refusal."""
    settings = unpack_state(found.state).settings
    return Origin.of(settings, log_of(found.log, template, settings).conversation, at)


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
    window = Window(house.door.ready.max_model_len, saved.settings.truncation)
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
