"""One conversation: what may happen when (`state`), what was said (`conversation`), where the
engine stands (`strand`) and the store (`ledger`), how an answer is made (`answering`, `output`),
what was said and can be said again (`transcript`), and the shell that does it (`session`); answers
that go on from each other without a session (`responses`). Knows no wire: it hears Asks and says
Tells."""

from continuo.realtime.registry.access import Access, Fork, Guest, Return
from continuo.realtime.responses.run import Making, Visitor
from continuo.realtime.event_log.event_id import aside_of
from continuo.realtime.responses.event_stream import Recording
from continuo.realtime.registry.registry import Registry
from continuo.realtime.responses.service import Responses
from continuo.realtime.session.session import Session
from continuo.realtime.session.status import Status
from continuo.realtime.generation.engine_session import Door
from continuo.realtime.event_log.event_log import Line

__all__ = [
    "Access",
    "Door",
    "Fork",
    "Guest",
    "Line",
    "Making",
    "Recording",
    "Registry",
    "Responses",
    "Return",
    "Session",
    "Status",
    "Visitor",
    "aside_of",
]
