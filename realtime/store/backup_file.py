"""Backup files: sessions and stored responses of a store, in a form that any store can restore.

    file:   frame │ frame │ …             frame: length in 4 bytes, little-endian │ MessagePack
    frames: BackupHeader │ SessionRecord or ResponseRecord, … │ BackupEnd

Values have the layout of this version. Deadlines are stored as the time that remained, because a
backup may be restored days later. The end has a digest of all frames before it, so that a damaged
or incomplete file is detected before anything of it is restored.
"""

import hashlib
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from continuo.realtime.store import keys
from continuo.realtime.store.base import RunningResponse, StoredEvents, StoredResponse
from continuo.realtime.store.errors import StoreUnusable

FORMAT = 1
"""Version of the format of backup files, apart from the layout of the values in them."""
FRAME_BYTES_MAX = 1 << 30
FILE_MODE = 0o600
"""Mode of a backup file, which holds user text."""


class BackupHeader(msgspec.Struct, frozen=True, tag="continuo backup"):
    format: int
    layout: int
    created_ms: int
    """Time of the backup, in milliseconds since 1970 by the clock of this machine."""


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True, tag="session"):
    """A session, with all that `Snapshot` has, and its idempotency records."""

    id: str
    tenant: str
    secret: bytes
    fence: int
    epoch: int
    created_ms: int
    remaining_ms: int
    """Time from the backup to the deadline of the session, in milliseconds."""
    state: bytes
    entries: tuple[bytes, ...]
    running_responses: tuple[RunningResponse, ...]
    events: StoredEvents
    requests: tuple[tuple[bytes, bytes, bytes], ...]
    """Idempotency records, oldest first: digest of the key, digest of the content, result."""


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True, tag="response"):
    response: StoredResponse
    remaining_ms: int


class BackupEnd(msgspec.Struct, frozen=True, tag="end"):
    sessions: int
    responses: int
    sha256: bytes


BackupRecord = SessionRecord | ResponseRecord
_decoder = msgspec.msgpack.Decoder(BackupHeader | BackupRecord | BackupEnd)


class BackupWriter:
    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._digest = hashlib.sha256()
        self._counts = {SessionRecord: 0, ResponseRecord: 0}
        self._write_frame(BackupHeader(FORMAT, keys.LAYOUT, int(time.time() * 1000)))

    def write(self, record: BackupRecord) -> None:
        self._counts[type(record)] += 1
        self._write_frame(record)

    def finish(self) -> BackupEnd:
        """Write the end, and wait until the file is on disk."""
        sessions, responses = self._counts[SessionRecord], self._counts[ResponseRecord]
        end = BackupEnd(sessions, responses, self._digest.digest())
        self._write_frame(end)
        self._output.flush()
        os.fsync(self._output.fileno())
        return end

    def _write_frame(self, value: msgspec.Struct) -> None:
        body = msgspec.msgpack.encode(value)
        frame = len(body).to_bytes(4, "little") + body
        self._digest.update(frame)
        self._output.write(frame)


@contextmanager
def writing_backup(file: Path) -> Generator[BackupWriter]:
    """Write a backup file, which replaces a file at its path when it is finished. Raises
    OSError."""
    partial = file.with_name(f"{file.name}.partial")
    descriptor = os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, FILE_MODE)
    try:
        with open(descriptor, "wb") as output:
            yield BackupWriter(output)
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def verify_backup(file: Path) -> BackupEnd:
    """Read a whole backup file, and return its end. Raises StoreUnusable if the file is damaged,
    incomplete, of another layout, or cannot be read."""
    digest, end = hashlib.sha256(), None
    try:
        with file.open("rb") as source:
            for n, frame in enumerate(_iter_frames(source)):
                if end is not None:
                    raise ValueError("data follows its end")
                value = _decoder.decode(frame[4:])
                if n == 0:
                    _check_header(value)
                if isinstance(value, BackupEnd):
                    end = value
                else:
                    digest.update(frame)
    except (OSError, ValueError) as error:
        raise StoreUnusable(f"the backup {file} cannot be used: {error}") from error
    if end is None or end.sha256 != digest.digest():
        raise StoreUnusable(f"the backup {file} is damaged or incomplete")
    return end


def read_backup(file: Path) -> Iterator[BackupRecord]:
    """Yield the records of a file that `verify_backup` accepts."""
    with file.open("rb") as source:
        for frame in _iter_frames(source):
            value = _decoder.decode(frame[4:])
            if isinstance(value, BackupRecord):
                yield value


def _check_header(value: object) -> None:
    if not isinstance(value, BackupHeader) or value.format != FORMAT:
        raise ValueError("not a backup that this version can read")
    if value.layout != keys.LAYOUT:
        raise ValueError(f"its values have layout {value.layout}; this version has {keys.LAYOUT}")


def _iter_frames(source: BinaryIO) -> Iterator[bytes]:
    """Yield the frames of a file, each with its length. Raises ValueError for an incomplete one."""
    while length := source.read(4):
        size = int.from_bytes(length, "little")
        body = source.read(size) if size <= FRAME_BYTES_MAX else b""
        if len(body) != size:
            raise ValueError("it is damaged or incomplete")
        yield length + body
