"""Observation of one response: its times and tokens, for metrics, log and traces."""

import logging
import time

import msgspec

from continuo.engine import TurnEnded
from continuo.realtime import metrics, tracing
from continuo.realtime.protocol.items import FunctionCallItem
from continuo.realtime.protocol.response import Response, ResponseError, ResponseStatus, Usage
from continuo.realtime.request_context import current_request
from continuo.realtime.tracing import TurnTrace

log = logging.getLogger(__name__)

_FINISHED_REASONS: dict[ResponseStatus, str] = {
    "completed": "stop",
    "incomplete": "length",
    "cancelled": "abort",
    "failed": "error",
}
"""The reasons of vLLM's metric by the status of a response."""


class ResponseObservation:
    """Observes a response from its construction to `end`. All methods take microseconds."""

    def __init__(self, response_id: str) -> None:
        self._response_id = response_id
        self._began_s = time.perf_counter()
        self._began_ns = time.time_ns()
        self._first_output_s = 0.0
        self._last_output_s = 0.0
        self._unobserved_tokens = 0
        self._is_traced_by_engine = False
        upstream = current_request().traceparent
        self._span = tracing.begin_turn(upstream, self._began_ns)
        self.traceparent = self._span.traceparent if self._span is not None else upstream
        """W3C trace context for the engine: that of the turn's span, else that of the request."""

    def resume_after(self, tokens: int) -> None:
        """Leave out the first `tokens` tokens, which were generated elsewhere, and with them the
        time to the first token."""
        self._unobserved_tokens = tokens
        self._first_output_s = self._last_output_s = self._began_s

    def on_output(self, tokens: int) -> None:
        """Record that `tokens` tokens have arrived."""
        if self._unobserved_tokens:
            replayed = min(tokens, self._unobserved_tokens)
            self._unobserved_tokens -= replayed
            tokens -= replayed
        if not tokens:
            return
        now = time.perf_counter()
        if self._first_output_s:
            metrics.outputs.observe(tokens, now - self._last_output_s)
        else:
            self._first_output_s = now
            metrics.time_to_first_token_seconds.observe(now - self._began_s)
            metrics.outputs.count(tokens)
        self._last_output_s = now

    def start(self) -> None:
        """Record that the turn has started in the engine."""
        log.debug("turn started", extra={"fields": {"response": self._response_id}})

    def interrupt(self) -> None:
        """Record that the engine of the response was lost."""
        metrics.engine_interruptions.inc()
        log.debug("turn interrupted", extra={"fields": {"response": self._response_id}})

    def on_turn_ended(self, ended: TurnEnded) -> None:
        """Record that the turn has ended in the engine."""
        self._is_traced_by_engine = ended.traced

    def end(self, response: Response, session_id: str) -> None:
        """Record the end of the response. `session_id`: id of its engine session."""
        now, usage = time.perf_counter(), response.usage
        self._log_end(response.status, response.error, usage, now)
        if self._span is not None:
            trace = msgspec.structs.replace(
                self._trace(response.status, usage or Usage(), now),
                session_id=session_id.partition(".")[0],
                temperature=response.settings.sampling.temperature,
                error_code=response.error.code if response.error else "",
                tool_calls=sum(isinstance(item, FunctionCallItem) for item in response.items),
            )
            self._span.end(trace)
        self._count(response.status, usage, now)

    def end_token_turn(self, status: ResponseStatus, usage: Usage) -> None:
        """Record the end of a turn on token ids, which has no response."""
        now = time.perf_counter()
        self._log_end(status, None, usage, now)
        if self._span is not None:
            self._span.end(self._trace(status, usage, now))
        self._count(status, usage, now)

    def _count(self, status: ResponseStatus, usage: Usage | None, now: float) -> None:
        metrics.request_success.labels(_FINISHED_REASONS.get(status, "error")).inc()
        metrics.e2e_request_latency_seconds.observe(now - self._began_s)
        if usage is None or not usage.input_tokens:
            return
        metrics.prompt_tokens.inc(usage.input_tokens)
        metrics.prefix_cache_queries.inc(usage.input_tokens)
        metrics.prefix_cache_hits.inc(usage.cached_tokens)
        metrics.prefill_tokens.observe(usage.computed_tokens)
        metrics.turns_by_residency.labels(usage.residency).inc()
        metrics.request_queue_time_seconds.observe(usage.queued_s)
        metrics.request_prefill_time_seconds.observe(usage.prefill_s)
        if self._first_output_s:
            metrics.request_decode_time_seconds.observe(now - self._first_output_s)

    def _trace(self, status: ResponseStatus, usage: Usage, now: float) -> TurnTrace:
        first_s = self._first_output_s
        return TurnTrace(
            response_id=self._response_id,
            session_id="",
            began_ns=self._began_ns,
            first_output_ns=self._ns_at(first_s) if first_s else 0,
            ended_ns=self._ns_at(now),
            queued_s=usage.queued_s,
            prefill_s=usage.prefill_s,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            finish_reason=_FINISHED_REASONS.get(status, "error"),
            is_traced_by_engine=self._is_traced_by_engine,
        )

    def _ns_at(self, at_s: float) -> int:
        """Return the wall time of a `perf_counter` value, in nanoseconds since 1970."""
        return self._began_ns + round((at_s - self._began_s) * 1e9)

    def _log_end(
        self,
        status: ResponseStatus,
        error: ResponseError | None,
        usage: Usage | None,
        now: float,
    ) -> None:
        if not log.isEnabledFor(logging.DEBUG):
            return
        fields: dict[str, object] = {
            "response": self._response_id,
            "status": status,
            "code": error.code if error else None,
            "ms": round((now - self._began_s) * 1000, 1),
        }
        if usage is not None:
            fields |= {
                "input_tokens": usage.input_tokens,
                "cached_tokens": usage.cached_tokens,
                "output_tokens": usage.output_tokens,
            }
        log.debug("turn ended", extra={"fields": fields})
