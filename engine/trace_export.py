"""Export of spans from gateways and engines by OpenTelemetry, the extra `otel`."""

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

FLUSH_TIMEOUT_S = 2.0
"""How long the end of a process waits for a collector to take the last spans."""


def create_trace_provider(endpoint: str, service_name: str) -> "TracerProvider":
    """Create a provider that exports spans to a collector at `endpoint`, an OTLP URL over HTTP.
    `service_name`: used unless OTEL_SERVICE_NAME is set. Raises ImportError if the extra is not
    installed."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME", service_name)
    provider = TracerProvider(
        resource=Resource.create({"service.name": name}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return provider


def flush_traces(provider: "TracerProvider") -> None:
    """Export the last spans, within FLUSH_TIMEOUT_S, and shut the provider down."""
    flushing = threading.Thread(target=provider.shutdown, daemon=True)
    flushing.start()
    flushing.join(FLUSH_TIMEOUT_S)
