"""Errors that the engine client raises.

    EngineError
    ├── BadRequest            invalid argument; the same call can never succeed
    │   ├── UnknownEngineSession
    │   └── TooLong           more tokens than the session, the model or the pool can ever hold
    ├── StaleEngineFence      another gateway has taken the session over; final for this client
    ├── Busy                  a bound was reached                                      (retryable)
    ├── TurnFailed            this turn failed (NaN logits, …); its session is intact  (retryable)
    ├── CommandFailed         a bug in the engine made the command fail; the session was closed
    ├── ModelMismatch         the session was made with another model, tokenizer or template
    ├── EngineLost            the engine process has died or does not respond          (retryable)
    │   └── SessionDetached   the link or engine of the session was lost: attach it again
    ├── SessionQuarantined    engines died while they computed this session: it can only be closed
    ├── LinkRefused           gateway and engine differ in secret, link version or model
    └── ModelError            the model cannot be loaded or run

`is_retryable`: whether the same call may succeed later.
"""

from typing import ClassVar


class EngineError(Exception):
    """Base of all errors of the engine client. `code` identifies the class on the link; `field`
    names the invalid argument."""

    code: ClassVar[str] = "engine_error"
    is_retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class BadRequest(EngineError):
    code = "bad_request"


class UnknownEngineSession(BadRequest):
    code = "unknown_session"


class TooLong(BadRequest):
    code = "too_long"


class StaleEngineFence(EngineError):
    code = "stale_fence"


class Busy(EngineError):
    code = "busy"
    is_retryable = True


class TurnFailed(EngineError):
    code = "turn_failed"
    is_retryable = True


class CommandFailed(EngineError):
    code = "command_failed"


class ModelMismatch(EngineError):
    code = "other_model"


class EngineLost(EngineError):
    code = "engine_lost"
    is_retryable = True


class SessionDetached(EngineLost):
    """Raised only by the engine client. The command may have taken effect or not: an attach makes
    the session what its caller says it is."""


class SessionQuarantined(EngineError):
    code = "session_quarantined"


class LinkRefused(EngineError):
    code = "link_refused"


class ModelError(EngineError):
    code = "model_error"


ERRORS_BY_CODE: dict[str, type[EngineError]] = {
    kind.code: kind
    for kind in (
        EngineError,
        BadRequest,
        UnknownEngineSession,
        TooLong,
        StaleEngineFence,
        Busy,
        TurnFailed,
        CommandFailed,
        ModelMismatch,
        EngineLost,
        SessionQuarantined,
        LinkRefused,
        ModelError,
    )
}


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its type if the message is
    empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
