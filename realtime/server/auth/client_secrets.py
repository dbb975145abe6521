"""Client secrets: short-lived keys for browsers, valid only for conversations with given settings.

A server without a shared secret (`--secret-file`) keeps client secrets in memory, by hash, until
they expire. Gateways with a shared secret put tenant, settings and expiry into the client secret
and sign them with an HMAC, so that each gateway accepts the client secrets of all. Sessions outlive
their client secret, and can be resumed with the resume token alone.
"""

import base64
import hashlib
import hmac
import secrets
import time
import zlib
from collections.abc import Callable
from typing import Protocol

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import TENANT_SCOPES, Credentials

SECRET_PREFIX = "ek_"
"""SDKs accept only keys with this prefix in a browser."""
_SECRETS_MAX = 100_000
"""Maximum number of unexpired client secrets in memory."""


class MintedSecret(msgspec.Struct, frozen=True):
    value: str
    expires_at: int


class ClientSecrets(Protocol):
    """Mints and verifies client secrets."""

    def mint(
        self, tenant: str, settings: GenerationSettings, ttl_s: int, key_id: bytes = b""
    ) -> MintedSecret:
        """Create a client secret of a tenant, valid for `ttl_s` seconds. `key_id`: id of the API
        key that mints it, with which it is revoked. Raises Refusal if there are too many, or if it
        would be too long."""
        ...

    def find(self, value: str) -> Credentials | None:
        """Return the credentials of a client secret. Returns None if it is invalid or expired."""
        ...


class _StoredSecret(msgspec.Struct, frozen=True):
    credentials: Credentials
    expires_at: float


class InMemorySecrets:
    """Client secrets of one process, kept by their hash."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._secrets: dict[bytes, _StoredSecret] = {}

    def mint(
        self, tenant: str, settings: GenerationSettings, ttl_s: int, key_id: bytes = b""
    ) -> MintedSecret:
        """Create a client secret. Raises Refusal if _SECRETS_MAX unexpired ones exist."""
        now = self._clock()
        if len(self._secrets) >= _SECRETS_MAX:
            self._secrets = {
                digest: stored
                for digest, stored in self._secrets.items()
                if stored.expires_at > now
            }
        if len(self._secrets) >= _SECRETS_MAX:
            raise Refusal(
                f"This server has {_SECRETS_MAX:,} client secrets, its limit.",
                code="rate_limit_exceeded",
                kind="server_error",
            )
        value = SECRET_PREFIX + secrets.token_hex(24)
        expires_at = int(now) + ttl_s
        credentials = _make_credentials(tenant, settings, _hash(value), key_id)
        self._secrets[credentials.client_secret_digest] = _StoredSecret(credentials, expires_at)
        return MintedSecret(value, expires_at)

    def find(self, value: str) -> Credentials | None:
        stored = self._secrets.get(_hash(value))
        return (
            stored.credentials if stored is not None and stored.expires_at > self._clock() else None
        )


class _SignedClaims(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    settings: GenerationSettings
    expires_at: int
    nonce: str = ""
    """Random text that makes every client secret unique. Empty: minted by an older release, which
    could mint the same client secret twice."""
    key_id: bytes = b""


_claims_decoder = msgspec.json.Decoder(_SignedClaims)
_MAC_BYTES = 32
_NONCE_BYTES = 12
"""Random bytes of a nonce; 96 bits, so that all client secrets of a deployment differ."""
_VALUE_CHARS_MAX = 8 * 1024
"""Maximum length of a signed client secret, which must fit into an HTTP header."""


class SignedSecrets:
    """Client secrets that contain their claims, signed against changes but not encrypted."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret, b"client secrets", "sha256")
        self._clock = clock

    def mint(
        self, tenant: str, settings: GenerationSettings, ttl_s: int, key_id: bytes = b""
    ) -> MintedSecret:
        """Create a client secret. Raises Refusal if it would exceed _VALUE_CHARS_MAX."""
        expires_at = int(self._clock()) + ttl_s
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        claims = _SignedClaims(tenant, settings, expires_at, nonce, key_id)
        body = zlib.compress(msgspec.json.encode(claims))
        value = SECRET_PREFIX + _encode(self._mac(body) + body)
        if len(value) > _VALUE_CHARS_MAX:
            raise Refusal(
                f"The session is too large for a client secret: it would be {len(value):,} "
                f"characters long; the limit is {_VALUE_CHARS_MAX:,}. Set instructions and tools "
                "with session.update instead.",
                code="session_too_large",
                param="session",
            )
        return MintedSecret(value, expires_at)

    def find(self, value: str) -> Credentials | None:
        if not value.startswith(SECRET_PREFIX) or len(value) > _VALUE_CHARS_MAX:
            return None
        text = value.removeprefix(SECRET_PREFIX)
        try:
            signed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        except ValueError:
            return None
        if _encode(signed) != text:
            return None  # base64 can encode the same bytes with different last characters
        mac, body = signed[:_MAC_BYTES], signed[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body)):
            return None
        claims = _claims_decoder.decode(zlib.decompress(body))
        if claims.expires_at <= self._clock():
            return None
        digest = hashlib.sha256(signed).digest() if claims.nonce else b""
        return _make_credentials(claims.tenant, claims.settings, digest, claims.key_id)

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")


def _make_credentials(
    tenant: str, settings: GenerationSettings, digest: bytes, key_id: bytes
) -> Credentials:
    return Credentials(
        tenant,
        settings,
        is_ephemeral=True,
        client_secret_digest=digest,
        scopes=TENANT_SCOPES,
        key_id=key_id,
    )


def _encode(signed: bytes) -> str:
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode(errors="replace")).digest()
