"""The sessions of this process, by id."""

from engine import ChatTemplate
from realtime.errors import Refusal
from realtime.limits import Limits
from realtime.names import fresh
from realtime.protocol.core import Settings
from realtime.session.answering import Teller
from realtime.session.session import Session
from realtime.session.strand import Door


class Registry:
    def __init__(
        self, door: Door, template: ChatTemplate, settings: Settings, limits: Limits
    ) -> None:
        """`settings` are those of a session that sets nothing."""
        self.settings = settings
        self._door = door
        self._template = template
        self._limits = limits
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, tell: Teller, session_id: str | None = None) -> Session:
        """Raises Refusal when there are too many."""
        if len(self._sessions) >= self._limits.sessions_max:
            raise Refusal(
                f"This server has {self._limits.sessions_max:,} open sessions, its limit.",
                code="rate_limit_exceeded",
                kind="server_error",
            )
        name = session_id or fresh("sess")
        session = Session(name, self._door, self._template, self.settings, tell, self._limits)
        self._sessions[name] = session
        return session

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    async def close(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        await session.close()
