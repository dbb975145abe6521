"""The sessions of this process, by id, and whose they are."""

import hmac
import secrets
from collections.abc import Callable

import msgspec

from engine import ChatTemplate
from realtime.errors import Refusal
from realtime.limits import Limits
from realtime.names import fresh
from realtime.protocol.closing import CloseCode
from realtime.protocol.core import Settings
from realtime.session.answering import Teller
from realtime.session.history import Origin
from realtime.session.session import Session
from realtime.session.strand import Door


class Guest(msgspec.Struct, frozen=True):
    """Who has been let in."""

    tenant: str = ""
    settings: Settings | None = None
    """How its sessions begin; None: as the server's do."""
    ephemeral: bool = False
    """By a key that is good for conversations alone."""


class Fork(msgspec.Struct, frozen=True):
    """A wish to begin as another session was after an item (None: as it is)."""

    session_id: str
    at: str | None = None


HangUp = Callable[[CloseCode, str], None]


class _Open(msgspec.Struct, frozen=True):
    session: Session
    tenant: str
    hang_up: HangUp


class Registry:
    def __init__(
        self, door: Door, template: ChatTemplate, settings: Settings, limits: Limits
    ) -> None:
        """`settings` are those of a session that sets nothing."""
        self.settings = settings
        self._door = door
        self._template = template
        self._limits = limits
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, _Open] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        tell: Teller,
        session_id: str | None = None,
        guest: Guest | None = None,
        hang_up: HangUp = lambda code, reason: None,
        fork: Fork | None = None,
    ) -> Session:
        """`hang_up` ends the connection of the session. Raises Refusal when there are too many, or
        nothing to fork."""
        if len(self._sessions) >= self._limits.sessions_max:
            raise Refusal(
                f"This server has {self._limits.sessions_max:,} open sessions, its limit.",
                code="rate_limit_exceeded",
                kind="server_error",
            )
        guest = guest or Guest()
        origin = self._origin(fork, guest.tenant) if fork else None
        settings = origin.settings if origin else guest.settings or self.settings
        session = Session(
            session_id or fresh("sess"),
            self._door,
            self._template,
            settings,
            tell,
            self._limits,
            scope=self.scope(guest.tenant),
            origin=origin,
        )
        self._sessions[session.id] = _Open(session, guest.tenant, hang_up)
        return session

    def find(self, session_id: str, tenant: str = "") -> Session | None:
        """None, too, if it is another tenant's."""
        found = self._sessions.get(session_id)
        return found.session if found is not None and found.tenant == tenant else None

    def of(self, tenant: str) -> list[Session]:
        """A tenant's, the oldest first."""
        return [one.session for one in self._sessions.values() if one.tenant == tenant]

    def end(self, session: Session, code: CloseCode, reason: str) -> None:
        """Its connection closes with this code, and the session with it."""
        self._sessions[session.id].hang_up(code, reason)

    async def close(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        await session.close()

    def _origin(self, fork: Fork, tenant: str) -> Origin:
        source = self.find(fork.session_id, tenant)
        if source is None:
            raise Refusal(
                f"The session with id '{fork.session_id[:200]}' does not exist.",
                code="session_not_found",
                param="fork",
            )
        return source.fork(fork.at)

    def scope(self, tenant: str) -> str:
        """KV is shared within it; who knows only the tenant's name cannot make it."""
        return hmac.digest(self._secret, tenant.encode(), "sha256").hex()
