"""What the engine says, or does not say in time, as an answer to the client."""

from engine import BadRequest, EngineError, TooLong
from realtime.errors import Refusal


def no_answer(waited_s: float) -> Refusal:
    return Refusal(
        f"The model did not take this within {waited_s:g} seconds; it may be starting again. "
        "Nothing has changed: try again.",
        code="engine_unavailable",
        kind="server_error",
    )


def refusal_of(error: EngineError) -> Refusal:
    """The engine's words as an answer to the client."""
    code = "context_length_exceeded" if isinstance(error, TooLong) else error.code
    if isinstance(error, BadRequest):
        return Refusal(error.message, code=code, param=error.field)
    return Refusal(error.message, code=code, kind="server_error", param=error.field)
