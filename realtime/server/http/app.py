"""The web application and its uvicorn, hardened against clients that hold on (`guards`).

reads nothing any more      the kernel drops it USER_TIMEOUT_MS after the first unanswered byte
silent                      pinged every PING_S, dropped after PING_S without an answer
sends too much              refused by us up to twice the frame limit, by close 1009 above
"""

import time

from starlette.applications import Starlette

from continuo.engine import EngineClient, Sampling
from continuo.realtime.errors import SetupError
from continuo.realtime.protocol.settings import GenerationSettings as SessionSettings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.responses.service import ResponseService
from continuo.realtime.server import replies
from continuo.realtime.server.auth.client_secrets import InMemorySecrets, SignedSecrets
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.http.chat_routes import ChatRoutes
from continuo.realtime.server.http.page import Page
from continuo.realtime.server.http.realtime_routes import RealtimeRoutes
from continuo.realtime.server.http.responses_routes import ResponsesRoutes
from continuo.realtime.server.http.served_model import ServedModel, ServedModels
from continuo.realtime.server.http.session_routes import SessionRoutes
from continuo.realtime.server.http.stats_routes import StatsRoutes
from continuo.realtime.server.logging_setup import RecentWarnings
from continuo.realtime.store import Store


def build_app(
    engine: EngineClient,
    settings: GatewaySettings,
    store: Store,
    recent_warnings: RecentWarnings | None = None,
) -> Starlette:
    """Raises SetupError where the model cannot hold a conversation."""
    template = engine.text.template
    if template is None:
        raise SetupError(
            f"{engine.ready.model} has no chat template, so it cannot hold a conversation: use the "
            "instruction-tuned version of it, or put a chat_template.jinja into its folder"
        )
    default = SessionSettings(sampling=Sampling(temperature=settings.temperature))
    registry = Registry(engine, template, default, settings.limits, store, settings.secret)
    engine.on_superseded = registry.on_superseded
    responses = ResponseService(
        engine,
        template,
        default,
        settings.limits,
        registry.cache_scope_of,
        store,
        registry.rate_limits,
        registry.tokenizer_threads,
    )
    names = settings.served_model_name or (settings.engine.model,)
    now = int(time.time())
    served = ServedModels(
        [
            ServedModel(id=name, created=now, max_model_len=engine.ready.max_model_len)
            for name in names
        ]
    )
    secrets = SignedSecrets(settings.secret) if settings.secret else InMemorySecrets()
    gate = Authenticator(settings.tenants, settings.allowed_origins, secrets)
    routes = RealtimeRoutes(registry, gate, served, settings.limits, lambda: engine.is_available)
    sessions = SessionRoutes(registry, gate, secrets, settings.limits, names[0])
    stats = StatsRoutes(
        engine,
        registry,
        gate,
        recent_warnings or RecentWarnings(),
        show_warnings=len({*settings.tenants.values()}) <= 1,
    )
    page = Page(authenticator=gate).routes() if settings.web else []
    answering = [
        *ResponsesRoutes(responses, gate, served).routes(),
        *ChatRoutes(responses, gate, served).routes(),
    ]
    app = Starlette(
        routes=[*routes.routes(), *stats.routes(), *sessions.routes(), *answering, *page],
        exception_handlers={Exception: replies.internal_error_response},
    )
    app.router.default = replies.not_found
    app.state.responses = responses
    app.state.registry = registry
    return app
