"""Client secrets: short-lived keys for browsers, valid only for conversations with given settings.

A client secret contains tenant, settings and expiry, signed with an HMAC, so that nothing of it is
kept and each gateway accepts the client secrets of all. The key is made of the secret that the
gateways share (`--secret-file`), else of the identity of their store: it is random, and another one
once the store has lost its data. Sessions outlive their client secret, and can be resumed with the
resume token alone.
"""

import base64
import functools
import hashlib
import hmac
import secrets
import time
import zlib
from collections.abc import Callable

import msgspec

from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import TENANT_SCOPES, Credentials

SECRET_PREFIX = "ek_"
"""SDKs accept only keys with this prefix in a browser."""


class MintedSecret(msgspec.Struct, frozen=True):
    value: str
    expires_at: int


class _SignedClaims(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    settings: GenerationSettings
    expires_at: int
    nonce: str = ""
    """Random text that makes every client secret unique. Empty: minted by an older release, which
    could mint the same client secret twice."""
    key_id: bytes = b""


_claims_decoder = msgspec.json.Decoder(_SignedClaims)
_CLAIMS_BYTES_MAX = 64 * 1024
"""Maximum size of claims as JSON. A few hundred characters of a client secret can inflate to a
thousand times as much."""
_CLAIMS_KEPT_MAX = 128
"""Maximum number of client secrets whose claims are kept decoded."""
_MAC_BYTES = 32
_NONCE_BYTES = 12
"""Random bytes of a nonce; 96 bits, so that all client secrets of a deployment differ."""
_VALUE_CHARS_MAX = 8 * 1024
"""Maximum length of a signed client secret, which must fit into an HTTP header."""


class ClientSecrets:
    """Client secrets that contain their claims, signed against changes but not encrypted."""

    def __init__(
        self, secret: bytes | Callable[[], bytes], clock: Callable[[], float] = time.time
    ) -> None:
        """`secret`: what the key is made of, or the function that returns it at the time; while it
        is empty (the store has lost its data and has no new identity yet), nothing is minted and
        nothing accepted."""
        self._secret = secret
        self._clock = clock

    def mint(
        self, tenant: str, settings: GenerationSettings, ttl_s: int, key_id: bytes = b""
    ) -> MintedSecret:
        """Create a client secret of a tenant, valid for `ttl_s` seconds. `key_id`: id of the API
        key that mints it, with which it is revoked. Raises Refusal if it would exceed
        _VALUE_CHARS_MAX or _CLAIMS_BYTES_MAX, or if there is no key to sign it with."""
        key = self._key()
        if key is None:
            raise Refusal(
                "The store is being replaced, so no client secret can be made now: try again.",
                code="store_unavailable",
                kind="server_error",
            )
        expires_at = int(self._clock()) + ttl_s
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        claims = _SignedClaims(tenant, settings, expires_at, nonce, key_id)
        encoded = msgspec.json.encode(claims)
        if len(encoded) > _CLAIMS_BYTES_MAX:
            raise Refusal(
                f"The session is too large for a client secret: it has {len(encoded):,} bytes as "
                f"JSON; the limit is {_CLAIMS_BYTES_MAX:,}. Set instructions and tools with "
                "session.update instead.",
                code="session_too_large",
                param="session",
            )
        body = zlib.compress(encoded)
        value = SECRET_PREFIX + _encode(hmac.digest(key, body, "sha256") + body)
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
        """Return the credentials of a client secret. Returns None if it is invalid or expired."""
        if not value.startswith(SECRET_PREFIX) or len(value) > _VALUE_CHARS_MAX:
            return None
        text = value.removeprefix(SECRET_PREFIX)
        try:
            signed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        except ValueError:
            return None
        if _encode(signed) != text:
            return None  # base64 can encode the same bytes with different last characters
        key, mac, body = self._key(), signed[:_MAC_BYTES], signed[_MAC_BYTES:]
        if key is None or not hmac.compare_digest(mac, hmac.digest(key, body, "sha256")):
            return None
        claims = _decode_claims(body)
        if claims is None or claims.expires_at <= self._clock():
            return None
        digest = hashlib.sha256(signed).digest() if claims.nonce else b""
        return _make_credentials(claims.tenant, claims.settings, digest, claims.key_id)

    def _key(self) -> bytes | None:
        secret = self._secret if isinstance(self._secret, bytes) else self._secret()
        return hmac.digest(secret, b"client secrets", "sha256") if secret else None


@functools.lru_cache(_CLAIMS_KEPT_MAX)
def _decode_claims(body: bytes) -> _SignedClaims | None:
    """Return signed claims. Returns None if they exceed the limit, which older releases lacked."""
    encoded = zlib.decompressobj().decompress(body, _CLAIMS_BYTES_MAX + 1)
    return None if len(encoded) > _CLAIMS_BYTES_MAX else _claims_decoder.decode(encoded)


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
