"""The requests of the tests of SGLang's sessions, as these tests send them, over HTTP.

Each row is a test of SGLang, or a request of its benchmark, without those of images. It checks the
status, the shape, the counts and the greedy ids that the test of SGLang checks, and returns how the
answer differs from SGLang's. evidence/session-requests.md has the table, which `--record` rewrites.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.realtime.responses.test_responses_http import streaming
from tests.realtime.server.http.test_sglang import Api, get
from tests.support.engines import EngineHarness
from tests.support.sessions import SLOW_STEP_S
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[4] / "evidence" / "session-requests.md"
GREEDY = {
    "temperature": 0,
    "ignore_eos": True,
    "no_stop_trim": True,
    "skip_special_tokens": False,
}
CHUNKS = ("Let me tell you something", " about France.", " The capital of France is", " big. ")
INTRODUCTION = """\
# Requests of SGLang's session tests

<!-- Written by `pytest tests/realtime/server/http/test_session_requests.py --record`. -->

A client of the tests sends the requests of SGLang's session tests and of its latency benchmark to a
server on the null device. It checks what these tests check: the status, the shape, the counts and
the greedy ids, which equal those of one fresh prefill.

- *as SGLang*: the answer is SGLang's.
- *better*: SGLang skips the test, or is known to fail.
- *differs*: the answer has another form, which the table gives.
- *400*: the request is refused, with the field and the reason that the table gives.

| test of SGLang | requests | answer |
|---|---|---|
"""


class Row(NamedTuple):
    test: str
    requests: str
    run: Callable[["Client"], Awaitable[str]]


ROWS: list[Row] = []
SAME = "as SGLang"


def row(test: str, requests: str) -> Callable[..., Callable[["Client"], Awaitable[str]]]:
    def add(run: Callable[["Client"], Awaitable[str]]) -> Callable[["Client"], Awaitable[str]]:
        ROWS.append(Row(test, requests, run))
        return run

    return add


class Client(Api):
    """A client of SGLang's sessions, which checks its answers against fresh prefills."""

    def __init__(self, api: Api, harness: EngineHarness) -> None:
        super().__init__(api.server)
        self.harness = harness

    async def text(self, text: str, tokens: int = 8, **body: Any) -> dict[str, Any]:
        sampling = GREEDY | {"max_new_tokens": tokens} | body.pop("sampling_params", {})
        status, reply = await self.post(
            "/generate", {"text": text, "sampling_params": sampling, **body}
        )
        assert status == 200, reply
        return reply

    async def refuse(self, path: str, body: dict[str, Any]) -> str:
        """Send a request that is refused, and return how the table describes the refusal."""
        status, reply = await self.post(path, body)
        assert status == 400, reply
        error = reply["error"]
        return f"400 `{error['param'] or error['code']}`: {error['message']}"

    async def follow(self, session: str, is_streaming: bool, turns: int, tokens: int) -> list[str]:
        """Run turns of random ids, each after the last, and check each against one request that has
        the whole history. Returns the texts."""
        random, history, rid = Random(42), list[int](), None
        texts: list[str] = []
        for _ in range(turns):
            chunk = [random.randrange(5, 60) for _ in range(random.randrange(4, 17))]
            params: dict[str, Any] = {"id": session}
            params |= {} if is_streaming else {"rid": rid}
            sampling = GREEDY | {"max_new_tokens": tokens}
            reply = await self.generate(chunk, session_params=params, sampling_params=sampling)
            history += chunk
            whole = await self.generate(history, sampling_params=sampling)
            assert (reply["text"], reply["output_ids"]) == (whole["text"], whole["output_ids"])
            assert reply["meta_info"]["prompt_tokens"] == len(history)
            history += reply["output_ids"]
            rid = reply["meta_info"]["id"]
            texts.append(reply["text"])
        return texts

    async def is_healthy(self) -> bool:
        return (await get(self, "/health"))[0] == 200

    async def count(self, text: str) -> int:
        reply = await self.text(text, 1)
        return reply["meta_info"]["prompt_tokens"]


@row("bench_session_latency", "`/flush_cache`")
async def flush(client: Client) -> str:
    return await client.refuse("/flush_cache", {})


@row("bench_session_latency", "a warm-up of one token: `text`, `max_new_tokens` 1")
async def warm_up(client: Client) -> str:
    reply = await client.text("Hello world", 1)
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 1}
    return SAME


@row("bench_session_latency", "regular and streaming turns of `input_ids`: equal texts")
async def latency(client: Client) -> str:
    regular = await client.open(capacity_of_str_len=1000)
    streaming = await client.open(capacity_of_str_len=1000, streaming=True)
    texts = await client.follow(regular, False, 10, 8)
    assert texts == await client.follow(streaming, True, 10, 8)
    for session in (regular, streaming):
        assert (await client.post("/close_session", {"session_id": session}))[0] == 200
    return SAME


@row("streaming_session_random_lengths", "8 sessions of random lengths at the same time")
async def random_lengths(client: Client) -> str:
    sessions = [await client.open(streaming=True) for _ in range(8)]
    texts = await asyncio.gather(*(client.follow(each, True, 5, 8) for each in sessions))
    assert all(len(each) == 5 for each in texts)
    return SAME


@row("kv_cache_inheritance", "3 turns of `text` in a streaming session: `cached_tokens`")
async def inheritance(client: Client) -> str:
    session, total = await client.open(streaming=True), 0
    for chunk in CHUNKS[:3]:
        meta = (await client.text(chunk, 12, session_params={"id": session}))["meta_info"]
        assert meta["cached_tokens"] in ((total, total - 1) if total else (0,))
        total = meta["prompt_tokens"] + meta["completion_tokens"]
    return SAME


async def turns_at_the_same_time(client: Client, **body: Any) -> None:
    sessions = [await client.open(streaming=True) for _ in range(6)]
    for n in range(3):
        await asyncio.gather(
            *(
                client.text(f"{CHUNKS[n]} {session[-4:]}", session_params={"id": session}, **body)
                for session in sessions
            )
        )
    for session in sessions:
        await client.post("/close_session", {"session_id": session})
    assert await client.is_healthy()


@row("leak_logprob_concurrent", "6 sessions, `return_logprob` of the output")
async def logprobs_of_output(client: Client) -> str:
    await turns_at_the_same_time(client, return_logprob=True, logprob_start_len=-1)
    return SAME


@row("leak_logprob_concurrent", "6 sessions without log-probabilities")
async def no_logprobs(client: Client) -> str:
    await turns_at_the_same_time(client)
    return SAME


@row("leak_logprob_concurrent", "`logprob_start_len` 0, which SGLang ignores here")
async def logprobs_of_input(client: Client) -> str:
    params = {"id": await client.open(streaming=True)}
    body = {"text": "x", "return_logprob": True, "logprob_start_len": 0, "session_params": params}
    return await client.refuse("/generate", body)


@row("stress_concurrent_sessions", "8 sessions and 4 plain requests at the same time")
async def stress(client: Client) -> str:
    sessions = [await client.open(streaming=True) for _ in range(8)]
    for n in range(3):
        in_sessions = (
            client.text(f"{n} " + "word " * 10, 16, session_params={"id": each})
            for each in sessions
        )
        plain = (client.text(f"plain {n} {m}", 16) for m in range(4))
        await asyncio.gather(*in_sessions, *plain)
    assert await client.is_healthy()
    return SAME


async def abort_a_long_turn(client: Client, session: str) -> None:
    client.harness.runner.step_s = 5 * SLOW_STEP_S
    long = asyncio.create_task(client.text(CHUNKS[1], 100_000, session_params={"id": session}))
    slots = client.server.registry.tenants.of("acme").turns
    await wait_until(lambda: slots.running_count == 1)
    assert (await client.post("/abort_request", {"rid": "", "abort_all": True}))[0] == 200
    assert (await long)["meta_info"]["finish_reason"]["type"] == "abort"
    client.harness.runner.step_s = 0


@row("nth_mid_abort_recovery", "`abort_all`, empty `rid`, in turn 2; `prompt_tokens` of turn 3")
async def abort_second(client: Client) -> str:
    session = await client.open(streaming=True)
    first = (await client.text(CHUNKS[0], 16, session_params={"id": session}))["meta_info"]
    await abort_a_long_turn(client, session)
    third = (await client.text(CHUNKS[2], session_params={"id": session}))["meta_info"]
    kept = first["prompt_tokens"] + first["completion_tokens"]
    assert third["prompt_tokens"] == kept + await client.count(CHUNKS[2])
    return SAME


@row("first_mid_abort_recovery", "`abort_all` in turn 1; `prompt_tokens` of turn 2")
async def abort_first(client: Client) -> str:
    session = await client.open(streaming=True)
    await abort_a_long_turn(client, session)
    second = (await client.text(CHUNKS[2], session_params={"id": session}))["meta_info"]
    assert second["prompt_tokens"] == await client.count(CHUNKS[2])
    return SAME


@row("preabort_recovery", "`offset` 1 in turn 2 is refused; `prompt_tokens` of turn 3")
async def preabort(client: Client) -> str:
    session = await client.open(streaming=True)
    first = (await client.text(CHUNKS[0], 16, session_params={"id": session}))["meta_info"]
    params = {"id": session, "offset": 1}
    await client.refuse("/generate", {"text": CHUNKS[1], "session_params": params})
    third = (await client.text(CHUNKS[2], session_params={"id": session}))["meta_info"]
    kept = first["prompt_tokens"] + first["completion_tokens"]
    assert third["prompt_tokens"] == kept + await client.count(CHUNKS[2])
    return SAME


@row("abort-leak kit", "turns over the context length are refused; then cached tokens")
async def over_long(client: Client) -> str:
    sessions = [await client.open(streaming=True) for _ in range(4)]
    for session in sessions:
        await client.text(CHUNKS[0], 4, session_params={"id": session})
    for n in range(3):
        for session in sessions:
            params = {"id": session}
            await client.generate([5 + n] * 16, session_params=params)
            refusal = await client.refuse(
                "/generate", {"input_ids": [7] * 600, "session_params": params}
            )
            assert "context length" in refusal
            recovered = await client.generate([9], session_params=params)
            assert recovered["meta_info"]["cached_tokens"] > 0
        assert await client.is_healthy()
    return SAME


@row("session_logprob_leak", "`max_new_tokens` 0 for a whole conversation")
async def score(client: Client) -> str:
    reply = await client.text("".join(CHUNKS), 0)
    assert reply["meta_info"]["completion_tokens"] == 0
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    return SAME


@row("session_logprob_leak", "log-probabilities of the prompt: `logprob_start_len` 0")
async def score_prompt(client: Client) -> str:
    sampling = {"max_new_tokens": 0}
    body = {"return_logprob": True, "logprob_start_len": 0, "sampling_params": sampling}
    return await client.refuse("/generate", {"text": "x", **body})


async def scored_turn(client: Client, session: str | None, ids: list[int], **params: Any) -> Any:
    body = {} if session is None else {"session_params": {"id": session, **params}}
    reply = await client.generate(ids, return_logprob=True, top_logprobs_num=2, **body)
    meta = reply["meta_info"]
    assert [id for _, id, _ in meta["output_token_logprobs"]] == reply["output_ids"]
    return meta["id"], reply["output_ids"], meta["output_token_logprobs"]


@row(
    "test_session_control",
    "4 chunks, then a branch after the first: log-probabilities",
)
async def backtrack(client: Client) -> str:
    session, rid, history = await client.open(), None, list[int]()
    first: tuple[str, list[int]] = ("", [])
    for chunk in ([5, 6, 7, 8], [9, 10], [11, 12, 13], [14]):
        new, ids, scores = await scored_turn(client, session, chunk, rid=rid)
        history += chunk
        assert (ids, scores) == (await scored_turn(client, None, history))[1:]
        history += ids
        first = first if rid else (new, list(history))
        rid = new
    rid, history = first
    _, ids, scores = await scored_turn(client, session, [15, 16], rid=rid, replace=True)
    assert (ids, scores) == (await scored_turn(client, None, [*history, 15, 16]))[1:]
    return SAME


@row("session_control", "an open session is opened again")
async def open_twice(client: Client) -> str:
    session = await client.open()
    await client.refuse("/open_session", {"capacity_of_str_len": 1000, "session_id": session})
    return SAME


@row("session_control", "`logprob_start_len` beyond the prompt")
async def start_beyond(client: Client) -> str:
    params = {"id": await client.open()}
    body = {"text": "x", "return_logprob": True, "logprob_start_len": 900, "session_params": params}
    await client.refuse("/generate", body)
    return SAME


@row("session_control", "an erased `rid`, and a closed session")
async def erased(client: Client) -> str:
    session = await client.open()
    root = (await client.turn(session, [5, 6]))["meta_info"]["id"]
    gone = (await client.turn(session, [7], rid=root))["meta_info"]["id"]
    await client.turn(session, [8], rid=root, replace=True)
    body = {"text": "x", "session_params": {"id": session, "rid": gone}}
    await client.refuse("/generate", body)
    await client.post("/close_session", {"session_id": session})
    await client.refuse("/generate", {"text": "x", "session_params": {"id": session, "rid": root}})
    return SAME


@row("session_control_with_branching", "2 branches of 2 branches")
async def branching(client: Client) -> str:
    session = await client.open()
    base = [5, 6, 7]
    root, output, _ = await scored_turn(client, session, base)
    for first in ([8], [9]):
        one = base + output + first
        child, ids, _ = await scored_turn(client, session, first, rid=root)
        for second in ([10], [11]):
            _, found, scores = await scored_turn(client, session, second, rid=child)
            assert (found, scores) == (await scored_turn(client, None, one + ids + second))[1:]
    return SAME


@row("session_control_backtrack_with_abort", "`replace` of a turn whose continuation runs")
async def backtrack_with_abort(client: Client) -> str:
    session = await client.open()
    root, output, _ = await scored_turn(client, session, [5, 6])
    client.harness.runner.step_s = 5 * SLOW_STEP_S
    params = {"id": session, "rid": root}
    runs = asyncio.create_task(client.text(" more", 300, session_params=params))
    slots = client.server.registry.tenants.of("acme").turns
    await wait_until(lambda: slots.running_count == 1)
    client.harness.runner.step_s = 0
    _, ids, _ = await scored_turn(client, session, [7], rid=root, replace=True)
    assert (await runs)["meta_info"]["finish_reason"]["type"] == "abort"
    assert ids == (await scored_turn(client, None, [5, 6, *output, 7]))[1]
    return "better: SGLang skips this test as broken"


@row("session_replace_unit", "`replace` without a `rid` discards all turns")
async def replace_all(client: Client) -> str:
    session = await client.open()
    for chunk in ([5, 6], [7, 8]):
        await client.turn(session, chunk)
    reply = await client.turn(session, [9, 10], replace=True)
    assert reply["output_ids"] == await client.fresh([9, 10])
    return "better: SGLang's scheduler raises an exception"


@row(
    "streaming_session_backtrack",
    "`offset`, `replace`, `drop_previous_output`: refused",
)
async def streaming_is_append_only(client: Client) -> str:
    session = await client.open(streaming=True)
    await client.turn(session, [5, 6])
    for params in ({"offset": 1}, {"replace": True}, {"drop_previous_output": True}):
        body = {"text": "x", "session_params": {"id": session, **params}}
        assert "streaming session does not support" in await client.refuse("/generate", body)
    return SAME


@row("streaming_session_backtrack", "`offset` of a regular session, and its length")
async def offset(client: Client) -> str:
    session = await client.open()
    root, output, _ = await scored_turn(client, session, [5, 6, 7])
    history = [5, 6, 7, *output]
    for cut in (2, 5, -1, -4):
        _, ids, _ = await scored_turn(client, session, [9], rid=root, offset=cut)
        assert ids == (await scored_turn(client, None, [*history[:cut], 9]))[1]
    return SAME


@row("session_inactivity", "refused requests do not keep a session open")
async def inactivity(client: Client) -> str:
    session = await client.open(streaming=True, timeout=0.3)
    refused = {"text": "x", "session_params": {"id": session, "offset": 1}}
    async with asyncio.timeout(10):
        while await client.harness.engine.fleet.list_sessions():
            await client.refuse("/generate", refused)
    status, _ = await client.try_generate([1], session_params={"id": session})
    assert status == 400
    return SAME


@row("the API of sessions", "an unknown session; an empty turn; a turn beside a running turn")
async def refusals(client: Client) -> str:
    body = {"text": "x", "session_params": {"id": "unknown"}}
    assert "does not exist" in await client.refuse("/generate", body)
    session = await client.open(streaming=True)
    await client.refuse("/generate", {"input_ids": [], "session_params": {"id": session}})
    client.harness.runner.step_s = 5 * SLOW_STEP_S
    runs = asyncio.create_task(client.text("x", 50, session_params={"id": session}))
    slots = client.server.registry.tenants.of("acme").turns
    await wait_until(lambda: slots.running_count == 1)
    await client.refuse("/generate", {"text": "y", "session_params": {"id": session}})
    client.harness.runner.step_s = 0
    assert (await runs)["meta_info"]["finish_reason"]["type"] == "length"
    empty = await client.generate([], session_params={"id": session})
    assert empty["meta_info"]["prompt_tokens"] > 50
    return SAME


@row("the API of sessions", "`/close_session` of an unknown session")
async def close_unknown(client: Client) -> str:
    assert (await client.post("/close_session", {"session_id": "unknown"}))[0] == 200
    return SAME


@row("the API of sessions", "`replace` of a running turn: its output so far is continued")
async def replace_running(client: Client) -> str:
    session = await client.open()
    client.harness.runner.step_s = 5 * SLOW_STEP_S
    runs = asyncio.create_task(
        client.text(" more", 300, rid="runs", session_params={"id": session})
    )
    slots = client.server.registry.tenants.of("acme").turns
    await wait_until(lambda: slots.running_count == 1)
    client.harness.runner.step_s = 0
    _, ids, _ = await scored_turn(client, session, [7], rid="runs", replace=True)
    cut = await runs
    assert cut["meta_info"]["finish_reason"]["type"] == "abort"
    prompt = client.harness.engine.text.encode(" more")
    assert ids == (await scored_turn(client, None, [*prompt, *cut["output_ids"], 7]))[1]
    return SAME


@row("the API of `/generate`", "batches of `text` and of `input_ids`, with lists of parameters")
async def batches(client: Client) -> str:
    sampling = [GREEDY | {"max_new_tokens": n} for n in (3, 5)]
    ids = [[5, 6], [7, 8, 9]]
    for prompts in ({"input_ids": ids}, {"text": ["one", "two three"]}):
        status, replies = await client.post("/generate", {"sampling_params": sampling, **prompts})
        assert (status, [len(reply["output_ids"]) for reply in replies]) == (200, [3, 5])
    return SAME


@row("the API of `/generate`", "`n` 2")
async def several(client: Client) -> str:
    body = {"text": "x", "sampling_params": GREEDY | {"n": 2, "max_new_tokens": 2}}
    status, replies = await client.post("/generate", body)
    assert (status, len(replies)) == (200, 2)
    return SAME


@row("the API of `/generate`", "`stream` with `return_logprob`")
async def stream_logprobs(client: Client) -> str:
    sampling = GREEDY | {"max_new_tokens": 100}
    body = {"text": "x", "sampling_params": sampling, "return_logprob": True, "stream": True}
    async with streaming(client.server, "POST", "/generate", body) as events:
        *replies, last = [json.loads(data) async for _, data in events if data != "[DONE]"]
    for reply in replies:
        size = len(reply["output_ids"])
        assert reply["output_ids"] == last["output_ids"][:size]
        assert last["text"].startswith(reply["text"])
    scores = [reply["meta_info"]["output_token_logprobs"] for reply in replies]
    whole = last["meta_info"]["output_token_logprobs"]
    assert len(whole) == 100
    assert [score for part in scores for score in part] == whole[: sum(map(len, scores))]
    return "differs: an event has the log-probabilities of its new ids, the last event those of all"


@row("the API of `/generate`", "`regex`")
async def regex(client: Client) -> str:
    sampling = {"regex": "(yes|no)[.]", "ignore_eos": False}
    reply = await client.text("x", 20, sampling_params=sampling)
    assert reply["text"] in ("yes.", "no.")
    return SAME


@row("the API of `/generate`", "`json_schema`")
async def json_schema(client: Client) -> str:
    sampling = {"json_schema": '{"const": 7}', "ignore_eos": False}
    assert (await client.text("x", 20, sampling_params=sampling))["text"].strip() == "7"
    return SAME


@row("the API of `/generate`", "`ebnf`")
async def ebnf(client: Client) -> str:
    return await client.refuse(
        "/generate", {"text": "x", "sampling_params": {"ebnf": "root ::= x"}}
    )


@row("the API of `/generate`", "`min_new_tokens`")
async def min_new_tokens(client: Client) -> str:
    return await client.refuse("/generate", {"text": "x", "sampling_params": {"min_new_tokens": 2}})


@row("the API of the server", "`/health_generate`")
async def health_generate(client: Client) -> str:
    assert (await get(client, "/health_generate"))[0] == 200
    return SAME


@row("the API of the server", "`/get_model_info`, `/get_server_info`")
async def server_info(client: Client) -> str:
    for path in ("/get_model_info", "/get_server_info"):
        status, info = await get(client, path)
        assert status == 200
        assert info["is_generation"]
        assert info["model_path"]
    return SAME


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[row.run.__name__ for row in ROWS])
async def test_requests_of_a_test_of_sglang(
    harness: EngineHarness, server: Any, number: int, request: pytest.FixtureRequest
) -> None:
    test, requests, run = ROWS[number]
    line = f"| {test} | {requests} | {await run(Client(Api(server), harness))} |"
    if request.config.getoption("--record"):
        known = [line for line in read_lines() if not line.startswith(f"| {test} | {requests} |")]
        write_lines([*known, line])
    assert line in read_lines()


def test_table_has_these_rows_in_order() -> None:
    named = [line.split(" | ")[:2] for line in read_lines()]
    assert named == [[f"| {row.test}", row.requests] for row in ROWS]


def read_lines() -> list[str]:
    text = PAGE.read_text("utf-8") if PAGE.exists() else ""
    return [line for line in text.splitlines() if line.startswith("| ")][1:]


def write_lines(lines: list[str]) -> None:
    starts = [f"| {row.test} | {row.requests} |" for row in ROWS]
    known = [line for start in starts for line in lines if line.startswith(start)]
    PAGE.write_text(INTRODUCTION + "\n".join(known) + "\n", "utf-8")
