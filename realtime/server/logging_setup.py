"""Logging: to stderr, without keys and without user text.

Our own code logs no text, header or query; redaction is the second line of defence, for the
messages of libraries and for tracebacks.
"""

import logging
import re
import sys
from collections import deque
from collections.abc import Iterable

import msgspec

_SECRETS = re.compile(
    r"(?i)(bearer\s+|openai-insecure-api-key\.|api[-_]key[=:]\s*|token=)[^\s,;\"'&]+"
)
_QUERY = re.compile(r"(?<=\w)\?[^\s\"'?]*=[^\s\"']*")


RECENT_WARNINGS_MAX = 50
MESSAGE_CHARS_MAX = 500
_CLIENT_ERROR_PREFIXES = ("Invalid UTF-8", "ASGI callable returned without completing handshake")


class RedactingFormatter(logging.Formatter):
    """Formats records with API keys, tokens and query strings redacted."""

    def __init__(self, keys: Iterable[str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._keys = sorted((key for key in keys if key), key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        return self.redact(super().format(record))

    def redact(self, text: str) -> str:
        for key in self._keys:
            text = text.replace(key, "[key]")
        return _QUERY.sub("?[query]", _SECRETS.sub(r"\1[key]", text))


def _is_server_record(record: logging.LogRecord) -> bool:
    """Return False for the two uvicorn messages that only report the fault of a client: invalid
    UTF-8 (closed with 1007), and a refused connection, whose handshake is never completed."""
    return not record.getMessage().startswith(_CLIENT_ERROR_PREFIXES)


class LoggedWarning(msgspec.Struct, frozen=True):
    at: float
    """Unix time in seconds."""
    level: str
    message: str


class RecentWarnings(logging.Handler):
    """Keeps the last RECENT_WARNINGS_MAX warnings and errors, redacted, without tracebacks."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        super().__init__(logging.WARNING)
        self._formatter = RedactingFormatter(keys)
        self._warnings: deque[LoggedWarning] = deque(maxlen=RECENT_WARNINGS_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        message = self._formatter.redact(record.getMessage())[:MESSAGE_CHARS_MAX]
        self._warnings.append(LoggedWarning(record.created, record.levelname.lower(), message))

    @property
    def warnings(self) -> tuple[LoggedWarning, ...]:
        """The warnings, newest first."""
        return tuple(reversed(self._warnings))


def configure(level: str, keys: Iterable[str]) -> RecentWarnings:
    """Configure the root logger and those of uvicorn. `keys`: API keys to redact."""
    keys = tuple(keys)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(keys))
    recent = RecentWarnings(keys)
    root = logging.getLogger()
    root.handlers[:] = [handler, recent]
    root.setLevel(level.upper())
    # uvicorn logs the path of every connection, including its query.
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("uvicorn.error").addFilter(_is_server_record)
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))
    return recent
