"""Spans of turns in the engine, by its own clock, below the span that the client has begun:

    queue      from the request to the first step
    prefill    until the first token
    decode     until the end

A turn that is paused, or continued after another engine, has such spans for each of its parts.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from continuo.engine.core.turn import Turn

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


class TurnSpans:
    """Recorder of turns as spans of an OpenTelemetry provider."""

    def __init__(
        self, provider: "TracerProvider", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: that of the times of turns, in seconds."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._propagator = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("continuo.engine")
        self._clock = clock

    def __call__(self, turn: Turn, ended_s: float) -> None:
        context = self._propagator.extract({"traceparent": turn.traceparent})
        offset_ns = time.time_ns() - round(self._clock() * 1e9)
        first_step_s = turn.first_step_s or ended_s
        first_id_s = max(turn.first_id_s or ended_s, first_step_s)
        tokens = {
            "queue": {},
            "prefill": {
                "gen_ai.usage.input_tokens": turn.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": turn.cached_tokens or 0,
            },
            "decode": {"gen_ai.usage.output_tokens": turn.output_tokens},
        }
        times = (turn.requested_s, first_step_s, first_id_s, ended_s)
        for (name, attributes), began_s, end_s in zip(
            tokens.items(), times[:-1], times[1:], strict=True
        ):
            span = self._tracer.start_span(
                name, context, attributes=attributes, start_time=offset_ns + round(began_s * 1e9)
            )
            span.end(offset_ns + round(end_s * 1e9))
