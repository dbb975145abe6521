"""One conversation: what may happen when (`state`), what was said (`conversation`), where the
engine stands (`strand`) and the store (`ledger`), how an answer is made (`answering`, `output`),
what was said and can be said again (`transcript`), and the shell that does it (`session`); answers
that go on from each other without a session (`responses`). Knows no wire: it hears Asks and says
Tells."""

from realtime.session.guests import Access, Fork, Guest, Return
from realtime.session.making import Making, Visitor
from realtime.session.position import aside_of
from realtime.session.recording import Recording
from realtime.session.registry import Registry
from realtime.session.responses import Responses
from realtime.session.session import Session
from realtime.session.status import Status
from realtime.session.strand import Door
from realtime.session.transcript import Line

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
