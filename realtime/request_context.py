"""The request that this task serves: its ids, for log lines and traces.

The context is that of an HTTP request, or of a WebSocket connection for its lifetime. Tasks started
meanwhile, as those of its responses, have the same one.
"""

from contextvars import ContextVar

import msgspec

from continuo.engine import cache_group


class RequestContext(msgspec.Struct):
    id: str
    """The client's `x-request-id`, or a generated one."""
    traceparent: str = ""
    """The W3C trace context that the client has sent; empty if none."""
    tenant: str = ""
    session: str = ""
    status: int = 0
    """Status of the response; 0 before it."""
    error_code: str = ""
    """Code of the error with which the request was refused; empty if it was not."""
    close_code: int = 0
    """Code with which the WebSocket was closed; 0 while it is open."""


_UNKNOWN = RequestContext("")
_current: ContextVar[RequestContext] = ContextVar("request", default=_UNKNOWN)


def begin_request(context: RequestContext) -> None:
    _current.set(context)


def name_tenant(tenant: str) -> None:
    """Set the tenant of the request that this task serves, whose share of the caches it uses."""
    current_request().tenant = tenant
    cache_group.set(tenant)


def current_request() -> RequestContext:
    """Return the context of the request that this task serves; one without an id if there is
    none. What is written to that one is lost."""
    context = _current.get()
    return RequestContext("") if context is _UNKNOWN else context
