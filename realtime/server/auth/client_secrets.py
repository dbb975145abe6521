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
from continuo.realtime.protocol.settings import Settings
from continuo.realtime.registry.access import Guest

PREFIX = "ek_"
"""SDKs let a browser use only keys that begin so."""
_OPEN_MAX = 100_000
"""Secrets that have not expired; more are refused."""


class Minted(msgspec.Struct, frozen=True):
    value: str
    expires_at: int


class ClientSecrets(Protocol):
    def mint(self, tenant: str, settings: Settings, seconds: int) -> Minted:
        """Raises Refusal when that cannot be."""
        ...

    def find(self, value: str) -> Guest | None: ...


class _Kept(msgspec.Struct, frozen=True):
    guest: Guest
    expires_at: float


class KeptSecrets:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: dict[bytes, _Kept] = {}

    def mint(self, tenant: str, settings: Settings, seconds: int) -> Minted:
        """Raises Refusal when there are too many."""
        now = self._clock()
        if len(self._kept) >= _OPEN_MAX:
            self._kept = {hash: kept for hash, kept in self._kept.items() if kept.expires_at > now}
        if len(self._kept) >= _OPEN_MAX:
            raise Refusal(
                f"This server has {_OPEN_MAX:,} client secrets, its limit.",
                code="rate_limit_exceeded",
                kind="server_error",
            )
        value = PREFIX + secrets.token_hex(24)
        expires_at = int(now) + seconds
        guest = Guest(tenant, settings, ephemeral=True, client_secret=_hash(value))
        self._kept[guest.client_secret] = _Kept(guest, expires_at)
        return Minted(value, expires_at)

    def find(self, value: str) -> Guest | None:
        kept = self._kept.get(_hash(value))
        return kept.guest if kept is not None and kept.expires_at > self._clock() else None


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    settings: Settings
    expires_at: int
    nonce: str = ""
    """Makes every secret another one, also two of one second. Empty: of an older release, which
    may have made the same twice."""


_sealed = msgspec.json.Decoder(_Sealed)
_MAC_BYTES = 32
_NONCE_BYTES = 12
"""96 random bits: no two secrets of a deployment are the same."""
_VALUE_CHARS_MAX = 8 * 1024
"""Of a sealed one: it must fit a header."""


class SealedSecrets:
    """Nothing in it is hidden from who has the key; nothing in it can be changed."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret, b"client secrets", "sha256")
        self._clock = clock

    def mint(self, tenant: str, settings: Settings, seconds: int) -> Minted:
        """Raises Refusal where it would be too long for a header."""
        expires_at = int(self._clock()) + seconds
        sealing = _Sealed(tenant, settings, expires_at, secrets.token_urlsafe(_NONCE_BYTES))
        body = zlib.compress(msgspec.json.encode(sealing))
        value = PREFIX + _encoded(self._mac(body) + body)
        if len(value) > _VALUE_CHARS_MAX:
            raise Refusal(
                f"The session is too large for a client secret: it would be {len(value):,} "
                f"characters long; the limit is {_VALUE_CHARS_MAX:,}. Set instructions and tools "
                "with session.update instead.",
                code="session_too_large",
                param="session",
            )
        return Minted(value, expires_at)

    def find(self, value: str) -> Guest | None:
        if not value.startswith(PREFIX) or len(value) > _VALUE_CHARS_MAX:
            return None
        text = value.removeprefix(PREFIX)
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        except ValueError:
            return None
        if _encoded(sealed) != text:
            return None  # the last character may say the same in several ways
        mac, body = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body)):
            return None
        found = _sealed.decode(zlib.decompress(body))
        if found.expires_at <= self._clock():
            return None
        digest = hashlib.sha256(sealed).digest() if found.nonce else b""
        return Guest(found.tenant, found.settings, ephemeral=True, client_secret=digest)

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")


def _encoded(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode(errors="replace")).digest()
