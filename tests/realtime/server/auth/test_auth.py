"""Who is let in, and what is written down about it."""

import logging
import sys

import pytest
from starlette.datastructures import Headers

from continuo.realtime.registry.access import Credentials
from continuo.realtime.server.auth.client_secrets import InMemorySecrets
from continuo.realtime.server.auth.gate import Authenticator, Denied, offered_subprotocols
from continuo.realtime.server.logging_setup import RedactingFormatter

OPEN = Authenticator({}, frozenset(), InMemorySecrets())
CLOSED = Authenticator(
    {"key-one": "one", "key-two": "two"}, frozenset({"https://app.example.org"}), InMemorySecrets()
)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer key-one"},
        {"authorization": "bearer  key-two "},
        {"sec-websocket-protocol": "realtime, openai-insecure-api-key.key-one"},
        {"sec-websocket-protocol": "realtime,openai-insecure-api-key.key-two,openai-beta.x"},
        {"authorization": "Bearer key-one", "origin": "http://localhost:3000"},
        {"authorization": "Bearer key-one", "origin": "https://app.example.org"},
        {"authorization": "Bearer key-one", "origin": "HTTPS://APP.example.org"},
        {"authorization": "Bearer key-one", "origin": "https://own.org", "host": "own.org"},
    ],
)
def test_let_in(headers: dict[str, str]) -> None:
    guest = CLOSED.authenticate(Headers(headers))
    assert isinstance(guest, Credentials)
    assert guest.tenant in ("one", "two")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer key"},
        {"authorization": "Bearer key-one-more"},
        {"authorization": "Bearer KEY-ONE"},
        {"authorization": "Bearer kéy"},
        {"authorization": "Basic key-one"},
        {"authorization": "key-one"},
        {"api-key": "key-one"},
        {"cookie": "api_key=key-one"},
        {"sec-websocket-protocol": "realtime, key-one"},
        {"sec-websocket-protocol": "realtime, openai-insecure-api-key."},
    ],
)
def test_kept_out_without_a_key(headers: dict[str, str]) -> None:
    denied = CLOSED.authenticate(Headers(headers))
    assert isinstance(denied, Denied)
    assert denied.status == 401
    assert "key-one" not in denied.message
    assert OPEN.authenticate(Headers(headers)) == Credentials()


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "https://example.org",
        "https://app.example.org.evil.net",
        "https://evil.net?https://app.example.org",
        "http://app.example.org",
        "https://app.example.org:444",
        "http://localhost.evil.net",
        "http://127.0.0.1.evil.net",
        "http://[::1",
        "file://localhost",
    ],
)
def test_kept_out_by_origin_whatever_the_key(origin: str) -> None:
    for gate in (OPEN, CLOSED):
        denied = gate.authenticate(Headers({"origin": origin, "authorization": "Bearer key-one"}))
        assert isinstance(denied, Denied)
        assert denied.status == 403


@pytest.mark.parametrize(
    "origin",
    ["http://localhost", "http://127.0.0.1:8765", "https://localhost:1", "http://[::1]:3000"],
)
def test_pages_of_this_machine_may(origin: str) -> None:
    assert OPEN.authenticate(Headers({"origin": origin})) == Credentials()


def test_subprotocols_are_read_from_every_line() -> None:
    headers = Headers(
        raw=[(b"sec-websocket-protocol", b"a, b"), (b"sec-websocket-protocol", b"realtime")]
    )
    assert offered_subprotocols(headers) == ["a", "b", "realtime"]


@pytest.mark.parametrize(
    "line",
    [
        "Authorization: Bearer {}",
        "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{}, x",
        '"WebSocket /v1/realtime?token={}&model=x" [accepted]',
        "api_key={}",
        "here it stands: {}",
    ],
)
def test_a_key_is_never_written(line: str) -> None:
    redacting = RedactingFormatter(["canary-7f3a"])
    assert "canary" not in redacting.redact(line.format("canary-7f3a"))
    if "here" not in line:
        assert "canary" not in RedactingFormatter([]).redact(line.format("canary-7f3a"))


def test_nor_in_a_traceback() -> None:
    try:
        raise ValueError("canary-7f3a")
    except ValueError:
        record = logging.LogRecord("x", 40, "x", 1, "went wrong", (), sys.exc_info())
    text = RedactingFormatter(["canary-7f3a"]).format(record)
    assert "went wrong" in text
    assert "ValueError" in text
    assert "canary" not in text


def test_questions_are_not_queries() -> None:
    assert RedactingFormatter([]).redact("ready? yes") == "ready? yes"


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://192.168.1.7:8000", "192.168.1.7:8000", True),
        ("http://[fd00::7]:8000", "[fd00::7]:8000", True),
        ("http://192.168.1.7:8001", "192.168.1.7:8000", False),
        ("http://made-to-lead-here.org:8000", "made-to-lead-here.org:8000", False),
        ("file://192.168.1.7", "192.168.1.7", False),
    ],
)
def test_our_own_page_without_a_key(origin: str, host: str, allowed: bool) -> None:
    guest = OPEN.authenticate(Headers({"origin": origin, "host": host}))
    assert isinstance(guest, Credentials) is allowed
