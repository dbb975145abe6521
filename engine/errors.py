"""Everything that can go wrong at the engine's door, drawn once.

    EngineError
    ├── BadRequest        the caller is wrong; the same call can never succeed
    │   ├── UnknownSession
    │   └── TooLong       more tokens than the session, the model or the pool can ever hold
    ├── StaleFence        another front holds the session now; this one has lost it for good
    ├── Busy              a bound was reached; try again later               (retry)
    ├── TurnFailed        this turn broke (NaN logits, tokenizer); the session lives on   (retry)
    ├── CommandFailed     a fault of the engine at this command; it has closed that session
    ├── OtherModel        the session's ids are of another model, tokenizer or chat template
    ├── SessionQuarantined  engines died while they computed this session: it can only be closed
    ├── EngineLost        the engine process is gone or does not answer      (retry)
    ├── LinkRefused       an engine and its front do not know the same secret, or each other's words
    └── ModelError        the model cannot be loaded or run

`retry` says whether the same call may succeed later.
"""

from typing import ClassVar


class EngineError(Exception):
    """Base of the tree. `code` crosses the process border; `field` names the argument at fault."""

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
