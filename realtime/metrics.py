"""Metrics of this process, for Prometheus. Each is incremented where its event already passes.

Names and meanings are vLLM's where vLLM has the metric (`vllm:…`), and ours elsewhere
(`continuo_…`). Metrics that are read, not counted (gauges of the engine, the store and the
registry), are collected when they are scraped: see `server.http.metrics_routes`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

REGISTRY = CollectorRegistry()
"""Registry of the metrics in this module; prometheus_client's global one stays unused."""

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
_LONG_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 200_000)


def _start_at_zero(counter: Counter, values: Iterable[str]) -> None:
    """Expose the series of each label value from the start: a rate, as Prometheus computes it, does
    not see the first increment of a series that did not exist before."""
    for value in values:
        counter.labels(value)


# ---------------------------------------------------------------- responses, by vLLM's names

prompt_tokens = Counter(
    "vllm:prompt_tokens", "Tokens of the prompts of responses.", registry=REGISTRY
)
prefix_cache_queries = Counter(
    "vllm:prefix_cache_queries", "Prompt tokens looked up in KV.", registry=REGISTRY
)
prefix_cache_hits = Counter(
    "vllm:prefix_cache_hits", "Prompt tokens found in KV.", registry=REGISTRY
)
request_success = Counter(
    "vllm:request_success",
    "Responses that have ended, by reason: stop, length, abort or error.",
    ["finished_reason"],
    registry=REGISTRY,
)
_start_at_zero(request_success, ("stop", "length", "abort", "error"))
time_to_first_token_seconds = Histogram(
    "vllm:time_to_first_token_seconds",
    "Time from the start of a response to its first token.",
    buckets=(*_SECONDS, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160),
    registry=REGISTRY,
)


class OutputMetrics(Collector):
    """The tokens generated, and the times between the outputs of a response.

    They are counted with every output of every response, on the event loop alone, and therefore
    without the locks of prometheus_client's metrics, which take most of the time of those.
    """

    _BOUNDS = (0.0025, *_SECONDS[1:], 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, inf)

    def __init__(self) -> None:
        self._tokens = 0
        self._counts = [0] * len(self._BOUNDS)
        self._sum_s = 0.0

    def count(self, tokens: int) -> None:
        """Count the tokens of the first output of a response."""
        self._tokens += tokens

    def observe(self, tokens: int, latency_s: float) -> None:
        """Count the tokens of a later output, and the time since the output before it."""
        self._tokens += tokens
        self._counts[bisect_left(self._BOUNDS, latency_s)] += 1
        self._sum_s += latency_s

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily("vllm:generation_tokens", "Tokens generated.", self._tokens)
        yield HistogramMetricFamily(
            "vllm:inter_token_latency_seconds",
            "Time between two outputs of a response, at the gateway.",
            buckets=[
                ("+Inf" if bound == inf else str(bound), count)
                for bound, count in zip(self._BOUNDS, accumulate(self._counts), strict=True)
            ],
            sum_value=self._sum_s,
        )


outputs = OutputMetrics()
REGISTRY.register(outputs)
e2e_request_latency_seconds = Histogram(
    "vllm:e2e_request_latency_seconds",
    "Time from the start of a response to its end.",
    buckets=_LONG_SECONDS,
    registry=REGISTRY,
)
request_queue_time_seconds = Histogram(
    "vllm:request_queue_time_seconds",
    "Time that a response waited in the engine for its first step.",
    buckets=_LONG_SECONDS,
    registry=REGISTRY,
)
request_prefill_time_seconds = Histogram(
    "vllm:request_prefill_time_seconds",
    "Time from the first step of a response to its first token.",
    buckets=_LONG_SECONDS,
    registry=REGISTRY,
)
request_decode_time_seconds = Histogram(
    "vllm:request_decode_time_seconds",
    "Time from the first token of a response to its end.",
    buckets=_LONG_SECONDS,
    registry=REGISTRY,
)

# ---------------------------------------------------------------- sessions

prefill_tokens = Histogram(
    "continuo_prefill_tokens",
    "Prompt tokens prefilled after a response was requested, those not found in KV.",
    buckets=_TOKENS,
    registry=REGISTRY,
)
turns_by_residency = Counter(
    "continuo_turns",
    "Turns that have ended, by where the KV of their session was when they began.",
    ["residency"],
    registry=REGISTRY,
)
_start_at_zero(turns_by_residency, ("hot", "host", "recomputed", "none", "unknown"))
engine_interruptions = Counter(
    "continuo_engine_interruptions",
    "Turns whose engine was lost, and that were continued elsewhere.",
    registry=REGISTRY,
)
sessions_opened = Counter(
    "continuo_sessions_opened", "Sessions opened, forks included.", registry=REGISTRY
)
resumes = Counter(
    "continuo_resumes",
    "Requests to resume a session, by outcome: exact, snapshot or the code of the refusal.",
    ["outcome"],
    registry=REGISTRY,
)
_start_at_zero(resumes, ("exact", "snapshot"))
rewinds = Counter(
    "continuo_rewinds",
    "Edits of the history that discarded KV, and must prefill again.",
    registry=REGISTRY,
)
rewound_tokens = Counter(
    "continuo_rewound_tokens", "Tokens to prefill again after rewinds.", registry=REGISTRY
)

# ---------------------------------------------------------------- requests and connections

connections = Gauge(
    "continuo_connections", "Open WebSocket connections.", ["path"], registry=REGISTRY
)


class LoopSeconds:
    """The time that the event loop has used, by class of the connection, in seconds. It is added to
    with every message, on the event loop alone, and therefore without the locks of
    prometheus_client's metrics."""

    def __init__(self) -> None:
        self.used_s = {"http": 0.0, "websocket": 0.0}

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "continuo_loop_seconds",
            "Time that the event loop took to parse and handle what connections sent, by their "
            "class: http or websocket.",
            labels=["class"],
        )
        for name, used_s in self.used_s.items():
            family.add_metric([name], used_s)
        yield family


loop_seconds = LoopSeconds()
REGISTRY.register(loop_seconds)
input_wait_seconds = Histogram(
    "continuo_input_wait_seconds",
    "Time that input of a connection within its share of the event loop waited for a turn, if it "
    "was not parsed at once.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
    registry=REGISTRY,
)
requests = Counter(
    "continuo_requests",
    "HTTP requests and WebSocket upgrades, by route and status.",
    ["method", "path", "status"],
    registry=REGISTRY,
)
refusals = Counter(
    "continuo_refusals",
    "Refused requests and client events, by error code.",
    ["code"],
    registry=REGISTRY,
)

security_events = Counter(
    "continuo_security_events",
    "Wrong keys, foreign origins, malformed frames, by kind of event.",
    ["event"],
    registry=REGISTRY,
)

# ---------------------------------------------------------------- store

store_call_seconds = Histogram(
    "continuo_store_call_seconds",
    "Time of a call of the store.",
    ["call"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
    registry=REGISTRY,
)
store_failures = Counter(
    "continuo_store_failures",
    "Calls that failed because the store was unavailable.",
    ["call"],
    registry=REGISTRY,
)
