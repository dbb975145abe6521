"""Tests of VllmServer on a fake of vLLM."""

import hashlib
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from continuo.engine.sampling import Grammar, Sampling
from continuo.engine.upstream.errors import RequestRefused, ServerLost, UnusableReply
from continuo.engine.upstream.http import HttpClient
from continuo.engine.upstream.server import Chunk, Completion, ServerLoad
from continuo.engine.upstream.vllm import VllmServer
from continuo.engine.upstream.vllm_metrics import find_block_tokens, read_load
from tests.support.upstream_servers import FakeVllm, Fault, complete, serve_fake
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

PROMPT = array("i", [5, 6, 7, 8, 9, 10, 11, 12, 13])


@pytest.fixture
def fake() -> FakeVllm:
    return FakeVllm()


@pytest.fixture
async def vllm(fake: FakeVllm) -> AsyncIterator[VllmServer]:
    async with serve_fake(fake) as url:
        server = VllmServer(HttpClient(url))
        await server.describe()
        yield server


def request(
    count: int = 6,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    ids: "array[int]" = PROMPT,
    scope: str = "",
) -> Completion:
    return Completion(
        session="s", ids=ids, sampling=sampling, max_tokens=count, seed=1, scope=scope
    )


async def collect(server: VllmServer, of: Completion) -> list[Chunk]:
    chunks: list[Chunk] = []
    await collect_into(chunks, server, of)
    return chunks


async def collect_into(chunks: list[Chunk], server: VllmServer, of: Completion) -> None:
    """Add the chunks of a completion to `chunks`, up to the error that it raises."""
    async for chunk in server.generate(of):
        chunks.append(chunk)


def ids_of(chunks: list[Chunk]) -> list[int]:
    return [id for chunk in chunks for id in chunk.ids]


async def test_completion_has_the_ids_the_end_and_what_was_cached(vllm: VllmServer) -> None:
    first = await collect(vllm, request())
    assert ids_of(first) == complete(PROMPT, 6)
    assert [chunk.finish for chunk in first] == [None] * 5 + ["length"]
    assert (first[-1].cached_tokens, first[0].cached_tokens) == (0, None)
    again = await collect(vllm, request())
    assert again[-1].cached_tokens == 8


async def test_stop_id_is_among_the_ids(vllm: VllmServer) -> None:
    expected = complete(PROMPT, 6)
    chunks = await collect(vllm, request(sampling=Sampling(stop_ids=(expected[2],))))
    assert ids_of(chunks) == expected[:3]
    assert chunks[-1].finish == "stop"


async def test_stop_ids_are_not_sent_where_they_are_ignored(
    vllm: VllmServer, fake: FakeVllm
) -> None:
    await collect(vllm, request(sampling=Sampling(stop_ids=(1, 2), ignore_eos=True)))
    assert (fake.requests[-1]["ignore_eos"], fake.requests[-1]["stop_token_ids"]) == (True, [])


async def test_all_parameters_are_sent_over_the_defaults_of_the_server(
    vllm: VllmServer, fake: FakeVllm
) -> None:
    sampling = Sampling(temperature=0.5, top_k=4, stop_ids=(1,), logit_bias={3: -1.5})
    await collect(vllm, request(sampling=sampling))
    sent = fake.requests[-1]
    assert sent.pop("prompt") == PROMPT.tolist()
    assert sent == {
        "model": "m",
        "add_special_tokens": False,
        "max_tokens": 6,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 4,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,
        "stop_token_ids": [1],
        "logit_bias": {"3": -1.5},
    }
    assert fake.headers[-1]["x-session-id"] == "s"


async def test_session_id_cannot_add_a_header(vllm: VllmServer, fake: FakeVllm) -> None:
    one = Completion(session="a b\r\nX: ü", ids=PROMPT, sampling=Sampling(), max_tokens=1, seed=0)
    await collect(vllm, one)
    assert fake.headers[-1]["x-session-id"] == "a%20b%0D%0AX%3A%20%C3%BC"
    assert "x" not in fake.headers[-1]


async def test_scope_isolates_what_is_cached(vllm: VllmServer, fake: FakeVllm) -> None:
    await collect(vllm, request(scope="a"))
    assert fake.requests[-1]["cache_salt"] == hashlib.sha256(b"a").hexdigest()
    assert (await collect(vllm, request(scope="a")))[-1].cached_tokens == 8
    assert (await collect(vllm, request(scope="b")))[-1].cached_tokens == 0


async def test_logprobs_are_those_asked_for_likeliest_first(vllm: VllmServer) -> None:
    (chunk,) = await collect(vllm, request(1, Sampling(logprobs=2)))
    assert chunk.logprobs is not None
    (found,) = chunk.logprobs
    id = chunk.ids[0]
    assert (found.drawn, found.top) == (-0.5, [(id, -0.5), ((id + 1) % 97, -1.5)])
    (chunk,) = await collect(vllm, request(1, Sampling(logprobs=0)))
    assert chunk.logprobs is not None
    assert (chunk.logprobs[0].drawn, chunk.logprobs[0].top) == (-0.5, [])


async def test_grammar_ends_at_the_end_of_sequence_id_and_has_fixed_separators(
    vllm: VllmServer, fake: FakeVllm
) -> None:
    grammar = Grammar("json_schema", '{"type": "object"}')
    await collect(vllm, request(sampling=Sampling(grammar=grammar, stop_ids=(1,))))
    sent = fake.requests[-1]
    assert sent["ignore_eos"] is False
    source = sent["structured_outputs"]["grammar"]
    assert '"key_separator": ": "' in source
    assert "whitespace_pattern" not in source


async def test_prefill_is_cached_for_the_turn_that_follows(
    vllm: VllmServer, fake: FakeVllm
) -> None:
    await vllm.prefill("s", PROMPT[:8], "scope")
    assert (fake.requests[-1]["priority"], fake.requests[-1]["max_tokens"]) == (1, 1)
    assert (await collect(vllm, request(scope="scope")))[-1].cached_tokens == 8


async def test_priority_is_left_out_after_one_refusal(vllm: VllmServer, fake: FakeVllm) -> None:
    fake.has_priorities = False
    chunks = await collect(vllm, request(sampling=Sampling(priority=-3)))
    assert ids_of(chunks) == complete(PROMPT, 6)
    await vllm.prefill("s", PROMPT, "")
    assert [body.get("priority") for body in fake.requests] == [-3, None, None]


async def test_priority_refused_within_the_stream_is_left_out_too(
    vllm: VllmServer, fake: FakeVllm
) -> None:
    fake.faults.append(Fault(fail_after=0, status=400, message="Priority scheduling is off"))
    chunks = await collect(vllm, request(sampling=Sampling(priority=-3)))
    assert ids_of(chunks) == complete(PROMPT, 6)


async def test_other_refusal_of_a_request_with_priority_is_raised(
    vllm: VllmServer, fake: FakeVllm
) -> None:
    fake.faults.append(Fault(status=400, message="no"))
    with pytest.raises(RequestRefused, match="no"):
        await collect(vllm, request(sampling=Sampling(priority=-3)))
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("fault", "kind", "received"),
    [
        (Fault(cut_after=2), ServerLost, 2),
        (Fault(cut_after=0), ServerLost, 0),
        (Fault(fail_after=3), ServerLost, 3),
        (Fault(fail_after=3, status=400), RequestRefused, 3),
        (Fault(status=500), ServerLost, 0),
        (Fault(status=503), ServerLost, 0),
        (Fault(status=400), RequestRefused, 0),
    ],
)
async def test_fault_is_raised_after_the_ids_before_it(
    vllm: VllmServer, fake: FakeVllm, fault: Fault, kind: type[Exception], received: int
) -> None:
    fake.faults.append(fault)
    chunks: list[Chunk] = []
    with pytest.raises(kind):
        await collect_into(chunks, vllm, request())
    assert ids_of(chunks) == complete(PROMPT, 6)[:received]


async def test_closed_completion_is_aborted_at_the_server(vllm: VllmServer, fake: FakeVllm) -> None:
    fake.faults.append(Fault(pause_after=1))
    async with aclosing(vllm.generate(request())) as chunks:
        await anext(chunks)
    await wait_until(lambda: fake.aborted == 1)
    assert fake.running == 0


async def test_wrong_key_is_refused_in_the_words_of_the_server(fake: FakeVllm) -> None:
    fake.api_key = "right"
    async with serve_fake(fake) as url:
        with pytest.raises(RequestRefused, match="invalid API key"):
            await collect(VllmServer(HttpClient(url, "wrong")), request())
        assert await collect(VllmServer(HttpClient(url, "right")), request())


async def test_server_describes_itself(vllm: VllmServer) -> None:
    model = await vllm.describe()
    assert (model.name, model.max_model_len, model.version) == ("m", 1000, "0.32.0")
    assert await vllm.tokenize("ab") == [97, 98]


async def test_load_and_block_size_are_read_from_the_metrics(
    vllm: VllmServer, fake: FakeVllm
) -> None:
    assert vllm.reuse_tokens == 16
    assert await vllm.measure() == ServerLoad(kv_tokens=200, kv_tokens_used=50)
    assert vllm.reuse_tokens == 4
    fake.has_metrics = False
    assert await vllm.measure() == ServerLoad()


def test_load_of_several_engines_is_their_sum() -> None:
    text = "\n".join(
        f'vllm:cache_config_info{{a="x,\\"y\\"",block_size="16",num_gpu_blocks="10",e="{n}"}} 1.0\n'
        f'vllm:kv_cache_usage_perc{{engine="{n}"}} {n}.0\n'
        f'vllm:num_requests_running{{engine="{n}"}} {n + 1}.0 1700000000'
        for n in range(2)
    )
    load = read_load(text)
    assert (load.kv_tokens, load.kv_tokens_used, load.running) == (320, 160, 3)
    assert find_block_tokens("vllm:cache_config_info 1.0") is None


@pytest.mark.parametrize("data", [b'{"data": []}', b'{"data": [{"id": 1}]}', b"<html>"])
async def test_model_list_without_a_model_is_unusable(data: bytes) -> None:
    class OtherClient(HttpClient):
        async def fetch(
            self, method: str, path: str, body: object = None, timeout_s: float = 1.0
        ) -> bytes:
            return data

    with pytest.raises(UnusableReply):
        await VllmServer(OtherClient("http://host")).describe()
