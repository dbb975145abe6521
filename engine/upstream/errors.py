"""Errors of the requests to another server.

UpstreamError
├── ServerLost        no connection, or a server that is out of order: the same request may
│   │                 succeed later
│   ├── ServerBusy    the server is overloaded, and has lost nothing
│   └── ReplyLost     the server failed within its reply, which the request may have caused
├── RequestRefused    the server refuses this request, and always will
├── UnusableReply     the reply cannot be used: not JSON, not the expected fields, ids missing
└── OtherModel        the server does not serve the model that the engine was started for
"""


class UpstreamError(Exception):
    """Base of all errors of requests to another server. The message is for operators and, if a turn
    fails with it, for clients."""


class ServerLost(UpstreamError):
    pass


class ServerBusy(ServerLost):
    pass


class ReplyLost(ServerLost):
    pass


class RequestRefused(UpstreamError):
    """`status` is that of HTTP, or the code of an error within a stream. The message has the words
    of the server."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class UnusableReply(UpstreamError):
    pass


class OtherModel(UpstreamError):
    pass
