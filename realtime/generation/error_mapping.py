"""Mapping of engine errors, store errors and timeouts to refusals."""

from continuo.engine import (
    BadRequest,
    EngineClient,
    EngineError,
    EngineLost,
    SessionQuarantined,
    StaleEngineFence,
    TooLong,
    UnknownEngineSession,
)
from continuo.realtime.errors import Refusal
from continuo.realtime.protocol.response import ResponseError
from continuo.realtime.store import (
    IdempotencyConflict,
    LeaseLost,
    SessionEnded,
    StoreError,
    UnknownLayout,
)

RETRY_AFTER_S = 2.0


def require_engine(engine: EngineClient) -> None:
    """Require that an engine is available, or will be soon. Raises Refusal."""
    if not engine.fleet.is_available_soon:
        raise Refusal(
            "The model is not available now. Nothing has changed: try again.",
            code="engine_unavailable",
            kind="server_error",
            retry_after_s=RETRY_AFTER_S,
        )


def make_timeout_refusal(waited_s: float) -> Refusal:
    """Make the refusal of a request that no engine accepted within `waited_s` seconds."""
    return Refusal(
        f"The model did not accept this within {waited_s:g} seconds; it may be restarting. "
        "Nothing has changed: try again.",
        code="engine_unavailable",
        kind="server_error",
        retry_after_s=RETRY_AFTER_S,
    )


def map_engine_error(error: EngineError) -> Refusal:
    """Map an engine error to a refusal."""
    if isinstance(error, StaleEngineFence):
        return make_replaced_refusal()
    if isinstance(error, SessionQuarantined):
        # Not a server_error: clients retry those, and this can never succeed.
        return Refusal(
            "The engine process died each time it computed this session, so the session is "
            "quarantined. Begin another one.",
            code="session_quarantined",
        )
    error = _without_engine_session(error)
    code = "context_length_exceeded" if isinstance(error, TooLong) else error.code
    if isinstance(error, BadRequest):
        return Refusal(error.message, code=code, param=error.field)
    return Refusal(
        error.message,
        code=code,
        kind="server_error",
        param=error.field,
        retry_after_s=RETRY_AFTER_S if error.is_retryable else None,
    )


def map_failure(error: EngineError) -> ResponseError:
    """Map the engine error with which a response has failed."""
    error = _without_engine_session(error)
    return ResponseError(error.code, error.message)


def _without_engine_session(error: EngineError) -> EngineError:
    """Return EngineLost in place of UnknownEngineSession: the client has named no session of the
    engine, so the engine was replaced since the gateway opened it."""
    if isinstance(error, UnknownEngineSession):
        return EngineLost("the engine was replaced while it had this request")
    return error


def map_store_error(error: StoreError) -> Refusal:
    """Map a store error to a refusal."""
    match error:
        case IdempotencyConflict(key=key):
            return Refusal(
                f"The event_id '{key}' was used before, for another request.",
                code="idempotency_conflict",
                param="event_id",
            )
        case SessionEnded():
            return Refusal("The session has ended.", code="session_ended")
        case LeaseLost():
            return make_replaced_refusal()
        case UnknownLayout():
            return Refusal(f"{error}. Try again.", code="store_unavailable", kind="server_error")
        case _:
            return Refusal(
                "The request could not be stored, so it was not accepted. Nothing has changed: "
                "try again.",
                code="store_unavailable",
                kind="server_error",
            )


def make_replaced_refusal() -> Refusal:
    """Make the refusal of a command on a session that another gateway has taken over."""
    return Refusal(
        "A newer connection has taken this session over.",
        code="session_replaced",
        kind="server_error",
    )
