"""The fault of a demonstration: kills the engine of this gateway, which is then restarted.

    POST /v1/demo/kill_engine                   now
    POST /v1/demo/kill_engine?when=responding   in the middle of the next response

The route exists only under `--demo`. A request must come from this server's own page, that is, its
Origin must be exactly the one that its Host names, and must have the token that was printed when
the server started, in the header `X-Demo-Token`. The page reads the token from the fragment of the
printed address, which browsers do not send.
"""

import asyncio
import hmac
import logging
import math
import secrets
import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.engine import EngineClient
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator

log = logging.getLogger(__name__)

KILL_INTERVAL_S = 10.0
"""Least time between two kills. With the engine also required to be available, the restarts of the
engine cannot fail so often in a row that the gateway stops."""
TOKEN_BYTES = 18
MIDDLE_TOKENS = 12
"""Number of tokens after which a response counts as in the middle."""
RESPONSE_WAIT_S = 10.0
"""Time for which a kill waits for a response."""
POLL_S = 0.001
"""Small models need less than 0.5 ms for a token."""


class DemoRoutes:
    """Routes of a demonstration. `token`: must accompany each request."""

    def __init__(
        self,
        engine: EngineClient,
        authenticator: Authenticator,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._engine = engine
        self._authenticator = authenticator
        self._clock = clock
        self._next_kill_s = -math.inf

    def routes(self) -> list[Route]:
        return [Route("/v1/demo/kill_engine", self.kill_engine, methods=["POST"])]

    async def kill_engine(self, request: Request) -> Response:
        """Kill the engine process with SIGKILL. Responses in progress continue on the next one."""
        refused = self._denial_if_any(request) or self._refusal_if_any()
        if refused is not None:
            return refused
        when = request.query_params.get("when")
        if when is not None:
            if when != "responding":
                return replies.error_response(
                    400, "invalid_value", f"'{when[:100]}' is not 'responding'.", "when"
                )
            if not await self._wait_for_response():
                return replies.error_response(
                    400,
                    "response_not_active",
                    f"No response was in progress for {RESPONSE_WAIT_S:.0f} s.",
                    "when",
                )
            if (refused := self._refusal_if_any()) is not None:
                return refused
        self._next_kill_s = self._clock() + KILL_INTERVAL_S
        pid = self._engine.kill_process()
        log.warning("the demonstration has killed the engine process %d", pid)
        return replies.json_response({"object": "engine.killed", "pid": pid}, 202)

    async def _wait_for_response(self) -> bool:
        """Wait until a response is in the middle. Returns False after RESPONSE_WAIT_S."""
        try:
            async with asyncio.timeout(RESPONSE_WAIT_S):
                while self._engine.fleet.longest_active_output < MIDDLE_TOKENS:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return False
        return True

    def _refusal_if_any(self) -> Response | None:
        """Refuse a kill while the engine restarts, or too soon after another one."""
        if not self._engine.fleet.is_available:
            return replies.error_response(
                503, "engine_unavailable", "The engine is restarting already."
            )
        remaining_s = self._next_kill_s - self._clock()
        if remaining_s <= 0:
            return None
        wait_s = math.ceil(remaining_s)
        response = replies.error_response(
            429,
            "rate_limit_exceeded",
            f"The engine was killed a moment ago. Try again in {wait_s} s.",
        )
        response.headers["Retry-After"] = str(wait_s)
        return response

    def _denial_if_any(self, request: Request) -> Response | None:
        credentials = replies.authenticate_full_key(self._authenticator, request)
        if isinstance(credentials, Response):
            return credentials
        own_origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
        if request.headers.get("origin") != own_origin:
            return replies.origin_not_allowed_response()
        token = request.headers.get("x-demo-token", "")
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return replies.error_response(
                403,
                "insufficient_scope",
                "This request needs the token of the address that the server printed at its start.",
            )
        return None
