"""What the engine and the store say, or do not say in time, as an answer to the client."""

from continuo.engine import BadRequest, EngineError, SessionQuarantined, TooLong
from continuo.engine import StaleEngineFence as OtherFront
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.engine_port import EnginePort
from continuo.realtime.store import IdempotencyConflict, OwnershipLost, SessionEnded, StoreError

RETRY_AFTER_S = 2.0


def require_engine(engine: EnginePort) -> None:
    """Nobody waits for an answer of an engine that is not there. Raises Refusal."""
    if not engine.is_available_soon:
        raise Refusal(
            "The model does not answer now. Nothing has changed: try again.",
            code="engine_unavailable",
            kind="server_error",
            retry_after_s=RETRY_AFTER_S,
        )


def make_timeout_refusal(waited_s: float) -> Refusal:
    return Refusal(
        f"The model did not take this within {waited_s:g} seconds; it may be starting again. "
        "Nothing has changed: try again.",
        code="engine_unavailable",
        kind="server_error",
    )


def map_engine_error(error: EngineError) -> Refusal:
    """The engine's words as an answer to the client."""
    if isinstance(error, OtherFront):
        return _make_replaced_refusal()
    if isinstance(error, SessionQuarantined):
        # No server_error: clients send those again, and this can never succeed.
        return Refusal(
            "The model's process died each time it computed this session, so the session is not "
            "computed any more. Begin another one.",
            code="session_quarantined",
        )
    code = "context_length_exceeded" if isinstance(error, TooLong) else error.code
    if isinstance(error, BadRequest):
        return Refusal(error.message, code=code, param=error.field)
    return Refusal(error.message, code=code, kind="server_error", param=error.field)


def map_store_error(error: StoreError) -> Refusal:
    """The store's words."""
    match error:
        case IdempotencyConflict(key=key):
            return Refusal(
                f"The event_id '{key}' was used before, for something else.",
                code="idempotency_conflict",
                param="event_id",
            )
        case SessionEnded():
            return Refusal("The session was ended.", code="session_ended")
        case OwnershipLost():
            return _make_replaced_refusal()
        case _:
            return Refusal(
                "What was sent could not be stored, so it was not accepted. Nothing has changed: "
                "try again.",
                code="store_unavailable",
                kind="server_error",
            )


def _make_replaced_refusal() -> Refusal:
    return Refusal(
        "A newer connection has taken this session over.",
        code="session_replaced",
        kind="server_error",
    )
