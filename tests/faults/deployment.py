"""House: one engine, one Redis and several gateways, real but for the device, in this process.

The device draws each id from all that was before it, so an append lost, doubled or out of place, a
page mixed up or a delta missing changes the text, and whoever compares with `Expected` sees it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from continuo.engine import LinkSecurity, ModelText
from continuo.realtime.limits import Limits
from continuo.realtime.server.config.addresses import Address
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.process.engine_discovery import discover_engines
from continuo.realtime.session.session import Session
from continuo.realtime.store import Durability, open_store
from tests.faults.caller import Caller
from tests.faults.proxy import Proxy
from tests.realtime.conftest import chat_folder
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.engines import Bench, digest_engine
from tests.support.redis_process import RedisProcess
from tests.support.web_servers import KEY, Running, serving

STEP_S = 0.001
"""An answer gives a fault time to happen."""


class House:
    def __init__(self, bench: Bench, redis: RedisProcess, gateways: list[Running]) -> None:
        self.bench = bench
        self.redis = redis
        self.gateways = gateways
        self.proxies: list[Proxy] = []

    @property
    def urls(self) -> list[str]:
        return [gateway.url for gateway in self.gateways]

    def expected(self) -> "Expected":
        return Expected(self.bench.engine.text)

    def caller(self, first: int = 0) -> Caller:
        """Of all gateways, beginning with one."""
        return Caller(*self.urls[first:], *self.urls[:first])

    def session(self, caller: Caller) -> Session | None:
        """Where it is now."""
        for gateway in self.gateways:
            found = gateway.registry.find(caller.session, "default")
            if found is not None:
                return found
        return None

    async def balanced(self) -> None:
        """Nothing runs, the books of the engine balance, no session has a client."""
        await until(lambda: not any(len(gateway.registry) for gateway in self.gateways))
        stats = await self.bench.engine.stats()
        assert (stats.failed_steps, stats.failed_audits) == (0, 0)
        assert stats.pages_free + stats.pages_tree + stats.pages_leased == stats.pages_total


@contextlib.asynccontextmanager
async def house(
    folder: Path,
    *,
    gateways: int = 2,
    limits: Limits | None = None,
    redis: tuple[str, ...] = ("--appendonly", "yes", "--appendfsync", "everysec"),
    durability: Durability = "normal",
    bytes: bool = False,
    steps_ahead: int = 0,
) -> AsyncIterator[House]:
    """`bytes`: its tokenizer spells every character there is. `steps_ahead`: with one, the device
    has a thread of its own, and however long a step takes nobody else waits for it."""
    words = folder / "words"
    words.mkdir(parents=True)
    settings = GatewaySettings(
        tenants={KEY: "default"}, served_model_name=("demo",), limits=limits or Limits()
    )
    server = RedisProcess(folder / "redis", *redis)
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(server.kill)
        bench = await stack.enter_async_context(
            digest_engine(
                chat_folder(words, bytes=bytes),
                pages=1024,
                page_size=4,
                max_model_len=2000,
                batched_tokens=64,
                rows=32,
                step_s=STEP_S,
                steps_ahead=steps_ahead,
                vocabulary=400 if bytes else VOCABULARY,
            )
        )
        port = await bench.listen()
        made = House(bench, server, [])
        for _ in range(gateways):
            engine = await stack.enter_async_context(
                discover_engines([Address("127.0.0.1", port)], LinkSecurity(), None)
            )
            await engine.wait_until_ready()
            store = await open_store(server.url, durability)
            stack.push_async_callback(store.aclose)
            running = await stack.enter_async_context(serving(engine, settings, store))
            made.gateways.append(running)
        yield made


class Expected:
    """What the conversation is, by the ids alone: no code of the server's sessions."""

    def __init__(self, text: ModelText) -> None:
        self._text = text
        self.ids: list[int] = []

    def say(self, said: str) -> None:
        self.ids += self._spelt(f"<|im_start|>user\n{said}<|im_end|>\n")

    def said(self, text: str) -> None:
        """By the assistant."""
        self.ids += self._spelt(f"<|im_start|>assistant\n{text}<|im_end|>\n")

    def answer(self, tokens: int, *, ignore_eos: bool = False) -> str:
        self.ids += self._spelt("<|im_start|>assistant\n")
        said = oracle(self.ids, tokens, stop_ids=[] if ignore_eos else [0])
        ended = said[-1] == 0
        self.ids += said + self._spelt("\n" if ended else "<|im_end|>\n")
        return self._text.decode(said[:-1] if ended else said)

    def _spelt(self, text: str) -> list[int]:
        return self._text.encode(text)


async def until(true: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)
