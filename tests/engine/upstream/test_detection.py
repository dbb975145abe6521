"""Tests of the detection of a server."""

from pathlib import Path

import pytest

from continuo.engine.errors import ModelError
from continuo.engine.text import ModelText
from continuo.engine.upstream.detection import detect_server
from continuo.engine.upstream.errors import ServerLost
from continuo.engine.upstream.http import HttpClient
from tests.support.ports import free_port
from tests.support.upstream_servers import FakeLlama, FakeServer, FakeVllm, serve_fake

pytestmark = pytest.mark.server


class OtherServer(FakeVllm):
    def routes(self) -> list:
        return super().routes()[:1]


class NoServer(FakeVllm):
    def routes(self) -> list:
        return []


@pytest.fixture(scope="module")
def text(letters: Path) -> ModelText:
    return ModelText(str(letters))


def routed(fake: FakeVllm, owner: str) -> FakeVllm:
    fake.owner = owner
    return fake


@pytest.mark.parametrize(
    ("fake", "kind"),
    [
        (FakeVllm(), "vLLM"),
        (routed(FakeVllm(), "a router"), "vLLM"),
        (routed(OtherServer(), "vllm"), "vLLM"),
        (FakeLlama(), "llama-server"),
    ],
)
async def test_server_is_detected(fake: FakeServer, kind: str, text: ModelText) -> None:
    async with serve_fake(fake) as url:
        assert (await detect_server(HttpClient(url), text)).kind == kind


@pytest.mark.parametrize(
    ("fake", "words"),
    [(routed(OtherServer(), "sglang"), "owned by 'sglang'"), (NoServer(), "/v1/models: Not Found")],
)
async def test_other_server_is_refused_by_name(
    fake: FakeServer, words: str, text: ModelText
) -> None:
    async with serve_fake(fake) as url:
        with pytest.raises(ModelError, match=words):
            await detect_server(HttpClient(url), text)


async def test_missing_server_may_come_later(text: ModelText) -> None:
    with pytest.raises(ServerLost):
        await detect_server(HttpClient(f"http://127.0.0.1:{free_port()}"), text)
