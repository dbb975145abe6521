"""Incremental detokenization that never returns half a character and never revises returned
text."""

from collections.abc import Collection, Sequence

from tokenizers.decoders import DecodeStream

from continuo.engine.text.tokenizer.tokenizer import Tokenizer

_HELD_IDS_MAX = 64
"""Maximum number of ids held back. A character has at most four bytes, so this many ids that yield
no text are noise."""


class Detokenizer:
    """Converts ids to text as they arrive.

    `push` returns text that later ids cannot change; `flush` returns the text held back. Special
    tokens are skipped, except `visible_ids` (markers of tool calls), which appear as they are
    spelt.
    """

    def __init__(self, tokenizer: Tokenizer, visible_ids: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._visible_ids = frozenset(visible_ids)
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []
        """Ids passed to `_stream` since it last returned text."""

    def push(self, ids: Sequence[int]) -> str:
        if len(ids) == 1:
            return self._push_id(ids[0])
        return "".join([self._push_id(id) for id in ids])

    def flush(self) -> str:
        """Return the text held back; unfinished characters become U+FFFD. The caller may push more
        ids afterwards."""
        return self._flush_held()

    def _push_id(self, id: int) -> str:
        if id in self._visible_ids:
            return self._flush_held() + self._tokenizer.added_tokens[id]
        if id in self._tokenizer.special_ids:
            return ""
        self._held.append(id)
        try:
            text = self._stream.step(self._tokenizer.raw, id)
        except Exception:  # noqa: BLE001 - the library raises no narrower class
            # The stream fails when later ids change the text of earlier ones (a broken byte after
            # whole characters). Returned text stays as it is; the held ids are decoded separately.
            return self._flush_held()
        if text is None:
            return self._flush_held() if len(self._held) >= _HELD_IDS_MAX else ""
        self._held = []
        return text

    def _flush_held(self) -> str:
        if not self._held:
            return ""
        text = self._tokenizer.decode(self._held)
        self._held = []
        # The ids that follow do not begin a text (whose first space SentencePiece-like tokenizers
        # drop), so the new stream starts after some text; not after this text, which may end in
        # half a character.
        self._stream = DecodeStream(self._tokenizer.encode("a"), skip_special_tokens=True)
        return text
