"""Logging: to stderr, as text or as JSON, without keys and without user text.

Our own code logs no text, header or query; redaction is the second line of defence, for the
messages of libraries and for tracebacks. A line has the `fields` of its record (given as
`extra={"fields": {...}}`), and the ids of the request that the task serves, if any.
"""

import logging
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from continuo.engine import ConsoleFormatter, JsonFormatter, LineLimit, LogFormat
from continuo.realtime.request_context import current_request

_SECRETS = re.compile(
    r"(?i)(bearer\s+|openai-insecure-api-key\.|api[-_]key[=:]\s*|token=)[^\s,;\"'&]+"
)
_QUERY = re.compile(r"(?<=\w)\?[^\s\"'?]*=[^\s\"']*")
_PLAIN_VALUE = re.compile(r"[^\s\"'\\=\x00-\x1f\x7f-\x9f]+")


RECENT_WARNINGS_MAX = 50
MESSAGE_CHARS_MAX = 500
PEER_LOGGERS = (
    "uvicorn.error",
    "continuo.realtime.persistence.token_journal",
    "continuo.realtime.responses.archive",
    "continuo.realtime.session.active_responses",
    "continuo.realtime.session.session",
    "continuo.realtime.session.unit_of_work",
)
"""Loggers whose lines peers can cause: one for each request that is not HTTP, or, while the store
is away, for each response."""
_CLIENT_ERROR_PREFIXES = ("Invalid UTF-8", "ASGI callable returned without completing handshake")


class Redaction:
    """Replaces API keys, tokens and query strings in a text."""

    def __init__(self, keys: Iterable[str]) -> None:
        self.replace_keys(keys)

    def replace_keys(self, keys: Iterable[str]) -> None:
        """Redact these API keys from now on, in place of earlier ones."""
        self._keys = sorted((key for key in keys if key), key=len, reverse=True)

    def apply(self, text: str) -> str:
        for key in self._keys:
            text = text.replace(key, "[key]")
        return _QUERY.sub("?[query]", _SECRETS.sub(r"\1[key]", text))


class RedactingFormatter(ConsoleFormatter):
    """Formats records as text, redacted: fields follow the message as `name=value`."""

    def __init__(self, keys: Iterable[str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.redaction = Redaction(keys)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record) + format_fields(_fields_of(record))

    def format(self, record: logging.LogRecord) -> str:
        return self.redaction.apply(super().format(record))


class RedactingJsonFormatter(JsonFormatter):
    """Formats records as JSON, redacted."""

    def __init__(self, keys: Iterable[str]) -> None:
        super().__init__()
        self.redaction = Redaction(keys)

    def fields_of(self, record: logging.LogRecord) -> dict[str, object]:
        return _fields_of(record)

    def format(self, record: logging.LogRecord) -> str:
        return self.redaction.apply(super().format(record))


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of a record and those of its request; fields without a value are left
    out."""
    request = current_request()
    fields: dict[str, object] = {
        **getattr(record, "fields", {}),
        "tenant": request.tenant,
        "session": request.session,
        "request_id": request.id,
    }
    return {name: value for name, value in fields.items() if value not in (None, "")}


def format_fields(fields: dict[str, object]) -> str:
    """Return ` name=value` for each field. A value with blanks, quotes or control characters is
    quoted, so that no client can forge a line."""
    return "".join(f" {name}={_quote(str(value))}" for name, value in fields.items())


def _quote(text: str) -> str:
    return text if _PLAIN_VALUE.fullmatch(text) else ascii(text)


class PeerLineFilter:
    """Limits the lines that peers can cause, each message by itself, whatever its arguments. The
    first line of a minute says how many of the minute before were suppressed.

    Drops two messages of uvicorn that only report the fault of a client: invalid UTF-8 (closed with
    1007), and a refused connection, whose handshake is never completed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = LineLimit(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        message = str(record.msg)
        if message.startswith(_CLIENT_ERROR_PREFIXES):
            return False
        suppressed = self._limit.admit(f"{record.name} {message}")
        if suppressed:
            record.fields = {**getattr(record, "fields", {}), "suppressed": suppressed}
        return suppressed is not None


class LoggedWarning(msgspec.Struct, frozen=True):
    at: float
    """Unix time in seconds."""
    level: str
    message: str


class RecentWarnings(logging.Handler):
    """Keeps the last RECENT_WARNINGS_MAX warnings and errors, redacted, without tracebacks."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        super().__init__(logging.WARNING)
        self.redaction = Redaction(keys)
        self._warnings: deque[LoggedWarning] = deque(maxlen=RECENT_WARNINGS_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage() + format_fields(getattr(record, "fields", {}))
        message = self.redaction.apply(text)[:MESSAGE_CHARS_MAX]
        self._warnings.append(LoggedWarning(record.created, record.levelname.lower(), message))

    @property
    def warnings(self) -> tuple[LoggedWarning, ...]:
        """The warnings, newest first."""
        return tuple(reversed(self._warnings))


def configure(level: str, keys: Iterable[str], log_format: LogFormat = "console") -> RecentWarnings:
    """Configure the root logger and those of uvicorn. `keys`: API keys to redact."""
    keys = tuple(keys)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        RedactingJsonFormatter(keys) if log_format == "json" else RedactingFormatter(keys)
    )
    recent = RecentWarnings(keys)
    root = logging.getLogger()
    root.handlers[:] = [handler, recent]
    root.setLevel(level.upper())
    # uvicorn logs the path of every connection, including its query.
    logging.getLogger("uvicorn.access").disabled = True
    peer_line_filter = PeerLineFilter()
    for name in PEER_LOGGERS:
        logging.getLogger(name).filters[:] = [peer_line_filter]
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))
    return recent


def replace_keys(keys: Iterable[str]) -> None:
    """Redact other API keys from now on, in all that is logged."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, RedactingFormatter | RedactingJsonFormatter):
            handler.formatter.redaction.replace_keys(keys)
        elif isinstance(handler, RecentWarnings):
            handler.redaction.replace_keys(keys)
