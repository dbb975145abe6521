"""Undocumented parts of uvicorn and websockets: the pinned versions, and the names that are used.

An overridden method that a dependency renames is no longer called, and no error shows it.
"""

import dis
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from uvicorn import Config, Server
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

PYPROJECT = Path(__file__).parents[4] / "pyproject.toml"

USED_NAMES: dict[type, str] = {
    HttpToolsProtocol: """
        connection_made connection_lost data_received send_400_response handle_websocket_upgrade
        on_message_begin on_url on_header on_headers_complete on_body on_message_complete
        on_response_complete _start_asgi_task _should_upgrade _unset_keepalive_if_required
        client cycle flow headers logger loop parser pipeline transport url
    """,
    RequestResponseCycle: """
        disconnected keep_alive message_event more_body response_complete response_started scope
        transport
    """,
    FlowControl: "pause_reading read_paused resume_reading resume_writing",
    WebSocketsSansIOProtocol: """
        connection_made connection_lost data_received handle_connect handle_parser_exception
        handle_ping handle_pong on_task_complete receive resume_writing schedule_ping send
        send_keepalive_ping send_receive_event_to_app shutdown
        client close_sent close_timer conn disconnected frames handshake_complete
        handshake_initiated last_ping_rtt loop ping_interval ping_timer queue read_paused scope
        transport writable
    """,
    ServerProtocol: """
        close_sent current_size data_to_send fail max_message_size parser parser_exc reader
        send_ping state writes
    """,
    StreamReader: "buffer",
    Config: "http_protocol_class ssl",
    Server: "lifespan server_state servers shutdown started startup",
}
"""Names of each class that realtime/server overrides, reads or sets."""


@pytest.mark.parametrize("package", ["uvicorn", "websockets"])
def test_package_with_undocumented_parts_in_use_is_one_that_was_tested(package: str) -> None:
    listed = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    (pin,) = (one for one in map(Requirement, listed) if one.name == package)
    assert [each.operator for each in pin.specifier] == ["~="], f"{pin} also permits other releases"
    assert pin.specifier.contains(version(package)), (
        f"{package} {version(package)} is installed, but realtime/server uses"
        f" undocumented parts of {package} and was tested with {pin.specifier} only. Compare the"
        " classes in USED_NAMES, run tests/realtime/server, and then change the pin in pyproject."
    )


@pytest.mark.parametrize("kind", USED_NAMES, ids=lambda kind: kind.__name__)
def test_undocumented_names_in_use_exist(kind: type) -> None:
    gone = sorted(set(USED_NAMES[kind].split()) - _names_of(kind))
    assert not gone, (
        f"{kind.__module__}.{kind.__name__} no longer has {', '.join(gone)}, which"
        f" realtime/server uses or overrides"
    )


def _names_of(kind: type) -> set[str]:
    """Names of a class: its members, and the attributes that its methods set."""
    members = [member for base in kind.__mro__ for member in vars(base).values()]
    code = [
        step for each in filter(inspect.isfunction, members) for step in dis.get_instructions(each)
    ]
    return {*dir(kind), *(step.argval for step in code if step.opname == "STORE_ATTR")}
