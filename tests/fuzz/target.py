"""The server under test: the web server on a real port, with an engine on a null device."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from continuo.realtime.limits import Limits
from continuo.realtime.server.config.settings import GatewaySettings
from tests.fuzz.large import CONTEXT
from tests.support.configured_logging import configured_logging
from tests.support.engines import digest_engine
from tests.support.web_servers import RunningServer, serve_harness

SHORT_LIMITS = Limits(
    resume_window_s=0.1,
    detach_grace_s=0.05,
    sweep_interval_s=0.05,
    continuation_point_ttl_s=0.5,
    unread_response_grace_s=0.05,
    stored_response_ttl_s=2.0,
)
"""Parked sessions and continuation points expire almost at once."""


@contextlib.asynccontextmanager
async def target(folder: Path, max_model_len: int = CONTEXT) -> AsyncIterator[RunningServer]:
    """Serve the target. At exit the engine must hold no session, turn or page."""
    with configured_logging():
        async with _serve_target(folder, max_model_len) as server:
            yield server


@contextlib.asynccontextmanager
async def _serve_target(folder: Path, max_model_len: int) -> AsyncIterator[RunningServer]:
    async with digest_engine(
        folder,
        pages=max(256, max_model_len // 4),
        page_size=4,
        max_model_len=max_model_len,
        batched_tokens=64,
    ) as harness:
        async with serve_harness(harness, GatewaySettings(limits=SHORT_LIMITS)) as server:
            yield server
            await harness.wait_until_empty()
        stats = await harness.engine.fleet.stats()
        assert (stats.active_turns, stats.pages_leased, stats.failed_audits) == (0, 0, 0)
