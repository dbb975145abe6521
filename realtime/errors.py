"""Errors between a client and the server.

RealtimeError
├── Refusal               the request cannot be done; nothing changed, the connection stays open
│   └── BadFrame          the frame is not valid; too many in a row close the connection
├── ConnectionCloseError  the connection must be closed, with a close code
└── SetupError            the server cannot start as configured; the message is one line
"""

from typing import Literal

ErrorType = Literal["invalid_request_error", "server_error"]


class RealtimeError(Exception):
    """Base class of all errors of the gateway."""


class Refusal(RealtimeError):
    """A request that changed nothing; sent as an `error` event, or as HTTP 4xx or 5xx."""

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
        """Args:
        message: a sentence for the developer of the client, without secrets: it is sent as it is.
        code: what clients branch on; with `kind` and `retry_after_s`, determines `http_status`.
        param: path of the field at fault. None: the fault is not in one field.
        kind: category of the error in OpenAI's protocols.
        event_id: id of the refused client event. None: the encoder fills it in if the event has
            one.
        retry_after_s: seconds after which a retry would succeed. None: unknown, or never.
        """
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.kind: ErrorType = kind
        self.event_id = event_id
        self.retry_after_s = retry_after_s

    @property
    def http_status(self) -> int:
        """HTTP status of the refusal; defined also for refusals that are sent on a WebSocket.
        Faults of the server are 503, because a retry may succeed; only a bug (code `server_error`)
        is 500."""
        if self.code in _HTTP_STATUS:
            return _HTTP_STATUS[self.code]
        if self.kind == "server_error":
            return 503
        return 400 if self.retry_after_s is None else 429


_HTTP_STATUS = {
    "model_not_found": 404,
    "response_not_found": 404,
    "conversation_not_found": 404,
    "item_not_found": 404,
    "body_too_large": 413,
    "missing_api_key": 401,
    "invalid_api_key": 401,
    "ephemeral_key": 403,
    "origin_not_allowed": 403,
    "insufficient_scope": 403,
    "host_not_allowed": 403,
    "insufficient_quota": 429,
    "server_error": 500,
}


def context_length_exceeded(context_tokens: int, detail: str, param: str) -> Refusal:
    """Build the refusal of a text that does not fit the context of the model.

    The first sentence is OpenAI's: LiteLLM and LangChain recognise the error by it, or by the code
    in the message. `detail`: what is too long, by how much.
    """
    code = "context_length_exceeded"
    message = f"This model's maximum context length is {context_tokens} tokens. {detail} ({code})"
    return Refusal(message, code=code, param=param)


def internal_error() -> Refusal:
    """Build the refusal that reports a bug of the server, without its details."""
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
