"""Identity provider that signs JSON Web Tokens, and serves its public keys over HTTP."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tests.support.waiting import POLL_S

AUDIENCE = "https://talk.example"


class IdentityProvider:
    """Signs tokens, and serves its public keys over HTTP."""

    def __init__(self) -> None:
        self.keys = {"first": ec.generate_private_key(ec.SECP256R1())}
        self.fetch_count = 0
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.fetch_count += 1
                body = json.dumps(provider.jwks()).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(POLL_S,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks.json"

    def jwks(self) -> dict[str, Any]:
        algorithm = ECAlgorithm
        return {
            "keys": [
                {
                    **algorithm.to_jwk(key.public_key(), as_dict=True),
                    "kid": name,
                    "use": "sig",
                    "alg": "ES256",
                }
                for name, key in self.keys.items()
            ]
        }

    def sign(self, kid: str = "first", **claims: Any) -> str:
        payload = {"tenant": "acme", "aud": AUDIENCE, "exp": time.time() + 60, **claims}
        given = {name: value for name, value in payload.items() if value is not None}
        return jwt.encode(given, self.keys[kid], "ES256", headers={"kid": kid})

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
