"""The logging of a server process, for the time of a test."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from continuo.realtime.server import logging_setup

NAMES = ("", "uvicorn", *logging_setup.PEER_LOGGERS)


class LoggerState(NamedTuple):
    """Fields of a logger that decide which of its lines are written."""

    level: int
    handlers: list[logging.Handler]
    filters: list[object]
    disabled: bool
    propagate: bool


def read_loggers() -> dict[str, LoggerState]:
    """Return the state of the loggers that a server configures, by their names."""
    loggers = map(logging.getLogger, NAMES)
    return {
        name: LoggerState(
            logger.level,
            [one for one in logger.handlers if not type(one).__module__.startswith("_pytest")],
            [*logger.filters],
            logger.disabled,
            logger.propagate,
        )
        for name, logger in zip(NAMES, loggers, strict=True)
    }


@contextmanager
def configured_logging(level: str = "warning") -> Iterator[None]:
    """Configure the loggers as a server does. Afterwards they are as before: their limit on the
    lines of peers would count those of later tests as well."""
    loggers = list(map(logging.getLogger, (*NAMES, "uvicorn.access")))
    before = [
        (each, each.handlers[:], each.filters[:], each.level, each.disabled) for each in loggers
    ]
    logging_setup.configure(level, ())
    try:
        yield
    finally:
        for each, handlers, filters, level_before, disabled in before:
            each.handlers[:], each.filters[:] = handlers, filters
            each.setLevel(level_before)
            each.disabled = disabled
