"""The formats of log lines: text, and JSON for log collectors, one object a line. Neither has a
character that commands a terminal."""

import logging
import time

import msgspec

from continuo.engine.terminal_text import escape_commands


class ConsoleFormatter(logging.Formatter):
    """Formats a record as text."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_commands(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats a record as an object: time, level, logger, message, and the record's `fields`
    (given as `extra={"fields": {...}}`); fields that are None are left out."""

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self.fields_of(record),
        }
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return escape_commands(msgspec.json.encode(shown).decode())

    def fields_of(self, record: logging.LogRecord) -> dict[str, object]:
        fields: dict[str, object] = getattr(record, "fields", {})
        return {name: value for name, value in fields.items() if value is not None}
