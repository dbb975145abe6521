"""Output of a starting server: its progress and its addresses."""

import os
import shutil
import socket
import sys
import time
from pathlib import Path

from continuo.engine import EngineClient, escape_commands, print_line
from continuo.realtime.server.config.settings import DEFAULT_PORT, GatewaySettings
from continuo.realtime.server.http.page import explain_missing_page, is_page_built
from continuo.realtime.server.own_command import find_own_command

_IMPORTED_S = time.monotonic()


class LoadProgress:
    """Callback that prints each stage of loading once, when it begins; in a terminal, prints its
    percentage too, updated in place."""

    def __init__(self) -> None:
        self._stage = ""

    def __call__(self, what: str, fraction: float) -> None:
        if sys.stdout.isatty():
            end = "\n" if fraction >= 1 else ""
            shown = f"\r\x1b[K  {escape_commands(what)} {fraction:.0%}{end}"
            sys.stdout.write(shown)  # noqa: TID251 - escaped
            sys.stdout.flush()
        elif what != self._stage:
            self._stage = what
            print_line(f"  {what}")


def print_welcome(
    engine: EngineClient,
    settings: GatewaySettings,
    sock: socket.socket,
    demo_token: str | None = None,
) -> None:
    """Print model, addresses and commands of a server that is ready. The address of the page has
    `demo_token`, if any, in its fragment, which browsers do not send."""
    ready = engine.ready
    name, port = settings.served_model_name, sock.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "wss" if settings.ssl_certfile else "ws"
    url = f"{scheme}://{host}:{port}"
    chat = f"{find_own_command()} chat"
    if settings.ssl_certfile or port != DEFAULT_PORT or not settings.is_loopback:
        chat += f" --url {url}"
    if settings.requires_key:
        chat += " --api-key YOUR_KEY"
    fragment = "" if demo_token is None else f"#demo={demo_token}"
    address = f"http{url.removeprefix('ws')}/{fragment}"
    if not is_page_built():
        address = f"({explain_missing_page()}; the chat works without)"
    page = f"  Open           {address}\n" if settings.web else ""
    print_line(
        f"Ready after {measure_age_s():.1f} s: {name[0]} on {ready.device}, {ready.dtype}, "
        f"{ready.max_model_len:,} tokens of context.\n"
        f"\n"
        f"{page}"
        f"  Listening on   {url}/v1/realtime\n"
        f"  Chat           {chat}\n"
        f"  Stop           Ctrl-C\n"
    )
    if demo_token is not None:
        print_line(_list_things_to_try(engine))


def _list_things_to_try(engine: EngineClient) -> str:
    own_pid = os.getpid()
    # pkill finds the engine, the oldest child, also after it was restarted.
    kills = f"pkill -9 -o -P {own_pid}" if shutil.which("pkill") else f"kill -9 {engine.pid}"
    return (
        "Ask for a story, and in the middle of it\n"
        "  interrupt      Ctrl-C in the chat; on the page, Stop, or type and send\n"
        f"  kill engine    {kills}\n"
        f"  kill server    kill -9 {own_pid}, then start it again\n"
        "  come back      Ctrl-D in the chat prints how; on the page, reload\n"
        "Each time the conversation goes on where it was.\n"
    )


def measure_age_s() -> float:
    """Return the seconds since the process was started; `exec`, as at the end of `make demo`, does
    not start a new one."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    except (OSError, AttributeError):  # not Linux
        return time.monotonic() - _IMPORTED_S
