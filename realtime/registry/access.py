"""Who comes, and what for. Pure."""

import hashlib
import hmac

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_id import EventId, parse_event_id
from continuo.realtime.protocol.settings import GenerationSettings

DIGEST_BYTES = 32
"""Size of a SHA-256 digest."""


class Credentials(msgspec.Struct, frozen=True):
    """Who has been let in."""

    tenant: str = ""
    settings: GenerationSettings | None = None
    """How its sessions begin; None: as the server's do."""
    is_ephemeral: bool = False
    """By a key that is good for conversations alone."""
    client_secret_digest: bytes = b""
    """Digest of the client secret that was shown; empty: no session counts as begun under it."""


class Access(msgspec.Struct, frozen=True):
    """Credentials of a request for a session, besides its tenant. The default is a full key."""

    token_digest: bytes | None = None
    """Digest of the resume token; None: none was shown."""
    is_ephemeral: bool = False
    client_secret_digest: bytes = b""

    @staticmethod
    def of(credentials: Credentials, token: str | None = None) -> "Access":
        digest = None if token is None else hash_token(token)
        return Access(digest, credentials.is_ephemeral, credentials.client_secret_digest)

    def permits(self, secret: bytes) -> bool:
        """Whether a session with this `secret` (see `secret_of`) may be used.

        A token that is shown must be right, whatever the key. Without one, a key of the tenant is
        enough, a client secret only for the sessions that began under it.
        """
        if self.token_digest is not None:
            return hmac.compare_digest(self.token_digest, secret[:DIGEST_BYTES])
        began_under = secret[DIGEST_BYTES:]
        return not self.is_ephemeral or (
            began_under != b"" and hmac.compare_digest(self.client_secret_digest, began_under)
        )


class Owner(msgspec.Struct, frozen=True):
    """The tenant and the secret record of a session."""

    tenant: str
    secret: bytes


class ForkRequest(msgspec.Struct, frozen=True):
    """A wish to begin as another session was after an item (None: as it is)."""

    session_id: str
    item_id: str | None = None
    token: str | None = None
    """Resume token of that session."""


class ResumeRequest(msgspec.Struct, frozen=True):
    """A wish to go on with a session after the last event seen (None: to see everything)."""

    session_id: str
    last_event_id: str | None = None
    token: str | None = None
    """None: whoever has a key of the tenant may."""


def may_resume(
    resume_request: ResumeRequest, credentials: Credentials | None, owner: Owner
) -> bool:
    """Whether the session of `owner` may be resumed. `guest` None: the client shows no key, only
    the token of its wish."""
    credentials = credentials or Credentials(owner.tenant, is_ephemeral=True)
    return credentials.tenant == owner.tenant and Access.of(
        credentials, resume_request.token
    ).permits(owner.secret)


def check_may_resume(
    resume_request: ResumeRequest, credentials: Credentials | None, owner: Owner
) -> None:
    """Refuse a session that may not be resumed with the answer for an unknown one. Raises
    Refusal."""
    if not may_resume(resume_request, credentials, owner):
        raise session_not_found(resume_request)


def parse_resume_cursor(resume_request: ResumeRequest) -> EventId | None:
    """Raises Refusal for what was never an event id here."""
    if resume_request.last_event_id is None:
        return None
    since = parse_event_id(resume_request.last_event_id)
    if since is None:
        raise Refusal(
            f"'{resume_request.last_event_id[:200]}' is no event id of this server. Leave out "
            "last_event_id "
            "to be told the whole conversation.",
            code="resume_gap",
            param="last_event_id",
        )
    return since


def session_not_found(resume_request: ResumeRequest) -> Refusal:
    return Refusal(
        f"The session with id '{resume_request.session_id[:200]}' does not exist, or its time is "
        "over.",
        code="session_not_found",
        param="session_id",
    )


def make_secret(token: str, credentials: Credentials) -> bytes:
    """The record by which access to a new session is checked later, at any gateway: the digest of
    its resume token and, where a client secret began it, that one's digest behind it."""
    return hash_token(token) + credentials.client_secret_digest


def hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
