"""TLS contexts of the server and of its links to engines, and the expiry of a certificate."""

import ssl
import time
from pathlib import Path

from continuo.realtime.errors import SetupError
from continuo.realtime.server.config.settings import GatewaySettings

EXPIRY_WARNING_S = 14 * 86_400.0
"""Remaining validity below which `continuo config check` warns of a certificate."""


def make_engine_tls(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Return the TLS context of links to engines. Returns None without TLS. Raises SetupError."""
    if settings.engine_cafile is None:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.engine_cafile)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SetupError(f"--engine-cafile {settings.engine_cafile}: {reason}") from None
    context.check_hostname = False  # a trusted CA is enough: an engine may have many addresses
    return context


def make_server_tls(certfile: str | None, keyfile: str | None) -> ssl.SSLContext | None:
    """Return the TLS context of a server. Returns None without TLS. Raises SetupError."""
    if certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, certfile, keyfile)
    return context


def load_certificate(context: ssl.SSLContext, certfile: str, keyfile: str | None) -> None:
    """Load certificate and key of a server into a TLS context. Raises SetupError."""
    option = f"--ssl-certfile {certfile}"
    if keyfile:
        option += f" --ssl-keyfile {keyfile}"
    elif not _has_private_key(certfile):
        raise SetupError(f"{option} has no private key: give the file with it as --ssl-keyfile")
    try:
        # An empty password: without one, OpenSSL would prompt on the terminal.
        context.load_cert_chain(certfile, keyfile, password=str)
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or str(error)
        raise SetupError(f"{option}: cannot be used ({reason})") from None


def _has_private_key(certfile: str) -> bool:
    """Whether a PEM file contains a private key. Returns True if it cannot be read, which is
    reported when it is loaded."""
    try:
        return b"PRIVATE KEY-----" in Path(certfile).read_bytes()
    except OSError:
        return True


def measure_validity_s(server: ssl.SSLContext, certfile: str) -> float:
    """Return for how long the certificate of a server is still valid, in seconds. Raises
    ssl.SSLError if the certificate is not valid now.

    A handshake in memory, with a client that trusts this certificate alone, makes OpenSSL examine
    the certificate that the server would send.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certfile)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    client_end = client.wrap_bio(to_client, to_server)
    for end in (client_end, server_end, client_end):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate = client_end.getpeercert()
    assert certificate is not None, "the handshake is complete"
    return ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()
