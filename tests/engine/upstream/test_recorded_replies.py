"""Tests of the replies of real servers, recorded by `python -m tests.upstream.record`."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.engine.local_checkpoint import find_local_checkpoint
from continuo.engine.text import ModelText
from continuo.engine.upstream.detection import detect_server
from continuo.engine.upstream.errors import RequestRefused
from continuo.engine.upstream.http import HttpClient
from continuo.engine.upstream.server import Chunk, UpstreamServer
from tests.support.upstream_servers import FakeServer, Fault, serve_fake
from tests.upstream.record import PROBE, completions

pytestmark = pytest.mark.server

FILES = sorted(Path(__file__).with_name("recorded").glob("*.json"))
RECORDED = {file.stem: json.loads(file.read_text()) for file in FILES}
TEXT = ModelText(str(find_local_checkpoint("demo")))


class RecordedServer(FakeServer):
    """Replies as the real server did: to each path as the last time, and to completions in turn."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        super().__init__()
        self.recorded = recorded
        self.replies = {reply["path"]: reply for reply in recorded["replies"]}

    def routes(self) -> list[Route]:
        return [Route("/{path:path}", self.reply, methods=["GET", "POST"])]

    async def reply(self, request: Request) -> Response:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if path not in self.replies:
            return Response("not recorded", 404)
        return Response(self.replies[path]["body"], self.replies[path]["status"])

    def is_prefill(self, body: dict[str, Any]) -> bool:
        return False

    def stream(self, body: dict[str, Any], fault: Fault) -> AsyncGenerator[dict[str, Any]]:
        raise NotImplementedError


@pytest.fixture(params=RECORDED)
def recorded(request: pytest.FixtureRequest) -> RecordedServer:
    return RecordedServer(RECORDED[request.param])


@pytest.fixture
async def server(recorded: RecordedServer) -> AsyncIterator[UpstreamServer]:
    async with serve_fake(recorded) as url:
        yield await detect_server(HttpClient(url), TEXT)


async def collect(server: UpstreamServer, recorded: RecordedServer, name: str) -> list[Chunk]:
    reply = recorded.recorded["completions"][name]["reply"]
    recorded.replies[reply["path"]] = reply
    return [chunk async for chunk in server.generate(completions(TEXT)[name])]


async def test_server_describes_itself(server: UpstreamServer, recorded: RecordedServer) -> None:
    model = await server.describe()
    assert server.kind == recorded.recorded["kind"]
    assert (model.version, model.max_model_len) == (recorded.recorded["version"], 2048)
    load = await server.measure()
    assert (load.running, load.waiting) == (0, 0)
    assert load.kv_tokens >= 2048


async def test_tokenizer_is_the_same(server: UpstreamServer, recorded: RecordedServer) -> None:
    """The server is asked for the ids of one text, which are recorded."""
    assert await server.tokenize("") == TEXT.encode_untrusted(PROBE)


@pytest.mark.parametrize("name", [name for name in completions(TEXT) if name != "refused"])
async def test_completion_has_the_ids_of_one_without_a_stream(
    server: UpstreamServer, recorded: RecordedServer, name: str
) -> None:
    await server.describe()
    chunks = await collect(server, recorded, name)
    ids = [id for chunk in chunks for id in chunk.ids]
    assert ids == recorded.recorded["completions"][name]["ids"]
    # vLLM stops at the ids that a request names alone; llama-server at those of the model.
    named = completions(TEXT)[name].sampling.stop_ids
    ended = "stop" if ids[-1] in (named if server.kind == "vLLM" else TEXT.stop_ids) else "length"
    assert [chunk.finish for chunk in chunks if chunk.finish] == [ended]
    assert ended == "stop" or len(ids) == completions(TEXT)[name].max_tokens


async def test_cached_tokens_are_reported(server: UpstreamServer, recorded: RecordedServer) -> None:
    cached: dict[str, int] = {}
    for name in ("first", "cached"):
        for chunk in await collect(server, recorded, name):
            if chunk.cached_tokens is not None:
                cached[name] = chunk.cached_tokens
    assert cached["first"] == 0
    assert cached["cached"] >= len(completions(TEXT)["cached"].ids) - 32


async def test_characters_are_whole(server: UpstreamServer, recorded: RecordedServer) -> None:
    chunks = await collect(server, recorded, "characters")
    output = TEXT.decode([id for chunk in chunks for id in chunk.ids])
    assert json.loads(output) == "日本 ß 😀!"


async def test_logprobs_are_those_of_the_ids(
    server: UpstreamServer, recorded: RecordedServer
) -> None:
    chunks = await collect(server, recorded, "logprobs")
    found = [(id, one) for c in chunks for id, one in zip(c.ids, c.logprobs or (), strict=True)]
    assert len(found) == 3
    for id, logprobs in found:
        assert len(logprobs.top) == 2
        assert logprobs.top[0] == (id, logprobs.drawn), "greedy"
        assert logprobs.drawn > logprobs.top[1][1]


async def test_refusal_has_the_words_of_the_server(
    server: UpstreamServer, recorded: RecordedServer
) -> None:
    with pytest.raises(RequestRefused, match=r"(?i)context") as refused:
        await collect(server, recorded, "refused")
    assert refused.value.status == 400
    assert "{" not in str(refused.value)
