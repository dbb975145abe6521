"""The web application. Clients that hold resources are disconnected (see also `hardening`):

client stops reading   dropped by the kernel, USER_TIMEOUT_MS after the first unacknowledged byte
client is silent       pinged every PING_S seconds, dropped after PING_S without a pong
frame over its limit   refused if at most twice the limit, else the connection is closed with 1009
"""

import time
from collections.abc import Callable

import msgspec
from starlette.applications import Starlette
from starlette.routing import Route

from continuo.engine import EngineClient, Sampling
from continuo.realtime.completions.token_sessions import TokenSessions
from continuo.realtime.completions.token_turns import TokenTurns
from continuo.realtime.errors import SetupError
from continuo.realtime.protocol.settings import GenerationSettings as SessionSettings
from continuo.realtime.protocol.settings import ReasoningSettings
from continuo.realtime.registry.conversations import Conversations
from continuo.realtime.registry.registry import Registry
from continuo.realtime.responses.service import ResponseService
from continuo.realtime.server import replies
from continuo.realtime.server.auth.client_secrets import ClientSecrets
from continuo.realtime.server.auth.gate import Authenticator, TokenVerifier
from continuo.realtime.server.auth.open_connections import OpenConnections
from continuo.realtime.server.config.settings import GatewaySettings, load_access_policy
from continuo.realtime.server.http.admin_routes import AdminRoutes
from continuo.realtime.server.http.chat_routes import ChatRoutes
from continuo.realtime.server.http.completions_routes import CompletionsRoutes
from continuo.realtime.server.http.conversations_routes import ConversationsRoutes
from continuo.realtime.server.http.demo_routes import DemoRoutes
from continuo.realtime.server.http.messages_routes import MessagesRoutes
from continuo.realtime.server.http.metrics_routes import MetricsRoutes
from continuo.realtime.server.http.page import Page
from continuo.realtime.server.http.public_keys import PublicKeys
from continuo.realtime.server.http.realtime_routes import RealtimeRoutes
from continuo.realtime.server.http.responses_routes import ResponsesRoutes
from continuo.realtime.server.http.served_model import ServedModel, ServedModels
from continuo.realtime.server.http.session_routes import SessionRoutes
from continuo.realtime.server.http.sglang_routes import SGLangRoutes
from continuo.realtime.server.http.stats_routes import StatsRoutes
from continuo.realtime.server.logging_setup import RecentWarnings
from continuo.realtime.store import Store
from continuo.realtime.tenants.tenants import Tenants


def build_app(
    engine: EngineClient,
    settings: GatewaySettings,
    store: Store,
    recent_warnings: RecentWarnings | None = None,
    drain: Callable[[], None] = lambda: None,
) -> Starlette:
    """Build the application. `drain` begins to stop this gateway, when an operator requests it.
    Raises SetupError if the model has no chat template."""
    template = engine.text.template
    if template is None:
        raise SetupError(
            f"{engine.ready.model} has no chat template, so it cannot hold a conversation: use the "
            "instruction-tuned version of it, or put a chat_template.jinja into its folder"
        )
    default_settings = SessionSettings(sampling=Sampling(temperature=settings.temperature))
    # A voice agent waits for the text, so sessions reason only if they are asked to.
    session_settings = msgspec.structs.replace(
        default_settings, reasoning=ReasoningSettings(effort="off")
    )
    policy = load_access_policy(settings)
    tenants = Tenants(settings.limits, policy.limits_of)
    registry = Registry(
        engine, template, session_settings, settings.limits, store, settings.secret, tenants
    )
    engine.subscribe(registry.on_superseded)
    responses = ResponseService(
        engine,
        template,
        default_settings,
        settings.limits,
        registry.group_of,
        store,
        tenants,
        registry.tokenizer_threads,
        Conversations(registry),
    )
    turns = TokenTurns(engine, registry.group_of, tenants, registry.tokenizer_threads)
    token_sessions = TokenSessions(turns)
    names = settings.served_model_name or (settings.engine.model,)
    now = int(time.time())
    served_models = ServedModels(
        [
            ServedModel(id=name, created=now, max_model_len=engine.ready.max_model_len)
            for name in names
        ]
    )
    secrets = ClientSecrets(settings.secret or (lambda: store.epoch.encode()))
    tokens = _make_tokens(settings, tenants)
    authenticator = Authenticator(policy, secrets, tokens)
    open_connections = OpenConnections(tenants)
    realtime_routes = RealtimeRoutes(
        registry,
        authenticator,
        open_connections,
        served_models,
        settings.limits,
        lambda: engine.fleet.is_available,
    )
    session_routes = SessionRoutes(registry, authenticator, secrets, settings.limits, names[0])
    stats_routes = StatsRoutes(
        engine,
        registry,
        token_sessions,
        authenticator,
        recent_warnings or RecentWarnings(),
        show_warnings=lambda: authenticator.policy.tenant_count <= 1,
    )
    metrics_routes = MetricsRoutes(engine, registry, responses.continuations, store, authenticator)
    admin_routes = AdminRoutes(
        engine, registry, authenticator, drain, is_loopback=settings.is_loopback
    )
    demo = DemoRoutes(engine, authenticator) if settings.demo and engine.pid is not None else None
    page = Page(authenticator=authenticator).routes() if settings.web else []
    response_routes = [
        *ResponsesRoutes(responses, authenticator, open_connections, served_models).routes(),
        *ChatRoutes(responses, authenticator, served_models).routes(),
        *ConversationsRoutes(registry, authenticator, settings.limits).routes(),
        *MessagesRoutes(responses, authenticator, served_models).routes(),
        *CompletionsRoutes(
            turns, authenticator, served_models, settings.limits, default_settings.sampling
        ).routes(),
        *SGLangRoutes(token_sessions, authenticator, settings.limits).routes(),
    ]
    app = Starlette(
        routes=[
            *realtime_routes.routes(),
            *stats_routes.routes(),
            *metrics_routes.routes(),
            *admin_routes.routes(),
            *(demo.routes() if demo else ()),
            *session_routes.routes(),
            *response_routes,
            Route("/v1/embeddings", replies.embeddings_not_found, methods=["POST"]),
            *page,
        ],
        exception_handlers={
            Exception: replies.internal_error_response,
            405: replies.method_not_allowed,
        },
    )
    if tokens is not None:
        app.add_middleware(PublicKeys, authenticator=authenticator)
    app.router.default = replies.not_found
    app.router.redirect_slashes = False  # see root_path
    app.state.is_origin_allowed = authenticator.is_origin_allowed
    app.state.responses = responses
    app.state.token_sessions = token_sessions
    app.state.registry = registry
    app.state.authenticator = authenticator
    app.state.tenants = tenants
    app.state.open_connections = open_connections
    app.state.demo_token = demo.token if demo else None
    return app


def _make_tokens(settings: GatewaySettings, tenants: Tenants) -> TokenVerifier | None:
    if settings.jwt_jwks_url is None or settings.jwt_audience is None:
        return None
    # Imports a cryptography library, which takes 60 ms.
    from continuo.realtime.server.auth.json_web_tokens import JsonWebTokens  # noqa: PLC0415

    return JsonWebTokens(
        settings.jwt_jwks_url,
        settings.jwt_audience,
        settings.jwt_issuer,
        claim_limits=tenants.claim_limits,
    )
