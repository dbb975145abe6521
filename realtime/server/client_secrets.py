"""Keys for browsers: short-lived, and good for conversations alone, set up as the server wished.

They are kept in memory, by hash, until they expire; running sessions outlive them.
"""

import hashlib
import secrets
import time
from collections.abc import Callable

import msgspec

from realtime.errors import Refusal
from realtime.protocol.core import Settings
from realtime.session import Guest

PREFIX = "ek_"
"""SDKs let a browser use only keys that begin so."""
_OPEN_MAX = 100_000
"""Secrets that have not expired; more are refused."""


class Minted(msgspec.Struct, frozen=True):
    value: str
    expires_at: int


class _Kept(msgspec.Struct, frozen=True):
    guest: Guest
    expires_at: float


class ClientSecrets:
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
        guest = Guest(tenant, settings, ephemeral=True)
        self._kept[_hash(value)] = _Kept(guest, expires_at)
        return Minted(value, expires_at)

    def find(self, value: str) -> Guest | None:
        kept = self._kept.get(_hash(value))
        return kept.guest if kept is not None and kept.expires_at > self._clock() else None


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode(errors="replace")).digest()
