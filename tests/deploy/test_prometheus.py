"""A real Prometheus with the configuration and the rules in deploy/prometheus: it scrapes a gateway
and an engine, evaluates the queries of the dashboard, and fires the alert of a lost target."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_monitoring import KEY, converse, dashboard_queries
from tests.support.ports import free_port
from tests.support.processes import (
    ROOT,
    read_engine_address,
    read_gateway_url,
    running_engine,
    running_gateway,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("promtool")),
        reason="prometheus is not installed",
    ),
]

FOLDER = ROOT / "deploy/prometheus"
LOSSES = {
    "ContinuoTargetDown",
    "ContinuoNoEngine",
    "ContinuoEngineDown",
    "ContinuoStoreUnavailable",
    "ContinuoAuditFailed",
}
"""Alerts that do not depend on how fast this machine is."""
SCRAPE_S = 1
"""Seconds between scrapes and between evaluations of the rules, so that the test need not wait."""


class Prometheus:
    """A client of the HTTP API of a Prometheus."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> Any:
        """Return the data of a reply. Raises OSError if Prometheus refuses the request."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as reply:
            return json.load(reply)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        return self.get("query", query=expression)["result"]

    def health_of_targets(self) -> dict[str, str]:
        """Return `up`, `down` or `unknown` for each job."""
        targets = self.get("targets", state="active")["activeTargets"]
        return {target["labels"]["job"]: target["health"] for target in targets}

    def alerts(self) -> dict[str, str]:
        """Return the state, `pending` or `firing`, of each alert that is active."""
        alerts = self.get("alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert["state"] for alert in alerts}


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


@pytest.mark.timeout(240)
async def test_prometheus_scrapes_evaluates_the_dashboard_and_fires_alerts(tmp_path: Path) -> None:
    with contextlib.ExitStack() as engine_stack:
        engine = engine_stack.enter_context(running_engine("--metrics-listen", "127.0.0.1:0"))
        address = await asyncio.to_thread(read_engine_address, engine)
        engine_target = urllib.parse.urlsplit(engine.wait_for_output(r"Metrics +(\S+)")).netloc
        options = ("--engine", address, "--store", "memory", "--api-key", KEY)
        with running_gateway(*options) as gateway:
            url = await asyncio.to_thread(read_gateway_url, gateway)
            targets = {
                "continuo-gateway": urllib.parse.urlsplit(url).netloc,
                "continuo-engine": engine_target,
            }
            with running_prometheus(tmp_path, targets) as prometheus:
                await wait_until(
                    lambda: prometheus.health_of_targets() == dict.fromkeys(targets, "up"),
                    "both targets are up",
                )
                await converse(url, turns=2, tokens=30)
                await wait_until(
                    lambda: bool(prometheus.query("vllm:generation_tokens_total > 0")),
                    "generated tokens are counted",
                )
                await converse(url, turns=2, tokens=30)
                await wait_until(
                    lambda: has_most_values(evaluate_dashboard(prometheus)),
                    "most queries of the dashboard have values",
                )
                await wait_until(
                    lambda: not LOSSES & prometheus.alerts().keys(), "no alert of a loss is active"
                )
                engine_stack.close()
                await wait_until(
                    lambda: "ContinuoTargetDown" in prometheus.alerts(), "the alert is active"
                )


def has_most_values(answers: dict[str, bool]) -> bool:
    return sum(answers.values()) > len(answers) * 0.8


def evaluate_dashboard(prometheus: Prometheus) -> dict[str, bool]:
    """Evaluate each query of the dashboard; Prometheus refuses one that is not valid. Returns
    whether it has a value, which those of faults and evictions have not."""
    answers: dict[str, bool] = {}
    for _, expression in dashboard_queries():
        filled = expression.replace("$job", "continuo.*").replace("$__rate_interval", "1m")
        answers[filled] = bool(prometheus.query(filled))
    return answers
