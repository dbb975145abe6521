"""The endpoints of `continuo engine` for monitoring (`--metrics-listen`), which need no key.

GET /metrics         the metrics of this engine
GET /health/live     200: the process runs
GET /health/ready    200 if the engine responds and is not draining, else 503
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.engine import EngineClient
from continuo.realtime.server import replies
from continuo.realtime.server.config.addresses import Address
from continuo.realtime.server.http.metrics_routes import collect_engine, metrics_response
from continuo.realtime.server.process.web_server import bind


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@contextlib.asynccontextmanager
async def serve_engine_metrics(
    engine: EngineClient, address: Address | None
) -> AsyncGenerator[Address | None]:
    """Serve the endpoints at `address`, and yield the address with its port. None: serve nothing.
    Raises SetupError."""
    if address is None:
        yield None
        return
    with bind(*address, option="--metrics-listen") as sock:
        server = _Server(
            uvicorn.Config(
                _app(engine), lifespan="off", loop="none", log_config=None, access_log=False
            )
        )
        serving = asyncio.create_task(server.serve([sock]), name="metrics")
        try:
            yield Address(address.host, sock.getsockname()[1])
        finally:
            server.should_exit = True
            await serving


def _app(engine: EngineClient) -> Starlette:
    async def get_metrics(_request: Request) -> Response:
        return metrics_response(await collect_engine(engine), engine.ready.model)

    async def get_live(_request: Request) -> Response:
        return replies.json_response({"status": "alive"})

    async def get_ready(_request: Request) -> Response:
        is_ready = engine.fleet.is_accepting_sessions
        return replies.json_response(
            {"status": "ready" if is_ready else "not_ready"}, 200 if is_ready else 503
        )

    return Starlette(
        routes=[
            Route("/metrics", get_metrics),
            Route("/health/live", get_live),
            Route("/health/ready", get_ready),
        ]
    )
