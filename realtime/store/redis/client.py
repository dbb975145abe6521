"""RedisClient: the client of the Redis at a URL. Every call has a time limit, scripts are called by
name, and failures of Redis are raised as errors of the store."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.resources import files
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff

from continuo.realtime.store import keys
from continuo.realtime.store.durability import Durability
from continuo.realtime.store.errors import StoreUnavailable, StoreUnusable
from continuo.realtime.store.health_probe import HealthProbe

_FENCED_SCRIPTS = ("confirm", "find_result", "extend_deadline", "delete", "journal", "write")
_PLAIN_SCRIPTS = (
    "record_layout",
    "index_deadline",
    "list_due",
    "create",
    "recreate",
    "find",
    "load",
    "claim",
    "force_delete",
    "expire",
)
_EXPIRING_SCRIPTS = (
    "create",
    "claim",
    "extend_deadline",
    "write",
    "recreate",
    "delete",
    "force_delete",
    "restore",
)
"""Scripts that set the TTL of a session's keys."""
_INDEXING_SCRIPTS = ("create", "recreate", "delete", "force_delete", "expire", "restore")
"""Scripts that create or remove a session, and keep the set of its tenant's sessions."""
_TENANT_SCRIPTS = (
    "charge_bucket",
    "exchange_counts",
    "count_sessions",
    "add_usage",
    "measure",
    "delete_records",
    "list_deletions",
    "index_response",
)
_ADMINISTRATION_SCRIPTS = ("export", "restore")
_ENGINE_SCRIPTS = ("announce", "engines")
_PROBE_SCRIPTS = ("probe",)
_TOMBSTONE_SCRIPTS = ("delete", "force_delete")
_CONTINUED_SCRIPTS = {"recreate": "write"}
"""Scripts that another one continues, in the same step."""

_ACCESS_ERRORS = (
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
    redis_errors.NoPermissionError,
)
_ACCESS_ERROR_PATTERN = re.compile(
    "NOPERM|unauthenticated (multi)?bulk|The user executing the script can't run"
)
"""Matches error replies that refuse access and have no exception class in the client library.
Before authentication, Redis refuses long commands as "unauthenticated (multi)bulk"; the other two
errors refuse a command inside a script, for lack of permission."""
_TIMEOUT_ERRORS = (redis_errors.TimeoutError, TimeoutError)
_CONNECTION_ERRORS = (redis_errors.ConnectionError, OSError, *_TIMEOUT_ERRORS)
_WRITE_ERRORS = (
    redis_errors.ReadOnlyError,
    redis_errors.OutOfMemoryError,
    redis_errors.ClusterDownError,
    redis_errors.TryAgainError,
)
_WRITE_ERROR_PATTERN = re.compile(
    r"\b(MISCONF|OOM|READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|NOREPLICAS|BUSY|TRYAGAIN)\b"
)
"""Replies of a server that accepts no writes for now: its disk or memory is full, it is starting,
it is a replica, or it has too few replicas."""

_CLOSED_TRANSPORT = "the handler is closed"
"""Part of the RuntimeError of uvloop for a write to a connection that the peer has just reset."""


def _find_failure_cause(error: BaseException) -> str | None:
    """Return the cause, as text, if Redis itself fails. Returns None if only this call fails."""
    text = str(error).partition(" script: ")[0] or type(error).__name__
    match error:
        case StoreUnusable():
            return text
        case redis_errors.RedisError() if _is_access_refused(error):
            return f"Redis refuses access: {text}"
        case redis_errors.ConnectionError() | redis_errors.TimeoutError() | OSError():
            return f"Redis does not answer: {text}"
        case RuntimeError() if _CLOSED_TRANSPORT in text:
            return "Redis does not answer: the connection was reset"
        case redis_errors.ResponseError() if _is_write_refused(error):
            return f"Redis refuses writes: {text}"
        case _:
            return None


def _is_access_refused(error: BaseException) -> bool:
    if isinstance(error, _ACCESS_ERRORS):
        return True
    return isinstance(error, redis_errors.ResponseError) and bool(
        _ACCESS_ERROR_PATTERN.search(str(error))
    )


def _is_write_refused(error: redis_errors.ResponseError) -> bool:
    return isinstance(error, _WRITE_ERRORS) or bool(_WRITE_ERROR_PATTERN.search(str(error)))


def _load_scripts() -> dict[str, str]:
    folder = files("continuo.realtime.store.redis") / "scripts"

    def read(name: str) -> str:
        return (folder / f"{name}.lua").read_text(encoding="utf-8")

    def with_prefixes(name: str) -> str:
        prefixes = ["clock"]
        prefixes += ["check_lease"] if name in _FENCED_SCRIPTS else []
        prefixes += ["expire_keys"] if name in _EXPIRING_SCRIPTS else []
        prefixes += ["tenant_index"] if name in _INDEXING_SCRIPTS else []
        prefixes += ["tombstone"] if name in _TOMBSTONE_SCRIPTS else []
        constants = (
            f"local LAYOUT = '{keys.LAYOUT}'\n"
            f"local EXPIRY_NET_MS = {keys.SESSION_EXPIRY_NET_S * 1000:.0f}\n"
            f"local TENANT_EXPIRY_MS = {keys.TENANT_EXPIRY_S * 1000:.0f}\n"
            f"{_define_key('session_meta', lambda session: keys.session_keys(session).meta)}"
            f"{_define_key('tenant_sessions', lambda tenant: keys.tenant_keys(tenant).sessions)}"
        )
        continued = [_CONTINUED_SCRIPTS[name]] if name in _CONTINUED_SCRIPTS else []
        return constants + "".join(map(read, (*prefixes, name, *continued)))

    return {
        name: with_prefixes(name)
        for name in (
            *_FENCED_SCRIPTS,
            *_PLAIN_SCRIPTS,
            *_TENANT_SCRIPTS,
            *_ADMINISTRATION_SCRIPTS,
            *_ENGINE_SCRIPTS,
            *_PROBE_SCRIPTS,
        )
    }


def _define_key(name: str, make_key: Callable[[str], str]) -> str:
    """Return a Lua function that makes the same key as `make_key`."""
    before, after = make_key("\0").split("\0")
    return f"local function {name}(id) return '{before}' .. id .. '{after}' end\n"


class RedisClient:
    """The connections to one Redis, the scripts, and the health probe. Any task of the event loop
    may use it: calls of a store inside `bounded`, those that open one inside `opening`."""

    def __init__(
        self,
        url: str,
        durability: Durability | None = None,
        *,
        timeout_s: float = keys.TIMEOUT_S,
    ) -> None:
        """`durability`: what the settings of Redis must provide, checked by `examine`; None accepts
        any settings. Raises StoreUnusable for a malformed URL."""
        self._durability = durability
        self._timeout_s = timeout_s
        try:
            self._redis, self._sentinels = _make_client(url, timeout_s)
        except (ValueError, redis_errors.RedisError) as error:
            raise StoreUnusable(f"the Redis URL cannot be used: {error}") from error
        self._scripts = {
            name: self._redis.register_script(text) for name, text in _load_scripts().items()
        }
        self._connections = asyncio.Semaphore(keys.CONNECTIONS_MAX)
        name = "Redis" if durability is not None else "Redis (engine discovery)"
        self._health_probe = HealthProbe(name, self._write_probe)
        self.needs_examination = True
        """Whether Redis may have been replaced, or have lost data, since it was last examined."""

    @property
    def is_available(self) -> bool:
        """Whether Redis accepts writes, as far as is known."""
        return self._health_probe.is_healthy

    def start_probing(self) -> None:
        """Start the health probe, which runs until `aclose`."""
        self._health_probe.start()

    @asynccontextmanager
    async def bounded(self) -> AsyncGenerator[None]:
        """Limit the time of one call of the store, the wait for a connection included. Raises
        StoreUnavailable if Redis fails, and at once while the circuit is open."""
        if self._health_probe.is_circuit_open:
            raise StoreUnavailable("Redis has not answered since a call timed out")
        with _preserve_cancellation(), self._map_failures():
            async with asyncio.timeout(self._timeout_s), self._connections:
                yield

    @asynccontextmanager
    async def opening(self) -> AsyncGenerator[None]:
        """Limit the time of opening the store. Raises StoreUnusable if Redis refuses access, which
        waiting does not help, StoreUnavailable for its other failures."""
        with _preserve_cancellation():
            try:
                async with asyncio.timeout(self._timeout_s):
                    yield
            except (redis_errors.RedisError, OSError, RuntimeError) as error:
                if (cause := _find_failure_cause(error)) is None:
                    raise
                raise (StoreUnusable if _is_access_refused(error) else StoreUnavailable)(
                    cause
                ) from error

    @contextmanager
    def _map_failures(self) -> Generator[None]:
        """Turn failures of Redis into StoreUnavailable and report them to the health probe. Errors
        of the call itself are raised unchanged."""
        try:
            yield
        except (redis_errors.RedisError, OSError, RuntimeError, StoreUnusable) as error:
            if (cause := _find_failure_cause(error)) is None:
                raise
            self.needs_examination = True
            is_unreachable = isinstance(error, _CONNECTION_ERRORS) and not _is_access_refused(error)
            is_timeout = isinstance(error, _TIMEOUT_ERRORS) or (
                is_unreachable and self._health_probe.is_circuit_open
            )
            self._health_probe.report_failure(cause, is_timeout=is_timeout)
            raise StoreUnavailable(cause) from error

    async def _write_probe(self) -> None:
        """Examine Redis, and write as calls do; what is written is deleted in the same step."""
        with _preserve_cancellation(), self._map_failures():
            async with asyncio.timeout(self._timeout_s):
                await self.examine()
                await self.run_script("probe", keys.PROBE_KEYS)

    async def run_script(self, script: str, names: Sequence[str], args: Sequence[Any] = ()) -> Any:
        run = cast(Callable[..., Awaitable[Any]], self._scripts[script])
        return await run(keys=names, args=args)

    async def run_script_batch(
        self, script: str, calls: Iterable[tuple[Sequence[str], Sequence[Any]]]
    ) -> list[Any]:
        """Run a script once for each pair of keys and arguments, all in one round trip. Each run is
        atomic by itself; the batch is not."""
        run = cast(Callable[..., Awaitable[Any]], self._scripts[script])
        async with self._redis.pipeline(transaction=False) as pipeline:
            for names, args in calls:
                await run(keys=names, args=args, client=pipeline)
            replies = await pipeline.execute(raise_on_error=False)
        errors = [reply for reply in replies if isinstance(reply, redis_errors.RedisError)]
        if not errors:
            return replies
        try:
            raise errors[0]
        finally:
            del replies, errors  # which keep this frame

    async def execute(self, *command: str | bytes | int) -> Any:
        execute = cast(Callable[..., Awaitable[Any]], self._redis.execute_command)  # pyright: ignore[reportUnknownMemberType]
        return await execute(*command)

    async def examine(self) -> None:
        """Check the settings of Redis, and load the scripts into it. Raises StoreUnusable if it
        could lose acknowledged data."""
        await self._load_missing_scripts()
        if self._durability is None:
            return
        info = cast(dict[str, Any], await self.execute("INFO"))
        if info.get("cluster_enabled"):
            raise StoreUnusable(
                "Redis Cluster is not supported: use one Redis, with replicas and Sentinel "
                "(redis+sentinel://) if it must survive the loss of its machine"
            )
        policy = info.get("maxmemory_policy")
        if policy != "noeviction":
            raise StoreUnusable(
                f"Redis may evict sessions when its memory is full: its maxmemory-policy is "
                f"{policy}; set it to noeviction"
            )
        if self._durability == "strict":
            await self._examine_strict(info)

    async def read_server_id(self) -> str:
        """Read the replication id, which Redis replaces when it starts and when it is promoted.
        Returns "" if the server has none."""
        info = cast(dict[str, Any], await self.execute("INFO", "replication"))
        return str(info.get("master_replid", ""))

    async def _examine_strict(self, info: dict[str, Any]) -> None:
        try:
            found = await self.execute("CONFIG", "GET", "appendfsync")
        except redis_errors.ResponseError as error:
            raise StoreUnusable(
                f"strict durability needs appendfsync always, which cannot be checked: {error}"
            ) from error
        fsync = found[1].decode() if found else "unknown"
        if not info.get("aof_enabled") or fsync != "always":
            raise StoreUnusable(
                "strict durability needs a Redis with appendonly yes and appendfsync always; it "
                f"has appendonly {'yes' if info.get('aof_enabled') else 'no'}, appendfsync {fsync}"
            )

    async def _load_missing_scripts(self) -> None:
        """Load the scripts that Redis does not have, before a call is refused for lack of one: an
        error reply leaves a reference cycle in the client library, and what is frozen meanwhile
        stays for ever (`engine.garbage_collection`)."""
        scripts = list(self._scripts.values())
        found = await self.execute("SCRIPT EXISTS", *(script.sha for script in scripts))
        async with self._redis.pipeline(transaction=False) as pipeline:
            for script, exists in zip(scripts, found, strict=True):
                if not exists:
                    await pipeline.script_load(script.script)
            await pipeline.execute()

    async def aclose(self) -> None:
        await self._health_probe.aclose()
        for client in (self._redis, *self._sentinels):
            await cast(Callable[[], Awaitable[None]], client.aclose)()


@contextmanager
def _preserve_cancellation() -> Generator[None]:
    """Raise CancelledError at the end if a cancellation was lost inside. The client library sends
    with asyncio.wait_for, which before Python 3.12 swallows a cancellation that arrives when the
    awaited call is done."""
    task = asyncio.current_task()
    assert task is not None, "called from a task"
    cancellations = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError


class _Sentinel(Sentinel):
    """Sentinels without a password. The library reports one that requires a password as one that
    does not answer, and the gateway would wait for it."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        discover = cast(Callable[[str], Awaitable[tuple[str, int]]], super().discover_master)
        try:
            return await discover(service_name)
        except MasterNotFoundError as error:
            if "AuthenticationError" in str(error):
                raise StoreUnusable(
                    "a sentinel requires a password, which is not supported: let sentinels accept "
                    "clients without one (no requirepass), on a network where that is safe"
                ) from error
            # the library's text has its whole configuration
            raise MasterNotFoundError(f"no sentinel names a primary of {service_name!r}") from error


def _make_client(url: str, timeout_s: float) -> tuple[Redis, list[Redis]]:
    """Make the client, and the clients of the sentinels that watch its Redis, all unconnected. A
    call whose connection was closed is retried once: every write may safely be repeated."""
    options: dict[str, Any] = {
        # in case the timeout of `bounded` is lost: the library may swallow a cancellation
        "socket_timeout": 0.8 * timeout_s,
        "socket_connect_timeout": keys.CONNECT_TIMEOUT_S * timeout_s / keys.TIMEOUT_S,
        "retry": Retry(NoBackoff(), 1, supported_errors=(redis_errors.ConnectionError,)),
        "protocol": 2,
        # sends no CLIENT SETINFO, which a Redis before 7.2 refuses: see `_load_missing_scripts`
        "driver_info": None,
    }
    if not url.startswith("redis+sentinel://"):
        client = cast(Callable[..., Redis], Redis.from_url)  # pyright: ignore[reportUnknownMemberType]
        return client(url, **options), []
    parts = urlsplit(url)
    if parts.query:
        raise ValueError(
            "redis+sentinel:// has no parameters: TLS, and passwords of sentinels, are not "
            "supported together with Sentinel"
        )
    login, _, hosts = parts.netloc.rpartition("@")
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("the service is missing: redis+sentinel://HOST:PORT,HOST:PORT/SERVICE")
    user, _, password = login.partition(":")
    if login:
        options |= {"username": unquote(user) or None, "password": unquote(password)}
    addresses = [_parse_address(host) for host in hosts.split(",")]
    sentinel_options = {
        "socket_timeout": keys.CONNECT_TIMEOUT_S / 2,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "driver_info": None,
    }
    sentinel = _Sentinel(addresses, sentinel_kwargs=sentinel_options)
    primary = cast(Callable[..., Redis], sentinel.master_for)  # pyright: ignore[reportUnknownMemberType]
    return primary(service, db=int(db or 0), **options), sentinel.sentinels


def _parse_address(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":") if ":" in host else (host, "", "26379")
    return name, int(port)
