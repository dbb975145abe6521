"""`continuo config check`: all that would keep a server from starting or from working well, without
starting it. Nothing is created or changed, except that a Redis is written to and left as it was."""

import asyncio
import contextlib
import resource
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Literal

import msgspec

from continuo.engine import (
    EngineConfig,
    ModelError,
    compute_fingerprint,
    find_local_checkpoint,
    find_local_text,
    print_line,
)
from continuo.realtime.errors import SetupError
from continuo.realtime.server.config.addresses import Address
from continuo.realtime.server.config.options import OptionValue, find_unknown_variables
from continuo.realtime.server.config.settings import (
    EngineSettings,
    GatewaySettings,
    load_access_policy,
    make_engine_settings,
    make_gateway_settings,
    make_serve_settings,
)
from continuo.realtime.server.list_models import list_cached_models
from continuo.realtime.server.process.certificate import (
    EXPIRY_WARNING_S,
    make_engine_tls,
    make_server_tls,
    measure_validity_s,
)
from continuo.realtime.server.process.file_descriptors import count_required
from continuo.realtime.server.process.web_server import bind
from continuo.realtime.store import Durability, StoreError, StoreUnavailable, check_store

CONNECT_TIMEOUT_S = 3.0

Verdict = Literal["ok", "warning", "error"]


class Finding(msgspec.Struct, frozen=True):
    verdict: Verdict
    subject: str
    detail: str


async def check_config(
    command: str, options: Mapping[str, OptionValue], environ: Mapping[str, str]
) -> int:
    """Print the findings for `continuo COMMAND` with these options. Returns the exit status: 1 if
    there is an error."""
    status = 0
    async for finding in find_problems(command, options, environ):
        print_line(f"{finding.verdict:<7}  {finding.subject:<12}  {finding.detail}")
        status |= finding.verdict == "error"
    return status


async def find_problems(
    command: str, options: Mapping[str, OptionValue], environ: Mapping[str, str]
) -> AsyncIterator[Finding]:
    """Yield a finding for everything that is checked, good or bad."""
    for name in find_unknown_variables(environ):
        yield Finding("warning", "environment", f"{name} belongs to no option")
    try:
        settings = _make_settings(command, options)
    except SetupError as error:
        yield Finding("error", "options", str(error))
        return
    yield Finding("ok", "options", f"those of continuo {command}")
    found = (
        _examine_engine(settings)
        if isinstance(settings, EngineSettings)
        else _examine_gateway(command, settings)
    )
    async for finding in found:
        yield finding


async def _examine_engine(settings: EngineSettings) -> AsyncIterator[Finding]:
    yield _check_model(settings.engine)
    yield _check(lambda: _check_port(*settings.listen, "--listen"))
    if (metrics := settings.metrics_listen) is not None:
        yield _check(lambda: _check_port(*metrics, "--metrics-listen"))
    for finding in _check_certificate(settings.ssl_certfile, settings.ssl_keyfile):
        yield finding
    if settings.store is not None:
        yield await _check_store(settings.store, "normal")


async def _examine_gateway(command: str, settings: GatewaySettings) -> AsyncIterator[Finding]:
    if command == "serve":
        yield _check_model(settings.engine)
    yield _check(lambda: _check_port(settings.host, settings.port, "--host"))
    for finding in _check_certificate(settings.ssl_certfile, settings.ssl_keyfile):
        yield finding
    yield _check(lambda: _check_keys(settings))
    if settings.engine_cafile is not None:
        yield _check(lambda: _check_engine_cafile(settings))
    yield _check_descriptors(settings)
    if settings.store != "memory":
        yield await _check_store(settings.store, settings.durability)
    if command == "gateway":
        for address in settings.engines:
            yield await _check_engine(address)


def _make_settings(
    command: str, options: Mapping[str, OptionValue]
) -> GatewaySettings | EngineSettings:
    match command:
        case "serve":
            return make_serve_settings(options)
        case "gateway":
            return make_gateway_settings(options)
        case _:
            return make_engine_settings(options)


def _check(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except SetupError as error:
        return Finding("error", "options", str(error))


def _check_model(config: EngineConfig) -> Finding:
    has_own_device = config.engine_url is None
    try:
        find = find_local_checkpoint if has_own_device else find_local_text
        folder = find(config.model)
        if folder is None:
            return _check_hub_model(config.model)
        weights = [*folder.glob("*.safetensors"), *folder.glob("*.gguf")]
        if not (folder / "config.json").is_file() or (has_own_device and not weights):
            return Finding("error", "model", f"{folder} has no config.json or no *.safetensors")
        fingerprint = compute_fingerprint(str(folder))
    except ModelError as error:
        return Finding("error", "model", error.message)
    return Finding("ok", "model", f"{folder}, fingerprint {fingerprint}")


def _check_hub_model(model: str) -> Finding:
    if any(cached.name == model for cached in list_cached_models()):
        return Finding("ok", "model", f"{model} is in the Hugging Face cache")
    return Finding("warning", "model", f"{model} is not on this machine; the start downloads it")


def _check_port(host: str, port: int, option: str) -> Finding:
    bind(host, port, option).close()
    return Finding("ok", "port", f"{Address(host, port)} is free")


def _check_certificate(certfile: str | None, keyfile: str | None) -> Iterator[Finding]:
    if certfile is None:
        return
    try:
        context = make_server_tls(certfile, keyfile)
        assert context is not None, "there is a certificate"
        validity_s = measure_validity_s(context, certfile)
    except SetupError as error:
        yield Finding("error", "certificate", str(error))
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or str(error)
        yield Finding("error", "certificate", f"--ssl-certfile {certfile}: {reason}")
    else:
        verdict = "warning" if validity_s < EXPIRY_WARNING_S else "ok"
        days = validity_s / 86_400
        yield Finding(verdict, "certificate", f"{certfile} is valid for {days:.1f} days")


def _check_engine_cafile(settings: GatewaySettings) -> Finding:
    make_engine_tls(settings)
    return Finding("ok", "engine CA", f"{settings.engine_cafile}")


def _check_keys(settings: GatewaySettings) -> Finding:
    policy = load_access_policy(settings)
    if not policy.requires_key:
        return Finding("ok", "keys", "no key is required")
    tokens = f"; tokens by the keys of {settings.jwt_jwks_url}" if policy.requires_token else ""
    count = len({key.tenant for key in policy.keys.values()})
    return Finding("ok", "keys", f"{len(policy.keys):,} keys of {count:,} tenants{tokens}")


def _check_descriptors(settings: GatewaySettings) -> Finding:
    """Check the hard limit, to which a gateway raises its own limit when it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required, sessions = count_required(settings.limits), settings.limits.connected_sessions_max
    detail = f"{hard:,} file descriptors; {sessions:,} sessions need {required:,}"
    if hard != resource.RLIM_INFINITY and hard < required:
        return Finding("warning", "descriptors", f"at most {detail}")
    return Finding("ok", "descriptors", detail)


async def _check_store(url: str, durability: Durability) -> Finding:
    try:
        return Finding("ok", "store", await check_store(url, durability))
    except StoreUnavailable as error:
        return Finding("warning", "store", f"{error}; the server would wait for it")
    except StoreError as error:
        return Finding("error", "store", str(error))


async def _check_engine(address: Address) -> Finding:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or "does not answer"
        return Finding("warning", "engine", f"{address}: {reason}; the gateway would wait for it")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return Finding("ok", "engine", f"{address} accepts connections")
