"""The one thread on which long texts are tokenised, so that the event loop does not wait for them.

Several threads would share the interpreter lock with the event loop and slow it down; one leaves it
at least every other turn. Requests are worked on in the order in which they come.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class LayoutThread:
    def __init__(self, off_loop_chars: int) -> None:
        """Work on at most `off_loop_chars` characters is done on the event loop."""
        self._off_loop_chars = off_loop_chars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="layout")

    def takes(self, chars: int) -> bool:
        """Whether work of this size is done on the thread."""
        return chars > self._off_loop_chars

    async def run(self, chars: int, work: Callable[[], T]) -> T:
        """What `work` returns. Cancelled before its turn, it is not begun."""
        if not self.takes(chars):
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
