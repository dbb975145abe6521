"""Logging: to stderr, never a key, never what people say.

Nothing of ours logs a text, a header or a query; redacting is the second line, for what libraries
write and for what stands in tracebacks.
"""

import logging
import re
import sys
from collections.abc import Iterable

_SECRETS = re.compile(
    r"(?i)(bearer\s+|openai-insecure-api-key\.|api[-_]key[=:]\s*|token=)[^\s,;\"'&]+"
)
_QUERY = re.compile(r"(?<=\w)\?[^\s\"'?]*=[^\s\"']*")


_THEIRS = ("Invalid UTF-8", "ASGI callable returned without completing handshake")


class Redacting(logging.Formatter):
    def __init__(self, keys: Iterable[str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._keys = sorted((key for key in keys if key), key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        return self.redact(super().format(record))

    def redact(self, text: str) -> str:
        for key in self._keys:
            text = text.replace(key, "[key]")
        return _QUERY.sub("?[query]", _SECRETS.sub(r"\1[key]", text))


def _ours(record: logging.LogRecord) -> bool:
    """What a client does is no error of ours: bytes that are no text end its connection, 1007, and
    one that is refused never completes its handshake."""
    return not record.getMessage().startswith(_THEIRS)


def configure(level: str, keys: Iterable[str]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Redacting(keys))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # uvicorn logs the whole path of every connection, its query with it.
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("uvicorn.error").addFilter(_ours)
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))
