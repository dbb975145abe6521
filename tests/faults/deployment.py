"""Deployment: one engine and several gateways in this process, and a Redis server.

Everything is real except the engine's device: the null device draws each id from all ids before. A
lost, duplicated or misplaced append, a confused page or a missing delta therefore changes the text,
which a comparison with `ExpectedConversation` shows.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from continuo.engine import LinkSecurity, ModelText, Sampling
from continuo.realtime.limits import Limits
from continuo.realtime.server.config.addresses import Address
from continuo.realtime.server.config.settings import GatewaySettings
from continuo.realtime.server.process.engine_discovery import discover_engines
from continuo.realtime.session.session import Session
from continuo.realtime.store import Durability, Store, StoreUnavailable, open_store
from tests.faults.caller import ReconnectingClient
from tests.faults.proxy import Proxy
from tests.realtime.conftest import chat_folder
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.engines import EngineHarness, digest_engine
from tests.support.redis_process import RedisProcess
from tests.support.waiting import wait_until
from tests.support.web_servers import API_KEY, RunningServer, serve_engine

OPEN_ATTEMPTS_MAX = 10
STEP_S = 0.001
"""Duration of a step, so that a fault can occur during a response."""


class Deployment:
    def __init__(
        self, harness: EngineHarness, redis: RedisProcess, gateways: list[RunningServer]
    ) -> None:
        self.engine_harness = harness
        self.redis = redis
        self.gateways = gateways
        self.proxies: list[Proxy] = []

    @property
    def urls(self) -> list[str]:
        return [gateway.url for gateway in self.gateways]

    def expected_conversation(self) -> "ExpectedConversation":
        return ExpectedConversation(self.engine_harness.engine.text)

    def create_client(self, first: int = 0) -> ReconnectingClient:
        """Create a client of all gateways that connects to gateway `first` first."""
        return ReconnectingClient(*self.urls[first:], *self.urls[:first])

    def find_session(self, client: ReconnectingClient) -> Session | None:
        """Find the loaded session of a client in the gateways."""
        for gateway in self.gateways:
            found = gateway.registry.find(client.session_id, "default")
            if found is not None:
                return found
        return None

    async def assert_balanced(self) -> None:
        """Wait until no gateway has a connected session; assert that every page has one owner."""
        await wait_until(lambda: not any(len(gateway.registry) for gateway in self.gateways), 60)
        stats = await self.engine_harness.engine.fleet.stats()
        assert (stats.failed_steps, stats.failed_audits) == (0, 0)
        assert stats.pages_free + stats.pages_tree + stats.pages_leased == stats.pages_total


@contextlib.asynccontextmanager
async def running_deployment(
    folder: Path,
    *,
    gateways: int = 2,
    limits: Limits | None = None,
    redis: tuple[str, ...] = ("--appendonly", "yes", "--appendfsync", "everysec"),
    durability: Durability = "normal",
    bytes: bool = False,
    steps_ahead: int = 0,
    store_url: str | None = None,
    tenants: dict[str, str] | None = None,
    settings: GatewaySettings | None = None,
) -> AsyncIterator[Deployment]:
    """Start Redis, an engine and gateways.

    `bytes`: with a tokenizer that covers every character. `steps_ahead`: with 1, the device has a
    thread of its own, so that a long step does not block the event loop. `store_url`: another store
    than this Redis. `settings`: of the gateways, instead of `tenants` and `limits`.
    """
    model_folder = folder / "words"
    model_folder.mkdir(parents=True)
    settings = settings or GatewaySettings(
        tenants=tenants or {API_KEY: "default"},
        served_model_name=("demo",),
        limits=limits or Limits(),
    )
    server = RedisProcess(folder / "redis", *redis)
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(server.kill)
        harness = await stack.enter_async_context(
            digest_engine(
                chat_folder(model_folder, bytes=bytes),
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
        port = await harness.listen()
        deployment = Deployment(harness, server, [])
        for _ in range(gateways):
            engine = await stack.enter_async_context(
                discover_engines([Address("127.0.0.1", port)], LinkSecurity(), None)
            )
            await engine.wait_until_ready()
            store = await open_when_available(store_url or server.url, durability)
            stack.push_async_callback(store.aclose)
            gateway = await stack.enter_async_context(serve_engine(engine, settings, store))
            deployment.gateways.append(gateway)
        yield deployment


async def open_when_available(url: str, durability: Durability) -> Store:
    """Open a store. Tries again if the machine is too busy for it to answer in time."""
    for _ in range(OPEN_ATTEMPTS_MAX - 1):
        with contextlib.suppress(StoreUnavailable):
            return await open_store(url, durability)
    return await open_store(url, durability)


class ExpectedConversation:
    """Expected token ids of a conversation, computed without the session code of the server."""

    def __init__(self, text: ModelText) -> None:
        self._text = text
        self.ids: list[int] = []

    def add_user_message(self, text: str) -> None:
        self.ids += self._encode(f"<|im_start|>user\n{text}<|im_end|>\n")

    def add_assistant_message(self, text: str) -> None:
        self.ids += self._encode(f"<|im_start|>assistant\n{text}<|im_end|>\n")

    def compute_response(
        self, tokens: int, *, ignore_eos: bool = False, seed: int | None = None
    ) -> str:
        """Append the response of at most `tokens` ids. `seed`: of the draws at temperature 1; None:
        greedy. Returns its text."""
        self.ids += self._encode("<|im_start|>assistant\n")
        sampling = Sampling(temperature=0.0 if seed is None else 1.0)
        stop_ids = [] if ignore_eos else [0]
        output = oracle(self.ids, tokens, stop_ids, sampling=sampling, seed=seed or 0)
        ended = output[-1] == 0
        self.ids += output + self._encode("\n" if ended else "<|im_end|>\n")
        return self._text.decode(output[:-1] if ended else output)

    def _encode(self, text: str) -> list[int]:
        return self._text.encode(text)
