"""The metrics of a gateway and of an engine apart from it."""

import asyncio
import re
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes import (
    read_engine_address,
    read_gateway_url,
    running_gateway,
    running_process,
)

pytestmark = pytest.mark.process


def scrape(url: str) -> dict[str, dict[str, float]]:
    """Return the values of each series by its labels."""
    with urllib.request.urlopen(url, timeout=30) as reply:
        text = reply.read().decode()
    values: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values.setdefault(sample.name, {})[repr(sorted(sample.labels.items()))] = sample.value
    return values


@pytest.mark.timeout(120)
async def test_engine_and_gateway_expose_series_of_their_own() -> None:
    options = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--threads", "1")
    with running_process("engine", *options) as process:
        address = await asyncio.to_thread(read_engine_address, process)
        url = process.wait_for_output(r"Metrics +(\S+)")
        found = await asyncio.to_thread(scrape, url)
        ready = url.replace("/metrics", "/health/ready")
        with await asyncio.to_thread(urllib.request.urlopen, ready) as reply:
            assert reply.status == 200
        with running_gateway("--engine", address, "--store", "memory") as gateway:
            gateway_url = await asyncio.to_thread(read_gateway_url, gateway)
            metrics_url = re.sub(r"^ws(.*)/v1/realtime$", r"http\1/metrics", gateway_url)
            of_gateway = await asyncio.to_thread(scrape, metrics_url)
    assert [*of_gateway["continuo_engines"].values()] == [1]
    twice = {name for name in found if found[name].keys() & of_gateway.get(name, {}).keys()}
    assert {name for name in twice if not name.startswith(("process_", "continuo_build"))} == set()
    assert [*found["continuo_engine_up"].values()] == [1]
    (labels,) = found["vllm:kv_cache_usage_perc"]
    assert labels == "[('model_name', 'demo')]"
    assert "continuo_resumes_total" not in found
