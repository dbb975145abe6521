"""WebSocket close codes: their meaning, and whether the client reconnects."""

from typing import NamedTuple

_CLOSE_CODES = {
    1000: ("the session is finished", False),
    1001: ("the server is going away; another one may take over", True),
    1003: ("the server does not accept binary frames", False),
    1005: ("the connection was closed without a reason", True),
    1006: ("the connection was lost", True),
    1007: ("the server received malformed data", False),
    1008: ("the server refused the connection", False),
    1009: ("a message was too large", False),
    1011: ("the server had an internal error", True),
    1012: ("the server is restarting", True),
    1013: ("the server is overloaded", True),
    1015: ("the TLS handshake failed", True),
    4001: ("another connection took over this session", False),
    4003: ("the session was ended by the operator", False),
    4004: ("the key was revoked or has expired", False),
}
_APPLICATION_CODE_MIN = 3000


class CloseInfo(NamedTuple):
    code: int
    reason: str
    is_recoverable: bool


def describe_close_code(code: int, server_reason: str = "") -> CloseInfo:
    """Look up a close code. Unknown codes are recoverable below 3000, and not from there on."""
    unknown = ("the connection was closed", code < _APPLICATION_CODE_MIN)
    reason, is_recoverable = _CLOSE_CODES.get(code, unknown)
    return CloseInfo(code, server_reason or reason, is_recoverable)
