"""A real Prometheus with the configuration and the rules in deploy/prometheus: it scrapes a gateway
and an engine under load and faults. Each expression of the dashboard and of the alert rules has
values, and they move; each rule can be evaluated, and those of a lost engine and store fire."""

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from websockets.exceptions import InvalidStatus

from tests.support.clients import RequestRefused, connect_realtime, open_realtime_session
from tests.support.ports import free_port
from tests.support.processes import (
    ROOT,
    read_engine_address,
    read_gateway_url,
    running_engine,
    running_gateway,
)
from tests.support.redis_process import needs_redis, running_redis

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("promtool")),
        reason="prometheus is not installed",
    ),
]

FOLDER = ROOT / "deploy/prometheus"
KEY = "key-of-the-scraper"
HEADERS = {"Authorization": f"Bearer {KEY}"}
LOSSES = {
    "ContinuoTargetDown",
    "ContinuoNoEngine",
    "ContinuoEngineDown",
    "ContinuoStoreUnavailable",
    "ContinuoAuditFailed",
}
"""Alerts that do not depend on how fast this machine is."""
MOVED_BY_LOSS_OF_STORE = {
    "continuo_store_failures_total",
    "continuo_store_up",
    'continuo_refusals_total{code=~"store_unavailable|engine.*|server_error"}',
}
MOVED_BY_LOSS_OF_ENGINE = {"continuo_engine_interruptions_total", "continuo_engines", "up{"}
NOT_MOVED = {
    "continuo_audit_failures_total",
    "continuo_engine_failed_steps_total",
    "continuo_engine_up",
    'vllm:request_success_total{finished_reason="error"}',
}
"""Series that move only by what this test cannot cause."""
SCRAPE_S = 1
"""Seconds between scrapes and between evaluations of the rules, so that the test need not wait."""
LOAD_S_MAX = 200
SMALL_ENGINE = (
    *("--max-model-len", "512", "--num-gpu-blocks-override", "40"),
    *("--kv-offloading-size", "0.01", "--metrics-listen", "127.0.0.1:0"),
)
"""Options of an engine whose KV pages do not suffice for the load."""


class Prometheus:
    """A client of the HTTP API of a Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> Any:
        """Return the data of a reply. Raises OSError if Prometheus refuses the request."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as reply:
            return json.load(reply)["data"]

    def values_since(self, start_s: float, expression: str) -> list[set[str]]:
        """Return the values that each series of an expression has had; not those that are NaN."""
        period = {"start": f"{start_s}", "end": f"{time.time()}", "step": f"{SCRAPE_S}"}
        series = self.get("query_range", query=expression, **period)["result"]
        return [{value for _, value in each["values"]} - {"NaN"} for each in series]

    def health_of_targets(self) -> dict[str, str]:
        """Return `up`, `down` or `unknown` for each job."""
        targets = self.get("targets", state="active")["activeTargets"]
        return {target["labels"]["job"]: target["health"] for target in targets}

    def health_of_rules(self) -> dict[str, str]:
        """Return `ok`, `err` or `unknown` for each rule."""
        groups = self.get("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def alerts(self) -> set[str]:
        """Return the alerts that are pending or firing."""
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"]}


class Watch:
    """The expressions in deploy/ that have no value yet, and those whose values have not moved."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._began_s = time.time()
        self.unmoved = {*expressions()}
        self.without_value = {*expressions()}

    def update(self) -> None:
        for expression in sorted(self.unmoved):
            series = self._prometheus.values_since(self._began_s, expression)
            if any(series):
                self.without_value.discard(expression)
            if any(len(values) > 1 for values in series):
                self.unmoved.remove(expression)

    def unmoved_except(self, *excepted: set[str]) -> set[str]:
        """Return the expressions that have not moved, except those of these series."""
        series = set[str]().union(*excepted)
        return {each for each in self.unmoved if not any(name in each for name in series)}


def dashboard_expressions() -> Iterator[str]:
    dashboard = json.loads((ROOT / "deploy/grafana/continuo.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def alert_rules() -> dict[str, str]:
    """Return the expression of each alert."""
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def expressions() -> Iterator[str]:
    """The expressions of the dashboard, with its variables filled in, and those of the alert rules
    without their thresholds, so that they have a value while no alert is active."""
    for expression in dashboard_expressions():
        filled = expression.replace("$job", "continuo.*")
        yield filled.replace("$__rate_interval", f"{5 * SCRAPE_S}s")
    for expression in alert_rules().values():
        compared = re.fullmatch(r"(.+) (==|>) [\d.]+", expression)
        assert compared, expression
        yield compared[1]


@contextlib.contextmanager
def running_prometheus(folder: Path, targets: dict[str, str]) -> Iterator[Prometheus]:
    """Run Prometheus with the configuration of deploy/, but with these targets, `host:port` by job,
    and short intervals."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), f"{SCRAPE_S}s")
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
        if authorization := job.get("authorization"):
            authorization["credentials_file"] = str(folder / "continuo.key")
    (folder / "continuo.key").write_text(f"{KEY}\n")
    shutil.copy(FOLDER / "alerts.yaml", folder)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    options = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *options], stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(30)


async def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait at most a minute. Prometheus may not listen yet."""
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            if await asyncio.to_thread(condition):
                return
        await asyncio.sleep(0.2)
    raise AssertionError(f"not within a minute: {what}")


async def load(url: str) -> None:
    """Show a wrong key, and hold conversations that together need more KV pages than there are."""
    with pytest.raises(InvalidStatus):
        async with connect_realtime(url, {"Authorization": "Bearer wrong"}):
            pass
    await asyncio.gather(*(converse(url, turns=3, tokens=60) for _ in range(6)))


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "--syntax-only", str(FOLDER / "prometheus.yml")),
        ("check", "rules", "--lint-fatal", str(FOLDER / "alerts.yaml")),
    ],
)
def test_promtool_accepts_configuration_and_rules(arguments: tuple[str, ...]) -> None:
    checked = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_engines_are_scaled_by_a_metric_of_the_dashboard() -> None:
    manifests = yaml.safe_load_all((ROOT / "deploy/kubernetes/monitoring.yaml").read_text())
    specs = [metric for manifest in manifests for metric in manifest["spec"].get("metrics", ())]
    (name,) = [metric["pods"]["metric"]["name"] for metric in specs if "pods" in metric]
    assert any(f"{name}{{" in expression for expression in dashboard_expressions())


@needs_redis
@pytest.mark.timeout(480)
async def test_every_expression_has_values_that_move_and_alerts_fire(tmp_path: Path) -> None:
    async with running_redis(tmp_path / "redis") as redis, contextlib.AsyncExitStack() as stack:
        engine = stack.enter_context(running_engine(*SMALL_ENGINE))
        address = await asyncio.to_thread(read_engine_address, engine)
        metrics_url = await asyncio.to_thread(engine.wait_for_output, r"Metrics +(\S+)")
        options = ("--engine", address, "--store", redis.url, "--api-key", KEY)
        gateway = stack.enter_context(running_gateway(*options))
        url = await asyncio.to_thread(read_gateway_url, gateway)
        targets = {
            "continuo-gateway": urllib.parse.urlsplit(url).netloc,
            "continuo-engine": urllib.parse.urlsplit(metrics_url).netloc,
        }
        prometheus = stack.enter_context(running_prometheus(tmp_path, targets))
        await wait_until(
            lambda: prometheus.health_of_targets() == dict.fromkeys(targets, "up"),
            "both targets are up",
        )
        watch = Watch(prometheus)

        def is_store_lost() -> bool:
            assert status_of_conversation(url) == 503
            watch.update()
            moved = not watch.unmoved_except(MOVED_BY_LOSS_OF_ENGINE, NOT_MOVED)
            return moved and "ContinuoStoreUnavailable" in prometheus.alerts()

        def is_engine_lost() -> bool:
            watch.update()
            moved = not watch.unmoved_except(NOT_MOVED)
            return moved and {"ContinuoTargetDown", "ContinuoNoEngine"} <= prometheus.alerts()

        faults = (MOVED_BY_LOSS_OF_STORE, MOVED_BY_LOSS_OF_ENGINE, NOT_MOVED)
        end_s = time.monotonic() + LOAD_S_MAX
        while watch.unmoved_except(*faults) and time.monotonic() < end_s:
            await load(url)
            await asyncio.to_thread(watch.update)
        assert watch.unmoved_except(*faults) == set()
        assert prometheus.health_of_rules() == dict.fromkeys(alert_rules(), "ok")
        assert not LOSSES & prometheus.alerts()

        redis.pause()
        await wait_until(is_store_lost, "the series and the alert of a lost store")
        redis.resume()
        await wait_until(lambda: not LOSSES & prometheus.alerts(), "the store is back")
        async with open_realtime_session(url, HEADERS) as client:
            await client.add_message("Count.")
            await client.start_response(max_output_tokens=300, ignore_eos=True)
            await client.wait_deltas(5)
            engine.stop()
            await wait_until(is_engine_lost, "the series and the alerts of a lost engine")
        assert watch.without_value == set()


def status_of_conversation(url: str) -> int:
    """Request a conversation of the gateway whose WebSocket URL is `url`. Returns the status."""
    address = urllib.parse.urlsplit(url).netloc
    request = urllib.request.Request(f"http://{address}/v1/conversations/any", headers=HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
