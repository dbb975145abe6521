"""What `serve` was asked to be, checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import msgspec

from engine import EngineConfig
from realtime.errors import SetupError
from realtime.limits import Limits
from realtime.server import keys
from realtime.server.options import Value

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORT = 8000


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    engine: EngineConfig = EngineConfig()
    served_model_name: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tenants: dict[str, str] = {}
    """By API key."""
    allowed_origins: frozenset[str] = frozenset()
    ssl_certfile: str | None = None
    """PEM; None: no TLS."""
    ssl_keyfile: str | None = None
    """None: in the same file."""
    temperature: float = 0.0
    web: bool = True
    """Whether browsers find a page at `/`."""
    log_level: str = "warning"
    limits: Limits = Limits()

    @property
    def loopback(self) -> bool:
        return self.host in LOOPBACK or self.host.startswith("127.")


def make(options: Mapping[str, Value]) -> Settings:
    """Raises SetupError, in one line."""
    fields = {"host", "port", "temperature", "log_level", "ssl_certfile", "ssl_keyfile"}
    engine = {key: value for key, value in options.items() if key in _ENGINE_FIELDS}
    settings = Settings(
        engine=_engine(engine),
        served_model_name=_list(options, "served_model_name"),
        tenants=_tenants(options),
        web=not options.get("no_web"),
        allowed_origins=frozenset(_origin(text) for text in _list(options, "allowed_origins")),
    )
    chosen = {key: value for key, value in options.items() if key in fields}
    settings = msgspec.structs.replace(settings, **chosen)
    if not 0 <= settings.port <= 65_535:
        raise SetupError(f"--port {settings.port}: expected 0 to 65535")
    if not 0 <= settings.temperature <= 2:
        raise SetupError(f"--temperature {settings.temperature}: expected 0 to 2")
    if settings.ssl_keyfile and not settings.ssl_certfile:
        raise SetupError(
            f"--ssl-keyfile {settings.ssl_keyfile} is of no use without --ssl-certfile"
        )
    if not (settings.loopback or settings.tenants or options.get("no_auth")):
        raise SetupError(
            f"--host {settings.host} would let anyone in: set --api-key (or CONTINUO_API_KEY), "
            "or say --no-auth if that is what you want"
        )
    return settings


_ENGINE_FIELDS = frozenset(EngineConfig.__struct_fields__)


def _engine(options: Mapping[str, Value]) -> EngineConfig:
    try:
        return msgspec.convert(options, EngineConfig)
    except msgspec.ValidationError as error:
        raise SetupError(str(error)) from None


def _list(options: Mapping[str, Value], key: str) -> tuple[str, ...]:
    return tuple(cast(list[str], options.get(key, [])))


def _tenants(options: Mapping[str, Value]) -> dict[str, str]:
    file = options.get("api_keys_file")
    filed = keys.read(Path(str(file))) if file else {}
    return {**filed, **keys.given(_list(options, "api_key"))}


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/"):
        raise SetupError(
            f"--allowed-origins {text}: expected scheme://host, as https://example.org"
        )
    return f"{parts.scheme}://{parts.netloc}".lower()
