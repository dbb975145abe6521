"""ServerWatch: whether another server answers, and its load."""

import asyncio
import logging

from continuo.engine.upstream.errors import UpstreamError
from continuo.engine.upstream.server import ServerLoad, UpstreamServer

log = logging.getLogger(__name__)

WATCH_S = 1.0
"""Seconds between two measurements: llama-server answers between batches, and no sooner."""


class ServerWatch:
    """Measures a server while it runs. A server that answers again describes itself anew, because
    it may have been started with other options."""

    def __init__(self, server: UpstreamServer) -> None:
        self._server = server
        self.load = ServerLoad()
        """The last measurement."""
        self.is_reachable = True

    async def run(self) -> None:
        """Measure the server until cancelled."""
        while True:
            await self.measure()
            await asyncio.sleep(WATCH_S)

    async def measure(self) -> None:
        kind = self._server.kind
        try:
            if not self.is_reachable:
                await self._server.describe()
            self.load = await self._server.measure()
        except UpstreamError as error:
            if self.is_reachable:
                log.warning("%s does not answer: %s", kind, error)
            self.is_reachable = False
            return
        if not self.is_reachable:
            log.warning("%s answers again", kind)
        self.is_reachable = True
