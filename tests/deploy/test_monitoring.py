"""The dashboard and the alert rules in deploy/: every series that a query names exists, and those
that work moves have moved after some work on a real server with the bundled model."""

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Iterator

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.clients import RequestRefused, connect_realtime, open_realtime_session
from tests.support.processes import (
    ROOT,
    read_engine_address,
    read_gateway_url,
    running_gateway,
    running_process,
)

pytestmark = pytest.mark.process

KEY = "key-of-the-scraper"
HEADERS = {"Authorization": f"Bearer {KEY}"}
UNMOVED = {
    "up",  # Prometheus' own
    "continuo_audit_failures_total",
    "continuo_engine_failed_steps_total",
    "continuo_engine_interruptions_total",
    "continuo_engine_up",
    "continuo_engines",
    "continuo_store_failures_total",
    "continuo_store_up",
}
"""Series that move only when something fails."""
WORK_S_MAX = 200
_WORDS = {"by", "sum", "rate", "min", "le", "for"}


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """The title and the expression of each query of the dashboard."""
    dashboard = json.loads((ROOT / "deploy/grafana/continuo.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def queries() -> Iterator[tuple[str, str]]:
    """The title and the expression of each query in deploy/."""
    yield from dashboard_queries()
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for manifest in yaml.safe_load_all((ROOT / "deploy/kubernetes/monitoring.yaml").read_text()):
        for metric in manifest["spec"].get("metrics", ()):
            if "pods" in metric:
                yield manifest["metadata"]["name"], metric["pods"]["metric"]["name"]


def series_of(expression: str) -> set[str]:
    """The names of the series in an expression: without labels, durations, groupings, functions."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", " ", expression)
    return set(re.findall(r"[a-z_:][a-z0-9_:]*\b(?! *\()", bare)) - _WORDS


def scrape(url: str, headers: dict[str, str] = HEADERS) -> dict[str, dict[str, float]]:
    """Return the values of each series by its labels."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as reply:
        text = reply.read().decode()
    values: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values.setdefault(sample.name, {})[repr(sorted(sample.labels.items()))] = sample.value
    return values


def metrics_url_of(url: str) -> str:
    """The address of the metrics of the gateway whose WebSocket URL is `url`."""
    return re.sub(r"^ws(.*)/v1/realtime$", r"http\1/metrics", url)


def start_server() -> tuple[str, ...]:
    limits = ("--max-model-len", "512", "--num-gpu-blocks-override", "40", "--threads", "1")
    options = ("--store", "memory", "--api-key", KEY, "--no-web", "--port", "0")
    return ("serve", *limits, *options, "--kv-offloading-size", "0.01")


async def converse(url: str, turns: int, tokens: int) -> None:
    """Hold a conversation that is edited, refused once, and resumed exactly and by a snapshot."""
    async with open_realtime_session(url, HEADERS) as client:
        for turn in range(turns):
            await client.add_message(f"Count to {turn + 3}, and then on.", f"m{turn}")
            await client.complete_response(max_output_tokens=tokens, ignore_eos=True)
        await client.send("conversation.item.delete", item_id="m0")
        await client.wait_for("conversation.item.deleted")
        await client.send("conversation.item.delete", item_id="m0")
        with pytest.raises(RequestRefused):
            await client.wait_for("conversation.item.deleted")
        query = client.resume_query
    async with connect_realtime(f"{url}?{query}", HEADERS) as client:
        await client.wait_for("session.resumed", "session.updated", "session.created")
    async with connect_realtime(f"{url}?session_id={client.session_id}", HEADERS):
        pass


async def work_until_moved(url: str, names: set[str]) -> set[str]:
    """Work until the values of all series `names` have changed, at most WORK_S_MAX seconds. Returns
    those that have not."""
    metrics_url, still = metrics_url_of(url), set(names)
    last = await asyncio.to_thread(scrape, metrics_url)
    end_s = time.monotonic() + WORK_S_MAX
    while still and time.monotonic() < end_s:
        working = asyncio.gather(*(converse(url, 3, 60) for _ in range(6)))
        while not working.done():
            now = await asyncio.to_thread(scrape, metrics_url)
            still -= {name for name, values in now.items() if values != last.get(name, values)}
            last |= now
            await asyncio.sleep(0.05)
        await working
    return still


@pytest.mark.timeout(300)
async def test_every_query_names_series_that_exist_and_move_under_load() -> None:
    named = {name: title for title, expression in queries() for name in series_of(expression)}
    assert len(named) > 30
    with running_process(*start_server()) as process:
        url = await asyncio.to_thread(read_gateway_url, process)
        still = await work_until_moved(url, {*named} - UNMOVED)
        existing = {*await asyncio.to_thread(scrape, metrics_url_of(url)), "up"}
    assert {name: title for name, title in named.items() if name not in existing} == {}
    assert {name: named[name] for name in still} == {}


def test_series_of_an_expression() -> None:
    ratio = 'sum by (a, b) (rate(x_total{c="d e"}[5m])) / sum(vllm:y{job=~"$job"}) > 0.01'
    assert series_of(ratio) == {"x_total", "vllm:y"}
    assert series_of("histogram_quantile(0.95, sum by (le) (rate(z_bucket[5m])))") == {"z_bucket"}


@pytest.mark.timeout(120)
async def test_engine_and_gateway_expose_series_of_their_own() -> None:
    options = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--threads", "1")
    with running_process("engine", *options) as process:
        address = await asyncio.to_thread(read_engine_address, process)
        url = process.wait_for_output(r"Metrics +(\S+)")
        found = await asyncio.to_thread(scrape, url, {})
        ready = url.replace("/metrics", "/health/ready")
        with await asyncio.to_thread(urllib.request.urlopen, ready) as reply:
            assert reply.status == 200
        with running_gateway("--engine", address, "--store", "memory") as gateway:
            gateway_url = await asyncio.to_thread(read_gateway_url, gateway)
            of_gateway = await asyncio.to_thread(scrape, metrics_url_of(gateway_url), {})
    assert [*of_gateway["continuo_engines"].values()] == [1]
    twice = {name for name in found if name in of_gateway}
    assert {name for name in twice if not name.startswith(("process_", "continuo_build"))} == set()
    assert [*found["continuo_engine_up"].values()] == [1]
    (labels,) = found["vllm:kv_cache_usage_perc"]
    assert labels == "[('model_name', 'demo')]"
    assert "continuo_resumes_total" not in found
