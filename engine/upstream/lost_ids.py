"""LostIds: the ids that llama-server leaves out of a stream, found by their text. Pure.

An id after which the text ends within a character has no event. The event that completes the
character has the text of all of them, and one id:

    text   E6 97 | A5            the character 日
    ids    ?       110           110 has the byte A5, so the id left out has E6 97
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

CHARACTER_BYTES_MAX = 4
LOST_IDS_MAX = 8
"""Most ids that are searched for at a time. A character has at most four bytes, so more of them is
noise."""


class LostIds:
    """Finds ids by their bytes, in one vocabulary."""

    def __init__(self, bytes_of: Callable[[int], bytes], vocab_size: int) -> None:
        """`bytes_of`: returns the bytes of a token; `vocab_size`: the largest id plus one."""
        self._bytes_of = bytes_of
        self._vocab_size = vocab_size
        self._ids: dict[bytes, list[int]] | None = None
        """Ids by their bytes, of the tokens that may end within a character. Made when it is
        needed for the first time."""

    def prepare(self) -> None:
        """Index the vocabulary, which takes 0.4 s for 200,000 tokens. May be called on any
        thread."""
        if self._ids is None:
            ids: defaultdict[bytes, list[int]] = defaultdict(list)
            for id in range(self._vocab_size):
                text = self._bytes_of(id)
                if text and _count_cut(text):
                    ids[text].append(id)
            self._ids = dict(ids)

    def find(self, text: str, count: int, shown: Sequence[int]) -> list[int] | None:
        """Return the `count` ids that were drawn before the ids `shown`, with which they have
        `text`. Returns None unless there is exactly one answer.

        An answer with fewer ids counts too: a token without text may have been among them.
        """
        self.prepare()
        after = b"".join(map(self._bytes_of, shown))
        whole = text.encode()
        if not after or not whole.endswith(after) or count > LOST_IDS_MAX:
            return None
        answers = self._split(whole[: -len(after)], 0, count)
        return answers[0] if len(answers) == 1 and len(answers[0]) == count else None

    def _split(self, lost: bytes, start: int, count: int) -> list[list[int]]:
        """List up to two ways to split the bytes from `start` on into at most `count` tokens, after
        each of which the text ends within a character."""
        if start == len(lost):
            return [[]]
        answers: list[list[int]] = []
        for end in range(start + 1, len(lost) + 1) if count else ():
            if not _count_cut(lost[:end]):
                continue
            for id in (self._ids or {}).get(lost[start:end], ()):
                answers += [[id, *rest] for rest in self._split(lost, end, count - 1)]
                if len(answers) > 1:
                    return answers
        return answers


def _count_cut(text: bytes) -> int:
    """Return how many bytes at the end of a text are the beginning of a character; 0: none. The
    text may begin within a character."""
    for count in range(1, min(len(text), CHARACTER_BYTES_MAX - 1) + 1):
        byte = text[-count]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return count if count < length else 0
        if byte < 0x80:
            return 0
    # All are continuation bytes: the character began before the text.
    return len(text) if len(text) < CHARACTER_BYTES_MAX - 1 else 0
