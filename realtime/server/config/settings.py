"""Settings of `serve`, `gateway` and `engine`, built from options and validated."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import msgspec

from continuo.engine import EngineConfig, LinkRefused, LogFormat, SpeculativeConfig, read_secret
from continuo.realtime.errors import SetupError
from continuo.realtime.limits import Limits
from continuo.realtime.server.auth import access_policy
from continuo.realtime.server.auth.access_policy import AccessPolicy
from continuo.realtime.server.config.addresses import Address
from continuo.realtime.server.config.options import OptionValue, check_bounds
from continuo.realtime.store import Durability, default_store_url, is_redis_url

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORT = 8000
DEFAULT_CHAT_URL = f"ws://127.0.0.1:{DEFAULT_PORT}"
DEFAULT_LISTEN = Address("127.0.0.1", 8100)
DRAIN_GRACE_S = 20.0
OWN_ENGINE_OPTIONS = (
    "dtype",
    "quantization",
    "device",
    "block_size",
    "num_gpu_blocks_override",
    "kv_cache_memory_bytes",
    "kv_offloading_size",
    "max_num_seqs",
    "max_group_share",
    "max_num_batched_tokens",
    "speculative_config",
    "threads",
    "standby_engine",
)
"""Options without effect where another server computes; `--engine-url` refuses them by name."""


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a gateway, with or without an engine of its own."""

    engine: EngineConfig = EngineConfig()
    served_model_name: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tenants: dict[str, str] = {}
    """Names of tenants by API key, for keys with all scopes. Without these, `api_keys_file` and
    `jwt_jwks_url`, no key is required."""
    api_keys_file: str | None = None
    """File of further keys, and of the limits of tenants."""
    jwt_jwks_url: str | None = None
    """URL of the public keys of JSON Web Tokens. None: tokens are not accepted."""
    jwt_audience: str | None = None
    jwt_issuer: str | None = None
    """Required issuer of tokens. None: any."""
    allowed_origins: frozenset[str] = frozenset()
    root_path: str = ""
    """Path prefix under which a proxy serves this server, as `/llm`. Empty: none."""
    ssl_certfile: str | None = None
    """PEM file. None: no TLS."""
    ssl_keyfile: str | None = None
    """PEM file. None: the key is in `ssl_certfile`."""
    temperature: float = 0.0
    web: bool = True
    """Whether the web page is served."""
    demo: bool = False
    """Whether the page may kill the engine, to demonstrate recovery."""
    engines: tuple[Address, ...] = ()
    """Addresses of the engines of `continuo gateway`, besides those announced in Redis."""
    secret: bytes = b""
    engine_cafile: str | None = None
    drain_grace_s: float = DRAIN_GRACE_S
    log_level: str = "warning"
    log_format: LogFormat = "console"
    otlp_traces_endpoint: str | None = None
    """URL of an OpenTelemetry collector. None: no traces."""
    store: str = "memory"
    """URL of the store, or `memory`."""
    durability: Durability = "normal"
    limits: Limits = Limits()

    @property
    def requires_key(self) -> bool:
        return bool(self.tenants or self.api_keys_file or self.jwt_jwks_url)

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an engine alone (`continuo engine`)."""

    engine: EngineConfig = EngineConfig()
    listen: Address = DEFAULT_LISTEN
    advertise: Address | None = None
    """Address announced to gateways. None: the address of `listen`."""
    metrics_listen: Address | None = None
    """Address of the endpoints for monitoring. None: there are none."""
    secret_file: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    store: str | None = None
    """URL of the Redis in which the engine is announced. None: it is not announced."""
    drain_grace_s: float = DRAIN_GRACE_S
    log_level: str = "warning"
    log_format: LogFormat = "console"


class SettingsSource(msgspec.Struct, frozen=True):
    """`read` reads the settings, and reads them again; raises SetupError. `config_file`: the TOML
    file that it reads, if any."""

    read: Callable[[], GatewaySettings]
    config_file: str | None = None


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
        tenants=access_policy.default_tenant_keys(_read_api_keys(options)),
        web=not options.get("no_web"),
        allowed_origins=frozenset(
            _parse_origin(text) for text in _string_list(options, "allowed_origins")
        ),
        limits=msgspec.structs.replace(Limits(), **_fields_of(Limits, options)),
        root_path=_parse_root_path(str(options.get("root_path", ""))),
    )
    if settings.ssl_keyfile and not settings.ssl_certfile:
        raise SetupError(
            f"--ssl-keyfile {settings.ssl_keyfile} has no effect without --ssl-certfile"
        )
    load_access_policy(settings)
    _check_tokens(settings)
    if not (settings.is_loopback or settings.requires_key or options.get("no_auth")):
        raise SetupError(
            f"--host {settings.host} accepts any client: set --api-key (or CONTINUO_API_KEY), or "
            "--no-auth if that is intended"
        )
    _check_demo(settings)
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
    for name in ("listen", "advertise", "metrics_listen"):
        if name in options:
            option = f"--{name.replace('_', '-')}"
            chosen[name] = Address.parse(str(options[name]), option)
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
    fields: dict[str, object] = {**_fields_of(EngineConfig, options)}
    if "speculative_config" in fields:
        fields["speculative_config"] = _parse_speculative_config(str(fields["speculative_config"]))
    _check_engine_url(options)
    try:
        return msgspec.convert(fields, EngineConfig)
    except msgspec.ValidationError as error:
        raise SetupError(str(error)) from None


def _check_engine_url(options: Mapping[str, OptionValue]) -> None:
    """Raise SetupError for options that contradict the choice of who computes."""
    url = options.get("engine_url")
    if url is None:
        if "engine_api_key_file" in options:
            raise SetupError("--engine-api-key-file has no effect without --engine-url")
        return
    if urlsplit(str(url)).scheme not in ("http", "https"):
        raise SetupError(f"--engine-url {url}: expected a URL, as http://localhost:8000")
    for key in OWN_ENGINE_OPTIONS:
        if options.get(key):
            raise SetupError(
                f"--{key.replace('_', '-')} is an option of our own engine: set it at the server "
                "of --engine-url, in its own way"
            )


def _parse_speculative_config(text: str) -> SpeculativeConfig:
    try:
        return msgspec.json.decode(text, type=SpeculativeConfig)
    except msgspec.DecodeError as error:
        raise SetupError(f"--speculative-config {text}: {error}") from None


def _string_list(options: Mapping[str, OptionValue], key: str) -> tuple[str, ...]:
    return tuple(cast(list[str], options.get(key, [])))


def _read_api_keys(options: Mapping[str, OptionValue]) -> tuple[str, ...]:
    keys = _string_list(options, "api_key")
    if not all(key.strip() for key in keys):
        raise SetupError(
            "--api-key is empty, perhaps because the variable it is set from is: no client could "
            "send that key. Leave the option out to require no key"
        )
    return keys


def _parse_root_path(text: str) -> str:
    path = text.rstrip("/")
    parts = urlsplit(path)
    if path and (not path.startswith("/") or path.startswith("//") or parts.path != path):
        raise SetupError(f"--root-path {text}: expected a path, as /llm")
    return path


def load_access_policy(settings: GatewaySettings) -> AccessPolicy:
    """Return the keys, limits and origins of the settings; reads the keys file. Raises
    SetupError."""
    limits = settings.limits
    defaults = {
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "operations_per_second": limits.operations_per_second,
        "held_bytes_max": limits.held_bytes_max,
    }
    policy = access_policy.plain_policy(settings.tenants, settings.allowed_origins, defaults)
    if settings.api_keys_file:
        file = access_policy.read_keys_file(Path(settings.api_keys_file))
        policy = access_policy.merge(file, policy)
    return msgspec.structs.replace(policy, requires_token=settings.jwt_jwks_url is not None)


def _check_tokens(settings: GatewaySettings) -> None:
    parts = urlsplit(settings.jwt_jwks_url or "https://")
    if parts.scheme != "https" and not (
        parts.scheme == "http" and is_loopback(parts.hostname or "")
    ):
        raise SetupError(f"--jwt-jwks-url {settings.jwt_jwks_url}: expected an https:// URL")
    if (settings.jwt_jwks_url is None) != (settings.jwt_audience is None):
        raise SetupError("--jwt-jwks-url and --jwt-audience have an effect only together")
    if settings.jwt_issuer is not None and settings.jwt_jwks_url is None:
        raise SetupError("--jwt-issuer has no effect without --jwt-jwks-url")


def _check_demo(settings: GatewaySettings) -> None:
    if not settings.demo:
        return
    if not settings.web:
        raise SetupError("--demo has no effect with --no-web: it is a button of the page")
    if not (settings.is_loopback or settings.requires_key):
        raise SetupError(
            f"--demo lets a page kill the engine, and --host {settings.host} is reachable from "
            "other machines: set --api-key (or CONTINUO_API_KEY) as well"
        )


def _parse_origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path not in ("", "/"):
        raise SetupError(
            f"--allowed-origins {text}: expected scheme://host, as https://example.org"
        )
    return f"{parts.scheme}://{parts.netloc}".lower()
