"""Incoming budget: a bound on the bytes of messages and bodies that the application still needs.

Each connection has a share of the budget. Bytes are charged to the share when they arrive, never by
an announced length, and released when the application has finished with the message, or when the
connection is lost. If the sum of all shares exceeds the budget, the share with the most unfinished
bytes (of messages whose end has not arrived) is refused, so that small messages are accepted while
large ones fill the budget. Performs no I/O.
"""

from collections.abc import Callable, Mapping
from typing import cast

from starlette.types import Scope

from continuo.realtime.tenants.ledger import TenantLedger

SHARE_EXTENSION = "continuo.incoming"
"""Name of the ASGI extension that holds the IncomingShare of a request's body."""
LEDGER_EXTENSION = "continuo.ledger"
"""Name of the ASGI extension that holds the TenantLedger of a request or connection, once it has
shown its key."""


class IncomingShare:
    """The bytes that one connection has charged for a message or body. `refuse` closes the
    connection; it is called if this share is refused, after the bytes are released."""

    def __init__(
        self,
        budget: "IncomingBudget",
        refuse: Callable[[], None],
        ledger: TenantLedger | None = None,
    ) -> None:
        """`ledger`: charged too. None: the tenant is not known."""
        self._budget = budget
        self._refuse = refuse
        self.ledger = ledger
        self.unfinished_bytes = 0
        """Bytes charged for messages whose end has not arrived."""
        self.charged_bytes = 0
        """Total bytes charged: `unfinished_bytes`, and complete messages that the application has
        not finished with."""

    def charge(self, unfinished: int, whole: int = 0) -> None:
        """Set the charge of this share to `unfinished` bytes of incomplete and `whole` bytes of
        complete messages. If the budget is exceeded, shares are refused, possibly including this
        one."""
        held = unfinished + whole
        if held != self.charged_bytes or unfinished != self.unfinished_bytes:
            self._budget.charge(self, unfinished, held)

    def charge_to(self, ledger: TenantLedger) -> None:
        """Charge what is held, and what follows, to a tenant too."""
        if self.ledger is None:
            self.ledger = ledger
            ledger.hold("input", self.charged_bytes)

    def release(self) -> None:
        self.charge(0)

    def refuse(self) -> None:
        self.release()
        self._refuse()


class IncomingBudget:
    """The incoming budget of one server process, and its shares."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.charged_bytes = 0
        self.refused_count = 0
        """Number of shares refused since the start of the process."""
        self._unfinished: dict[IncomingShare, None] = {}

    def charge(self, share: IncomingShare, unfinished: int, charged: int) -> None:
        self.charged_bytes += charged - share.charged_bytes
        if share.ledger is not None:
            share.ledger.hold("input", charged - share.charged_bytes)
        share.charged_bytes, share.unfinished_bytes = charged, unfinished
        if unfinished:
            self._unfinished[share] = None
        else:
            self._unfinished.pop(share, None)
        while self.charged_bytes > self.bytes_max and share.charged_bytes:
            self.refused_count += 1
            max(self._unfinished, key=_unfinished_bytes_of, default=share).refuse()


def _unfinished_bytes_of(share: IncomingShare) -> int:
    return share.unfinished_bytes


def share_of(scope: Mapping[str, object]) -> IncomingShare | None:
    """Return the share that the body of a request is charged to. Returns None if nothing is
    charged."""
    return cast("IncomingShare | None", _extensions(scope).get(SHARE_EXTENSION))


def release_share(scope: Mapping[str, object]) -> None:
    """Release the bytes charged for the body of a request."""
    if (share := share_of(scope)) is not None:
        del _extensions(scope)[SHARE_EXTENSION]
        share.release()


def charge_input(scope: Scope, ledger: TenantLedger) -> None:
    """Charge to a tenant the bytes of a request's body, or of a connection's messages."""
    scope.setdefault("extensions", {})[LEDGER_EXTENSION] = ledger
    if (share := share_of(scope)) is not None:
        share.charge_to(ledger)


def ledger_of(scope: Mapping[str, object]) -> TenantLedger | None:
    """Return the ledger that the bytes of a request are charged to. None: the tenant is not
    known."""
    return cast("TenantLedger | None", _extensions(scope).get(LEDGER_EXTENSION))


def _extensions(scope: Mapping[str, object]) -> dict[str, object]:
    return cast("dict[str, object]", scope.get("extensions", {}))
