"""The threads that tokenize long texts: tenants in turn, and cancelled work."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from continuo.engine import cache_group
from continuo.realtime.generation.tokenizer_threads import FairThread, TokenizerThreads


class Recorder:
    """Work that records its name when it runs; the first one waits until `release`."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self._is_released = threading.Event()
        self._has_begun = threading.Event()

    def hold(self) -> None:
        self._has_begun.set()
        assert self._is_released.wait(10)

    def release(self) -> None:
        self._is_released.set()

    async def wait_until_held(self) -> None:
        assert await asyncio.to_thread(self._has_begun.wait, 10)

    def work(self, name: str) -> Callable[[], None]:
        return lambda: self.ran.append(name)


async def begin(work: "asyncio.Task[None]") -> "asyncio.Task[None]":
    """Let a task take its place in the queue."""
    await asyncio.sleep(0)
    return work


async def submit(thread: FairThread, recorder: Recorder, name: str) -> "asyncio.Task[None]":
    return await begin(asyncio.create_task(thread.run(name[0], recorder.work(name))))


@pytest.fixture
async def held() -> tuple[FairThread, Recorder, "asyncio.Task[None]"]:
    """A thread that is busy with work of group a."""
    thread, recorder = FairThread("test"), Recorder()
    task = asyncio.create_task(thread.run("a", recorder.hold))
    await recorder.wait_until_held()
    return thread, recorder, task


Held = tuple[FairThread, Recorder, "asyncio.Task[None]"]


async def test_groups_take_turns_however_much_each_has_sent(held: Held) -> None:
    thread, recorder, first = held
    names = ["a1", "a2", "a3", "a4", "b1", "c1", "c2"]
    tasks = [await submit(thread, recorder, name) for name in names]
    recorder.release()
    await asyncio.gather(first, *tasks)
    assert recorder.ran == ["a1", "b1", "c1", "a2", "c2", "a3", "a4"]
    await thread.run("d", recorder.work("d1"))
    assert recorder.ran[-1] == "d1", "the thread is free again"


async def test_cancelled_work_in_the_queue_is_never_started(held: Held) -> None:
    thread, recorder, first = held
    tasks = [await submit(thread, recorder, name) for name in ("a1", "b1", "b2", "c1")]
    tasks[1].cancel()
    await asyncio.wait([tasks[1]])
    recorder.release()
    await asyncio.gather(first, *tasks, return_exceptions=True)
    assert recorder.ran == ["a1", "b2", "c1"]


async def test_work_cancelled_when_its_turn_comes_gives_the_turn_back(held: Held) -> None:
    thread, recorder, first = held
    cancelled = await submit(thread, recorder, "b1")
    other = await submit(thread, recorder, "c1")
    first.add_done_callback(lambda _: cancelled.cancel())
    recorder.release()
    await asyncio.gather(first, cancelled, other, return_exceptions=True)
    assert recorder.ran[-1] == "c1"


async def test_work_that_is_cancelled_while_it_runs_keeps_the_thread(held: Held) -> None:
    thread, recorder, first = held
    other = await submit(thread, recorder, "b1")
    first.cancel()
    await asyncio.wait([first])
    assert recorder.ran == [], "the thread is still busy"
    recorder.release()
    await other
    assert recorder.ran == ["b1"]


async def test_an_error_passes_the_turn_on(held: Held) -> None:
    thread, recorder, first = held

    def fail() -> None:
        raise ValueError("broken")

    failing = await begin(asyncio.create_task(thread.run("b", fail)))
    other = await submit(thread, recorder, "c1")
    recorder.release()
    await asyncio.gather(first, other)
    with pytest.raises(ValueError, match="broken"):
        await failing


async def test_texts_are_tokenized_for_the_tenant_of_the_task() -> None:
    threads = TokenizerThreads(10)

    async def run(tenant: str, chars: int) -> str:
        cache_group.set(tenant)
        return await threads.run(chars, cache_group.get)

    found = await asyncio.gather(*(run(name, chars) for name in "ab" for chars in (5, 50, 100_000)))
    assert found == ["a", "a", "a", "b", "b", "b"]
