"""JWKS that cannot be used: no answer of the other server fails a request, or ends the refresh."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.datastructures import Headers

from continuo.realtime.registry.access import Credentials
from continuo.realtime.server.auth import json_web_tokens
from continuo.realtime.server.auth.gate import Denied
from tests.realtime.server.auth.test_scopes_and_tokens import (
    IdentityProvider,
    authenticate,
    gate_of,
    provider,  # noqa: F401 - a fixture
)


class KeyServer:
    """Serves one raw response to each connection, in pieces with pauses between them."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.pause_s = 0.0
        self.fetch_count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/jwks.json"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.fetch_count += 1
            with sock:
                sock.recv(65_536)
                try:
                    for piece in self.pieces:
                        sock.sendall(piece)
                        time.sleep(self.pause_s)
                except OSError:
                    pass

    def respond(self, body: bytes, *, head: str = "HTTP/1.1 200 OK", size: int = -1) -> None:
        size = len(body) if size < 0 else size
        self.pieces = [f"{head}\r\nContent-Length: {size}\r\n\r\n".encode() + body]

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def key_server() -> Iterator[KeyServer]:
    server = KeyServer()
    yield server
    server.close()


def respond_slowly(server: KeyServer) -> None:
    """Send a byte now and then, for longer than a test may take."""
    server.pieces = [b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", *[b" "] * 5000]
    server.pause_s = 0.05


def respond_with_a_slow_head(server: KeyServer) -> None:
    """Send a header line byte by byte: no read of the client takes long."""
    server.pieces = [b"HTTP/1.1 200 OK\r\nX-Slow: ", *[b"a"] * 5000]
    server.pause_s = 0.05


RESPONSES: dict[str, Callable[[KeyServer], None]] = {
    "no HTTP": lambda server: server.respond(b"", head="junk"),
    "cut off": lambda server: server.respond(b'{"keys": [', size=500),
    "an error": lambda server: server.respond(b"", head="HTTP/1.1 500 No"),
    "no JSON": lambda server: server.respond(b"\xff<html>"),
    "an array": lambda server: server.respond(b"[]"),
    "no list of keys": lambda server: server.respond(b'{"keys": 7}'),
    "keys that are none": lambda server: server.respond(b'{"keys": [7, {"kty": "?"}]}'),
    "nested": lambda server: server.respond(b"[" * 100_000),
    "too long": lambda server: server.respond(b" " * (2 << 20)),
    "too many keys": lambda server: server.respond(json.dumps({"keys": [{}] * 2000}).encode()),
    "slow": respond_slowly,
    "slow head": respond_with_a_slow_head,
    "redirects to plain HTTP": lambda server: server.respond(
        b"", head=f"HTTP/1.1 302 Found\r\nLocation: {server.url}"
    ),
    "redirects to a file": lambda server: server.respond(
        b"", head="HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd"
    ),
}


@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.long
async def test_unusable_keys_deny_tokens_until_there_are_better_ones(
    name: str,
    key_server: KeyServer,
    provider: IdentityProvider,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual_s = json_web_tokens.FETCH_TIMEOUT_S
    bad_s = 1.0 if name.startswith("slow") else usual_s
    monkeypatch.setattr(json_web_tokens, "FETCH_TIMEOUT_S", bad_s)
    now_s = [1000.0]
    token, good = provider.sign(), json.dumps(provider.jwks()).encode()
    provider.url = key_server.url
    gate = gate_of(provider, clock=lambda: now_s[0])
    RESPONSES[name](key_server)
    assert isinstance(await authenticate(gate, token), Denied)
    assert key_server.fetch_count == 1, "a redirect was not followed"
    assert isinstance(await authenticate(gate, token), Denied)
    assert key_server.fetch_count == 1, "no fetch for each request"
    monkeypatch.setattr(json_web_tokens, "FETCH_TIMEOUT_S", usual_s)
    key_server.pause_s = 0.0
    key_server.respond(good)
    now_s[0] += 5
    assert isinstance(await authenticate(gate, token), Credentials)
    monkeypatch.setattr(json_web_tokens, "FETCH_TIMEOUT_S", bad_s)
    RESPONSES[name](key_server)
    now_s[0] += 5
    await authenticate(gate, sign_with_an_unknown_key())
    assert isinstance(await authenticate(gate, token), Credentials), "the last keys stay valid"


def sign_with_an_unknown_key() -> str:
    """Return a token whose key id is in no JWKS."""
    key = ec.generate_private_key(ec.SECP256R1())
    return jwt.encode({"tenant": "acme"}, key, "ES256", headers={"kid": "unknown"})


async def test_refresh_goes_on_after_garbage(
    key_server: KeyServer,
    provider: IdentityProvider,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_web_tokens, "FETCH_INTERVAL_S_MIN", 0.05)
    key_server.respond(b"", head="junk")
    good = json.dumps(provider.jwks()).encode()
    token, provider.url = provider.sign(), key_server.url
    gate = gate_of(provider)
    refreshing = asyncio.create_task(gate.keep_public_keys_fresh())
    try:
        async with asyncio.timeout(10):
            while key_server.fetch_count < 3:
                await asyncio.sleep(0.01)
            key_server.respond(good)
            headers = Headers({"authorization": f"Bearer {token}"})
            while isinstance(gate.authenticate(headers), Denied):
                await asyncio.sleep(0.01)
    finally:
        refreshing.cancel()
