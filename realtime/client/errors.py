"""Errors of the client.

ClientError
├── ConnectionClosedError  the connection is closed for good: the client does not reconnect
├── EventRefusedError      the server refused one event; nothing changed, the connection stays open
├── ResponseFailedError    a response ended with the status `failed`; the session is intact
└── ToolError              raised by a tool's function: its message is the result the model reads
"""


class ClientError(Exception):
    """Base class of all errors of the client."""


class ConnectionClosedError(ClientError):
    """The connection is closed for good.

    `code`: code of the server's last error; `close_NNNN` after a WebSocket close code; `http_NNN`
    if the server answered the upgrade with that status and no code of its own; `unreachable`;
    `certificate_not_trusted`; `disconnected` after a call of `close`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EventRefusedError(ClientError):
    """The server refused one event. `param`: path of the field at fault, or None. `is_temporary`:
    whether the same event may succeed later."""

    def __init__(
        self, code: str, message: str, param: str | None = None, *, is_temporary: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.is_temporary = is_temporary


class ResponseFailedError(ClientError):
    """A response failed. `text`: what had been generated."""

    def __init__(self, code: str, message: str, text: str) -> None:
        super().__init__(message)
        self.code = code
        self.text = text


class ToolError(ClientError):
    """A tool could not do what the model requested. The model reads the message, and can correct
    the arguments or explain."""
