"""Keys for browsers: short-lived, and good for conversations alone, set up as the server wished.

A server by itself keeps them in memory, by hash, until they expire. Gateways that know a secret put
into the key all that it stands for, sealed with that secret, so that each knows the keys of all.
Running sessions outlive them, and can be resumed with their resume token alone.
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
from continuo.realtime.registry.access import Credentials

SECRET_PREFIX = "ek_"
"""SDKs let a browser use only keys that begin so."""
_SECRETS_MAX = 100_000
"""Secrets that have not expired; more are refused."""


class MintedSecret(msgspec.Struct, frozen=True):
    value: str
    expires_at: int


class ClientSecrets(Protocol):
    def mint(self, tenant: str, settings: GenerationSettings, ttl_s: int) -> MintedSecret:
        """Raises Refusal when that cannot be."""
        ...

    def find(self, value: str) -> Credentials | None: ...


class _StoredSecret(msgspec.Struct, frozen=True):
    guest: Credentials
    expires_at: float


class InMemorySecrets:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._secrets: dict[bytes, _StoredSecret] = {}

    def mint(self, tenant: str, settings: GenerationSettings, ttl_s: int) -> MintedSecret:
        """Raises Refusal when there are too many."""
        now = self._clock()
        if len(self._secrets) >= _SECRETS_MAX:
            self._secrets = {
                hash: kept for hash, kept in self._secrets.items() if kept.expires_at > now
            }
        if len(self._secrets) >= _SECRETS_MAX:
            raise Refusal(
                f"This server has {_SECRETS_MAX:,} client secrets, its limit.",
                code="rate_limit_exceeded",
                kind="server_error",
            )
        value = SECRET_PREFIX + secrets.token_hex(24)
        expires_at = int(now) + ttl_s
        guest = Credentials(tenant, settings, is_ephemeral=True, client_secret_digest=_hash(value))
        self._secrets[guest.client_secret_digest] = _StoredSecret(guest, expires_at)
        return MintedSecret(value, expires_at)

    def find(self, value: str) -> Credentials | None:
        kept = self._secrets.get(_hash(value))
        return kept.guest if kept is not None and kept.expires_at > self._clock() else None


class _SignedClaims(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    settings: GenerationSettings
    expires_at: int
    nonce: str = ""
    """Makes every secret another one, also two of one second. Empty: of an older release, which
    may have made the same twice."""


_claims_decoder = msgspec.json.Decoder(_SignedClaims)
_MAC_BYTES = 32
_NONCE_BYTES = 12
"""96 random bits: no two secrets of a deployment are the same."""
_VALUE_CHARS_MAX = 8 * 1024
"""Of a sealed one: it must fit a header."""


class SignedSecrets:
    """Nothing in it is hidden from who has the key; nothing in it can be changed."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret, b"client secrets", "sha256")
        self._clock = clock

    def mint(self, tenant: str, settings: GenerationSettings, ttl_s: int) -> MintedSecret:
        """Raises Refusal where it would be too long for a header."""
        expires_at = int(self._clock()) + ttl_s
        sealing = _SignedClaims(tenant, settings, expires_at, secrets.token_urlsafe(_NONCE_BYTES))
        body = zlib.compress(msgspec.json.encode(sealing))
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
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        except ValueError:
            return None
        if _encode(sealed) != text:
            return None  # the last character may say the same in several ways
        mac, body = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body)):
            return None
        found = _claims_decoder.decode(zlib.decompress(body))
        if found.expires_at <= self._clock():
            return None
        digest = hashlib.sha256(sealed).digest() if found.nonce else b""
        return Credentials(
            found.tenant, found.settings, is_ephemeral=True, client_secret_digest=digest
        )

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")


def _encode(signed: bytes) -> str:
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode(errors="replace")).digest()
