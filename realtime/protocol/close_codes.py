"""WebSocket close codes: which we use, what they mean, and whether a client should come back.

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


EXPLANATIONS: dict[CloseCode, tuple[str, bool]] = {
    CloseCode.NORMAL_CLOSURE: ("the session is finished, by agreement", False),
    CloseCode.UNSUPPORTED_DATA: (
        "a binary frame, or a text one where MessagePack was agreed",
        False,
    ),
    CloseCode.INVALID_DATA: ("too many frames that are not events", False),
    CloseCode.POLICY_VIOLATION: ("refused: not authorised, unknown model, or not possible", False),
    CloseCode.MESSAGE_TOO_BIG: ("a frame over twice the limit", False),
    CloseCode.INTERNAL_ERROR: ("a fault of the server, or no answer to its pings", True),
    CloseCode.SERVICE_RESTART: ("the server restarts; come back soon", True),
    CloseCode.TRY_AGAIN_LATER: (
        "overloaded, or the client reads too slowly; come back later",
        True,
    ),
    CloseCode.SUPERSEDED: ("a newer connection took this session over", False),
    CloseCode.CLOSED_BY_OPERATOR: ("ended by the operator", False),
}
"""Meaning, and whether reconnecting makes sense."""
