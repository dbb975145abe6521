"""Threads that tokenize long texts off the event loop.

Many threads would contend with the event loop for the interpreter lock. There are two: one for the
longest texts, and one for all others, which then do not wait for the longest. Each thread runs its
work in the order of submission.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LONG_TEXT_CHARS = 64 * 1024
"""Texts longer than this are tokenized on a second thread, so that they do not delay shorter ones:
each takes from 50 ms to a second."""


class TokenizerThreads:
    def __init__(self, off_loop_chars: int) -> None:
        """`off_loop_chars`: texts with more characters than this are tokenized on a thread, shorter
        ones on the event loop."""
        self._off_loop_chars = off_loop_chars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._long_text_thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer of long texts")

    def needs_thread(self, chars: int) -> bool:
        """Whether work on `chars` characters runs on a thread."""
        return chars > self._off_loop_chars

    async def run(self, chars: int, work: Callable[[], T]) -> T:
        """Run `work` and return its result. If cancelled while queued, `work` is never started."""
        if not self.needs_thread(chars):
            return work()
        thread = self._thread if chars <= LONG_TEXT_CHARS else self._long_text_thread
        run = contextvars.copy_context().run  # what is cached counts for the tenant of this task
        return await asyncio.get_running_loop().run_in_executor(thread, run, work)
