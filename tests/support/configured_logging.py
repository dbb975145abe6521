"""The logging of a server process, for the time of a test."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from continuo.realtime.server import logging_setup


@contextmanager
def configured_logging(level: str = "warning") -> Iterator[None]:
    """Configure the loggers as a server does. Afterwards they are as before: their limit on the
    lines of peers would count those of later tests as well."""
    loggers = [
        logging.getLogger(name) for name in ("", "uvicorn.access", *logging_setup.PEER_LOGGERS)
    ]
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
