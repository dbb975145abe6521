"""Errors of the engine, as clients see them."""

import pytest

from continuo.engine import (
    BadRequest,
    EngineError,
    EngineLost,
    SessionDetached,
    TooLong,
    TurnFailed,
    UnknownEngineSession,
)
from continuo.realtime.generation.error_mapping import map_engine_error, map_failure


@pytest.mark.parametrize(
    ("error", "status", "code", "may_retry"),
    [
        (EngineLost("x"), 503, "engine_lost", True),
        (SessionDetached("x"), 503, "engine_lost", True),
        (UnknownEngineSession("there is no session x", field="session"), 503, "engine_lost", True),
        (TurnFailed("x"), 503, "turn_failed", True),
        (EngineError("x"), 503, "engine_error", False),
        (BadRequest("x", field="ids"), 400, "bad_request", False),
        (TooLong("x", field="ids"), 400, "context_length_exceeded", False),
    ],
)
def test_engine_that_went_away_is_no_fault_of_the_request(
    error: EngineError, status: int, code: str, may_retry: bool
) -> None:
    refusal = map_engine_error(error)
    assert (refusal.http_status, refusal.code) == (status, code)
    assert (refusal.retry_after_s is not None) is may_retry
    assert map_failure(error).is_transient is (code == "engine_lost")
