"""Broadcast: values for any number of asynchronous readers, each at its own pace."""

import asyncio
from typing import Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Broadcast(Generic[T]):
    def __init__(self) -> None:
        self._subscriptions: WeakSet[Subscription[T]] = WeakSet()
        self._has_ended = False

    def publish(self, value: T) -> None:
        for subscription in [*self._subscriptions]:
            subscription.put(value)

    def subscribe(self) -> "Subscription[T]":
        """Begin to collect values. A reader that is no longer referenced is removed."""
        subscription = Subscription[T]()
        self._subscriptions.add(subscription)
        if self._has_ended:
            subscription.end()
        return subscription

    def end(self) -> None:
        """End the iteration of every reader, once it has read the values up to here."""
        self._has_ended = True
        for subscription in [*self._subscriptions]:
            subscription.end()


class Subscription(Generic[T]):
    """Asynchronous iterator over the values published since `subscribe`."""

    def __init__(self) -> None:
        self._values: asyncio.Queue[tuple[T] | None] = asyncio.Queue()

    def put(self, value: T) -> None:
        self._values.put_nowait((value,))

    def end(self) -> None:
        self._values.put_nowait(None)

    def __aiter__(self) -> "Subscription[T]":
        return self

    async def __anext__(self) -> T:
        value = await self._values.get()
        if value is None:
            self._values.put_nowait(None)
            raise StopAsyncIteration
        return value[0]
