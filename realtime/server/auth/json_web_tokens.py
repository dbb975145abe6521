"""JSON Web Tokens: credentials that an identity provider has signed.

The claims give tenant, scopes and limits:

    tenant       text, required
    scope        text separated by spaces, or an array: converse, read, admin (default: the first
                 two). Other words are ignored, so that one token may serve several services.
    limits       object with fields of `TenantLimits`; the keys file takes precedence
    exp, aud     required; `iss` too, if `--jwt-issuer` is given

The public keys are those of the JWKS at a URL. They are fetched again every REFRESH_INTERVAL_S, and
at once for a token with an unknown key id, at most every FETCH_INTERVAL_S_MIN. While the URL cannot
be reached, the last keys stay valid. A fetch is bounded in bytes and in time, however slowly the
other server answers, and has a thread that nothing else uses. No redirect leads from TLS to plain
HTTP.
"""

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time
import urllib.request
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPMessage, HTTPResponse, HTTPSConnection
from typing import IO, Any, cast

import jwt
import msgspec

from continuo.realtime.limits import TenantLimits
from continuo.realtime.registry.access import TENANT_SCOPES, Credentials, Scope
from continuo.realtime.server.auth.gate import TOKEN_KEY_ID, TokenRefused

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Accepted signatures: asymmetric ones, because the keys are public."""
REFRESH_INTERVAL_S = 300.0
FETCH_INTERVAL_S_MIN = 5.0
FETCH_TIMEOUT_S = 5.0
JWKS_BYTES_MAX = 1024 * 1024
JWKS_KEYS_MAX = 1000
"""Maximum number of keys of a JWKS; each takes some 50 µs to load."""
_CHUNK_BYTES = 64 * 1024
TOKEN_CHARS_MAX = 16 * 1024
LEEWAY_S = 10.0
"""Tolerated difference between the clocks of this server and the identity provider."""


class Claims(msgspec.Struct, frozen=True):
    """The claims of a token that concern this server."""

    tenant: str
    exp: float
    iat: float = 0.0
    scope: str | list[str] | None = None
    limits: dict[str, int | float] = {}

    @property
    def scopes(self) -> frozenset[Scope]:
        if self.scope is None:
            return TENANT_SCOPES
        words = self.scope.split() if isinstance(self.scope, str) else self.scope
        known: tuple[Scope, ...] = ("converse", "read", "admin")
        return frozenset(scope for scope in known if scope in words)


Fetch = Callable[[str], bytes]
ClaimLimits = Callable[[str, Mapping[str, int | float], float], None]


class JsonWebTokens:
    """Verifies tokens."""

    def __init__(
        self,
        jwks_url: str,
        audience: str,
        issuer: str | None = None,
        *,
        claim_limits: ClaimLimits = lambda _tenant, _limits, _issued_s: None,
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        jwks_url: where the public keys of the issuer are fetched.
        audience: what a token must be for.
        issuer: who must have issued it; None: any issuer with these keys.
        claim_limits: called with the tenant of each valid token, the limits that it claims for
            it, and the Unix time at which it was issued.
        fetch: fetches the document of the URL; None: over HTTP.
        clock: seconds of the monotonic clock, for the intervals between fetches.
        """
        self._jwks_url = jwks_url
        self._audience = audience
        self._issuer = issuer
        self._claim_limits = claim_limits
        self._fetch = fetch or _fetch
        self._clock = clock
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched_s = -FETCH_INTERVAL_S_MIN
        self._fetching: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "jwks")

    def verify(self, token: str) -> Credentials:
        """Return the credentials of a token. Raises TokenRefused."""
        if len(token) > TOKEN_CHARS_MAX:
            raise TokenRefused(f"it has over {TOKEN_CHARS_MAX:,} characters")
        try:
            key = self._keys.get(_key_id(token))
            if key is None:
                raise TokenRefused("it is signed by an unknown key")
            payload = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "aud"]},
            )
            claims = msgspec.convert(payload, Claims)
            msgspec.convert(claims.limits, TenantLimits)
        except (jwt.InvalidTokenError, msgspec.ValidationError) as error:
            raise TokenRefused(str(error)) from None
        if not claims.tenant:
            raise TokenRefused("its claim 'tenant' is empty")
        self._claim_limits(claims.tenant, claims.limits, claims.iat)
        return Credentials(
            claims.tenant, scopes=claims.scopes, key_id=TOKEN_KEY_ID, expires_s=claims.exp
        )

    async def prepare(self, token: str) -> None:
        """Fetch the public keys if that of `token` is unknown. Never raises."""
        if len(token) > TOKEN_CHARS_MAX:
            return
        try:
            is_known = _key_id(token) in self._keys
        except jwt.InvalidTokenError:
            return
        if not is_known:
            await self.refresh()

    async def refresh(self) -> None:
        """Fetch the public keys, unless they were fetched within FETCH_INTERVAL_S_MIN. Concurrent
        calls share one fetch. Never raises."""
        if self._fetching is None:
            if self._clock() - self._fetched_s < FETCH_INTERVAL_S_MIN:
                return
            self._fetching = asyncio.create_task(self._replace_keys(), name="jwks")
        await asyncio.shield(self._fetching)

    async def keep_fresh(self) -> None:
        """Fetch the public keys again and again."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_INTERVAL_S if self._keys else FETCH_INTERVAL_S_MIN)

    async def _replace_keys(self) -> None:
        try:
            async with asyncio.timeout(2 * FETCH_TIMEOUT_S):  # also for the resolution of the name
                loop = asyncio.get_running_loop()
                self._keys = await loop.run_in_executor(self._thread, self._fetch_keys)
        except Exception as error:  # noqa: BLE001 - whatever the other server sends
            log.warning("the JWKS at %s cannot be used: %s", self._jwks_url, repr(error))
        finally:
            self._fetched_s = self._clock()
            self._fetching = None

    def _fetch_keys(self) -> "dict[str | None, jwt.PyJWK]":
        return _parse_jwks(self._fetch(self._jwks_url))


def _key_id(token: str) -> str | None:
    return cast("str | None", jwt.get_unverified_header(token).get("kid"))


def _parse_jwks(body: bytes) -> dict[str | None, jwt.PyJWK]:
    """Return the usable keys of a JWKS by their key id. Raises ValueError if there are none."""
    document: Any = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    listed: Any = cast("dict[str, Any]", document).get("keys")
    if isinstance(listed, list) and len(cast("list[Any]", listed)) > JWKS_KEYS_MAX:
        raise ValueError(f"it has over {JWKS_KEYS_MAX:,} keys")
    keys = {
        key.key_id: key
        for key in jwt.PyJWKSet.from_dict(cast("dict[str, Any]", document)).keys
        if key.algorithm_name in ALGORITHMS and key.public_key_use in (None, "sig")
    }
    if not keys:
        raise ValueError("it has no public key for signatures")
    return keys


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects to anything but HTTPS, which could be read or changed on the way."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not newurl.lower().startswith("https://"):
            raise ValueError("it redirects to a URL without TLS")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Plain(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        _cut_later(self.sock)


class _Encrypted(HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        _cut_later(self.sock)


def _cut_later(sock: socket.socket) -> None:
    """Cut a connection after FETCH_TIMEOUT_S: the timeout of the socket is only that of each read,
    and a head may come byte by byte."""
    timer = threading.Timer(FETCH_TIMEOUT_S, _cut, [weakref.ref(sock)])
    timer.daemon = True
    timer.start()


def _cut(reference: "weakref.ref[socket.socket]") -> None:
    sock = reference()
    if sock is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _PlainHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_Plain, req)


class _EncryptedHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_Encrypted, req)


def _fetch(url: str) -> bytes:
    """Fetch a document; blocks, for FETCH_TIMEOUT_S after each connection. Raises OSError,
    ValueError, http.client.HTTPException."""
    opener = urllib.request.build_opener(_PlainHandler, _EncryptedHandler, _SafeRedirects)
    body = bytearray()
    with opener.open(url, timeout=FETCH_TIMEOUT_S) as reply:
        while chunk := cast("bytes", reply.read1(_CHUNK_BYTES)):
            body += chunk
            if len(body) > JWKS_BYTES_MAX:
                raise ValueError(f"it has over {JWKS_BYTES_MAX:,} bytes")
    return bytes(body)
