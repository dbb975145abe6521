"""One conversation: what may happen when (`state`), what was said (`conversation`), where the
engine stands (`strand`), how an answer is made (`answering`, `output`), and the shell that does it
(`session`). Knows no wire: it hears Asks and says Tells."""

from realtime.session.registry import Fork, Guest, Registry
from realtime.session.session import Session
from realtime.session.status import Status
from realtime.session.strand import Door

__all__ = ["Door", "Fork", "Guest", "Registry", "Session", "Status"]
