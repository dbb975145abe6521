"""Export of traces by OpenTelemetry, the extra `otel` (`--otlp-traces-endpoint`).

    chat MODEL     a turn, from its request to its end
    ├ queue        until its first step
    ├ prefill      until its first token
    ├ decode       until its last token
    └ tool_wait    from its end until the next turn of the session, if it calls tools

Names and attributes are those of OpenTelemetry's conventions for generative AI. The parent of a
turn is the `traceparent` of its HTTP request or WebSocket upgrade. The engine receives that of the
turn; if it exports traces, queue, prefill and decode are its spans, else they are computed here
from what it reports.
"""

from collections import OrderedDict
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from continuo.engine import create_trace_provider
from continuo.realtime import tracing
from continuo.realtime.errors import SetupError
from continuo.realtime.server.own_command import find_install_command
from continuo.realtime.tracing import TurnSpan, TurnTrace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanContext

TOOL_WAITS_MAX = 10_000
"""Sessions whose last turn called a tool, and for whose next turn a span is kept open."""
_NS = 1_000_000_000


class TurnSpans:
    """Recorder of turns as spans of an OpenTelemetry provider."""

    def __init__(self, provider: "TracerProvider", model: str) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("continuo")
        self._model = model
        self._tool_waits: OrderedDict[str, tuple[SpanContext, int]] = OrderedDict()
        """By session id: the turn that called tools, and its end."""

    def __call__(self, traceparent: str, began_ns: int) -> TurnSpan:
        parent = self._propagator.extract({"traceparent": traceparent})
        kind = self._trace.SpanKind.SERVER
        span = self._tracer.start_span(f"chat {self._model}", parent, kind, start_time=began_ns)
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._trace.set_span_in_context(span))
        return _OpenSpan(self, span, carrier["traceparent"])

    def end(self, span: "Span", turn: TurnTrace) -> None:
        self._end_tool_wait(turn)
        trace = self._trace
        span.set_attributes(self._attributes(turn))
        if turn.error_code:
            span.set_attribute("error.type", turn.error_code)
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        if not turn.is_traced_by_engine:
            self._add_parts(span, turn)
        span.end(turn.ended_ns)
        if turn.tool_calls and turn.session_id:
            self._tool_waits[turn.session_id] = span.get_span_context(), turn.ended_ns
            if len(self._tool_waits) > TOOL_WAITS_MAX:
                self._tool_waits.popitem(last=False)

    def _add_parts(self, span: "Span", turn: TurnTrace) -> None:
        context = self._trace.set_span_in_context(span)
        first_ns = turn.first_output_ns or turn.ended_ns
        prefill_ns = max(first_ns - round(turn.prefill_s * _NS), turn.began_ns)
        queue_ns = max(prefill_ns - round(turn.queued_s * _NS), turn.began_ns)
        for name, start, end in (
            ("queue", queue_ns, prefill_ns),
            ("prefill", prefill_ns, first_ns),
            ("decode", first_ns, turn.ended_ns),
        ):
            self._tracer.start_span(name, context, start_time=start).end(end)

    def _end_tool_wait(self, turn: TurnTrace) -> None:
        caller, began_ns = self._tool_waits.pop(turn.session_id, (None, 0))
        if caller is not None:
            parent = self._trace.set_span_in_context(self._trace.NonRecordingSpan(caller))
            span = self._tracer.start_span("tool_wait", parent, start_time=began_ns)
            span.end(max(turn.began_ns, began_ns))

    def _attributes(self, turn: TurnTrace) -> dict[str, str | int | float | list[str]]:
        session = {"gen_ai.conversation.id": turn.session_id} if turn.session_id else {}
        return {
            **session,
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "continuo",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.response.id": turn.response_id,
            "gen_ai.request.temperature": turn.temperature,
            "gen_ai.response.finish_reasons": [turn.finish_reason],
            "gen_ai.usage.input_tokens": turn.input_tokens,
            "gen_ai.usage.output_tokens": turn.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": turn.cached_tokens,
        }


class _OpenSpan(msgspec.Struct, frozen=True):
    """The span of a turn that has begun."""

    recorder: TurnSpans
    span: "Span"
    traceparent: str

    def end(self, turn: TurnTrace) -> None:
        self.recorder.end(self.span, turn)


def check_installed(endpoint: str | None) -> None:
    """Raise SetupError if traces are to be exported and OpenTelemetry is not installed."""
    if endpoint is None:
        return
    try:
        is_installed = find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        is_installed = None
    if is_installed is None:
        raise SetupError(
            f"--otlp-traces-endpoint needs OpenTelemetry: {find_install_command('otel')}"
        )


def configure(endpoint: str | None, model: str) -> "TracerProvider | None":
    """Export the turns of this process to a collector at `endpoint`, an OTLP URL over HTTP. Returns
    the provider, to shut down at the end; None without an endpoint. Raises SetupError."""
    check_installed(endpoint)
    if endpoint is None:
        return None
    provider = create_trace_provider(endpoint, "continuo")
    tracing.set_recorder(TurnSpans(provider, model))
    return provider
