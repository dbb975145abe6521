"""Output of a starting server: its progress and its addresses."""

import socket
import sys

from continuo.engine import EngineClient
from continuo.realtime.server.config.settings import DEFAULT_PORT, GatewaySettings


class LoadProgress:
    """Callback that prints each stage of loading once, when it begins; in a terminal, prints its
    percentage too, updated in place."""

    def __init__(self) -> None:
        self._stage = ""

    def __call__(self, what: str, fraction: float) -> None:
        if sys.stdout.isatty():
            end = "\n" if fraction >= 1 else ""
            print(f"\r\x1b[K  {what} {fraction:.0%}", end=end, flush=True)
        elif what != self._stage:
            self._stage = what
            print_line(f"  {what}")


def print_welcome(engine: EngineClient, settings: GatewaySettings, sock: socket.socket) -> None:
    """Print model, addresses and commands of a server that is ready."""
    ready = engine.ready
    name, port = settings.served_model_name, sock.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "wss" if settings.ssl_certfile else "ws"
    url = f"{scheme}://{host}:{port}"
    chat = "continuo chat"
    if settings.ssl_certfile or port != DEFAULT_PORT or not settings.is_loopback:
        chat += f" --url {url}"
    if settings.tenants:
        chat += " --api-key YOUR_KEY"
    page = f"  Open           http{url.removeprefix('ws')}/\n" if settings.web else ""
    print_line(
        f"Ready after {ready.load_s:.1f} s: {name[0]} on {ready.device}, {ready.dtype}, "
        f"{ready.max_model_len:,} tokens of context.\n"
        f"\n"
        f"{page}"
        f"  Listening on   {url}/v1/realtime\n"
        f"  Chat           {chat}\n"
        f"  Stop           Ctrl-C\n"
    )


def print_line(text: str) -> None:
    print(text, flush=True)
