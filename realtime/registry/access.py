"""Who comes, and what for. Pure."""

import hashlib
import hmac

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_id import Position, parse
from continuo.realtime.protocol.settings import Settings

DIGEST_BYTES = 32
"""Size of a SHA-256 digest."""


class Guest(msgspec.Struct, frozen=True):
    """Who has been let in."""

    tenant: str = ""
    settings: Settings | None = None
    """How its sessions begin; None: as the server's do."""
    ephemeral: bool = False
    """By a key that is good for conversations alone."""
    client_secret: bytes = b""
    """Digest of the client secret that was shown; empty: no session counts as begun under it."""


class Access(msgspec.Struct, frozen=True):
    """Credentials of a request for a session, besides its tenant. The default is a full key."""

    token: bytes | None = None
    """Digest of the resume token; None: none was shown."""
    ephemeral: bool = False
    client_secret: bytes = b""

    @staticmethod
    def of(guest: Guest, token: str | None = None) -> "Access":
        digest = None if token is None else hashed(token)
        return Access(digest, guest.ephemeral, guest.client_secret)

    def opens(self, secret: bytes) -> bool:
        """Whether a session with this `secret` (see `secret_of`) may be used.

        A token that is shown must be right, whatever the key. Without one, a key of the tenant is
        enough, a client secret only for the sessions that began under it.
        """
        if self.token is not None:
            return hmac.compare_digest(self.token, secret[:DIGEST_BYTES])
        began_under = secret[DIGEST_BYTES:]
        return not self.ephemeral or (
            began_under != b"" and hmac.compare_digest(self.client_secret, began_under)
        )


class Owner(msgspec.Struct, frozen=True):
    """The tenant and the secret record of a session."""

    tenant: str
    secret: bytes


class Fork(msgspec.Struct, frozen=True):
    """A wish to begin as another session was after an item (None: as it is)."""

    session_id: str
    at: str | None = None
    token: str | None = None
    """Resume token of that session."""


class Return(msgspec.Struct, frozen=True):
    """A wish to go on with a session after the last event seen (None: to see everything)."""

    session_id: str
    last_event_id: str | None = None
    token: str | None = None
    """None: whoever has a key of the tenant may."""


def admits(wish: Return, guest: Guest | None, owner: Owner) -> bool:
    """Whether the session of `owner` may be resumed. `guest` None: the client shows no key, only
    the token of its wish."""
    guest = guest or Guest(owner.tenant, ephemeral=True)
    return guest.tenant == owner.tenant and Access.of(guest, wish.token).opens(owner.secret)


def admit(wish: Return, guest: Guest | None, owner: Owner) -> None:
    """Refuse a session that may not be resumed with the answer for an unknown one. Raises
    Refusal."""
    if not admits(wish, guest, owner):
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


def secret_of(token: str, guest: Guest) -> bytes:
    """The record by which access to a new session is checked later, at any gateway: the digest of
    its resume token and, where a client secret began it, that one's digest behind it."""
    return hashed(token) + guest.client_secret


def hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
