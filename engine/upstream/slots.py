"""SlotTable: which session has which slot of a llama-server; SlotFiles: which has a file with what
was in its slot. Pure."""

from array import array
from typing import Literal, NamedTuple

from continuo.engine.wire.turn_tree import common_prefix_length


class SlotContent(NamedTuple):
    """The KV of `ids`, which are of a session, in a slot or a file."""

    session: str
    ids: "array[int]"


class SlotTable:
    """The slots of one server, each with the KV of the session that used it last.

    A session keeps its slot until another one needs it: the least recently used slot without a
    request gives way. If all have requests, the session shares the least recently used one, and its
    request waits at the server.
    """

    def __init__(self, count: int) -> None:
        """`count`: number of slots, at least 1."""
        self._owners: dict[int, str] = dict.fromkeys(range(count), "")
        """Session of each slot, empty for none, in the order of their last use."""
        self._requests = dict.fromkeys(range(count), 0)
        self._ids: dict[int, array[int]] = {}
        """Ids whose KV each slot holds, as far as known."""
        self.displaced: dict[int, SlotContent] = {}
        """KV of sessions that gave way, by the slot that holds it until a request is sent."""
        self.files = SlotFiles(count + 1)

    @property
    def count(self) -> int:
        return len(self._owners)

    @property
    def used(self) -> int:
        """Number of slots that sessions have."""
        return sum(map(bool, self._owners.values()))

    def begin(self, session: str) -> int:
        """Return the slot for a request of a session, which has it from now on."""
        slot = self._find(session)
        owner = self._owners.pop(slot)
        if owner != session:
            held = self._ids.pop(slot, None)
            if owner and held is not None and not self._requests[slot]:
                self.displaced[slot] = SlotContent(owner, held)
            elif slot in self.displaced and self.displaced[slot].session == session:
                self._ids[slot] = self.displaced.pop(slot).ids
        self._owners[slot] = session
        self._requests[slot] += 1
        return slot

    def _find(self, session: str) -> int:
        """Return the slot of a session, else a free one, else the one that gives way."""
        candidates = list(self._owners)
        candidates.sort(key=lambda slot: (self._owners[slot] != session, bool(self._owners[slot])))
        first = candidates[0]
        if self._owners[first] in (session, ""):
            return first
        return next((slot for slot in candidates if not self._requests[slot]), first)

    def end(self, slot: int, session: str, ids: "array[int] | None") -> None:
        """End a request. `ids`: those whose KV the slot holds now; None: unknown."""
        self.release(slot)
        if ids is None or self._owners[slot] != session:
            self._ids.pop(slot, None)
        else:
            self._ids[slot] = ids

    def release(self, slot: int) -> None:
        """End a request that has not changed what the slot holds."""
        self._requests[slot] -= 1

    def is_shared(self, slot: int) -> bool:
        """Return whether a slot has more than one request."""
        return self._requests[slot] > 1

    def find_kv(self, session: str) -> Literal["device", "host", "none"]:
        """Return where the KV that was computed for a session is: in its slot, or in a file."""
        for slot, owner in self._owners.items():
            if owner == session and (slot in self._ids or self._requests[slot] > 0):
                return "device"
        return "none" if self.files.find(session) is None else "host"

    def find_idle(self, session: str) -> int | None:
        """Return the slot of a session, if it has one without a request, else None."""
        slots = (slot for slot, owner in self._owners.items() if owner == session)
        slot = next(slots, None)
        return None if slot is None or self._requests[slot] else slot

    def content_of(self, slot: int) -> SlotContent:
        """Return what a slot holds of the session that has it, as far as known."""
        return SlotContent(self._owners[slot], self._ids.get(slot, array("i")))

    def fill(self, slot: int, session: str, ids: "array[int]") -> None:
        """Record that a slot was filled with the KV of `ids`, if `session` still has it."""
        if self._owners[slot] == session:
            self._ids[slot] = ids

    def count_held(self, slot: int, ids: "array[int]") -> int:
        """Return how many of the first `ids` the slot should hold the KV of."""
        held = self._ids.get(slot)
        return 0 if held is None else common_prefix_length(held, ids)

    def clear(self) -> None:
        """Expect no KV in any slot: the server may have been started anew."""
        self._ids.clear()
        self.displaced.clear()
        self.files.clear()

    def close(self, session: str) -> None:
        """Free the slot and the file of a session."""
        for slot, owner in self._owners.items():
            if owner == session:
                self._owners[slot] = ""
                self._ids.pop(slot, None)
            if slot in self.displaced and self.displaced[slot].session == session:
                del self.displaced[slot]
        self.files.remove(session)


class SlotFiles:
    """The files of one server, each with what was in the slot of a session that gave way. They are
    one more than the slots, so that one is read while another is written; the one written longest
    ago is the next to be written."""

    def __init__(self, count: int) -> None:
        """`count`: number of files, at least 2."""
        self._contents: dict[int, SlotContent | None] = dict.fromkeys(range(count))
        """Content of each file, in the order in which they were written; None for nothing."""

    def begin(self, session: str, needed: str = "") -> int:
        """Return the file to write for a session: its own, else a free one, else the one written
        longest ago, but for that of the session `needed`. It holds nothing until `end`."""
        own = self._find(session)
        others = [
            file for file, held in self._contents.items() if not held or held.session != needed
        ]
        others.sort(key=lambda file: self._contents[file] is not None)
        file = others[0] if own is None else own
        del self._contents[file]
        self._contents[file] = None
        return file

    def end(self, file: int, content: SlotContent) -> None:
        """Record what was written to a file."""
        self._contents[file] = content

    def find(self, session: str) -> tuple[int, SlotContent] | None:
        """Return the file of a session, and what it holds, if it has one."""
        file = self._find(session)
        content = None if file is None else self._contents[file]
        return None if file is None or content is None else (file, content)

    def remove(self, session: str) -> None:
        """Use the file of a session, if it has one, for others."""
        if (file := self._find(session)) is not None:
            self._contents[file] = None

    def clear(self) -> None:
        """Expect nothing in any file: the server may have been started with other weights."""
        self._contents = dict.fromkeys(self._contents)

    def _find(self, session: str) -> int | None:
        files = self._contents.items()
        return next((file for file, held in files if held and held.session == session), None)
