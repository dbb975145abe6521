"""The fault rows of other servers, F51 and F52, on real servers with the bundled model."""

import asyncio
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest

from continuo.engine.local_checkpoint import find_local_checkpoint
from continuo.engine.sampling import Sampling
from continuo.engine.text import ModelText
from continuo.engine.upstream.detection import detect_server
from continuo.engine.upstream.http import HttpClient
from continuo.engine.upstream.server import Completion
from tests.faults.deployment import ExpectedConversation
from tests.faults.row import FaultRow
from tests.faults.upstreams import ROWS, UpstreamCluster, running_upstreams
from tests.support.redis_process import RedisProcess
from tests.upstream.servers import SERVERS, RealServer

pytestmark = pytest.mark.timeout(1800)

TRIALS = {"llama-server": 5, "vllm": 1}
"""Trials of each row. A vLLM takes a minute to start again."""


class DemoConversation(ExpectedConversation):
    """The conversation in the template of the bundled model, whose ids a real server draws in
    requests of their own."""

    def __init__(self, text: ModelText, url: str) -> None:
        super().__init__(text)
        self._url = url

    def add_user_message(self, text: str) -> None:
        self.ids += self._encode(f"<|user|>{text}<|end|>")

    def compute_response(
        self, tokens: int, *, ignore_eos: bool = False, seed: int | None = None
    ) -> str:
        self.ids += self._encode("<|assistant|>")
        stop_ids = () if ignore_eos else self._text.stop_ids
        sampling = Sampling(
            stop_ids=stop_ids,
            ignore_eos=ignore_eos,
            temperature=0.0,
            presence_penalty=0.0 if seed is None else 0.5,
        )
        with ThreadPoolExecutor(1) as other_thread:
            draw = self._draw(sampling, tokens, seed or 0)
            output = other_thread.submit(asyncio.run, draw).result()
        has_ended = output[-1] in stop_ids
        self.ids += output + ([] if has_ended else self._encode("<|end|>"))
        return self._text.decode(output[:-1] if has_ended else output)

    async def _draw(self, sampling: Sampling, tokens: int, seed: int) -> list[int]:
        server = await detect_server(HttpClient(self._url), self._text)
        await server.describe()
        request = Completion(
            session="expected",
            ids=array("i", self.ids),
            sampling=sampling,
            max_tokens=tokens,
            seed=seed,
        )
        async with aclosing(server.generate(request)) as chunks:
            return [id async for chunk in chunks for id in chunk.ids]


class RealCluster(UpstreamCluster):
    response_tokens = 1000
    seeded_temperature = 0.0
    """At 1, llama-server draws other ids for a seed beside other requests than alone."""
    first_message = "Tell me a long story about a fox."
    """The bundled model answers it in 550 deltas and more. Ids that `ignore_eos` adds after an
    answer may have no text."""
    servers: list[RealServer]

    def __init__(self, folder: Path, redis: RedisProcess) -> None:
        super().__init__(folder, redis)
        self._log_folder = folder
        model = find_local_checkpoint("demo")
        assert model is not None
        self._model_folder, self.text = model, ModelText(str(model))

    def expected_conversation(self) -> ExpectedConversation:
        return DemoConversation(self.text, self.servers[0].url)

    async def _server(self, n: int) -> RealServer:
        server = SERVERS[self._kinds[n]](self._server_ports[n], self._log_folder)
        await server.start()
        return server


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
async def test_row_passes_on_real_servers(
    row: FaultRow, kind: str, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    async with running_upstreams(tmp_path, RealCluster, [kind, kind]) as cluster:
        for seed in range(TRIALS[kind]):
            await row.trial(cluster, Random(seed))
    figure(f"{kind}: {row.id} passed {TRIALS[kind]} trials")
