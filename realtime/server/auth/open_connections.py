"""The open connections of this process, with the credentials that opened them. A connection is
closed when its key or token is revoked or expires; after a revocation, its responses are cancelled
too."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from continuo.realtime.protocol.close_codes import CloseCode
from continuo.realtime.registry.access import Credentials
from continuo.realtime.registry.open_sessions import CloseConnection
from continuo.realtime.tenants.tenants import Tenants

EXPIRY_TIMER_S_MAX = 86_400.0
"""Longest timer for an expiry; connections end within a shorter time."""


class _OpenConnection:
    """Tracked connection; compared by identity."""

    def __init__(
        self, credentials: Credentials, close: CloseConnection, on_revoked: Callable[[], None]
    ) -> None:
        self.credentials = credentials
        self.close = close
        self.on_revoked = on_revoked


def _do_nothing() -> None:
    pass


class OpenConnections:
    def __init__(self, tenants: Tenants, clock: Callable[[], float] = time.time) -> None:
        self._tenants = tenants
        self._clock = clock
        self._connections: set[_OpenConnection] = set()

    def __len__(self) -> int:
        return len(self._connections)

    @asynccontextmanager
    async def track(
        self,
        credentials: Credentials,
        close: CloseConnection,
        on_revoked: Callable[[], None] = _do_nothing,
    ) -> AsyncGenerator[None]:
        """Context manager of an open connection. `close` closes it with a code and a reason; it may
        be called more than once. `on_revoked` is called before `close` if the key was revoked.
        Raises Refusal if the tenant has too many."""
        await self._tenants.follow(credentials.tenant)
        with self._tenants.of(credentials.tenant).ledger.connected():
            connection = _OpenConnection(credentials, close, on_revoked)
            self._connections.add(connection)
            timer = self._start_expiry_timer(credentials, close)
            try:
                yield
            finally:
                self._connections.discard(connection)
                if timer is not None:
                    timer.cancel()

    def _start_expiry_timer(
        self, credentials: Credentials, close: CloseConnection
    ) -> asyncio.TimerHandle | None:
        expires_in_s = credentials.expires_s - self._clock()
        if expires_in_s > EXPIRY_TIMER_S_MAX:
            return None
        return asyncio.get_running_loop().call_later(
            max(0.0, expires_in_s),
            close,
            CloseCode.CREDENTIALS_REVOKED,
            "the key or token has expired",
        )

    def close_revoked(self, is_valid: Callable[[Credentials], bool]) -> int:
        """Close each connection whose credentials are no longer valid. Returns their number."""
        revoked = [each for each in self._connections if not is_valid(each.credentials)]
        for connection in revoked:
            connection.on_revoked()
            connection.close(CloseCode.CREDENTIALS_REVOKED, "the key was revoked")
        return len(revoked)
