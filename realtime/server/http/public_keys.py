"""Middleware that makes the public key of a request's token available before the request is
authenticated."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from continuo.realtime.server.auth.gate import Authenticator


class PublicKeys:
    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            await self._authenticator.prepare(Headers(scope=scope))
        await self._app(scope, receive, send)
