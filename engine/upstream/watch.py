"""ServerWatch: whether another server answers, with which model, and its load."""

import asyncio
import logging

from continuo.engine.upstream.errors import OtherModel, ServerLost, UpstreamError
from continuo.engine.upstream.model_check import ModelCheck
from continuo.engine.upstream.server import ServerLoad, ServerModel, UpstreamServer

log = logging.getLogger(__name__)

WATCH_S = 1.0
"""Seconds between two measurements: llama-server answers between batches, and no sooner."""


class ServerWatch:
    """Measures a server while it runs. It describes itself each time, because it may have been
    started anew with another model or other options."""

    def __init__(self, server: UpstreamServer, check: ModelCheck) -> None:
        self._server = server
        self._check = check
        self._model: ServerModel | None = None
        """The last description that was compared; None: the next one is compared in any case."""
        self._measuring: asyncio.Task[None] | None = None
        self.load = ServerLoad()
        """The last measurement."""
        self.is_reachable = True
        self.problem: str | None = None
        """Why the server cannot take over the sessions of this engine, in one line; None: it can,
        as far as known."""

    @property
    def is_usable(self) -> bool:
        """Whether the server answers, with the right model."""
        return self.is_reachable and self.problem is None

    async def run(self) -> None:
        """Measure the server until cancelled."""
        try:
            while True:
                await self.measure()
                await asyncio.sleep(WATCH_S)
        finally:
            if self._measuring is not None:
                self._measuring.cancel()

    async def measure(self) -> None:
        """Measure the server once. Calls at the same time share one measurement."""
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._measure())
        await asyncio.shield(self._measuring)

    async def confirm(self) -> None:
        """Measure the server after a loss. Raises ServerLost if it does not answer, OtherModel if
        it cannot take over the sessions of this engine."""
        self._model = None
        await self.measure()
        if not self.is_reachable:
            raise ServerLost(f"{self._server.kind} does not answer")
        if self.problem is not None:
            raise OtherModel(self.problem)

    async def _measure(self) -> None:
        kind = self._server.kind
        try:
            model = await self._server.describe()
            if model != self._model:
                await self._compare(model)
            self.load = await self._server.measure()
        except UpstreamError as error:
            if self.is_reachable:
                log.warning("%s does not answer: %s", kind, error)
            self.is_reachable, self._model = False, None
            return
        if not self.is_reachable:
            log.warning("%s answers again", kind)
        self.is_reachable = True

    async def _compare(self, model: ServerModel) -> None:
        before = self.problem
        try:
            await self._check.compare(self._server, model)
        except OtherModel as error:
            self.problem = str(error)
        else:
            self.problem = None
        self._model = model
        if self.problem not in (None, before):
            log.error("turns fail until the server is as before: %s", self.problem)
