"""Access to sessions: credentials, requests to resume or fork, and their checks. Pure."""

import hashlib
import hmac
import math
from typing import Literal

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.event_log.event_id import EventId, parse_event_id
from continuo.realtime.protocol.settings import GenerationSettings

DIGEST_BYTES = 32
"""Size of the SHA-256 digests of resume tokens and client secrets (see `make_secret`)."""
KEY_ID_BYTES = 8
"""Size of a key id, the beginning of the SHA-256 digest of an API key."""

Scope = Literal["converse", "read", "admin"]
"""Permission of a key. converse: sessions and responses; read: their status, and the models; admin:
statistics and control of the whole server."""
ALL_SCOPES: frozenset[Scope] = frozenset({"converse", "read", "admin"})
TENANT_SCOPES: frozenset[Scope] = frozenset({"converse", "read"})
"""Scopes that reach no further than the tenant of the key."""


class Credentials(msgspec.Struct, frozen=True):
    """Credentials of an authenticated client."""

    tenant: str = ""
    settings: GenerationSettings | None = None
    """Initial settings of the client's sessions; None: the server's defaults."""
    is_ephemeral: bool = False
    """Whether the client may only use sessions, as with a client secret; requests that need a full
    key are refused."""
    client_secret_digest: bytes = b""
    """Digest of the client secret that was shown; empty if none was shown, which matches no
    session."""
    scopes: frozenset[Scope] = ALL_SCOPES
    key_id: bytes = b""
    """Id of the API key that was shown, or that minted the client secret; empty if the server
    requires no key."""
    expires_s: float = math.inf
    """Unix time at which the key or token expires, and connections that it opened are closed."""


class Access(msgspec.Struct, frozen=True):
    """The proof shown for a session, besides its tenant. The default is the access of a full
    key."""

    token_digest: bytes | None = None
    """Digest of the resume token; None if none was shown."""
    is_ephemeral: bool = False
    client_secret_digest: bytes = b""

    @staticmethod
    def of(credentials: Credentials, token: str | None = None) -> "Access":
        digest = None if token is None else hash_token(token)
        return Access(digest, credentials.is_ephemeral, credentials.client_secret_digest)

    def permits(self, secret: bytes) -> bool:
        """Whether a session with this `secret` (see `make_secret`) may be used.

        A resume token that is shown must match, even with a full key. Without one, a full key of
        the tenant is enough; a client secret permits only sessions that began under it.
        """
        if self.token_digest is not None:
            return hmac.compare_digest(self.token_digest, secret[:DIGEST_BYTES])
        began_under, _ = _split_origin(secret)
        return not self.is_ephemeral or (
            began_under != b"" and hmac.compare_digest(self.client_secret_digest, began_under)
        )


class Owner(msgspec.Struct, frozen=True):
    """The tenant of a session, and its secret (see `make_secret`)."""

    tenant: str
    secret: bytes


class ForkRequest(msgspec.Struct, frozen=True):
    """A request to open a session as a copy of another one, up to and including an item. `item_id`
    None: all items."""

    session_id: str
    item_id: str | None = None
    token: str | None = None
    """Resume token of the original session, `session_id`."""


class ResumeRequest(msgspec.Struct, frozen=True):
    """A request to resume a session after the last event received. `last_event_id` None: the client
    gets a snapshot."""

    session_id: str
    last_event_id: str | None = None
    token: str | None = None
    """Resume token; None: any full key of the tenant permits the resume."""


def may_resume(
    resume_request: ResumeRequest, credentials: Credentials | None, owner: Owner
) -> bool:
    """Whether the session of `owner` may be resumed. `credentials` None: the client shows no key,
    only the resume token of its request."""
    credentials = credentials or Credentials(owner.tenant, is_ephemeral=True)
    return credentials.tenant == owner.tenant and Access.of(
        credentials, resume_request.token
    ).permits(owner.secret)


def check_may_resume(
    resume_request: ResumeRequest, credentials: Credentials | None, owner: Owner
) -> None:
    """Check that a session may be resumed. If it may not, raises the same Refusal as for an unknown
    session."""
    if not may_resume(resume_request, credentials, owner):
        raise session_not_found(resume_request)


def parse_resume_cursor(resume_request: ResumeRequest) -> EventId | None:
    """Parse the last event id of the client. Returns None if the request has none. Raises Refusal
    if it is not an event id of this server."""
    if resume_request.last_event_id is None:
        return None
    since = parse_event_id(resume_request.last_event_id)
    if since is None:
        raise Refusal(
            f"'{resume_request.last_event_id[:200]}' is not an event id of this server. Leave out "
            "last_event_id to get the whole conversation.",
            code="resume_gap",
            param="last_event_id",
        )
    return since


def session_not_found(resume_request: ResumeRequest) -> Refusal:
    """Make the refusal of a request for an unknown session."""
    return Refusal(
        f"The session with id '{resume_request.session_id[:200]}' does not exist, or has expired.",
        code="session_not_found",
        param="session_id",
    )


def make_secret(token: str, credentials: Credentials) -> bytes:
    """Make the record by which any gateway checks access to a new session later: the digest of its
    resume token, the digest of the client secret under which it began, if any, and the id of the
    API key, if any."""
    return hash_token(token) + credentials.client_secret_digest + credentials.key_id


def key_id_of(secret: bytes) -> bytes:
    """Return the id of the API key under which the session with this `secret` began. Returns
    nothing if the server required no key."""
    _, key_id = _split_origin(secret)
    return key_id


def _split_origin(secret: bytes) -> tuple[bytes, bytes]:
    """Return the digest of the client secret, and the key id, that `secret` contains."""
    origin = secret[DIGEST_BYTES:]
    end = len(origin) - len(origin) % DIGEST_BYTES
    return origin[:end], origin[end:]


def hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
