"""Who comes, and what for. Pure."""

import hashlib
import hmac

import msgspec

from realtime.errors import Refusal
from realtime.protocol.core import Settings
from realtime.session.position import Position, parse


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


class Return(msgspec.Struct, frozen=True):
    """A wish to go on with a session after the last event seen (None: to see everything)."""

    session_id: str
    last_event_id: str | None = None
    token: str | None = None
    """None: whoever has a key of the tenant may."""


def admit(wish: Return, guest: Guest, tenant: str, secret: bytes) -> None:
    """Somebody else's session is answered like an unknown one. Raises Refusal."""
    if guest.tenant != tenant:
        raise unknown(wish)
    if wish.token is not None and not hmac.compare_digest(hashed(wish.token), secret):
        raise unknown(wish)


def position_of(wish: Return) -> Position | None:
    """Raises Refusal for what was never an event id here."""
    if wish.last_event_id is None:
        return None
    since = parse(wish.last_event_id)
    if since is None:
        raise Refusal(
            f"'{wish.last_event_id[:200]}' is no event id of this server. Leave out last_event_id "
            "to be told the whole conversation.",
            code="resume_gap",
            param="last_event_id",
        )
    return since


def unknown(wish: Return) -> Refusal:
    return Refusal(
        f"The session with id '{wish.session_id[:200]}' does not exist, or its time is over.",
        code="session_not_found",
        param="session_id",
    )


def hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
