"""Log lines: one for each request and connection, security events, and the life of a session at
debug level; nothing that users write, and no keys."""

import asyncio
import importlib
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from continuo.engine.line_limit import LINES_PER_MINUTE, LineLimit
from continuo.realtime import metrics
from continuo.realtime.limits import Limits
from continuo.realtime.request_context import RequestContext, begin_request
from continuo.realtime.server.auth.wrong_keys import WRONG_KEYS_BURST, WrongKeys
from continuo.realtime.server.hardening import guarded_http
from continuo.realtime.server.logging_setup import (
    PEER_LOGGERS,
    PeerLineFilter,
    RedactingFormatter,
    RedactingJsonFormatter,
    format_fields,
)
from continuo.realtime.server.security_log import SecurityLog, security_log
from tests.support.clients import RealtimeClient, connect_realtime, open_realtime_session
from tests.support.processes import read_engine_address, running_engine
from tests.support.web_servers import ACME, API_KEY, RunningServer, exchange_raw

SECRET_TEXT = "the user's secret words"


class JsonLines(logging.Handler):
    """Collects the lines of all loggers as JSON, decoded."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(RedactingJsonFormatter([API_KEY]))
        self.text = ""
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        assert "\n" not in line
        self.text += line + "\n"
        self.lines.append(json.loads(line))

    def messages(self, session: str) -> list[str]:
        """The messages of a session's life, in order."""
        return [
            line["message"].replace(session, "ID")
            for line in self.lines
            if session in (line.get("session"), *line["message"].split())
        ]

    async def wait_for(self, message: str, **fields: object) -> dict[str, Any]:
        async with asyncio.timeout(10):
            while True:
                for line in self.lines:
                    if line["message"] == message and fields.items() <= line.items():
                        return line
                await asyncio.sleep(0.01)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[JsonLines]:
    # Earlier tests of this process may have logged as many events as a minute admits.
    monkeypatch.setattr(security_log, "_limit", LineLimit())
    handler, root = JsonLines(), logging.getLogger("continuo")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


async def test_request_has_one_line_and_its_id(server: RunningServer, logged: JsonLines) -> None:
    headers = {**ACME, "x-request-id": "trace-7"}
    path = "/v1/realtime/sessions/sess_absent"
    status, received, _ = await server.exchange("GET", path + "?resume_token=t", headers=headers)
    assert (status, received["x-request-id"]) == (404, "trace-7")
    line = await logged.wait_for("request", request_id="trace-7")
    assert {
        name: line[name] for name in ("level", "method", "path", "status", "code", "tenant")
    } == {
        "level": "info",
        "method": "GET",
        "path": path,
        "status": 404,
        "code": "session_not_found",
        "tenant": "acme",
    }
    assert 0 < line["ms"] < 10_000
    assert "resume_token" not in logged.text


@pytest.mark.parametrize("sent", ["a b", "x" * 200, 'quo"ted', "ümlaut"])
async def test_request_id_that_is_no_token_is_replaced(server: RunningServer, sent: str) -> None:
    headers = {**ACME, "x-request-id": sent}
    _, received, _ = await server.exchange("GET", "/v1/models", headers=headers)
    assert received["x-request-id"].startswith("req_")


async def test_monitoring_is_logged_at_debug_level(
    server: RunningServer, logged: JsonLines
) -> None:
    await server.request("GET", "/health")
    assert (await logged.wait_for("request", path="/health"))["level"] == "debug"


async def test_connection_has_one_line_and_its_session_a_life(
    server: RunningServer, logged: JsonLines
) -> None:
    headers = {**ACME, "x-request-id": "upgrade-1"}
    async with connect(server.url, additional_headers=headers) as socket:
        assert socket.response is not None
        assert socket.response.headers["x-request-id"] == "upgrade-1"
        client = RealtimeClient(socket)
        await client.expect("session.created")
        await client.add_message(SECRET_TEXT)
        await client.complete_response(max_output_tokens=4)
    line = await logged.wait_for("connection", request_id="upgrade-1")
    assert (line["status"], line["close_code"], line["tenant"]) == (101, 1000, "acme")
    assert (line["path"], line["session"]) == ("/v1/realtime", client.session_id)
    await logged.wait_for(f"session {client.session_id} parked")
    async with connect_realtime(f"{server.url}?{client.resume_query}") as resumed:
        await resumed.receive()
        await resumed.send("session.close")
        await resumed.wait_close_code()
    await logged.wait_for(f"session {client.session_id} closed")
    life = [message for message in logged.messages(client.session_id) if message != "connection"]
    assert life == [
        "session opened",
        "turn started",
        "turn ended",
        "session ID parked",
        "session resumed",
        "session ID closed",
    ]
    assert SECRET_TEXT not in logged.text
    assert API_KEY not in logged.text


async def test_wrong_key_is_a_security_event(server: RunningServer, logged: JsonLines) -> None:
    wrong = {"Authorization": "Bearer sk-wrong-and-long"}
    await server.request("GET", "/v1/models", headers=wrong)
    line = await logged.wait_for("security event", event="invalid_api_key")
    assert (line["level"], line["client"]) == ("warning", "127.0.0.1")
    with pytest.raises(InvalidStatus):
        await connect(server.url, additional_headers={**ACME, "Origin": "https://evil.example"})
    await logged.wait_for("security event", event="origin_not_allowed")
    assert "sk-wrong" not in logged.text
    assert "evil" not in logged.text


@pytest.mark.parametrize("path", ["/v1/models", "/v1/responses/x", "/v1/messages", "upgrade"])
async def test_wrong_keys_over_http_get_429_and_when_to_try_again(
    server: RunningServer, path: str
) -> None:
    server.app.state.authenticator.wrong_keys = WrongKeys(lambda: 1000.0)
    headers = {"Authorization": "Bearer sk-wrong"}
    for _ in range(WRONG_KEYS_BURST):
        await server.exchange("GET", "/v1/responses/x", headers=headers)
    if path == "upgrade":
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.url, additional_headers=headers)
        response = refused.value.response
        status, retry_after = response.status_code, response.headers["retry-after"]
    else:
        method = "POST" if path == "/v1/messages" else "GET"
        status, received, _ = await server.exchange(method, path, {}, headers)
        retry_after = received["retry-after"]
    assert (status, retry_after) == (429, "1")
    if path != "upgrade":
        assert (await server.request("GET", "/v1/stats", headers={}))[0] == 401, "without a key"


async def test_request_without_a_key_is_no_security_event(
    server: RunningServer, logged: JsonLines
) -> None:
    await server.request("GET", "/v1/stats", headers={})
    await logged.wait_for("request", status=401)
    assert "security event" not in logged.text


async def test_malformed_frames_are_a_security_event(
    server: RunningServer, logged: JsonLines
) -> None:
    async with open_realtime_session(server.url) as client:
        for _ in range(Limits().bad_frames_max):
            await client.socket.send("{")
        assert await client.wait_close_code() == 1007
    line = await logged.wait_for("security event", event="malformed_frames")
    assert line["close_code"] == 1007


def test_flood_of_security_events_is_counted_not_logged(logged: JsonLines) -> None:
    now = 0.0
    events = SecurityLog(lambda: now)
    for _ in range(LINES_PER_MINUTE + 90):
        events.report("invalid_api_key", ("192.0.2.1", 1))
    assert len(logged.lines) == LINES_PER_MINUTE
    events.report("origin_not_allowed", None)
    assert logged.lines[-1]["event"] == "origin_not_allowed"
    now = 61.0
    events.report("invalid_api_key", ("192.0.2.1", 1))
    assert logged.lines[-1]["suppressed"] == 90


@pytest.fixture
def peer_lines() -> Iterator[JsonLines]:
    """The lines of uvicorn, filtered as in a server."""
    handler, uvicorn, peer_filter = (
        JsonLines(),
        logging.getLogger("uvicorn.error"),
        PeerLineFilter(),
    )
    uvicorn.addHandler(handler)
    uvicorn.addFilter(peer_filter)
    yield handler
    uvicorn.removeFilter(peer_filter)
    uvicorn.removeHandler(handler)


def count_events(event: str) -> float:
    name = "continuo_security_events_total"
    return metrics.REGISTRY.get_sample_value(name, {"event": event}) or 0.0


GARBAGE = b"garbage\r\n\r\n"
H2C = (
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
)


@pytest.mark.parametrize(
    ("sent", "messages"),
    [(GARBAGE, ["Invalid HTTP request received."] * LINES_PER_MINUTE), (H2C, [])],
    ids=["garbage", "upgrade to HTTP/2"],
)
async def test_flood_of_requests_fills_no_log(
    server: RunningServer, peer_lines: JsonLines, sent: bytes, messages: list[str]
) -> None:
    for _ in range(3 * LINES_PER_MINUTE):
        await exchange_raw(server, sent)
    assert [line["message"] for line in peer_lines.lines] == messages


async def test_flood_of_tls_handshakes_fills_no_log(
    server: RunningServer, logged: JsonLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded_http, "security_log", SecurityLog())
    before = count_events("tls_on_plain_port")
    for _ in range(3 * LINES_PER_MINUTE):
        await exchange_raw(server, b"\x16\x03\x01\x02\x00\x01\x00")
    lines = [line for line in logged.lines if line.get("event") == "tls_on_plain_port"]
    assert len(lines) == LINES_PER_MINUTE
    assert count_events("tls_on_plain_port") - before == 3 * LINES_PER_MINUTE


def test_lines_that_were_dropped_are_counted_by_the_next() -> None:
    now = 0.0
    peer_filter = PeerLineFilter(lambda: now)

    def passes(message: str, *args: object) -> logging.LogRecord | None:
        record = logging.makeLogRecord({"msg": message, "args": args})
        return record if peer_filter.filter(record) else None

    passed = [passes("response %s is not stored", n) is not None for n in range(100)]
    assert passed == [True] * LINES_PER_MINUTE + [False] * (100 - LINES_PER_MINUTE)
    assert passes("another message") is not None
    now = 61.0
    line = passes("response %s is not stored", 100)
    assert line is not None
    assert line.fields == {"suppressed": 90}  # type: ignore[attr-defined]  # a field that we add
    assert passes("Invalid UTF-8 sequence received from client.") is None


def test_loggers_whose_lines_are_limited_exist() -> None:
    for name in PEER_LOGGERS:
        if name.startswith("continuo."):
            assert importlib.import_module(name).log.name == name


def test_console_line_cannot_be_forged() -> None:
    begin_request(RequestContext("r1", tenant="acme"))
    fields = {"path": "/a\n2026-01-01 ERROR forged", "status": 404}
    record = logging.makeLogRecord({"msg": "request", "levelname": "INFO", "fields": fields})
    line = RedactingFormatter([]).format(record)
    assert "\n" not in line
    assert line.endswith(r"path='/a\n2026-01-01 ERROR forged' status=404 tenant=acme request_id=r1")
    begin_request(RequestContext(""))


def test_formats_redact_keys_and_keep_tracebacks() -> None:
    try:
        raise ValueError("Bearer abc and my-key")
    except ValueError as error:
        record = logging.makeLogRecord({"msg": "my-key", "exc_info": (type(error), error, None)})
    for formatter in (RedactingFormatter(["my-key"]), RedactingJsonFormatter(["my-key"])):
        line = formatter.format(record)
        assert "my-key" not in line
        assert "abc" not in line
        assert "ValueError" in line
    assert format_fields({}) == ""


@pytest.mark.process
@pytest.mark.timeout(120)
async def test_engine_process_logs_json_too() -> None:
    with running_engine("--log-format", "json") as process:
        host, port = (await asyncio.to_thread(read_engine_address, process)).split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x04\x00\x00\x00junk")
        line = json.loads(await asyncio.to_thread(process.wait_for_output, r"^(\{.*)$"))
        writer.close()
    assert (line["level"], line["logger"]) == ("warning", "continuo.engine.server.listener")
    assert line["message"].startswith("refused a client")
    assert line["time"].endswith("Z")


@pytest.mark.parametrize("formatter", [RedactingFormatter([]), RedactingJsonFormatter([])])
def test_lines_command_no_terminal(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("x", logging.ERROR, "", 0, "said %s", ("\x1b]0;\x9b\u202e",), None)
    assert r"said \u001b]0;\u009b\u202e" in formatter.format(record)
