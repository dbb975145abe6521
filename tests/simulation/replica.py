"""A replica of the store, which may take its place: what was confirmed since it was brought up to
date is lost then."""

import json
import sqlite3
from collections import Counter

from continuo.realtime.persistence.session_codec import first_item_id
from continuo.realtime.store.codec import unpack_entry
from continuo.realtime.store.sqlite.file import connect

Fact = tuple[str, str]
"""Its kind, and of what: the words of an `item`, the `owner` of a session, that there is an
`answer`, and that it is being made (`making`)."""


class Replica:
    def __init__(self, store: sqlite3.Connection) -> None:
        self._store = store
        self._replica = connect(None, "normal")
        self.lost: Counter[Fact] = Counter()
        """How often the store has lost the last change of it."""

    def catch_up(self) -> None:
        self._store.backup(self._replica)

    def take_over(self) -> bool:
        """False: a session would be lost from its beginning, which nobody could come back to."""
        before, now = facts(self._store), facts(self._replica)
        if any(kind == "owner" for kind, _ in before.keys() - now.keys()):
            return False
        either = before.keys() | now.keys()
        self.lost.update(fact for fact in either if before.get(fact) != now.get(fact))
        self._replica.backup(self._store)
        return True


def facts(db: sqlite3.Connection) -> dict[Fact, str]:
    """All that a client may have been told of."""
    found = {("owner", id): owner for id, owner in db.execute("SELECT id, owner FROM sessions")}
    for (id,) in db.execute("SELECT id FROM answers"):
        found["answer", id] = found["making", id] = ""
        found["item", first_item_id(id)] = (
            "(not yet)"  # if it was deleted in what is lost, it comes back
        )
    for (result,) in db.execute("SELECT result FROM once"):
        found["answer", result.decode()] = ""  # or the name of an item, which is none
    for (packed,) in db.execute("SELECT packed FROM entries"):
        body = json.loads(unpack_entry(packed).body)
        if "answer" in body:
            found["answer", body["answer"]] = ""
        for item in body.get("items", ()):
            words = "".join(part["text"] for part in item["parts"])
            found["item", item["id"] or first_item_id(body["answer"])] = words
    return found
