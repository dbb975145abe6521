"""Settings of `serve`, `gateway` and `engine`, built from options and validated."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import msgspec

from continuo.engine import EngineConfig, LinkRefused, read_secret
from continuo.realtime.errors import SetupError
from continuo.realtime.limits import Limits
from continuo.realtime.server.auth import api_keys
from continuo.realtime.server.config.addresses import Address
from continuo.realtime.server.config.options import OptionValue, check_bounds
from continuo.realtime.store import Durability, default_store_url, is_redis_url

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORT = 8000
DEFAULT_LISTEN = Address("127.0.0.1", 8100)
DRAIN_GRACE_S = 20.0


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a gateway, with or without an engine of its own."""

    engine: EngineConfig = EngineConfig()
    served_model_name: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tenants: dict[str, str] = {}
    """Names of tenants by API key. Empty: no key is required."""
    allowed_origins: frozenset[str] = frozenset()
    ssl_certfile: str | None = None
    """PEM file. None: no TLS."""
    ssl_keyfile: str | None = None
    """PEM file. None: the key is in `ssl_certfile`."""
    temperature: float = 0.0
    web: bool = True
    """Whether the web page is served."""
    engines: tuple[Address, ...] = ()
    """Addresses of the engines of `continuo gateway`, besides those announced in Redis."""
    secret: bytes = b""
    engine_cafile: str | None = None
    drain_grace_s: float = DRAIN_GRACE_S
    log_level: str = "warning"
    store: str = "memory"
    """URL of the store, or `memory`."""
    durability: Durability = "normal"
    limits: Limits = Limits()

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an engine alone (`continuo engine`)."""

    engine: EngineConfig = EngineConfig()
    listen: Address = DEFAULT_LISTEN
    advertise: Address | None = None
    """Address announced to gateways. None: the address of `listen`."""
    secret_file: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    store: str | None = None
    """URL of the Redis in which the engine is announced. None: it is not announced."""
    drain_grace_s: float = DRAIN_GRACE_S
    log_level: str = "warning"


def is_loopback(host: str) -> bool:
    return host in LOOPBACK_HOSTS or host.startswith("127.")


def make_serve_settings(options: Mapping[str, OptionValue]) -> GatewaySettings:
    """Build the settings of `continuo serve`. Raises SetupError with a message of one line."""
    check_bounds(options)
    settings = msgspec.structs.replace(
        GatewaySettings(store=default_store_url()), **_fields_of(GatewaySettings, options)
    )
    settings = msgspec.structs.replace(
        settings,
        engine=_parse_engine_config(options),
        engines=tuple(Address.parse(text, "--engine") for text in _string_list(options, "engine")),
        secret=_read_secret(options) or b"",
        served_model_name=_string_list(options, "served_model_name"),
        tenants=_read_tenants(options),
        web=not options.get("no_web"),
        allowed_origins=frozenset(
            _parse_origin(text) for text in _string_list(options, "allowed_origins")
        ),
        limits=msgspec.structs.replace(Limits(), **_fields_of(Limits, options)),
    )
    if settings.ssl_keyfile and not settings.ssl_certfile:
        raise SetupError(
            f"--ssl-keyfile {settings.ssl_keyfile} has no effect without --ssl-certfile"
        )
    if not (settings.is_loopback or settings.tenants or options.get("no_auth")):
        raise SetupError(
            f"--host {settings.host} accepts any client: set --api-key (or CONTINUO_API_KEY), or "
            "--no-auth if that is intended"
        )
    return settings


def make_gateway_settings(options: Mapping[str, OptionValue]) -> GatewaySettings:
    """Build the settings of `continuo gateway`. Raises SetupError with a message of one line."""
    settings = make_serve_settings(options)
    if not settings.engines and not is_redis_url(settings.store):
        raise SetupError(
            "a gateway needs engines: set --engine HOST:PORT, or --store redis://HOST:PORT for the "
            "Redis in which they are announced"
        )
    return settings


def make_engine_settings(options: Mapping[str, OptionValue]) -> EngineSettings:
    """Build the settings of `continuo engine`. Raises SetupError with a message of one line."""
    check_bounds(options)
    chosen: dict[str, object] = {**_fields_of(EngineSettings, options)}
    chosen["engine"] = _parse_engine_config(options)
    for name in ("listen", "advertise"):
        if name in options:
            chosen[name] = Address.parse(str(options[name]), f"--{name}")
    settings = msgspec.structs.replace(EngineSettings(), **chosen)
    if _read_secret(options) is None and not is_loopback(settings.listen.host):
        raise SetupError(
            f"--listen {settings.listen} accepts any gateway: set --secret-file, here and at the "
            "gateways"
        )
    if settings.store is not None and not is_redis_url(settings.store):
        raise SetupError(f"--store {settings.store}: engines are announced only in a Redis")
    if settings.store and settings.advertise is None and settings.listen.host in ("0.0.0.0", "::"):
        raise SetupError(
            f"--listen {settings.listen} cannot be announced to gateways: set --advertise"
        )
    return settings


def _fields_of(
    kind: type[msgspec.Struct], options: Mapping[str, OptionValue]
) -> dict[str, OptionValue]:
    """Return the options that are fields of the struct `kind`, under the same names."""
    return {key: value for key, value in options.items() if key in kind.__struct_fields__}


def _read_secret(options: Mapping[str, OptionValue]) -> bytes | None:
    file = options.get("secret_file")
    try:
        return read_secret(str(file)) if file else None
    except LinkRefused as error:
        raise SetupError(f"--secret-file {error.message}") from None


def _parse_engine_config(options: Mapping[str, OptionValue]) -> EngineConfig:
    try:
        return msgspec.convert(_fields_of(EngineConfig, options), EngineConfig)
    except msgspec.ValidationError as error:
        raise SetupError(str(error)) from None


def _string_list(options: Mapping[str, OptionValue], key: str) -> tuple[str, ...]:
    return tuple(cast(list[str], options.get(key, [])))


def _read_tenants(options: Mapping[str, OptionValue]) -> dict[str, str]:
    file = options.get("api_keys_file")
    file_keys = api_keys.read_keys_file(Path(str(file))) if file else {}
    return {**file_keys, **api_keys.default_tenant_keys(_string_list(options, "api_key"))}


def _parse_origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/"):
        raise SetupError(
            f"--allowed-origins {text}: expected scheme://host, as https://example.org"
        )
    return f"{parts.scheme}://{parts.netloc}".lower()
