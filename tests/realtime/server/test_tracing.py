"""Traces: a span for each turn with its parts, under the traceparent of the client."""

import asyncio
import http.server
import json
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from websockets.asyncio.client import connect

from continuo.engine import Sampling
from continuo.engine.server.turn_spans import TurnSpans as EngineTurnSpans
from continuo.engine.wire.messages import Generate
from continuo.realtime import tracing
from continuo.realtime.server.tracing_setup import TurnSpans
from continuo.realtime.tracing import TurnTrace
from tests.support.clients import RealtimeClient, connect_responses
from tests.support.engines import EngineHarness
from tests.support.processes import Process
from tests.support.sessions import SLOW_STEP_S
from tests.support.waiting import POLL_S, wait_until
from tests.support.web_servers import ACME, RunningServer

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
TRACED = {**ACME, "traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
SECOND_NS = 1_000_000_000


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.set_recorder(TurnSpans(provider, "demo"))
    yield exporter
    tracing.set_recorder(None)


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def bounds(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


async def test_turn_of_a_session_is_a_span_below_that_of_the_upgrade(
    server: RunningServer, exporter: InMemorySpanExporter
) -> None:
    async with connect(server.url, additional_headers=TRACED) as socket:
        client = RealtimeClient(socket)
        await client.expect("session.created")
        await client.add_message("words of the user")
        await client.send(response={"max_output_tokens": 6, "ignore_eos": True})
        usage = (await client.wait_for("response.done"))["response"]["usage"]
    spans = by_name(exporter)
    turn = spans["chat demo"]
    assert turn.context is not None
    assert f"{turn.context.trace_id:032x}" == TRACE_ID
    assert turn.parent is not None
    assert f"{turn.parent.span_id:016x}" == PARENT_ID
    assert turn.attributes is not None
    assert turn.attributes["gen_ai.conversation.id"] == client.session_id
    assert turn.attributes["gen_ai.usage.input_tokens"] == usage["input_tokens"]
    assert turn.attributes["gen_ai.usage.output_tokens"] == 6
    assert turn.attributes["gen_ai.response.finish_reasons"] == ("length",)
    began, ended = bounds(turn)
    times = [*bounds(spans["queue"]), *bounds(spans["prefill"]), *bounds(spans["decode"])]
    assert times == sorted(times)
    assert began <= times[0]
    assert times[-1] == ended
    for part in ("queue", "prefill", "decode"):
        assert spans[part].parent == turn.context
    assert "words of the user" not in str([span.to_json() for span in spans.values()])


async def test_turn_of_an_http_request_has_its_parent(
    server: RunningServer, exporter: InMemorySpanExporter
) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    status, _ = await server.request("POST", "/v1/chat/completions", body, TRACED)
    assert status == 200
    turn = by_name(exporter)["chat demo"]
    assert turn.context is not None
    assert f"{turn.context.trace_id:032x}" == TRACE_ID


async def test_request_without_traceparent_begins_a_trace(
    server: RunningServer, exporter: InMemorySpanExporter
) -> None:
    async with connect_responses(server) as client:
        await client.create_response("hello")
    assert by_name(exporter)["chat demo"].parent is None


def turn_trace(began_s: int, ended_s: int, **more: object) -> TurnTrace:
    times = {"began_ns": began_s * SECOND_NS, "ended_ns": ended_s * SECOND_NS}
    names = {"response_id": "resp", "session_id": "sess", "first_output_ns": 0}
    return TurnTrace(**{**names, **times, **more})  # type: ignore[arg-type]


def record(turn: TurnTrace) -> None:
    span = tracing.begin_turn("", turn.began_ns)
    assert span is not None
    span.end(turn)


def test_tool_wait_lasts_from_the_call_to_the_next_turn(exporter: InMemorySpanExporter) -> None:
    record(turn_trace(10, 12, tool_calls=1))
    record(turn_trace(11, 13, session_id="another"))
    assert "tool_wait" not in by_name(exporter)
    calling = exporter.get_finished_spans()[3]
    record(turn_trace(17, 18))
    waited = by_name(exporter)["tool_wait"]
    assert bounds(waited) == (12 * SECOND_NS, 17 * SECOND_NS)
    assert waited.parent == calling.context
    record(turn_trace(20, 21))
    names = [span.name for span in exporter.get_finished_spans()]
    assert names.count("tool_wait") == 1


def test_failed_turn_has_the_type_of_its_error(exporter: InMemorySpanExporter) -> None:
    record(turn_trace(1, 2, error_code="turn_failed", finish_reason="error"))
    turn = by_name(exporter)["chat demo"]
    assert turn.attributes is not None
    assert turn.attributes["error.type"] == "turn_failed"
    assert not turn.status.is_ok


# ---- the engine's own spans ------------------------------------------------------------------


@pytest.fixture
async def engine_exporter(harness: EngineHarness) -> InMemorySpanExporter:
    """Exporter of an engine that records its turns."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    harness.record_turn = EngineTurnSpans(provider)
    harness.kill()
    await wait_until(lambda: harness.launch_count == 2 and harness.engine.fleet.is_available)
    return exporter


PARTS = ["queue", "prefill", "decode"]


async def test_spans_of_the_engine_are_below_the_turn_of_the_gateway(
    server: RunningServer, engine_exporter: InMemorySpanExporter, exporter: InMemorySpanExporter
) -> None:
    async with connect(server.url, additional_headers=TRACED) as socket:
        client = RealtimeClient(socket)
        await client.expect("session.created")
        await client.send(response={"max_output_tokens": 6, "ignore_eos": True})
        usage = (await client.wait_for("response.done"))["response"]["usage"]
    [turn] = exporter.get_finished_spans()
    assert turn.name == "chat demo", "the gateway adds no parts of its own"
    parts = engine_exporter.get_finished_spans()
    assert [part.name for part in parts] == PARTS
    assert turn.context is not None
    for part in parts:
        assert part.parent is not None
        assert part.parent.span_id == turn.context.span_id
        assert part.parent.trace_id == turn.context.trace_id == int(TRACE_ID, 16)
    times = [time for part in parts for time in bounds(part)]
    assert times == sorted(times)
    assert bounds(turn)[0] - SECOND_NS < times[0] <= times[-1] < bounds(turn)[1] + SECOND_NS
    tokens = {name: value for part in parts for name, value in (part.attributes or {}).items()}
    assert tokens == {
        "gen_ai.usage.input_tokens": usage["input_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 6,
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hello", "max_tokens": 3}),
        ("/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 3}}),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 3}),
    ],
)
async def test_gateway_without_traces_passes_the_context_of_the_client_on(
    server: RunningServer, engine_exporter: InMemorySpanExporter, path: str, body: dict[str, object]
) -> None:
    status, _ = await server.request("POST", path, {"model": "demo", **body}, TRACED)
    assert status == 200
    assert [span.name for span in engine_exporter.get_finished_spans()] == PARTS
    for span in engine_exporter.get_finished_spans():
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == PARENT_ID
    await server.request("POST", path, {"model": "demo", **body})
    assert len(engine_exporter.get_finished_spans()) == 3, "no context, no spans"


async def test_turn_that_continues_on_another_engine_keeps_its_context(
    server: RunningServer,
    harness: EngineHarness,
    engine_exporter: InMemorySpanExporter,
    exporter: InMemorySpanExporter,
) -> None:
    harness.runner.step_s = SLOW_STEP_S
    async with connect(server.url, additional_headers=TRACED) as socket:
        client = RealtimeClient(socket)
        await client.expect("session.created")
        await client.send(response={"max_output_tokens": 60, "ignore_eos": True})
        await client.wait_for("response.output_text.delta")
        harness.kill()
        await client.wait_for("response.done")
    [turn] = exporter.get_finished_spans()
    assert turn.context is not None
    parts = engine_exporter.get_finished_spans()
    assert [part.name for part in parts] == PARTS, "the first engine was killed before its end"
    assert {part.parent and part.parent.span_id for part in parts} == {turn.context.span_id}


async def test_paused_turn_has_spans_for_each_of_its_parts(
    harness: EngineHarness, engine_exporter: InMemorySpanExporter
) -> None:
    engine, context = harness.engine, TRACED["traceparent"]
    session = await engine.open()
    await engine.append(session, [5, 6, 7])
    harness.runner.step_s = SLOW_STEP_S
    sampling = Sampling(max_tokens=20, ignore_eos=True)
    turn = await engine.generate(session, sampling, traceparent=context)
    await engine.pause(session)
    assert [part.name for part in engine_exporter.get_finished_spans()] == PARTS
    await engine.resume(session)
    await turn.consume(lambda _chunk: None)
    assert turn.ended is not None
    assert turn.ended.traced
    assert [part.name for part in engine_exporter.get_finished_spans()] == 2 * PARTS


def test_messages_of_a_peer_without_traces_decode() -> None:
    generate = Generate(1, "s", "t", Sampling(), traceparent=TRACED["traceparent"])
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(generate))
    del fields["traceparent"]
    old = msgspec.msgpack.encode(fields)
    assert msgspec.msgpack.decode(old, type=Generate) == Generate(1, "s", "t", Sampling())
    new = msgspec.msgpack.encode({**fields, "of a later version": 1})
    assert msgspec.msgpack.decode(new, type=Generate) == Generate(1, "s", "t", Sampling())


# ---- export ----------------------------------------------------------------------------------


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Serve an OTLP collector. Yields its URL, and what it has received."""
    received: list[ExportTraceServiceRequest] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
    server.shutdown()


def post_chat(address: str) -> int:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    request = urllib.request.Request(
        f"http://{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "traceparent": TRACED["traceparent"]},
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        return reply.status


@pytest.mark.process
async def test_gateway_and_engine_export_one_trace_over_otlp(
    chat_model: Path, collector: tuple[str, list[ExportTraceServiceRequest]]
) -> None:
    url, received = collector
    process = Process(
        *("serve", "--model", str(chat_model), "--served-model-name", "demo", "--port", "0"),
        *("--no-web", "--store", "memory", "--otlp-traces-endpoint", url),
        module="tests.support.digest_host",
    )
    try:
        address = process.wait_for_output(r"Listening on +ws://(\S+)/v1/realtime")
        assert await asyncio.to_thread(post_chat, address) == 200
        process.send_signal(signal.SIGTERM)
        await process.wait_exit()
    finally:
        process.stop()
    # The processes have ended and exported what they had.
    spans = {
        (str(span.trace_id.hex()), span.name): span
        for request in received
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    turn = next(span for (_, name), span in spans.items() if name.startswith("chat "))
    assert turn.parent_span_id.hex() == PARENT_ID
    for part in PARTS:
        assert spans[TRACE_ID, part].parent_span_id == turn.span_id
    assert len(spans) == 4
