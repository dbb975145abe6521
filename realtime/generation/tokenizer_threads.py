"""Threads that tokenize long texts off the event loop.

    tenant a  ▤▤▤▤▤▤ ╮
    tenant b  ▤      ├─ one text of each tenant in turn ──▶ the thread
    tenant c  ▤▤     ╯

Many threads would contend with the event loop for the interpreter lock. There are two: one for the
longest texts, and one for all others, which then do not wait for the longest. Each thread serves
the tenants in turn, and the texts of a tenant in the order of submission. So your text waits for at
most one text of each other tenant, however many they have sent.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from continuo.engine import cache_group

T = TypeVar("T")

LONG_TEXT_CHARS = 64 * 1024
"""Texts longer than this are tokenized on a second thread, so that they do not delay shorter ones:
each takes from 50 ms to a second."""


class TokenizerThreads:
    def __init__(self, off_loop_chars: int) -> None:
        """`off_loop_chars`: texts with more characters than this are tokenized on a thread, shorter
        ones on the event loop."""
        self._off_loop_chars = off_loop_chars
        self._thread = FairThread("tokenizer")
        self._long_text_thread = FairThread("tokenizer of long texts")

    def needs_thread(self, chars: int) -> bool:
        """Whether work on `chars` characters runs on a thread."""
        return chars > self._off_loop_chars

    async def run(self, chars: int, work: Callable[[], T]) -> T:
        """Run `work` for the tenant of this task and return its result. If cancelled while queued,
        `work` is never started."""
        if not self.needs_thread(chars):
            return work()
        thread = self._thread if chars <= LONG_TEXT_CHARS else self._long_text_thread
        run = contextvars.copy_context().run  # what is cached counts for the tenant of this task
        return await thread.run(cache_group.get(), lambda: run(work))


class FairThread:
    """A thread that works for groups in turn. Use it on one event loop."""

    def __init__(self, name: str) -> None:
        """`name`: of the thread."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Work that waits, by group; the group that is next comes first."""

    async def run(self, group: str, work: Callable[[], T]) -> T:
        """Run `work` on the thread when it is the turn of `group`, and return its result. If
        cancelled while queued, `work` is never started."""
        loop = asyncio.get_running_loop()
        if self._is_taken:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.setdefault(group, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on()  # the turn came, and is not used
                raise
        self._is_taken = True
        done = loop.run_in_executor(self._thread, work)
        done.add_done_callback(lambda _: self._pass_on())
        return await asyncio.shield(done)

    def _pass_on(self) -> None:
        """Give the thread to the next group. A group with more work goes to the end."""
        while self._waiting:
            group, turns = next(iter(self._waiting.items()))
            del self._waiting[group]
            turn = turns.popleft()
            while turn.cancelled() and turns:
                turn = turns.popleft()
            if turns:
                self._waiting[group] = turns
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._is_taken = False
