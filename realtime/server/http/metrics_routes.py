"""GET /metrics: the metrics of this process in Prometheus' text format.

A gateway requires a key with the scope `admin` for it. Series of the engine are included if the
engine belongs to this process (`continuo serve`); an engine alone has its own endpoint, so that no
series is scraped twice. `model_name` is a label of each `vllm:` series, as in vLLM.
"""

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from continuo.engine import CacheSize, EngineClient, EngineError, EngineStats
from continuo.realtime import metrics
from continuo.realtime.registry.registry import Registry
from continuo.realtime.responses.continuations import Continuations
from continuo.realtime.server import replies
from continuo.realtime.server.auth.gate import Authenticator
from continuo.realtime.server.version import VERSION
from continuo.realtime.store import Store

ENGINE_TIMEOUT_S = 2.0
"""Timeout of the request for the engine's statistics; after it, its series are left out."""


class MetricsRoutes:
    """Route of the metrics of a gateway, which may have an engine of its own."""

    def __init__(
        self,
        engine: EngineClient,
        registry: Registry,
        continuations: Continuations,
        store: Store,
        authenticator: Authenticator,
    ) -> None:
        """Args:
        engine: all engines of the gateway, and the caches of texts.
        registry: the sessions that are counted.
        continuations: the continuation points whose bytes are reported.
        store: whether it accepts writes is reported.
        authenticator: decides which keys may read the metrics.
        """
        self._engine = engine
        self._registry = registry
        self._continuations = continuations
        self._store = store
        self._authenticator = authenticator

    def routes(self) -> list[Route]:
        return [Route("/metrics", self.get)]

    async def get(self, request: Request) -> Response:
        credentials = replies.authenticate_full_key(self._authenticator, request, "admin")
        if isinstance(credentials, Response):
            return credentials
        families = [*metrics.REGISTRY.collect(), *self._gateway_gauges()]
        caches = {
            **self._engine.text.cache_sizes,
            "schema_checks": self._engine.grammar_trials.size,
            "continuation_points": self._continuations.size,
        }
        if self._engine.has_own_engine:
            stats = await _fetch_stats(self._engine)
            families += _engine_families(stats)
            caches |= _engine_caches(stats)
        return metrics_response([*families, *_cache_gauges(caches)], self._engine.ready.model)

    def _gateway_gauges(self) -> Iterator[Metric]:
        sessions = GaugeMetricFamily(
            "continuo_sessions", "Sessions in the memory of this gateway.", labels=["state"]
        )
        connected, total = len(self._registry), len(self._registry.open_sessions.ids)
        sessions.add_metric(["connected"], connected)
        sessions.add_metric(["parked"], total - connected)
        yield sessions
        yield GaugeMetricFamily(
            "continuo_active_turns",
            "Turns of this gateway that have not ended.",
            self._engine.fleet.active_turns,
        )
        yield GaugeMetricFamily(
            "continuo_engines",
            "Engines that respond to this gateway.",
            len(self._engine.fleet.loads()),
        )
        yield GaugeMetricFamily(
            "continuo_store_up", "1 if the store accepts writes.", int(self._store.is_available)
        )


class _Families(Collector):
    """Collector of given metric families, with `model_name` as a label of vLLM's."""

    def __init__(self, families: Iterable[Metric], model: str) -> None:
        self._families, self._model = families, model

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            if family.name.startswith("vllm:"):
                family.samples = [
                    sample._replace(labels={**sample.labels, "model_name": self._model})
                    for sample in family.samples
                ]
            yield family


def metrics_response(families: Iterable[Metric], model: str) -> Response:
    """Return metric families, and those of the process itself, as text, whatever the request
    accepts: in OpenMetrics, which Prometheus prefers, prometheus_client 0.26 replaces the colon of
    `vllm:` by an underscore."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Families([_build_info(), *families], model))
    return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


async def collect_engine(engine: EngineClient) -> list[Metric]:
    """Return the metrics of the engine of this process; hardly any while it does not respond."""
    stats = await _fetch_stats(engine)
    return [*_engine_families(stats), *_cache_gauges(_engine_caches(stats))]


async def _fetch_stats(engine: EngineClient) -> EngineStats | None:
    """Return the statistics of the engine of this process. None: it does not respond."""
    try:
        async with asyncio.timeout(ENGINE_TIMEOUT_S):
            return await engine.fleet.stats()
    except (EngineError, TimeoutError):
        return None


def _engine_families(stats: EngineStats | None) -> Iterator[Metric]:
    is_up = int(stats is not None)
    yield GaugeMetricFamily(
        "continuo_engine_up", "1 if the engine of this process responds.", is_up
    )
    if stats is not None:
        yield from _engine_gauges(stats)
        yield from _engine_counters(stats)


def _engine_caches(stats: EngineStats | None) -> dict[str, CacheSize]:
    if stats is None:
        return {}
    return {"grammars": CacheSize(stats.grammar_bytes, stats.grammar_bytes_max)}


def _cache_gauges(sizes: dict[str, CacheSize]) -> Iterator[Metric]:
    held = GaugeMetricFamily(
        "continuo_cache_bytes", "Resident bytes that a cache holds.", labels=["cache"]
    )
    most = GaugeMetricFamily(
        "continuo_cache_bytes_max", "Bound of the bytes of a cache.", labels=["cache"]
    )
    for name, size in sizes.items():
        held.add_metric([name], size.held_bytes)
        most.add_metric([name], size.bytes_max)
    yield held
    yield most


def _engine_gauges(stats: EngineStats) -> Iterator[Metric]:
    running = stats.active_turns - stats.waiting_turns
    waiting = stats.waiting_turns + stats.queued_turns
    used = 1 - stats.pages_free / stats.pages_total if stats.pages_total else 0.0
    yield GaugeMetricFamily("vllm:num_requests_running", "Turns with pages of KV.", running)
    yield GaugeMetricFamily(
        "vllm:num_requests_waiting", "Turns that wait for pages or for an earlier turn.", waiting
    )
    yield GaugeMetricFamily(
        "vllm:kv_cache_usage_perc", "Share of the KV pages in use; 1 is 100 percent.", used
    )
    pages = GaugeMetricFamily("continuo_kv_pages", "KV pages by owner.", labels=["owner"])
    for owner, count in (
        ("free", stats.pages_free),
        ("tree", stats.pages_tree),
        ("leased", stats.pages_leased),
    ):
        pages.add_metric([owner], count)
    yield pages
    yield GaugeMetricFamily(
        "continuo_kv_host_pages", "Pages of host memory for KV.", stats.host_pages_total
    )
    yield GaugeMetricFamily(
        "continuo_kv_host_pages_used", "Pages of host memory in use.", stats.host_pages_used
    )
    for name, text, device, host in (
        (
            "continuo_state_bytes",
            "Size of the pools of recurrent states, by place.",
            stats.state_bytes_total,
            stats.host_state_bytes_total,
        ),
        (
            "continuo_state_bytes_used",
            "Bytes of recurrent states in use, by place.",
            stats.state_bytes_used,
            stats.host_state_bytes_used,
        ),
    ):
        states = GaugeMetricFamily(name, text, labels=["place"])
        states.add_metric(["device"], device)
        states.add_metric(["host"], host)
        yield states
    sessions = GaugeMetricFamily(
        "continuo_engine_sessions",
        "Sessions in the engine, by where their KV is.",
        labels=["residency"],
    )
    elsewhere = stats.sessions - stats.sessions_on_device - stats.sessions_on_host
    sessions.add_metric(["device"], stats.sessions_on_device)
    sessions.add_metric(["host"], stats.sessions_on_host)
    sessions.add_metric(["none"], max(elsewhere, 0))
    yield sessions


def _engine_counters(stats: EngineStats) -> Iterator[Metric]:
    for name, text, value in (
        ("vllm:num_preemptions", "Turns that lost their pages and restart.", stats.retractions),
        ("continuo_engine_steps", "Steps of the device.", stats.steps),
        ("continuo_engine_failed_steps", "Steps that failed.", stats.failed_steps),
        ("continuo_engine_device_seconds", "Time that the device computed.", stats.model_s),
        ("continuo_engine_tokens_computed", "Tokens computed.", stats.tokens_computed),
        ("continuo_engine_tokens_sampled", "Tokens sampled.", stats.tokens_drawn),
        ("vllm:spec_decode_num_drafts", "Rows of a step with drafts.", stats.draft_rows),
        ("vllm:spec_decode_num_draft_tokens", "Drafts computed.", stats.draft_tokens),
        (
            "vllm:spec_decode_num_accepted_tokens",
            "Tokens sampled that were drafts.",
            stats.accepted_tokens,
        ),
        ("continuo_evicted_pages", "KV pages evicted.", stats.evicted_pages),
        ("continuo_spilled_pages", "KV pages moved to host memory.", stats.pages_spilled),
        ("continuo_recalled_pages", "KV pages moved back to the device.", stats.pages_recalled),
        (
            "continuo_spilled_state_bytes",
            "Bytes of recurrent states moved to host memory.",
            stats.state_bytes_spilled,
        ),
        ("continuo_audits", "Audits of the KV pages.", stats.audits),
        ("continuo_audit_failures", "Audits that found an error.", stats.failed_audits),
    ):
        yield CounterMetricFamily(name, text, value)


def _build_info() -> Metric:
    info = GaugeMetricFamily("continuo_build_info", "Version of Continuo.", labels=["version"])
    info.add_metric([VERSION], 1)
    return info
