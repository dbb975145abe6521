"""The web application and its uvicorn, hardened against clients that hold on (`guards`).

reads nothing any more      the kernel drops it USER_TIMEOUT_MS after the first unanswered byte
silent                      pinged every PING_S, dropped after PING_S without an answer
sends too much              refused by us up to twice the frame limit, by close 1009 above
"""

import time

from starlette.applications import Starlette

from continuo.engine import Engine, Sampling
from continuo.realtime.errors import SetupError
from continuo.realtime.protocol.settings import Settings as SessionSettings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.responses.service import Responses
from continuo.realtime.server import replies
from continuo.realtime.server.auth.client_secrets import KeptSecrets, SealedSecrets
from continuo.realtime.server.auth.gate import Gate
from continuo.realtime.server.config.settings import Settings
from continuo.realtime.server.http.chat_routes import CompletionRoutes
from continuo.realtime.server.http.page import Page
from continuo.realtime.server.http.realtime_routes import Routes
from continuo.realtime.server.http.responses_routes import ResponseRoutes
from continuo.realtime.server.http.served_model import Model, Served
from continuo.realtime.server.http.session_routes import SessionRoutes
from continuo.realtime.server.http.stats_routes import StatsRoutes
from continuo.realtime.server.logging_setup import Recent
from continuo.realtime.store import Store


def build(
    engine: Engine, settings: Settings, store: Store, recent: Recent | None = None
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
    engine.on_superseded = registry.superseded
    responses = Responses(
        engine,
        template,
        default,
        settings.limits,
        registry.scope,
        store,
        registry.rates,
        registry.layout,
    )
    names = settings.served_model_name or (settings.engine.model,)
    now = int(time.time())
    served = Served(
        [Model(id=name, created=now, max_model_len=engine.ready.max_model_len) for name in names]
    )
    secrets = SealedSecrets(settings.secret) if settings.secret else KeptSecrets()
    gate = Gate(settings.tenants, settings.allowed_origins, secrets)
    routes = Routes(registry, gate, served, settings.limits, lambda: engine.up)
    sessions = SessionRoutes(registry, gate, secrets, settings.limits, names[0])
    stats = StatsRoutes(
        engine,
        registry,
        gate,
        recent or Recent(),
        show_warnings=len({*settings.tenants.values()}) <= 1,
    )
    page = Page(gate=gate).all() if settings.web else []
    answering = [
        *ResponseRoutes(responses, gate, served).all(),
        *CompletionRoutes(responses, gate, served).all(),
    ]
    app = Starlette(
        routes=[*routes.all(), *stats.all(), *sessions.all(), *answering, *page],
        exception_handlers={Exception: replies.broke},
    )
    app.router.default = replies.nothing_here
    app.state.responses = responses
    app.state.registry = registry
    return app
