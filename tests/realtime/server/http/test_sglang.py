"""SGLang's native API on the null device: each row of its table of session operations, with the
status, the shape, and greedy ids equal to those of one fresh prefill."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest

from continuo.realtime.completions import token_sessions
from continuo.realtime.limits import TenantLimits
from continuo.realtime.tenants.turn_slots import TurnSlot, TurnSlots
from tests.realtime.responses.test_responses_http import streaming
from tests.support.engines import EngineHarness
from tests.support.sessions import SLOW_STEP_S
from tests.support.waiting import wait_until
from tests.support.web_servers import ACME, UMBRELLA, RunningServer, encode_request

CHUNKS = [[5, 6, 7, 8, 9], [10, 11, 12], [13, 14], [15, 16, 17, 18]]
NEW_TOKENS = 6
Running = asyncio.Task[dict[str, Any]]


class Api:
    """Client of the API, which greedily generates NEW_TOKENS ids a turn."""

    def __init__(self, server: RunningServer, headers: dict[str, str] = ACME) -> None:
        self.server = server
        self._headers = headers

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(encode_request("POST", path, body, self._headers))
        head, _, received = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), json.loads(received) if received else None

    async def open(self, **body: Any) -> str:
        status, session = await self.post("/open_session", {"capacity_of_str_len": 1000, **body})
        assert status == 200, session
        return session

    async def try_generate(self, ids: list[int], **body: Any) -> tuple[int, Any]:
        sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
        sampling |= body.pop("sampling_params", {})
        return await self.post("/generate", {"input_ids": ids, "sampling_params": sampling, **body})

    async def generate(self, ids: list[int], **body: Any) -> dict[str, Any]:
        status, reply = await self.try_generate(ids, **body)
        assert status == 200, reply
        return reply

    async def turn(self, session: str, ids: list[int], **params: Any) -> dict[str, Any]:
        return await self.generate(ids, session_params={"id": session, **params})

    async def fresh(self, ids: list[int], **body: Any) -> list[int]:
        """Return the output of one fresh prefill of `ids`."""
        return (await self.generate(ids, **body))["output_ids"]


def sessions_of(api: Api) -> token_sessions.TokenSessions:
    return api.server.app.state.token_sessions


@pytest.fixture
def api(server: RunningServer) -> Api:
    return Api(server)


async def test_turn_without_a_session(api: Api) -> None:
    reply = await api.generate(CHUNKS[0], rid="r1")
    assert len(reply["output_ids"]) == NEW_TOKENS
    meta = reply["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("r1", 5, NEW_TOKENS)
    assert meta["finish_reason"] == {"type": "length", "length": NEW_TOKENS}
    again = await api.generate(CHUNKS[0])
    assert again["output_ids"] == reply["output_ids"]
    assert again["meta_info"]["cached_tokens"] > 0


@pytest.mark.parametrize("is_streaming", [True, False])
async def test_appended_turns_generate_what_a_fresh_prefill_does(
    api: Api, is_streaming: bool
) -> None:
    session, rid, history = await api.open(streaming=is_streaming), None, list[int]()
    for number, chunk in enumerate(CHUNKS):
        reply = await api.turn(session, chunk, rid=rid)
        history += chunk
        assert reply["output_ids"] == await api.fresh(history)
        meta = reply["meta_info"]
        assert meta["prompt_tokens"] == len(history)
        assert number == 0 or meta["cached_tokens"] >= len(history) - len(chunk) - 1
        history += reply["output_ids"]
        rid = meta["id"]
    assert (await api.post("/close_session", {"session_id": session}))[0] == 200


async def test_branches_of_a_regular_session(api: Api) -> None:
    session = await api.open()
    first = await api.turn(session, CHUNKS[0])
    root = first["meta_info"]["id"]
    base = CHUNKS[0] + first["output_ids"]
    for chunk in CHUNKS[1:]:
        branch = await api.turn(session, chunk, rid=root)
        assert branch["output_ids"] == await api.fresh(base + chunk)
        deeper = await api.turn(session, [20], rid=branch["meta_info"]["id"])
        ids = base + chunk + branch["output_ids"] + [20]
        assert deeper["output_ids"] == await api.fresh(ids)
    other = await api.turn(session, CHUNKS[2])
    assert other["output_ids"] == await api.fresh(CHUNKS[2]), "without rid: a new root"
    again = await api.turn(session, [21], rid=root)
    assert again["output_ids"] == await api.fresh([*base, 21]), "the first root is still there"


@pytest.mark.parametrize("offset", [3, 7, -2, -100])
async def test_offset_cuts_the_history(api: Api, offset: int) -> None:
    session = await api.open()
    first = await api.turn(session, CHUNKS[0])
    history = (CHUNKS[0] + first["output_ids"])[:offset]
    cut = await api.turn(session, CHUNKS[1], rid=first["meta_info"]["id"], offset=offset)
    assert cut["output_ids"] == await api.fresh(history + CHUNKS[1])
    assert cut["meta_info"]["prompt_tokens"] == len(history + CHUNKS[1])


@pytest.mark.parametrize(
    "cut", [{}, {"offset": 3}, {"offset": -1}, {"offset": -100}, {"drop_previous_output": True}]
)
async def test_replace_continues_after_a_turn_and_discards_what_did(
    api: Api, cut: dict[str, Any]
) -> None:
    session = await api.open()
    first = await api.turn(session, CHUNKS[0])
    root, history = first["meta_info"]["id"], CHUNKS[0] + first["output_ids"]
    kept = CHUNKS[0] if "drop_previous_output" in cut else history[: cut.get("offset")]
    child = (await api.turn(session, CHUNKS[1], rid=root, **cut))["meta_info"]["id"]
    grandchild = (await api.turn(session, [20], rid=child, **cut))["meta_info"]["id"]
    third = await api.turn(session, CHUNKS[2], rid=root, replace=True, **cut)
    assert third["output_ids"] == await api.fresh(kept + CHUNKS[2])
    assert third["meta_info"]["prompt_tokens"] == len(kept + CHUNKS[2])
    for gone in (child, grandchild):
        status, reply = await api.try_generate([1], session_params={"id": session, "rid": gone})
        assert (status, reply["error"]["param"]) == (400, "session_params.rid")
    again = await api.turn(session, [21], rid=root)
    assert again["output_ids"] == await api.fresh([*history, 21]), "the turn itself stays"


async def test_replace_without_a_turn_discards_all_turns(api: Api) -> None:
    session = await api.open()
    root = (await api.turn(session, CHUNKS[0]))["meta_info"]["id"]
    cleared = await api.turn(session, CHUNKS[3], replace=True)
    assert cleared["output_ids"] == await api.fresh(CHUNKS[3])
    status, _ = await api.try_generate([1], session_params={"id": session, "rid": root})
    assert status == 400


async def test_rid_of_a_discarded_turn_is_free(api: Api) -> None:
    session = await api.open()
    root = (await api.turn(session, CHUNKS[0]))["meta_info"]["id"]
    for chunk in CHUNKS[1:]:
        params = {"id": session, "rid": root, "replace": True}
        reply = await api.generate(chunk, rid="mine", session_params=params)
        assert reply["meta_info"]["id"] == "mine"


async def test_previous_output_is_dropped(api: Api) -> None:
    session = await api.open()
    first = await api.turn(session, CHUNKS[0])
    second = await api.turn(
        session, CHUNKS[1], rid=first["meta_info"]["id"], drop_previous_output=True
    )
    assert second["output_ids"] == await api.fresh(CHUNKS[0] + CHUNKS[1])
    assert second["meta_info"]["prompt_tokens"] == len(CHUNKS[0] + CHUNKS[1])


@pytest.mark.parametrize("offset", [2, 7, 100, -2, -4, -7, -8, -100])
async def test_offset_counts_what_a_dropped_output_leaves(api: Api, offset: int) -> None:
    session = await api.open()
    first = await api.turn(session, CHUNKS[0])
    root, history = first["meta_info"]["id"], CHUNKS[0] + first["output_ids"]
    second = (await api.turn(session, CHUNKS[1], rid=root))["meta_info"]["id"]
    kept = (history + CHUNKS[1])[:offset]
    cut = await api.turn(session, CHUNKS[2], rid=second, offset=offset, drop_previous_output=True)
    assert cut["output_ids"] == await api.fresh(kept + CHUNKS[2])
    assert cut["meta_info"]["prompt_tokens"] == len(kept + CHUNKS[2])


async def test_context_has_room_for_what_a_cut_leaves(api: Api) -> None:
    session = await api.open()
    first = await api.turn(session, [5] * 390)
    params = {"id": session, "rid": first["meta_info"]["id"], "offset": -380}
    reply = await api.generate([6] * 300, session_params=params)
    assert reply["meta_info"]["prompt_tokens"] == 316
    params |= {"drop_previous_output": True, "offset": -90}
    status, reply = await api.try_generate([6] * 100, session_params=params)
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
    assert (await api.try_generate([6] * 90, session_params=params))[0] == 200


@pytest.mark.parametrize(
    "params", [{"replace": True}, {"drop_previous_output": True}, {"offset": 1}]
)
async def test_streaming_session_is_append_only(api: Api, params: dict[str, Any]) -> None:
    session = await api.open(streaming=True)
    first = await api.turn(session, CHUNKS[0])
    status, reply = await api.try_generate(CHUNKS[1], session_params={"id": session, **params})
    (name,) = params
    assert (status, reply["error"]["param"]) == (400, f"session_params.{name}")
    second = await api.turn(session, CHUNKS[1], offset=0, rid="ignored")
    assert second["output_ids"] == await api.fresh(CHUNKS[0] + first["output_ids"] + CHUNKS[1])


async def test_refusals_leave_the_session_unchanged(api: Api) -> None:
    session = await api.open(streaming=True)
    first = await api.turn(session, CHUNKS[0])
    status, reply = await api.try_generate([5] * 500, session_params={"id": session})
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
    status, reply = await api.try_generate([99999], session_params={"id": session})
    assert (status, reply["error"]["param"]) == (400, "input_ids[0]")
    history = CHUNKS[0] + first["output_ids"]
    empty = await api.turn(session, [])
    assert empty["output_ids"] == await api.fresh(history), "history alone is enough"
    fresh = await api.open(streaming=True)
    status, reply = await api.try_generate([], session_params={"id": fresh})
    assert (status, reply["error"]["param"]) == (400, "input_ids")


async def test_sessions_are_opened_and_closed_by_id(api: Api) -> None:
    assert await api.open(session_id="mine") == "mine"
    status, reply = await api.post("/open_session", {"session_id": "mine"})
    assert (status, reply["error"]["code"]) == (400, "session_already_open")
    other = Api(api.server, UMBRELLA)
    assert await other.open(session_id="mine") == "mine", "ids are private to a tenant"
    for _ in range(2):
        assert (await api.post("/close_session", {"session_id": "mine"}))[0] == 200
    status, reply = await api.try_generate([1], session_params={"id": "mine"})
    assert (status, reply["error"]["code"]) == (400, "session_not_open")
    assert (await other.turn("mine", CHUNKS[0]))["output_ids"]
    assert (await other.post("/close_session", {"session_id": "mine"}))[0] == 200


async def test_logprobs_and_stream(api: Api) -> None:
    body = {"return_logprob": True, "top_logprobs_num": 2}
    whole = await api.generate(CHUNKS[0], **body)
    scores = whole["meta_info"]["output_token_logprobs"]
    assert [id for _, id, _ in scores] == whole["output_ids"]
    assert all(len(top) == 2 for top in whole["meta_info"]["output_top_logprobs"])
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    request = {"input_ids": CHUNKS[0], "sampling_params": sampling, "stream": True, **body}
    async with streaming(api.server, "POST", "/generate", request) as events:
        received = [data async for _, data in events]
    assert received.pop() == "[DONE]"
    replies = [json.loads(data) for data in received]
    assert [reply["meta_info"]["finish_reason"] for reply in replies[:-1]] == [None] * (
        len(replies) - 1
    )
    assert replies[-1]["output_ids"] == whole["output_ids"]
    assert replies[-1]["text"] == whole["text"]
    assert replies[-1]["meta_info"]["output_token_logprobs"] == scores
    lengths = [len(reply["output_ids"]) for reply in replies]
    assert lengths == sorted(lengths), "each event has the whole output so far"
    for name in ("output_token_logprobs", "output_top_logprobs"):
        parts = [reply["meta_info"][name] for reply in replies]
        whole_list = whole["meta_info"][name]
        assert parts.pop() == whole_list, "the last event has the log-probabilities of all ids"
        new = [score for part in parts for score in part]
        assert new == whole_list[: len(new)], "each other event has those of its new ids"


async def test_events_of_a_stream_are_a_bounded_multiple_of_its_output(api: Api) -> None:
    """A stream of 1,900 tokens was 800 MB, because each event repeated all log-probabilities."""
    body = {
        "input_ids": CHUNKS[0],
        "sampling_params": {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True},
        "stream": True,
        "return_logprob": True,
        "top_logprobs_num": 5,
    }
    async with streaming(api.server, "POST", "/generate", body) as events:
        *received, end = [data async for _, data in events]
    assert end == "[DONE]"
    replies = [json.loads(data) for data in received]
    assert len(replies[-1]["output_ids"]) == 200
    counts = [len(reply["output_ids"]) for reply in replies[:-1]]
    assert all(after - before > before // 64 for before, after in pairwise(counts))
    assert sum(len(reply["meta_info"]["output_top_logprobs"]) for reply in replies) <= 2 * 200
    assert sum(map(len, received)) < 10 * len(received[-1])


@pytest.mark.parametrize("by", ["abort", "abort_all", "disconnect"])
async def test_aborted_turn_is_rolled_back(api: Api, harness: EngineHarness, by: str) -> None:
    session = await api.open(streaming=True)
    first = await api.turn(session, CHUNKS[0])
    body = {
        "input_ids": CHUNKS[1],
        "rid": "long",
        "session_params": {"id": session},
        "sampling_params": {"temperature": 0, "max_new_tokens": 350, "ignore_eos": True},
        "stream": True,
    }
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    writer.write(encode_request("POST", "/generate", body, ACME))
    await asyncio.wait_for(reader.readuntil(b"data: "), 10)
    status, reply = await api.try_generate([1], session_params={"id": session})
    assert (status, reply["error"]["code"]) == (400, "session_busy")
    if by == "disconnect":
        writer.close()
    else:
        target = {"rid": "long"} if by == "abort" else {"rid": "", "abort_all": True}
        assert (await api.post("/abort_request", target))[0] == 200
        received = await asyncio.wait_for(reader.read(), 10)
        assert b'"finish_reason":{"type":"abort"' in received
    history = CHUNKS[0] + first["output_ids"]
    async with asyncio.timeout(10):
        while (await api.try_generate(CHUNKS[2], session_params={"id": session}))[0] != 200:
            await asyncio.sleep(0.01)
    last = await api.turn(session, [20])
    third = await api.fresh(history + CHUNKS[2])
    assert last["output_ids"] == await api.fresh(history + CHUNKS[2] + third + [20])
    assert last["meta_info"]["prompt_tokens"] == len(history + CHUNKS[2] + third) + 1
    await api.post("/close_session", {"session_id": session})
    assert await harness.engine.fleet.list_sessions() == []


@pytest.fixture
async def taken_slot(api: Api) -> TurnSlot:
    """The only turn slot of the tenant, taken, so that turns wait."""
    turns = turn_slots(api)
    turns.set_limits(TenantLimits(running_responses_max=1))
    return turns.enter()


def turn_slots(api: Api) -> TurnSlots:
    return api.server.registry.tenants.of("acme").turns


ENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "abort": ("/abort_request", {"rid": "waits"}),
    "abort_all": ("/abort_request", {"rid": "", "abort_all": True}),
    "close": ("/close_session", {"session_id": "s"}),
}


@pytest.mark.parametrize("is_streaming", [True, False])
@pytest.mark.parametrize("by", ENDS)
async def test_turn_that_waits_for_a_slot_is_aborted_at_once(
    api: Api, taken_slot: TurnSlot, is_streaming: bool, by: str
) -> None:
    await api.open(session_id="s", streaming=is_streaming)
    params = {"id": "s"}
    waiting = asyncio.create_task(api.generate(CHUNKS[0], rid="waits", session_params=params))
    await wait_until(lambda: turn_slots(api).waiting_count == 1)
    assert (await api.post(*ENDS[by]))[0] == 200
    meta = (await waiting)["meta_info"]
    assert (meta["finish_reason"]["type"], meta["completion_tokens"]) == ("abort", 0)
    assert turn_slots(api).waiting_count == 0
    taken_slot.release()
    if by != "close":
        reply = await api.turn("s", CHUNKS[1])
        assert reply["output_ids"] == await api.fresh(CHUNKS[1]), "the session is free"
        assert reply["meta_info"]["prompt_tokens"] == len(CHUNKS[1])


async def test_turn_whose_client_leaves_while_it_waits_is_never_computed(
    api: Api, harness: EngineHarness, taken_slot: TurnSlot
) -> None:
    session = await api.open(streaming=True)
    computed = harness.runner.token_count
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    body = {"input_ids": CHUNKS[0], "session_params": {"id": session}}
    writer.write(encode_request("POST", "/generate", body, ACME))
    await wait_until(lambda: turn_slots(api).waiting_count == 1)
    writer.close()
    await wait_until(lambda: turn_slots(api).waiting_count == 0)
    taken_slot.release()
    assert harness.runner.token_count == computed
    reply = await api.turn(session, CHUNKS[1])
    assert reply["meta_info"]["prompt_tokens"] == len(CHUNKS[1])
    assert await reader.read() == b""


async def test_session_is_busy_while_its_turn_waits(api: Api, taken_slot: TurnSlot) -> None:
    session = await api.open(streaming=True)
    waiting = asyncio.create_task(api.turn(session, CHUNKS[0]))
    await wait_until(lambda: turn_slots(api).waiting_count == 1)
    status, reply = await api.try_generate(CHUNKS[1], session_params={"id": session})
    assert (status, reply["error"]["code"]) == (400, "session_busy")
    taken_slot.release()
    assert (await waiting)["output_ids"] == await api.fresh(CHUNKS[0])


async def run_long_turn(api: Api, harness: EngineHarness, session: str, **body: Any) -> Running:
    """Start a turn that runs until it is aborted; `body` goes into its request."""
    harness.runner.step_s = 5 * SLOW_STEP_S
    sampling = {"max_new_tokens": 350}
    params = {"id": session, **body.pop("session_params", {})}
    task = asyncio.create_task(
        api.generate(CHUNKS[1], session_params=params, sampling_params=sampling, **body)
    )
    await wait_until(lambda: turn_slots(api).running_count == 1)
    return task


async def test_turn_that_waits_for_another_of_its_session_is_aborted(
    api: Api, harness: EngineHarness
) -> None:
    session = await api.open()
    first = await api.turn(session, CHUNKS[0])
    root = {"id": session, "rid": first["meta_info"]["id"]}
    running = await run_long_turn(api, harness, session, rid="runs", session_params=root)
    waiting = asyncio.create_task(api.generate(CHUNKS[2], rid="waits", session_params=root))
    async with asyncio.timeout(10):
        while not waiting.done():
            assert (await api.post("/abort_request", {"rid": "waits"}))[0] == 200
    assert waiting.result()["meta_info"]["finish_reason"]["type"] == "abort"
    assert not running.done()
    harness.runner.step_s = 0
    assert (await running)["meta_info"]["finish_reason"]["type"] == "length"


@pytest.mark.parametrize("body", [{"rid": ""}, {}, {"rid": "other"}, {"abort_all": False}])
async def test_abort_that_names_no_turn_aborts_none(
    api: Api, harness: EngineHarness, body: dict[str, Any]
) -> None:
    session = await api.open()
    running = await run_long_turn(api, harness, session, rid="runs")
    assert (await api.post("/abort_request", body))[0] == 200
    other = Api(api.server, UMBRELLA)
    assert (await other.post("/abort_request", {"rid": "", "abort_all": True}))[0] == 200
    harness.runner.step_s = 0
    assert (await running)["meta_info"]["finish_reason"]["type"] == "length"


async def test_replace_of_a_running_turn_continues_after_its_output_so_far(
    api: Api, harness: EngineHarness
) -> None:
    session = await api.open()
    first = await api.turn(session, CHUNKS[0])
    root = first["meta_info"]["id"]
    running = await run_long_turn(api, harness, session, rid="runs", session_params={"rid": root})
    params = {"id": session, "rid": "runs"}
    status, reply = await api.try_generate(CHUNKS[2], session_params=params)
    assert (status, reply["error"]["code"]) == (400, "session_busy")
    replacing = [
        asyncio.create_task(api.turn(session, CHUNKS[2], rid="runs", replace=True))
        for _ in range(2)
    ]
    cut = await running
    assert cut["meta_info"]["finish_reason"]["type"] == "abort"
    history = CHUNKS[0] + first["output_ids"] + CHUNKS[1] + cut["output_ids"]
    expected = await api.fresh(history + CHUNKS[2])
    ends = {}
    for reply in await asyncio.gather(*replacing):
        ends[reply["meta_info"]["finish_reason"]["type"]] = reply["output_ids"]
    assert ends.pop("length") == expected
    assert list(ends) in ([], ["abort"]), "the second may replace the first"
    again = await api.turn(session, CHUNKS[2], rid="runs")
    assert again["output_ids"] == expected
    await api.turn(session, CHUNKS[2], rid=root)


async def let_turn_wait(api: Api, session: str) -> Running:
    """Start a turn that waits for the slot."""
    params = {"id": session}
    waiting = asyncio.create_task(api.generate(CHUNKS[0], rid="waits", session_params=params))
    await wait_until(lambda: turn_slots(api).waiting_count == 1)
    return waiting


async def test_replace_of_a_turn_that_waits_continues_after_its_prompt(
    api: Api, taken_slot: TurnSlot
) -> None:
    session = await api.open()
    waiting = await let_turn_wait(api, session)
    replacing = asyncio.create_task(api.turn(session, CHUNKS[1], rid="waits", replace=True))
    taken_slot.release()
    cut = await waiting
    history = CHUNKS[0] + cut["output_ids"]
    assert (await replacing)["output_ids"] == await api.fresh(history + CHUNKS[1])


async def test_turn_that_waits_to_replace_another_is_aborted(
    api: Api, taken_slot: TurnSlot
) -> None:
    session = await api.open()
    waiting = await let_turn_wait(api, session)
    params = {"id": session, "rid": "waits", "replace": True}
    replacing = asyncio.create_task(api.generate(CHUNKS[1], rid="replaces", session_params=params))
    async with asyncio.timeout(10):
        while not replacing.done():
            assert (await api.post("/abort_request", {"rid": "replaces"}))[0] == 200
    assert replacing.result()["meta_info"]["finish_reason"]["type"] == "abort"
    taken_slot.release()
    await waiting


@pytest.mark.parametrize("has_rid", [True, False])
async def test_replace_aborts_the_running_turn_that_it_discards(
    api: Api, harness: EngineHarness, has_rid: bool
) -> None:
    session = await api.open()
    first = await api.turn(session, CHUNKS[0])
    root = first["meta_info"]["id"]
    running = await run_long_turn(api, harness, session, rid="runs", session_params={"rid": root})
    replacing = await api.turn(session, CHUNKS[2], rid=root if has_rid else None, replace=True)
    assert (await running)["meta_info"]["finish_reason"]["type"] == "abort"
    history = CHUNKS[0] + first["output_ids"] if has_rid else []
    assert replacing["output_ids"] == await api.fresh(history + CHUNKS[2])
    assert replacing["meta_info"]["prompt_tokens"] == len(history + CHUNKS[2])


async def test_idle_session_expires(api: Api) -> None:
    session = await api.open(streaming=True, timeout=0.05)
    async with asyncio.timeout(10):
        while (await api.try_generate([1], session_params={"id": session}))[0] == 200:
            await asyncio.sleep(0.2)
    status, reply = await api.try_generate([1], session_params={"id": session})
    assert (status, reply["error"]["code"]) == (400, "session_not_open")


async def test_gateway_forgets_sessions_that_expire(api: Api) -> None:
    for _ in range(30):
        await api.open(streaming=True, timeout=0.05)
        await api.open(timeout=0.05)
    await wait_until(lambda: not sessions_of(api).count_by_tenant())


async def test_gateway_and_engine_forget_sessions_of_a_lost_engine(
    api: Api, harness: EngineHarness
) -> None:
    for is_streaming in (True, False):
        await api.open(streaming=is_streaming)
    harness.kill()
    await wait_until(lambda: not sessions_of(api).count_by_tenant())
    await harness.wait_until_empty()
    status, reply = await api.try_generate([1], session_params={"id": await api.open()})
    assert status == 200, reply


async def test_sessions_of_one_tenant_leave_places_to_others(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_sessions, "TOKEN_SESSIONS_MAX", 20)
    other = Api(api.server, UMBRELLA)
    for _ in range(18):
        await api.open()
    status, reply = await api.post("/open_session", {"capacity_of_str_len": 1000})
    assert (status, reply["error"]["code"]) == (503, "rate_limit_exceeded")
    session = await other.open()
    await other.post("/close_session", {"session_id": session})
    assert sessions_of(api).count_by_tenant() == {"acme": 18}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "x", "input_ids": [1]}, "text"),
        ({"text": "x", "sampling_params": {"n": 65}}, "sampling_params.n"),
        ({"text": ["x"] * 33, "sampling_params": {"n": 2}}, "sampling_params.n"),
        ({"text": "x", "sampling_params": {"regex": "(a"}}, "sampling_params.regex"),
        ({"text": "x", "sampling_params": {"regex": "a\\"}}, "sampling_params.regex"),
        ({"text": "x", "sampling_params": {"ebnf": "root ::= [a]"}}, "sampling_params.ebnf"),
        ({"text": "x", "sampling_params": {"min_new_tokens": 3}}, "sampling_params.min_new_tokens"),
        (
            {"text": "x", "sampling_params": {"regex": "a", "json_schema": "{}"}},
            "sampling_params.regex",
        ),
        ({"text": "x", "sampling_params": [{}, {}]}, "sampling_params"),
        ({"text": ["x", "y"], "sampling_params": [{}, {"ebnf": "x"}]}, "sampling_params[1].ebnf"),
        ({"text": ["x", "y"], "sampling_params": [{}, {"n": 2}]}, "sampling_params"),
        ({"text": ["x", "y"], "rid": ["a", "a"]}, "rid"),
        ({"text": ["x", "y"], "rid": ["a"]}, "rid"),
        ({"text": ["x", "y"], "session_params": {"id": "s"}}, "session_params"),
        ({"text": ["x"] * 65}, "text"),
        ({"text": []}, "text"),
        ({"input_ids": [[1]] * 65}, "input_ids"),
        ({"input_ids": [[1], 1]}, "input_ids"),
        ({"input_ids": [[1], []]}, "input_ids[1]"),
        ({"input_ids": [[1], [99999]]}, "input_ids[1][0]"),
        ({"text": "x", "image_data": ["x"]}, "image_data"),
        ({"text": "x", "lora_path": "x"}, "lora_path"),
        ({"text": "x", "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len"),
        ({"text": "x", "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"text": "x" * 500}, "text"),
        (
            {"text": "x", "sampling_params": {"json_schema": '{"$ref": "#"}'}},
            "sampling_params.json_schema",
        ),
        ({"text": "x", "sampling_params": {"json_schema": "{"}}, "sampling_params.json_schema"),
    ],
)
async def test_invalid_request_is_refused_by_name(
    api: Api, body: dict[str, Any], param: str
) -> None:
    status, reply = await api.post("/generate", body)
    assert (status, reply["error"]["param"]) == (400, param)


async def test_parameters_that_ask_for_nothing_are_accepted(api: Api) -> None:
    """SGLang's Python client sends them with each request."""
    nothing = {"min_new_tokens": 0, "ebnf": None, "n": 1, "logit_bias": {}}
    body = {"image_data": [None], "lora_path": None, "return_hidden_states": False}
    reply = await api.generate(CHUNKS[0], sampling_params=nothing, logprob_start_len=5, **body)
    assert reply["output_ids"] == await api.fresh(CHUNKS[0])


async def test_batch_answers_each_prompt_in_order(api: Api) -> None:
    greedy = {"temperature": 0, "ignore_eos": True}
    sampling = [{**greedy, "max_new_tokens": n + 2} for n in range(len(CHUNKS))]
    body = {"input_ids": CHUNKS, "sampling_params": sampling, "rid": "mine"}
    status, replies = await api.post("/generate", body)
    assert status == 200
    assert [reply["meta_info"]["id"] for reply in replies] == [
        "mine_0",
        "mine_1",
        "mine_2",
        "mine_3",
    ]
    for n, reply in enumerate(replies):
        assert reply["output_ids"] == await api.fresh(CHUNKS[n], sampling_params=sampling[n])
        assert reply["meta_info"]["prompt_tokens"] == len(CHUNKS[n])
    request = {**body, "stream": True, "return_logprob": [True, False, False, False]}
    async with streaming(api.server, "POST", "/generate", request) as events:
        received = [data async for _, data in events]
    assert received.pop() == "[DONE]"
    last = {(reply := json.loads(data))["index"]: reply for data in received}
    assert [last[n]["output_ids"] for n in range(4)] == [reply["output_ids"] for reply in replies]
    assert ["output_token_logprobs" in last[n]["meta_info"] for n in range(4)] == [
        True,
        *[False] * 3,
    ]


async def test_refused_prompt_of_a_batch_leaves_nothing_running(
    api: Api, harness: EngineHarness
) -> None:
    body = {"input_ids": [CHUNKS[0], [5] * 500], "rid": ["a", "b"]}
    status, reply = await api.post("/generate", body)
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
    assert turn_slots(api).running_count == 0
    assert await harness.engine.fleet.list_sessions() == []


async def test_several_outputs_of_one_prompt(api: Api) -> None:
    status, replies = await api.try_generate(CHUNKS[0], sampling_params={"n": 3})
    assert status == 200
    assert [reply["output_ids"] for reply in replies] == [await api.fresh(CHUNKS[0])] * 3
    assert len({reply["meta_info"]["id"] for reply in replies}) == 3
    status, replies = await api.try_generate(CHUNKS[0], sampling_params={"n": 2}, rid="mine")
    assert [reply["meta_info"]["id"] for reply in replies] == ["mine_0", "mine_1"]


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("is_streaming", [True, False])
async def test_prompt_without_output_is_computed_and_kept(
    api: Api, harness: EngineHarness, is_streaming: bool, is_streamed: bool
) -> None:
    session, rid, history = await api.open(streaming=is_streaming), None, list[int]()
    for chunk in CHUNKS:
        body = {
            "input_ids": chunk,
            "sampling_params": {"max_new_tokens": 0},
            "session_params": {"id": session, "rid": rid},
            "stream": is_streamed,
        }
        if is_streamed:
            async with streaming(api.server, "POST", "/generate", body) as events:
                (data, _) = [data async for _, data in events]
            reply = json.loads(data)
        else:
            _, reply = await api.post("/generate", body)
        history += chunk
        meta, rid = reply["meta_info"], reply["meta_info"]["id"]
        assert (reply["output_ids"], reply["text"], meta["completion_tokens"]) == ([], "", 0)
        assert (meta["prompt_tokens"], meta["finish_reason"]["length"]) == (len(history), 0)
    computed = harness.runner.token_count
    last = await api.turn(session, [20], rid=rid)
    assert last["output_ids"] == await api.fresh([*history, 20])
    assert last["meta_info"]["prompt_tokens"] == len(history) + 1
    assert last["meta_info"]["cached_tokens"] == len(history)
    assert harness.runner.token_count > computed


async def test_prompt_without_output_and_session(api: Api) -> None:
    reply = await api.generate(CHUNKS[0], sampling_params={"max_new_tokens": 0})
    assert reply["output_ids"] == []
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert (await api.generate(CHUNKS[0]))["meta_info"]["cached_tokens"] > 0


@pytest.mark.parametrize(
    ("regex", "matches"),
    [
        ("abc", "abc"),
        ("[b]{5}", "bbbbb"),
        ("a/b", "a/b"),
        (r"a\/b", "a/b"),
        ("a\nb", "a\nb"),
        ("/ b: /x", "/ b: /x"),
    ],
)
async def test_output_matches_the_regex(api: Api, regex: str, matches: str) -> None:
    params = {"regex": regex, "max_new_tokens": 50, "ignore_eos": False}
    reply = await api.generate(CHUNKS[0], sampling_params=params)
    assert reply["text"] == matches


async def test_forgotten_turns_are_unknown(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sessions, "FINISHED_TURNS_MAX", 3)
    session = await api.open()
    rids = [(await api.turn(session, CHUNKS[0]))["meta_info"]["id"] for _ in range(4)]
    params = {"id": session, "rid": rids[0]}
    status, reply = await api.try_generate([1], session_params=params)
    assert (status, reply["error"]["param"]) == (400, "session_params.rid")
    for rid in rids[1:]:
        await api.turn(session, [1], rid=rid)
        monkeypatch.setattr(token_sessions, "FINISHED_TURNS_MAX", 10)


async def test_model_and_server_are_described(api: Api, harness: EngineHarness) -> None:
    for path in ("/get_model_info", "/get_server_info"):
        status, info = await get(api, path)
        assert (status, info["is_generation"]) == (200, True)
    assert info["context_length"] == harness.engine.ready.max_model_len
    assert (await get(api, "/health_generate"))[0] == 200
    status, reply = await api.post("/flush_cache", {})
    assert (status, reply["error"]["code"]) == (400, "unsupported_parameter")


async def test_engine_is_healthy_whatever_id_it_draws(
    api: Api, harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that ends a response."""
    every_id = tuple(range(harness.engine.ready.vocab_size))
    monkeypatch.setattr(harness.engine.text, "stop_ids", every_id)
    assert (await get(api, "/health_generate"))[0] == 200
    reply = await api.generate([0], sampling_params={"ignore_eos": False})
    assert reply["meta_info"]["finish_reason"]["type"] == "stop", "each id ends a response"


async def get(api: Api, path: str) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    writer.write(encode_request("GET", path, None, ACME))
    head, _, received = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(received) if received else None
