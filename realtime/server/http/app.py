"""The web application. Clients that hold resources are disconnected (see also `hardening`):

client stops reading   dropped by the kernel, USER_TIMEOUT_MS after the first unacknowledged byte
client is silent       pinged every PING_S seconds, dropped after PING_S without a pong
frame over its limit   refused if at most twice the limit, else the connection is closed with 1009
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
    """Build the application. Raises SetupError if the model has no chat template."""
    template = engine.text.template
    if template is None:
        raise SetupError(
            f"{engine.ready.model} has no chat template, so it cannot hold a conversation: use the "
            "instruction-tuned version of it, or put a chat_template.jinja into its folder"
        )
    default_settings = SessionSettings(sampling=Sampling(temperature=settings.temperature))
    registry = Registry(engine, template, default_settings, settings.limits, store, settings.secret)
    engine.on_superseded = registry.on_superseded
    responses = ResponseService(
        engine,
        template,
        default_settings,
        settings.limits,
        registry.cache_scope_of,
        store,
        registry.rate_limits,
        registry.tokenizer_threads,
    )
    names = settings.served_model_name or (settings.engine.model,)
    now = int(time.time())
    served_models = ServedModels(
        [
            ServedModel(id=name, created=now, max_model_len=engine.ready.max_model_len)
            for name in names
        ]
    )
    secrets = SignedSecrets(settings.secret) if settings.secret else InMemorySecrets()
    authenticator = Authenticator(settings.tenants, settings.allowed_origins, secrets)
    realtime_routes = RealtimeRoutes(
        registry, authenticator, served_models, settings.limits, lambda: engine.is_available
    )
    session_routes = SessionRoutes(registry, authenticator, secrets, settings.limits, names[0])
    stats_routes = StatsRoutes(
        engine,
        registry,
        authenticator,
        recent_warnings or RecentWarnings(),
        show_warnings=len({*settings.tenants.values()}) <= 1,
    )
    page = Page(authenticator=authenticator).routes() if settings.web else []
    response_routes = [
        *ResponsesRoutes(responses, authenticator, served_models).routes(),
        *ChatRoutes(responses, authenticator, served_models).routes(),
    ]
    app = Starlette(
        routes=[
            *realtime_routes.routes(),
            *stats_routes.routes(),
            *session_routes.routes(),
            *response_routes,
            *page,
        ],
        exception_handlers={Exception: replies.internal_error_response},
    )
    app.router.default = replies.not_found
    app.state.responses = responses
    app.state.registry = registry
    return app
