"""Authentication of requests by API key and Origin.

The key is a bearer token or is in a WebSocket subprotocol; cookies are ignored. A request with an
Origin, which browsers always send, is accepted only from the server's own page, from pages of
loopback hosts and from the allowed origins, whatever its key.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers

from continuo.realtime.registry.access import Credentials
from continuo.realtime.server.auth.client_secrets import SECRET_PREFIX, ClientSecrets

_KEY_SUBPROTOCOL = "openai-insecure-api-key."
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class Denied(msgspec.Struct, frozen=True):
    """HTTP error with which a request is refused if its authentication fails."""

    status: int
    code: str
    message: str
    accepts_resume_token: bool = False
    """Whether a resume token may replace the key: True if the request has no key, or an invalid or
    expired client secret."""


class Authenticator:
    """Authenticates requests by their headers."""

    def __init__(
        self, keys: Mapping[str, str], origins: frozenset[str], secrets: ClientSecrets
    ) -> None:
        """`keys`: tenants by API key; empty: no key is required, and all clients are one tenant.
        `origins`: web origins to accept, in lower case."""
        self._keys = [(key.encode(), tenant) for key, tenant in keys.items()]
        self._origins = origins
        self._secrets = secrets

    def authenticate(self, headers: Headers) -> Denied | Credentials:
        """Return the credentials of a request, or Denied if its Origin or key is not accepted."""
        origin = headers.get("origin")
        allowed = origin is None or self._is_origin_allowed(origin, headers.get("host", ""))
        if not allowed:
            return Denied(403, "origin_not_allowed", "Pages of this origin may not connect.")
        key = _api_key(headers)
        credentials = self._secrets.find(key) if key is not None else None
        if credentials is not None:
            return credentials
        if not self._keys:
            return Credentials()
        if key is None:
            return Denied(
                401,
                "missing_api_key",
                "No API key was sent. Use an Authorization header: Bearer YOUR_KEY.",
                accepts_resume_token=True,
            )
        tenant = self._tenant_of(key)
        if tenant is None:
            return Denied(
                401,
                "invalid_api_key",
                "This API key is not valid here.",
                accepts_resume_token=key.startswith(SECRET_PREFIX),
            )
        return Credentials(tenant)

    def _tenant_of(self, key: str) -> str | None:
        """Find the tenant of a key, or None if the key is unknown, in constant time: every known
        key is compared in full."""
        candidate = key.encode()
        tenants = [tenant for known, tenant in self._keys if hmac.compare_digest(candidate, known)]
        return tenants[0] if tenants else None

    def _is_origin_allowed(self, origin: str, host: str) -> bool:
        if origin.lower() in self._origins:
            return True
        try:
            parts = urlsplit(origin)
            name = parts.hostname or ""
        except ValueError:
            return False
        if parts.scheme not in ("http", "https"):
            return False
        # The server's own page has the Origin that the Host header names. If no key is required,
        # only an IP address proves that: a host name could be the result of DNS rebinding.
        is_own_page = parts.netloc.lower() == host.lower() and (
            bool(self._keys) or _is_address(name)
        )
        return is_own_page or name in _LOOPBACK_HOSTS


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def offered_subprotocols(headers: Headers) -> list[str]:
    """Return the WebSocket subprotocols that a client offers."""
    return [
        token.strip()
        for line in headers.getlist("sec-websocket-protocol")
        for token in line.split(",")
    ]


def _api_key(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    for token in offered_subprotocols(headers):
        if token.startswith(_KEY_SUBPROTOCOL):
            return token.removeprefix(_KEY_SUBPROTOCOL)
    return None
