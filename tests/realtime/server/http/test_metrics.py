"""GET /metrics: who may read it, and what it counts."""

import asyncio
import random
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from continuo.engine.client.grammar_trials import TrialProcesses
from continuo.engine.core.speculation import Speculation
from continuo.engine.sampling import Sampling
from continuo.realtime import metrics
from continuo.realtime.server.http.metrics_routes import collect_engine
from tests.support.clients import open_realtime_session
from tests.support.digest_runner import oracle
from tests.support.drafting import oracle_speculation
from tests.support.engine_sessions import collect_ids, open_with, prompt_ids
from tests.support.engines import EngineHarness, digest_engine
from tests.support.processes import ROOT
from tests.support.web_servers import ACME, RunningServer, encode_request

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(series: Series, name: str, **labels: str) -> float:
    return sum(
        value
        for (found, found_labels), value in series.items()
        if found == name and labels.items() <= dict(found_labels).items()
    )


async def scrape(port: int, headers: dict[str, str] = ACME) -> Series:
    return parse(await asyncio.to_thread(_fetch, f"http://127.0.0.1:{port}/metrics", headers))


def _fetch(url: str, headers: dict[str, str]) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as reply:
        assert reply.headers["content-type"].startswith("text/plain; version=")
        return reply.read().decode()


async def test_names_are_the_same_for_prometheus_which_prefers_openmetrics(
    server: RunningServer,
) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5"
    await scrape(server.port)  # which is counted itself
    named = {name for name, _ in await scrape(server.port)}
    assert "vllm:generation_tokens_total" in named
    assert {name for name, _ in await scrape(server.port, ACME | {"Accept": accept})} == named


async def test_metrics_need_a_key(server: RunningServer) -> None:
    status, body = await server.request("GET", "/metrics", headers={})
    assert (status, body["error"]["code"]) == (401, "missing_api_key")
    _, secret = await server.request("POST", "/v1/realtime/client_secrets", {})
    ephemeral = {"Authorization": f"Bearer {secret['value']}"}
    status, body = await server.request("GET", "/metrics", headers=ephemeral)
    assert (status, body["error"]["code"]) == (403, "ephemeral_key")


async def test_every_metric_is_documented(server: RunningServer) -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    documented = set(re.findall(r"`((?:vllm:|continuo_)\w+)(?:\{[\w,]+\})?`", page))
    wrong = {"Authorization": "Bearer wrong"}
    assert (await server.request("GET", "/metrics", headers=wrong))[0] == 401
    async with open_realtime_session(server.url):
        series = await scrape(server.port)
    names = {name for name, _ in series if not name.startswith("process_")}
    names = {name for name in names if not name.endswith("_created")}  # of the library
    assert documented == {re.sub("_(?:bucket|sum|count)$", "", name) for name in names}


async def test_metrics_of_speculation_have_the_names_of_vllm(letters: Path) -> None:
    def speculation() -> Speculation:
        return oracle_speculation(random.Random(1))

    async with digest_engine(letters, speculation=speculation) as harness:
        session = await open_with(harness.engine, prompt_ids(9))
        turn = await harness.engine.generate(session, Sampling(max_tokens=40))
        assert await collect_ids(turn) == oracle(prompt_ids(9), 40)
        stats = await harness.engine.fleet.stats()
        families = await collect_engine(harness.engine)
    found = {family.name: family.samples[0].value for family in families}
    assert found["vllm:spec_decode_num_drafts"] == stats.draft_rows > 0
    assert found["vllm:spec_decode_num_draft_tokens"] == stats.draft_tokens > stats.draft_rows
    assert found["vllm:spec_decode_num_accepted_tokens"] == stats.accepted_tokens > 0


async def test_metrics_of_one_response(server: RunningServer) -> None:
    before = await scrape(server.port)
    async with open_realtime_session(server.url) as client:
        await client.add_message("hello")
        await client.send(response={"max_output_tokens": 6})
        done = await client.wait_for("response.done")
        await client.send("conversation.item.delete", item_id="absent")
        await client.expect("rate_limits.updated", "error")
        usage = done["response"]["usage"]
        after = await scrape(server.port)

    def moved(name: str, **labels: str) -> float:
        return total(after, name, **labels) - total(before, name, **labels)

    assert moved("vllm:prompt_tokens_total") == usage["input_tokens"]
    assert moved("vllm:generation_tokens_total") == usage["output_tokens"]
    cached = usage["input_token_details"]["cached_tokens"]
    assert moved("vllm:prefix_cache_hits_total") == cached
    assert moved("continuo_prefill_tokens_sum") == usage["input_tokens"] - cached
    assert moved("vllm:time_to_first_token_seconds_count") == 1
    assert moved("vllm:inter_token_latency_seconds_count") >= 1
    assert moved("continuo_refusals_total", code="item_delete_invalid_item_id") == 1
    assert moved("continuo_sessions_opened_total") == 1
    assert moved("continuo_store_call_seconds_count", call="write") >= 2
    assert total(after, "continuo_sessions", state="connected") == 1
    assert total(after, "continuo_engine_sessions", residency="device") == 1
    assert total(after, "continuo_engine_sessions") == 1
    assert total(after, "vllm:num_requests_running") == 0
    assert 0 < total(after, "vllm:kv_cache_usage_perc") < 1
    reasons = next(iter(metrics.request_success.collect())).samples
    assert {sample.labels["finished_reason"] for sample in reasons} <= {
        "stop",
        "length",
        "abort",
        "error",
    }


async def test_labels_are_few_whatever_paths_are_requested(server: RunningServer) -> None:
    """Each request has other parameters, some of which are parts of each other or of the path."""
    words = ["items", "conversations", "v1", "s", "e", "a/b", "%2F", "..", "x" * 50]
    words += [f"made-up-{n}" for n in range(6)]

    async def request(method: str, path: str, headers: dict[str, str]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(encode_request(method, path, headers=headers))
        assert (await reader.read()).startswith(b"HTTP/1.1 ")
        writer.close()

    before = await scrape(server.port)
    for n, word in enumerate(words):
        for path in (
            f"/v1/conversations/{word}/items/a{word}",
            f"/v1/conversations/{word}/items/{word}",
            f"/v1/responses/{word}/cancel",
            f"/v1/responses/{word}/cancel{word}",
            f"/v1/realtime/sessions/{word}",
            f"/assets/{word}/assets/{word}",
            f"/{word}",
        ):
            for method in ("GET", "DELETE"):
                await request(method, path, {} if n % 2 else ACME)
    after = await scrape(server.port)
    paths = {dict(labels)["path"] for name, labels in after if name == "continuo_requests_total"}
    assert not [path for path in paths if "made-up" in path or "x" * 50 in path]
    assert len(after) - len(before) < 80


@pytest.mark.process
async def test_caches_report_what_they_hold_and_their_bounds(
    server: RunningServer, harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = TrialProcesses()
    monkeypatch.setattr(harness.engine, "grammar_trials", trials)

    def read(series: Series) -> dict[str, tuple[float, float]]:
        names = ("encodings", "renderings", "schema_checks", "continuation_points", "grammars")
        return {
            name: (
                total(series, "continuo_cache_bytes", cache=name),
                total(series, "continuo_cache_bytes_max", cache=name),
            )
            for name in names
        }

    before = read(await scrape(server.port))
    schema = {"type": "object", "properties": {f"of-{random.random()}": {"type": "string"}}}
    text_format = {"type": "json_schema", "name": "shape", "schema": schema}
    body = {"model": "demo", "input": "a new text", "max_output_tokens": 2}
    body["text"] = {"format": text_format}
    status, _ = await server.request("POST", "/v1/responses", body)
    assert status == 200
    after = read(await scrape(server.port))
    for name, (held, most) in after.items():
        assert before[name][0] < held < most == before[name][1], name
    await trials.stop()
