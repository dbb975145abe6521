"""WebSocket close codes of the gateway: their meaning, and whether a client should reconnect.

The OpenAI SDKs reconnect on 1001, 1005, 1006, 1011, 1012, 1013 and 1015, and stop on every other
code, all of 4xxx included.
"""

from enum import IntEnum


class CloseCode(IntEnum):
    NORMAL_CLOSURE = 1000
    UNSUPPORTED_DATA = 1003
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    MESSAGE_TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    TRY_AGAIN_LATER = 1013
    SUPERSEDED = 4001
    CLOSED_BY_OPERATOR = 4003
    CREDENTIALS_REVOKED = 4004


EXPLANATIONS: dict[CloseCode, tuple[str, bool]] = {
    CloseCode.NORMAL_CLOSURE: ("closed by the client, or at its maximum duration", False),
    CloseCode.UNSUPPORTED_DATA: ("a binary frame", False),
    CloseCode.INVALID_DATA: ("too many frames in a row that are not valid events", False),
    CloseCode.POLICY_VIOLATION: ("refused: unauthorized, unknown model, or not possible", False),
    CloseCode.MESSAGE_TOO_BIG: ("a frame far over the limit", False),
    CloseCode.INTERNAL_ERROR: ("a fault of the server, or no response to its pings", True),
    CloseCode.SERVICE_RESTART: ("the server restarts; reconnect soon", True),
    CloseCode.TRY_AGAIN_LATER: (
        "overloaded, or the client reads too slowly; reconnect later",
        True,
    ),
    CloseCode.SUPERSEDED: ("a newer connection has taken over this session", False),
    CloseCode.CLOSED_BY_OPERATOR: ("deleted, by a client or by an operator", False),
    CloseCode.CREDENTIALS_REVOKED: (
        "the key or token was revoked or has expired; resume with a valid one",
        False,
    ),
}
"""Meaning of each code, and whether a client should reconnect after it."""
