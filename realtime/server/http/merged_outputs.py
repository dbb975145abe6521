"""Merge of the outputs of several turns, which are read at the same time."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield what the sources yield, each with the index of its source, as it arrives.

    At most two elements of each source are read ahead. Raises the first error that a source
    raises. At the end all sources that were begun are closed.
    """
    arrived: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(
        maxsize=2 * len(sources)
    )

    async def pump(index: int) -> None:
        try:
            async with aclosing(sources[index]) as elements:
                async for element in elements:
                    await arrived.put((index, element))
            await arrived.put(None)
        except Exception as error:  # noqa: BLE001  # raised where the elements are read
            await arrived.put(error)

    pumps = [asyncio.create_task(pump(index)) for index in range(len(sources))]
    try:
        unfinished = len(sources)
        while unfinished:
            match await arrived.get():
                case None:
                    unfinished -= 1
                case Exception() as error:
                    raise error
                case found:
                    yield found
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
