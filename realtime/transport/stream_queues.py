"""Stream queues: serial queues of jobs, one for each `stream_id` of a connection.

Jobs of one queue run one after the other; the queues run concurrently, up to a limit.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from continuo.realtime.errors import Refusal
from continuo.realtime.limits import Limits
from continuo.realtime.tenants.ledger import TenantLedger

Job = Callable[[], Awaitable[None]]
"""Work of one request. A job must not raise: that would end its queue."""


class StreamQueues:
    """The queues of one connection. A queue exists while it has jobs; None is the key of the queue
    without a `stream_id`."""

    def __init__(self, limits: Limits, ledger: TenantLedger) -> None:
        self._limits = limits
        self._ledger = ledger
        self._queues: dict[str | None, deque[tuple[Job, int]]] = {}
        self._slots = asyncio.Semaphore(limits.running_responses_max)
        self._tasks: set[asyncio.Task[None]] = set()
        self._queued_chars = 0

    def put(self, stream_id: str | None, job: Job, chars: int = 0) -> None:
        """Queue a job. `chars`: length of the frame that requested the job. Raises Refusal if a
        limit is exceeded."""
        limits, queue = self._limits, self._queues.get(stream_id)
        named = sum(name is not None for name in self._queues)
        if queue is None and stream_id is not None and named >= limits.stream_queues_max:
            raise Refusal(
                f"This connection has {named} stream queues with work, which is the limit.",
                code="websocket_stream_limit_reached",
                param="stream_id",
            )
        if sum(map(len, self._queues.values())) >= limits.waiting_responses_max:
            raise Refusal(
                f"{limits.waiting_responses_max} responses are queued on this connection, which is "
                "the limit.",
                code="websocket_stream_limit_reached",
            )
        if self._queued_chars + chars > limits.waiting_response_chars_max:
            raise Refusal(
                f"Responses of {self._queued_chars:,} characters are queued on this connection; "
                f"the limit of {limits.waiting_response_chars_max:,} has no room for this one.",
                code="websocket_stream_limit_reached",
            )
        self._charge(chars)
        if queue is not None:
            queue.append((job, chars))
            return
        self._queues[stream_id] = deque([(job, chars)])
        task = asyncio.create_task(self._run(stream_id), name=f"stream {stream_id or '-'}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the running jobs and discard the queued ones."""
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            self._charge(-self._queued_chars)

    def _charge(self, chars: int) -> None:
        self._queued_chars += chars
        self._ledger.hold("input", chars)

    async def _run(self, stream_id: str | None) -> None:
        jobs = self._queues[stream_id]
        try:
            while jobs:
                async with self._slots:
                    job, chars = jobs.popleft()
                    self._charge(-chars)
                    await job()
        finally:
            del self._queues[stream_id]
