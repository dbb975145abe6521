"""Replica of the simulated store. A failover to the replica loses every change since its last
synchronization, confirmed or not."""

import sqlite3
from collections import Counter

from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.persistence.session_codec import (
    OutOfWindowItems,
    ResponsePlaceholder,
    decode_entry,
    first_item_id,
)
from continuo.realtime.protocol.items import MessageItem
from continuo.realtime.store.sqlite.file import connect

Fact = tuple[str, str]
"""Kind and id of a stored fact.

Kinds are the text of an `item`, the `owner` of a session, the existence of a response (`answer`),
and that a response is being generated (`making`).
"""


class Replica:
    def __init__(self, store: sqlite3.Connection) -> None:
        self._store = store
        self._replica = connect(None, "normal")
        self.lost_changes: Counter[Fact] = Counter()
        """Number of times that the last change of each fact was lost."""

    def catch_up(self) -> None:
        self._store.backup(self._replica)

    def take_over(self) -> bool:
        """Replace the store by the replica. Returns False if a whole session would be lost."""
        before, after = read_facts(self._store), read_facts(self._replica)
        if any(kind == "owner" for kind, _ in before.keys() - after.keys()):
            return False
        either = before.keys() | after.keys()
        self.lost_changes.update(fact for fact in either if before.get(fact) != after.get(fact))
        self._replica.backup(self._store)
        return True


def read_facts(db: sqlite3.Connection) -> dict[Fact, str]:
    """Read all facts that a client may have received."""
    found = {("owner", id): owner for id, owner in db.execute("SELECT id, owner FROM sessions")}
    for (id,) in db.execute("SELECT id FROM responses"):
        found["answer", id] = found["making", id] = ""
        found["item", first_item_id(id)] = "(not yet)"  # a lost deletion restores the item
    for (result,) in db.execute("SELECT result FROM idempotency_keys"):
        found["answer", result.decode()] = ""  # or the id of an item, which matches no response
    for (body,) in db.execute("SELECT body FROM entries"):
        entry = decode_entry(body)
        if isinstance(entry, Span | ResponsePlaceholder) and entry.response_id is not None:
            found["answer", entry.response_id] = ""
        for item in entry.items if isinstance(entry, Span | OutOfWindowItems) else ():
            assert isinstance(item, MessageItem), "the clients send and get messages alone"
            found["item", item.id] = "".join(part.text for part in item.parts)
    return found
