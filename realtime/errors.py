"""What can go wrong between a client and us, drawn once.

RealtimeError
├── Refusal          what was asked cannot be done; nothing changed, the connection goes on
│   └── BadFrame     the frame is not one of the protocol; too many of them end the connection
├── Hangup           the connection must end, with a close code
└── SetupError       the server cannot start as asked: one line for the person at the terminal
"""

from typing import Literal

ErrorType = Literal["invalid_request_error", "server_error"]


class RealtimeError(Exception):
    """Base of the tree."""


class Refusal(RealtimeError):
    """Becomes an `error` event. `param` is the path of the field at fault; `event_id` is the
    client's; `retry_after_s` says when it would be done."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        param: str | None = None,
        kind: ErrorType = "invalid_request_error",
        event_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.kind: ErrorType = kind
        self.event_id = event_id
        self.retry_after_s = retry_after_s

    @property
    def http_status(self) -> int:
        """The HTTP status it has, or would have. A fault of ours is one that may be gone later,
        but for a bug."""
        if self.code in _HTTP_STATUS:
            return _HTTP_STATUS[self.code]
        if self.kind == "server_error":
            return 503
        return 400 if self.retry_after_s is None else 429


_HTTP_STATUS = {
    "model_not_found": 404,
    "response_not_found": 404,
    "body_too_large": 413,
    "server_error": 500,
}


def internal_error() -> Refusal:
    """What a client hears of one of ours."""
    message = "The server had a fault. The connection is still good."
    return Refusal(message, code="server_error", kind="server_error")


class BadFrame(Refusal):
    pass


class ConnectionCloseError(RealtimeError):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class SetupError(RealtimeError):
    pass
