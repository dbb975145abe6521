"""The budget of incoming bytes: those of messages and bodies that the application still handles.

A connection charges bytes when they arrive, never a length that is only announced. The bytes are
released when the application has finished with the message, or when the connection is lost. Over
the budget the share with the most unfinished bytes is refused, so that small messages are accepted
while large ones fill the budget. Pure.
"""

from collections.abc import Callable, Mapping
from typing import cast

INCOMING = "continuo.incoming"
"""ASGI extension: the `Share` that the body of a request is charged to."""


class Share:
    """The bytes of one message or body. `refuse` closes its connection; the bytes are released."""

    def __init__(self, budget: "IncomingBytes", refuse: Callable[[], None]) -> None:
        self._budget = budget
        self._refuse = refuse
        self.unfinished = 0
        """Bytes of a message whose end has not arrived."""
        self.bytes = 0
        """All bytes charged, those of whole messages that the application still reads included."""

    def hold(self, unfinished: int, whole: int = 0) -> None:
        """Replace the charge of this share. May refuse this share, or others."""
        held = unfinished + whole
        if held != self.bytes or unfinished != self.unfinished:
            self._budget.charge(self, unfinished, held)

    def release(self) -> None:
        self.hold(0)

    def refuse(self) -> None:
        self.release()
        self._refuse()


class IncomingBytes:
    """All shares of one server process."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.refused = 0
        """Shares refused since the start."""
        self._unfinished: dict[Share, None] = {}

    def charge(self, share: Share, unfinished: int, held: int) -> None:
        self.bytes += held - share.bytes
        share.bytes, share.unfinished = held, unfinished
        if unfinished:
            self._unfinished[share] = None
        else:
            self._unfinished.pop(share, None)
        while self.bytes > self.bytes_max and share.bytes:
            self.refused += 1
            max(self._unfinished, key=_unfinished, default=share).refuse()


def _unfinished(share: Share) -> int:
    return share.unfinished


def share_of(scope: Mapping[str, object]) -> Share | None:
    """The share that the body of this request is charged to. Returns None if nothing is charged."""
    return _extensions(scope).get(INCOMING)


def release(scope: Mapping[str, object]) -> None:
    """Release the bytes charged for the body of this request."""
    share = _extensions(scope).pop(INCOMING, None)
    if share is not None:
        share.release()


def _extensions(scope: Mapping[str, object]) -> dict[str, Share]:
    return cast("dict[str, Share]", scope.get("extensions", {}))
