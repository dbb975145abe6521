"""The threads on which long texts are tokenised, so that the event loop does not wait for them.

Many threads would share the interpreter lock with the event loop and slow it down. There are two:
one for the longest texts, one for all others, which therefore do not wait behind those. On each,
requests are worked on in the order in which they come.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LONG_TEXT_CHARS = 64 * 1024
"""Longer texts have a thread of their own: they take from 50 ms up to a second."""


class TokenizerThreads:
    def __init__(self, off_loop_chars: int) -> None:
        """Work on at most `off_loop_chars` characters is done on the event loop."""
        self._off_loop_chars = off_loop_chars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="layout")
        self._long_text_thread = ThreadPoolExecutor(1, thread_name_prefix="layout of the longest")

    def needs_thread(self, chars: int) -> bool:
        """Whether work of this size is done on a thread."""
        return chars > self._off_loop_chars

    async def run(self, chars: int, work: Callable[[], T]) -> T:
        """Run `work` and return its result. Cancelled before its turn, `work` is not begun."""
        if not self.needs_thread(chars):
            return work()
        thread = self._thread if chars <= LONG_TEXT_CHARS else self._long_text_thread
        return await asyncio.get_running_loop().run_in_executor(thread, work)
