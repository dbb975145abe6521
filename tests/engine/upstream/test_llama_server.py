"""Tests of LlamaServer on a fake of llama-server."""

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from continuo.engine.sampling import Grammar, Sampling
from continuo.engine.upstream.errors import RequestRefused, ServerLost, UnusableReply
from continuo.engine.upstream.http import HttpClient
from continuo.engine.upstream.llama_server import LlamaServer
from continuo.engine.upstream.lost_ids import LostIds
from continuo.engine.upstream.server import Chunk, Completion, ServerLoad
from tests.support.digest_runner import VOCABULARY
from tests.support.upstream_servers import EOS, FakeLlama, Fault, complete, serve_fake
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

PROMPT = array("i", [5, 6, 7, 8, 9, 10, 11, 12, 13])


@pytest.fixture
def fake() -> FakeLlama:
    return FakeLlama()


@pytest.fixture
async def llama(fake: FakeLlama) -> AsyncIterator[LlamaServer]:
    async with serve_fake(fake) as url:
        server = LlamaServer(HttpClient(url), LostIds(lambda id: fake.bytes_of(id), VOCABULARY))
        await server.describe()
        yield server


def request(
    count: int = 6,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    *,
    session: str = "s",
    ids: "array[int]" = PROMPT,
    seed: int = 1,
) -> Completion:
    return Completion(session=session, ids=ids, sampling=sampling, max_tokens=count, seed=seed)


async def collect(server: LlamaServer, of: Completion) -> list[Chunk]:
    chunks: list[Chunk] = []
    await collect_into(chunks, server, of)
    return chunks


async def collect_into(chunks: list[Chunk], server: LlamaServer, of: Completion) -> None:
    """Add the chunks of a completion to `chunks`, up to the error that it raises."""
    async for chunk in server.generate(of):
        chunks.append(chunk)


def ids_of(chunks: list[Chunk]) -> list[int]:
    return [id for chunk in chunks for id in chunk.ids]


def cached_of(chunks: list[Chunk]) -> int:
    (cached,) = {chunk.cached_tokens for chunk in chunks} - {None}
    assert cached is not None
    return cached


async def test_completion_has_the_ids_and_first_what_was_cached(llama: LlamaServer) -> None:
    chunks = await collect(llama, request())
    assert ids_of(chunks) == complete(PROMPT, 6)
    assert chunks[0] == Chunk([], cached_tokens=0)
    assert [chunk.finish for chunk in chunks] == [None] * 8 + ["length"]
    again = await collect(llama, request(ids=PROMPT + array("i", [*complete(PROMPT, 6), 3])))
    assert cached_of(again) == 15


async def test_end_of_sequence_ends_a_completion(llama: LlamaServer) -> None:
    prompt = next(array("i", [5, n]) for n in range(97) if EOS in complete([5, n], 6))
    chunks = await collect(llama, request(ids=prompt))
    assert ids_of(chunks) == complete(prompt, 6)
    assert chunks[-1].finish == "stop"


async def test_rewound_prompt_is_cached_to_the_id(llama: LlamaServer) -> None:
    await collect(llama, request())
    assert cached_of(await collect(llama, request(ids=PROMPT[:7] + array("i", [50])))) == 7


async def test_prefill_draws_no_id(llama: LlamaServer, fake: FakeLlama) -> None:
    await llama.prefill("s", PROMPT, "scope")
    assert fake.requests[-1]["n_predict"] == 0
    longer = PROMPT + array("i", [3])
    assert cached_of(await collect(llama, request(ids=longer))) == len(PROMPT)


async def test_sessions_keep_their_slots(llama: LlamaServer, fake: FakeLlama) -> None:
    for session in ("a", "b", "a", "b", "c", "a"):
        await collect(llama, request(session=session))
    assert [body["id_slot"] for body in fake.requests] == [0, 1, 0, 1, 0, 1]
    llama.close("c")
    await collect(llama, request(session="d"))
    assert fake.requests[-1]["id_slot"] == 0


@pytest.mark.parametrize(("folder", "cached"), [({}, 194), (None, 0)])
async def test_fork_gets_a_copy_of_the_slot_where_the_server_has_a_folder(
    llama: LlamaServer, fake: FakeLlama, folder: dict[str, list[int]] | None, cached: int
) -> None:
    fake.files, prompt = folder, array("i", range(97)) * 2
    await collect(llama, request(ids=prompt))
    longer = prompt + array("i", [7])
    llama.fork("s", "x")
    chunks = await collect(llama, request(ids=longer, session="x"))
    assert (cached_of(chunks), ids_of(chunks)) == (cached, complete(longer, 6))
    assert cached_of(await collect(llama, request(ids=longer))) == len(prompt), "the parent's slot"
    assert folder is None or list(folder) == ["continuo-slot-0.bin"]


async def test_all_requests_of_a_fork_wait_for_the_copy_of_its_slot(
    llama: LlamaServer, fake: FakeLlama
) -> None:
    fake.files, prompt = {}, array("i", range(97)) * 2
    await collect(llama, request(ids=prompt))
    llama.fork("s", "x")
    longer = prompt + array("i", [7])
    _, chunks = await asyncio.gather(
        llama.prefill("x", prompt, ""), collect(llama, request(ids=longer, session="x"))
    )
    assert cached_of(chunks) >= len(prompt) - 1


async def test_slot_of_a_busy_parent_is_not_copied(llama: LlamaServer, fake: FakeLlama) -> None:
    fake.files, prompt = {}, array("i", range(97)) * 2
    await collect(llama, request(ids=prompt))
    fake.faults.append(Fault(pause_after=1))
    async with aclosing(llama.generate(request(ids=prompt))) as chunks:
        await anext(chunks)
        llama.fork("s", "x")
        copy = await collect(llama, request(ids=prompt, session="x"))
        assert (cached_of(copy), fake.files) == (0, {})


LONG = array("i", range(97)) * 2


async def take_all_slots(llama: LlamaServer) -> None:
    for session in ("a", "b"):
        await collect(llama, request(ids=LONG[::-1], session=session))


@pytest.mark.parametrize(("folder", "cached"), [({}, 194), (None, 0)])
async def test_session_that_gave_its_slot_up_goes_on_from_a_file(
    llama: LlamaServer, fake: FakeLlama, folder: dict[str, list[int]] | None, cached: int
) -> None:
    fake.files, longer = folder, LONG + array("i", [7])
    await collect(llama, request(ids=LONG))
    assert llama.find_kv("s") == "device"
    await take_all_slots(llama)
    assert llama.find_kv("s") == ("none" if folder is None else "host")
    chunks = await collect(llama, request(ids=longer))
    assert (cached_of(chunks), ids_of(chunks)) == (cached, complete(longer, 6))
    assert any(chunk.is_recalled for chunk in chunks) == (folder is not None)
    assert [llama.find_kv(session) for session in ("s", "b")] == ["device"] * 2
    assert llama.find_kv("a") == ("none" if folder is None else "host")


@pytest.mark.parametrize("folder", [{}, None])
async def test_request_overwrites_what_a_slot_held_of_another_session(
    llama: LlamaServer, fake: FakeLlama, folder: dict[str, list[int]] | None
) -> None:
    fake.files = folder
    await collect(llama, request(ids=LONG))
    await take_all_slots(llama)
    again = array("i", [5]) * 90
    await asyncio.gather(*(collect(llama, request(ids=again, session="c")) for _ in range(2)))
    assert llama._slots.displaced == {}


async def test_all_requests_of_a_session_wait_for_its_file(
    llama: LlamaServer, fake: FakeLlama
) -> None:
    fake.files = {}
    await collect(llama, request(ids=LONG))
    await take_all_slots(llama)
    _, chunks = await asyncio.gather(
        llama.prefill("s", LONG, ""), collect(llama, request(ids=LONG + array("i", [7])))
    )
    assert cached_of(chunks) >= len(LONG) - 1


async def test_short_session_is_not_written_to_a_file(llama: LlamaServer, fake: FakeLlama) -> None:
    fake.files = {}
    await collect(llama, request())
    await take_all_slots(llama)
    assert (llama.find_kv("s"), fake.files) == ("none", {})


async def test_file_of_another_history_is_not_read(llama: LlamaServer, fake: FakeLlama) -> None:
    fake.files = {}
    await collect(llama, request(ids=LONG))
    await take_all_slots(llama)
    chunks = await collect(llama, request(ids=LONG[50:]))
    assert (cached_of(chunks), ids_of(chunks)) == (0, complete(LONG[50:], 6))
    assert not any(chunk.is_recalled for chunk in chunks)


async def test_fork_that_takes_the_slot_of_its_parent_has_its_kv(
    llama: LlamaServer, fake: FakeLlama
) -> None:
    fake.files = {}
    for session in ("s", "b"):
        await collect(llama, request(ids=LONG, session=session))
    llama.fork("s", "x")
    assert cached_of(await collect(llama, request(ids=LONG, session="x"))) == 193
    assert [body["id_slot"] for body in fake.requests] == [0, 1, 0]
    assert llama.find_kv("s") == "host"


async def test_fork_begins_from_the_file_of_its_parent(llama: LlamaServer, fake: FakeLlama) -> None:
    fake.files = {}
    await collect(llama, request(ids=LONG))
    await take_all_slots(llama)
    llama.fork("s", "x")
    for session in ("x", "s"):
        assert cached_of(await collect(llama, request(ids=LONG, session=session))) == 193


async def test_all_parameters_are_sent_over_the_defaults_of_the_server(
    llama: LlamaServer, fake: FakeLlama
) -> None:
    sampling = Sampling(temperature=0.5, repetition_penalty=1.5, logit_bias={3: -1.5})
    await collect(llama, request(sampling=sampling))
    sent = fake.requests[-1]
    assert sent.pop("prompt") == PROMPT.tolist()
    assert sent == {
        "id_slot": 0,
        "cache_prompt": True,
        "n_predict": 6,
        "seed": 1,
        "stream": True,
        "return_tokens": True,
        "return_progress": True,
        "response_fields": ["stop", "stop_type", "tokens_predicted", "id_slot"],
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repeat_penalty": 1.5,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repeat_last_n": 1000,
        "ignore_eos": False,
        "logit_bias": [[3, -1.5]],
    }


@pytest.mark.parametrize(
    ("seed", "sent"), [(7, 7), (2**32 - 2, 2**32 - 2), (2**32 - 1, 0), (2**63 - 1, 2**31 - 1)]
)
async def test_seed_has_32_bits_and_is_never_the_random_one(
    llama: LlamaServer, fake: FakeLlama, seed: int, sent: int
) -> None:
    await collect(llama, request(seed=seed))
    assert fake.requests[-1]["seed"] == sent


async def test_logprobs_are_those_asked_for(llama: LlamaServer, fake: FakeLlama) -> None:
    chunks = await collect(llama, request(1, Sampling(logprobs=2)))
    (drawn,) = (chunk for chunk in chunks if chunk.ids)
    assert drawn.logprobs is not None
    (found,) = drawn.logprobs
    id = drawn.ids[0]
    assert (found.drawn, found.top) == (-0.5, [(id, -0.5), ((id + 1) % 97, -1.5)])
    chunks = await collect(llama, request(1, Sampling(logprobs=0)))
    (drawn,) = (chunk for chunk in chunks if chunk.ids)
    assert [found.top for found in drawn.logprobs or ()] == [[]]


async def test_schema_is_sent_as_json(llama: LlamaServer, fake: FakeLlama) -> None:
    await collect(llama, request(sampling=Sampling(grammar=Grammar("json"), stop_ids=(EOS,))))
    assert fake.requests[-1]["json_schema"] == {"type": "object"}
    schema = Grammar("json_schema", '{"type": "string"}')
    await collect(llama, request(sampling=Sampling(grammar=schema, stop_ids=(EOS,))))
    assert fake.requests[-1]["json_schema"] == {"type": "string"}


def test_lark_is_refused_by_name() -> None:
    llama = LlamaServer(HttpClient("http://host"), LostIds(bytes, 0))
    lark = Sampling(grammar=Grammar("lark", "start: /a/"), stop_ids=(EOS,))
    assert "no Lark" in (llama.find_problem(lark) or "")
    assert llama.find_problem(Sampling(grammar=Grammar("json"), stop_ids=(EOS,))) is None


@pytest.mark.parametrize("lost", [(0,), (2, 3), (5,)])
async def test_ids_that_the_stream_leaves_out_are_detected(
    llama: LlamaServer, fake: FakeLlama, lost: tuple[int, ...]
) -> None:
    fake.faults.append(Fault(lost=lost))
    chunks: list[Chunk] = []
    with pytest.raises(UnusableReply, match="left out ids"):
        await collect_into(chunks, llama, request())
    assert ids_of(chunks) == complete(PROMPT, 6)[: lost[0]]


def spell(fake: FakeLlama, *texts: bytes, others: bytes = b"?") -> list[int]:
    """Give the first ids of the completion of PROMPT these texts, and all others one. Returns the
    completion."""
    ids = complete(PROMPT, 6)
    by_id = dict(zip(ids, texts, strict=False))
    fake.bytes_of = lambda id: by_id.get(id, others)
    return ids


@pytest.mark.parametrize(
    ("texts", "chunks"),
    [
        ((b"a", b" \xe6\x97", b"\xa5b"), [1, 2, 1, 1, 1]),
        ((b"\xe6", b"\x97", b"\xa5"), [3, 1, 1, 1]),
        ((b"\xf0", b"\x9f", b"\x98", b"\x80"), [4, 1, 1]),
    ],
)
async def test_ids_that_the_stream_leaves_out_are_found_by_the_text(
    llama: LlamaServer, fake: FakeLlama, texts: tuple[bytes, ...], chunks: list[int]
) -> None:
    expected = spell(fake, *texts)
    received = await collect(llama, request())
    assert ids_of(received) == expected
    assert [len(chunk.ids) for chunk in received if chunk.ids] == chunks
    longer = PROMPT + array("i", [*expected, 3])
    assert cached_of(await collect(llama, request(ids=longer))) == len(longer) - 1


async def test_ids_left_out_with_their_logprobs_are_not_found(
    llama: LlamaServer, fake: FakeLlama
) -> None:
    spell(fake, b"\xc3", b"\x9f")
    with pytest.raises(UnusableReply, match="left out the log-probabilities"):
        await collect(llama, request(sampling=Sampling(logprobs=1)))


async def test_ids_of_which_others_have_the_same_text_are_not_found(
    llama: LlamaServer, fake: FakeLlama
) -> None:
    spell(fake, b"\xc3", b"\x9f", others=b"\xc3")
    with pytest.raises(UnusableReply, match="does not determine them: 2 were drawn, 1"):
        await collect(llama, request())


@pytest.mark.parametrize(
    ("fault", "kind", "received"),
    [
        (Fault(cut_after=2), ServerLost, 2),
        (Fault(cut_after=0), ServerLost, 0),
        (Fault(fail_after=3), ServerLost, 3),
        (Fault(fail_after=3, status=400), RequestRefused, 3),
        (Fault(status=503), ServerLost, 0),
        (Fault(status=400), RequestRefused, 0),
    ],
)
async def test_fault_is_raised_after_the_ids_before_it(
    llama: LlamaServer, fake: FakeLlama, fault: Fault, kind: type[Exception], received: int
) -> None:
    fake.faults.append(fault)
    chunks: list[Chunk] = []
    with pytest.raises(kind):
        await collect_into(chunks, llama, request())
    assert ids_of(chunks) == complete(PROMPT, 6)[:received]


async def test_closed_completion_is_aborted_at_the_server(
    llama: LlamaServer, fake: FakeLlama
) -> None:
    fake.faults.append(Fault(pause_after=1))
    async with aclosing(llama.generate(request())) as chunks:
        assert await anext(chunks) == Chunk([], cached_tokens=0)
    await wait_until(lambda: fake.aborted == 1)


async def test_slot_that_does_not_keep_its_kv_is_logged_once(
    llama: LlamaServer, fake: FakeLlama, caplog: pytest.LogCaptureFixture
) -> None:
    fake.keeps_slots = False
    prompt = array("i", range(97)) * 2
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await collect(llama, request(ids=prompt))
    (record,) = caplog.records
    assert "194 tokens again that slot 0 should hold" in record.getMessage()
    assert "--no-kv-unified" in record.getMessage()


async def test_kept_slot_and_another_prompt_are_not_logged(
    llama: LlamaServer, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = array("i", range(97)) * 2
    with caplog.at_level(logging.WARNING):
        for ids in (prompt, prompt, prompt[::-1], prompt[:5]):
            await collect(llama, request(ids=ids))
    assert not caplog.records


async def test_use_of_another_slot_is_logged_and_has_the_same_ids(
    llama: LlamaServer, fake: FakeLlama, caplog: pytest.LogCaptureFixture
) -> None:
    fake.faults.append(Fault(slot=1))
    with caplog.at_level(logging.WARNING):
        assert ids_of(await collect(llama, request())) == complete(PROMPT, 6)
    (record,) = caplog.records
    assert "slot 0 should hold (it used slot 1)" in record.getMessage()


async def test_server_describes_itself(llama: LlamaServer) -> None:
    model = await llama.describe()
    assert (model.name, model.max_model_len, model.vocab_size) == ("m.gguf", 1000, 97)
    assert model.version == "b11434-fake"
    assert await llama.tokenize("ab") == [97, 98]
    await collect(llama, request())
    assert await llama.measure() == ServerLoad(kv_tokens=2000, kv_tokens_used=15)
