"""Authentication by key and origin, and redaction of keys in log lines."""

import logging
import sys

import pytest
from starlette.datastructures import Headers

from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.access import Credentials
from continuo.realtime.server.auth.access_policy import plain_policy
from continuo.realtime.server.auth.client_secrets import ClientSecrets
from continuo.realtime.server.auth.gate import Authenticator, Denied, offered_subprotocols
from continuo.realtime.server.auth.wrong_keys import (
    ADDRESSES_MAX,
    RIGHT_KEYS_MAX,
    WRONG_KEYS_BURST,
    WrongKeys,
)
from continuo.realtime.server.logging_setup import RedactingFormatter, Redaction

WITHOUT_KEYS = Authenticator(plain_policy({}), ClientSecrets(b"secret"))
WITH_KEYS = Authenticator(
    plain_policy({"key-one": "one", "key-two": "two"}, frozenset({"https://app.example.org"})),
    ClientSecrets(b"secret"),
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
def test_valid_key_and_trusted_origin_are_accepted(headers: dict[str, str]) -> None:
    credentials = WITH_KEYS.authenticate(Headers(headers))
    assert isinstance(credentials, Credentials)
    assert credentials.tenant in ("one", "two")


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
def test_request_without_a_valid_key_is_denied_with_401(headers: dict[str, str]) -> None:
    denied = WITH_KEYS.authenticate(Headers(headers))
    assert isinstance(denied, Denied)
    assert denied.status == 401
    assert "key-one" not in denied.message
    assert WITHOUT_KEYS.authenticate(Headers(headers)) == Credentials()


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
        "http://127.0.0.1:24010.evil.com",
        "http://127.0.0.1:24010@evil.com",
        "http://localhost/path",
        "http://localhost:",
        "http://localhost:99999",
        "http://localhost:8000#evil.com",
        "http://localhost http://evil.com",
        "file://localhost",
    ],
)
def test_foreign_origin_is_denied_with_403_even_with_a_valid_key(origin: str) -> None:
    for gate in (WITHOUT_KEYS, WITH_KEYS):
        denied = gate.authenticate(Headers({"origin": origin, "authorization": "Bearer key-one"}))
        assert isinstance(denied, Denied)
        assert denied.status == 403


@pytest.mark.parametrize(
    "origin",
    ["http://localhost", "http://127.0.0.1:8765", "https://localhost:1", "http://[::1]:3000"],
)
def test_loopback_origins_are_accepted(origin: str) -> None:
    assert WITHOUT_KEYS.authenticate(Headers({"origin": origin})) == Credentials()


def test_subprotocols_are_read_from_every_header_line() -> None:
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
        "here in the text: {}",
    ],
)
def test_log_lines_never_contain_a_key(line: str) -> None:
    redacting = Redaction(["canary-7f3a"])
    assert "canary" not in redacting.apply(line.format("canary-7f3a"))
    if "here" not in line:
        assert "canary" not in Redaction([]).apply(line.format("canary-7f3a"))


def test_logged_tracebacks_never_contain_a_key() -> None:
    try:
        raise ValueError("canary-7f3a")
    except ValueError:
        record = logging.LogRecord("x", 40, "x", 1, "went wrong", (), sys.exc_info())
    text = RedactingFormatter(["canary-7f3a"]).format(record)
    assert "went wrong" in text
    assert "ValueError" in text
    assert "canary" not in text


def test_question_mark_in_a_log_line_is_no_query_string() -> None:
    assert Redaction([]).apply("ready? yes") == "ready? yes"


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
def test_own_page_without_keys_is_trusted_at_an_ip_address_only(
    origin: str, host: str, allowed: bool
) -> None:
    credentials = WITHOUT_KEYS.authenticate(Headers({"origin": origin, "host": host}))
    assert isinstance(credentials, Credentials) is allowed


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8000", True),
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("app.localhost", True),
        ("[::1]:8000", True),
        ("192.168.1.7", True),
        ("[fd00::7]:8000", True),
        ("gateway:8000", True),
        ("app.example.org", True),
        ("App.Example.org:8000", True),
        ("", True),
        ("rebind.evil.example", False),
        ("rebind.evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("app.example.org.evil.example", False),
        ("evil.example.", False),
        ("127.0.0.1:8000:x", False),
        ("x@127.0.0.1", False),
    ],
)
def test_host_must_be_one_of_the_server_where_no_key_is_required(host: str, allowed: bool) -> None:
    """A name that its owner has pointed at this server (DNS rebinding) makes a page same-origin,
    and browsers send no Origin with its GET requests."""
    policy = plain_policy({}, frozenset({"https://app.example.org"}))
    authenticated = Authenticator(policy, ClientSecrets(b"secret")).authenticate(
        Headers({"host": host})
    )
    assert isinstance(authenticated, Credentials) is allowed
    if isinstance(authenticated, Denied):
        assert (authenticated.status, authenticated.code) == (403, "host_not_allowed")
    with_key = Headers({"host": host, "authorization": "Bearer key-one"})
    assert isinstance(WITH_KEYS.authenticate(with_key), Credentials)


def bearer(key: str) -> Headers:
    return Headers({"authorization": f"Bearer {key}"})


def status_of(gate: Authenticator, key: str, host: str) -> int:
    found = gate.authenticate(bearer(key), client_host=host)
    return found.status if isinstance(found, Denied) else 200


def test_wrong_keys_of_an_address_are_throttled() -> None:
    now = 1000.0
    gate = Authenticator(
        plain_policy({"key-one": "one", "key-two": "two"}),
        ClientSecrets(b"secret"),
        wrong_keys=WrongKeys(lambda: now),
    )
    assert status_of(gate, "key-one", "192.0.2.1") == 200
    statuses = [status_of(gate, f"wrong-{n}", "192.0.2.1") for n in range(WRONG_KEYS_BURST + 1)]
    assert statuses == [401] * WRONG_KEYS_BURST + [429]
    denied = gate.authenticate(bearer("wrong"), client_host="192.0.2.1")
    assert isinstance(denied, Denied)
    assert (denied.code, denied.retry_after_s) == ("rate_limit_exceeded", 1)
    assert status_of(gate, "wrong", "192.0.2.2") == 401, "another address"
    assert status_of(gate, "key-one", "192.0.2.1") == 200, "a key that was right here before"
    assert status_of(gate, "key-two", "192.0.2.1") == 429, "a key that might have been guessed"
    now += 1
    assert status_of(gate, "key-two", "192.0.2.1") == 200
    assert status_of(gate, "wrong", "192.0.2.1") == 401
    assert status_of(gate, "wrong", "192.0.2.1") == 429
    now += 3600
    assert [status_of(gate, "wrong", "192.0.2.1") for _ in range(WRONG_KEYS_BURST)] == statuses[:-1]
    assert status_of(gate, "key-one", "192.0.2.1") == 429, "its last use was an hour ago"


def test_throttled_address_is_reported_once() -> None:
    now = 1000.0
    gate = Authenticator(
        plain_policy({"key-one": "one"}),
        ClientSecrets(b"secret"),
        wrong_keys=WrongKeys(lambda: now),
    )
    events: list[str] = []
    for _ in range(5):
        for _ in range(WRONG_KEYS_BURST + 5):
            denied = gate.authenticate(bearer("wrong"), client_host="192.0.2.1")
            assert isinstance(denied, Denied)
            events.append(denied.event)
        now += 5
    assert events.count("wrong_keys_throttled") == 1
    assert events.count("invalid_api_key") == WRONG_KEYS_BURST - 1 + 4 * 5


def test_client_secret_and_resume_token_pass_a_throttled_address() -> None:
    secrets = ClientSecrets(b"secret")
    wrong_keys = WrongKeys(lambda: 1000.0)
    gate = Authenticator(plain_policy({"key-one": "one"}), secrets, wrong_keys=wrong_keys)
    for _ in range(WRONG_KEYS_BURST):
        assert status_of(gate, "wrong", "192.0.2.1") == 401
    minted = secrets.mint("one", GenerationSettings(), 60).value
    assert status_of(gate, minted, "192.0.2.1") == 200
    denied = gate.authenticate(bearer("ek_expired"), client_host="192.0.2.1")
    assert isinstance(denied, Denied)
    assert (denied.status, denied.accepts_resume_token) == (429, True)


def test_wrong_keys_hold_a_bounded_number_of_addresses_and_keys() -> None:
    wrong_keys = WrongKeys()
    for number in range(ADDRESSES_MAX + RIGHT_KEYS_MAX):
        wrong_keys.count(f"address-{number}")
        wrong_keys.remember("address", b"%d" % number)
    assert wrong_keys.held == (ADDRESSES_MAX, RIGHT_KEYS_MAX)
