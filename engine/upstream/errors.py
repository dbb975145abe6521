"""Errors of the requests to another server.

UpstreamError
├── ServerLost        no connection, a cut stream, an overloaded or failing server: the same
│                     request may succeed later
├── RequestRefused    the server refuses this request, and always will
└── UnusableReply     the reply cannot be used: not JSON, not the expected fields, ids missing
"""


class UpstreamError(Exception):
    """Base of all errors of requests to another server. The message is for operators and, if a turn
    fails with it, for clients."""


class ServerLost(UpstreamError):
    pass


class RequestRefused(UpstreamError):
    """`status` is that of HTTP, or the code of an error within a stream. The message has the words
    of the server."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class UnusableReply(UpstreamError):
    pass
