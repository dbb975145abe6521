"""WebSocket close codes: which we use, what they mean, and whether a client should come back.

The OpenAI SDKs reconnect on 1001, 1005, 1006, 1011, 1012, 1013 and 1015, and stop on every other
code, all of 4xxx included.
"""

from enum import IntEnum


class CloseCode(IntEnum):
    NORMAL = 1000
    BINARY = 1003
    NOT_JSON = 1007
    POLICY = 1008
    TOO_BIG = 1009
    SERVER_BUG = 1011
    RESTART = 1012
    TRY_LATER = 1013
    REPLACED = 4001
    ENDED_BY_OPERATOR = 4003


EXPLANATIONS: dict[CloseCode, tuple[str, bool]] = {
    CloseCode.NORMAL: ("the session is finished, by agreement", False),
    CloseCode.BINARY: ("a binary frame, or a text one where MessagePack was agreed", False),
    CloseCode.NOT_JSON: ("too many frames that are not events", False),
    CloseCode.POLICY: ("refused: not authorised, unknown model, or not possible", False),
    CloseCode.TOO_BIG: ("a frame over twice the limit", False),
    CloseCode.SERVER_BUG: ("a fault of the server, or no answer to its pings", True),
    CloseCode.RESTART: ("the server restarts; come back soon", True),
    CloseCode.TRY_LATER: ("overloaded, or the client reads too slowly; come back later", True),
    CloseCode.REPLACED: ("a newer connection took this session over", False),
    CloseCode.ENDED_BY_OPERATOR: ("ended by the operator", False),
}
"""Meaning, and whether reconnecting makes sense."""
