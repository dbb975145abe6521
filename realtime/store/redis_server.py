"""RedisServer: a Redis by its URL. Every call is bounded in time, scripts are called by name, and
what goes wrong is told in the store's words."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.resources import files
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from realtime.store import keys
from realtime.store.durability import Durability
from realtime.store.errors import StoreRefused, StoreUnavailable
from realtime.store.pulse import Pulse

_FENCED = ("confirm", "repeated", "hold", "close", "journal", "write")
_PLAIN = ("index", "due", "create", "find", "load", "claim", "end", "expire")
_ENGINES = ("announce", "engines")
_ENDING = ("close", "end")
_PASSING = ("MISCONF", "OOM", "READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS", "BUSY", "TRYAGAIN")
"""Errors of a Redis that may be well again soon: its disk or memory is full, it starts, it is
asked to hand over."""

_LOCKED_OUT = (
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
    redis_errors.NoPermissionError,
)
_LATE = (redis_errors.TimeoutError, TimeoutError)
_GONE = (redis_errors.ConnectionError, OSError, *_LATE)
_AWAY = (*_GONE, redis_errors.ReadOnlyError, redis_errors.OutOfMemoryError)


def _scripts() -> dict[str, str]:
    folder = files("realtime.store") / "scripts"

    def read(name: str) -> str:
        return (folder / f"{name}.lua").read_text(encoding="utf-8")

    def whole(name: str) -> str:
        before = ["clock"]
        before += ["fenced"] if name in _FENCED else []
        before += ["over"] if name in _ENDING else []
        return "".join(read(part) for part in (*before, name))

    return {name: whole(name) for name in (*_FENCED, *_PLAIN, *_ENGINES)}


class RedisServer:
    def __init__(self, url: str, *, timeout_s: float = keys.TIMEOUT_S) -> None:
        """Raises StoreRefused for a URL that is none."""
        self._timeout_s = timeout_s
        try:
            self._client, self._others = _client(url, timeout_s)
        except (ValueError, redis_errors.RedisError) as error:
            raise StoreRefused(f"the Redis URL cannot be used: {error}") from error
        self._scripts = {
            name: self._client.register_script(text) for name, text in _scripts().items()
        }
        self._connections = asyncio.Semaphore(keys.CONNECTIONS_MAX)
        self._pulse = Pulse(self._answers)
        self.doubtful = True
        """Since it was last examined it may have been another one, or have forgotten."""

    @property
    def there(self) -> bool:
        """Whether it answers, as far as is known."""
        return self._pulse.there

    @asynccontextmanager
    async def bounded(self) -> AsyncGenerator[None]:
        """Around all that one call of the store does. Waiting for a connection is part of it. While
        it lets others wait in vain it is not called."""
        if self._pulse.late:
            raise StoreUnavailable("Redis has not answered since a call of it was given up")
        with _cancelled_if_asked():
            try:
                async with asyncio.timeout(self._timeout_s), self._connections:
                    yield
            except _LOCKED_OUT as error:
                raise StoreRefused(f"Redis does not let us in: {error}") from error
            except _AWAY as error:
                raise self._unavailable(error) from error
            except redis_errors.ResponseError as error:
                if str(error).startswith(_PASSING):
                    raise self._unavailable(error) from error
                raise

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self.do("PING")
        except redis_errors.RedisError as error:
            return not isinstance(error, _GONE) or isinstance(error, _LOCKED_OUT)
        except (OSError, TimeoutError):
            return False
        return True

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        self.doubtful = True
        if isinstance(error, _GONE):
            self._pulse.lost(late=isinstance(error, _LATE))
        return StoreUnavailable(f"Redis does not answer: {str(error) or type(error).__name__}")

    async def run(self, script: str, names: Sequence[str], args: Sequence[Any] = ()) -> Any:
        run = cast(Callable[..., Awaitable[Any]], self._scripts[script])
        return await run(keys=names, args=args)

    async def run_many(
        self, script: str, calls: Iterable[tuple[Sequence[str], Sequence[Any]]]
    ) -> list[Any]:
        """One script for each set of keys and its arguments, in one round trip; each by itself is
        atomic."""
        run = cast(Callable[..., Awaitable[Any]], self._scripts[script])
        async with self._client.pipeline(transaction=False) as together:
            for names, args in calls:
                await run(keys=names, args=args, client=together)
            return await together.execute()

    async def do(self, *command: str | bytes | int) -> Any:
        execute = cast(Callable[..., Awaitable[Any]], self._client.execute_command)  # pyright: ignore[reportUnknownMemberType]
        return await execute(*command)

    async def examine(self, durability: Durability) -> None:
        """Raises StoreRefused if it could drop what it was given."""
        info = cast(dict[str, Any], await self.do("INFO"))
        policy = info.get("maxmemory_policy")
        if policy != "noeviction":
            raise StoreRefused(
                f"Redis may drop sessions when its memory is full: its maxmemory-policy is "
                f"{policy}; set it to noeviction"
            )
        if durability == "strict":
            await self._examine_strict(info)
        self.doubtful = False

    async def _examine_strict(self, info: dict[str, Any]) -> None:
        try:
            found = await self.do("CONFIG", "GET", "appendfsync")
        except redis_errors.ResponseError as error:
            raise StoreRefused(
                f"strict durability needs appendfsync always, and Redis does not say what it has: "
                f"{error}"
            ) from error
        fsync = found[1].decode() if found else "unknown"
        if not info.get("aof_enabled") or fsync != "always":
            raise StoreRefused(
                "strict durability needs a Redis with appendonly yes and appendfsync always; it "
                f"has appendonly {'yes' if info.get('aof_enabled') else 'no'}, appendfsync {fsync}"
            )

    async def aclose(self) -> None:
        await self._pulse.aclose()
        for client in (self._client, *self._others):
            await cast(Callable[[], Awaitable[None]], client.aclose)()


@contextmanager
def _cancelled_if_asked() -> Generator[None]:
    """A cancellation that is lost inside is one at the end: the client sends by asyncio.wait_for,
    which before Python 3.12 swallows one that comes when what it waits for is done."""
    task = asyncio.current_task()
    assert task is not None, "who calls can wait"
    asked = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > asked:
            raise asyncio.CancelledError


def _client(url: str, timeout_s: float) -> tuple[Redis, list[Redis]]:
    """And the clients of the sentinels that watch it. Connects to nothing yet. A connection that
    was closed meanwhile is tried once more: all we write may be written twice."""
    options: dict[str, Any] = {
        # a net under `bounded`: cancelling a call that is being torn down may be lost on it
        "socket_timeout": 0.8 * timeout_s,
        "socket_connect_timeout": keys.CONNECT_TIMEOUT_S,
        "retry": Retry(NoBackoff(), 1, supported_errors=(redis_errors.ConnectionError,)),
        "protocol": 2,
    }
    if not url.startswith("redis+sentinel://"):
        client = cast(Callable[..., Redis], Redis.from_url)  # pyright: ignore[reportUnknownMemberType]
        return client(url, **options), []
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("redis+sentinel://HOST:PORT,HOST:PORT/SERVICE names the service last")
    user, _, password = login.partition(":")
    if login:
        options |= {"username": unquote(user) or None, "password": unquote(password)}
    addresses = [_address(host) for host in hosts.split(",")]
    watch = {"socket_timeout": keys.CONNECT_TIMEOUT_S / 2, "protocol": 2}
    sentinel = Sentinel(addresses, sentinel_kwargs=watch)
    primary = cast(Callable[..., Redis], sentinel.master_for)  # pyright: ignore[reportUnknownMemberType]
    return primary(service, db=int(db or 0), **options), sentinel.sentinels


def _address(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":") if ":" in host else (host, "", "26379")
    return name, int(port)
