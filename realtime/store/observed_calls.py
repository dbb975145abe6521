"""Metrics of the calls of a store: their time, and how many found the store unavailable."""

import inspect
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from continuo.realtime import metrics
from continuo.realtime.store.base import Store
from continuo.realtime.store.errors import StoreUnavailable

StoreClass = TypeVar("StoreClass", bound=type)
_Call = Callable[..., Awaitable[Any]]
_UNOBSERVED = ("aclose",)


def observe_calls(store: StoreClass) -> StoreClass:
    """Class decorator of a store: observe every call that the `Store` protocol declares."""
    for name, call in vars(Store).items():
        if inspect.iscoroutinefunction(call) and name not in _UNOBSERVED:
            setattr(store, name, _observed(name, getattr(store, name)))
    return store


def _observed(name: str, call: _Call) -> _Call:
    seconds = metrics.store_call_seconds.labels(name)
    failures = metrics.store_failures.labels(name)

    @wraps(call)
    async def observed(*args: Any, **options: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return await call(*args, **options)
        except StoreUnavailable:
            failures.inc()
            raise
        finally:
            seconds.observe(time.perf_counter() - began_s)

    return observed
