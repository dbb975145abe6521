"""Null device whose turns output given texts, regardless of the prompt."""

import itertools
from collections.abc import Sequence

from continuo.engine.batch import Batch, BatchResult, Geometry, SampleParams, TokenMask
from continuo.engine.text import ModelText
from tests.support.digest_runner import Digest, DigestRunner, extend_digest


class ScriptedRunner(DigestRunner):
    """Runner whose n-th turn outputs the n-th of `outputs`, and then stop ids.

    After the last of `outputs`, the first is used again. `read_ids` holds all input ids in order.
    """

    def __init__(self, geometry: Geometry, text: ModelText, outputs: Sequence[str]) -> None:
        super().__init__(geometry)
        self._text = text
        self._outputs = itertools.cycle(outputs)
        self._turns: dict[Digest, tuple[str, list[int]]] = {}
        """Text of a turn and its ids drawn so far; the key is the digest of all ids of the sequence
        before the next draw."""
        self.read_ids: list[int] = []

    def launch(self, batch: Batch) -> BatchResult:
        for row in batch.rows:
            self.read_ids += row.ids
        return super().launch(batch)

    def draw(self, past: Digest, sample: SampleParams) -> int:
        if past not in self._turns:
            self._turns[past] = next(self._outputs), []
        output, drawn = self._turns[past]
        if sample.mask is None:
            ids = self._text.encode(output)
            id = ids[len(drawn)] if len(drawn) < len(ids) else self._text.stop_ids[0]
        else:
            id = self._draw_allowed(output, drawn, sample.mask)
        self._turns[extend_digest(past, id)] = output, [*drawn, id]
        return id

    def _draw_allowed(self, output: str, drawn: list[int], mask: TokenMask) -> int:
        """Draw the allowed id that covers most of the remaining output text; after the end of the
        text, or where the mask does not allow the text, a stop id, or any id if none may stop."""
        bits = mask.compute_bitmask()
        ids = [id for id in range(8 * len(bits)) if bits[id >> 3] >> (id & 7) & 1]
        target, written = output.encode(), self._spell(output, drawn)
        if written == target:
            return next(id for id in ids if id in self._text.stop_ids)
        spelled = {id: self._spell(output, [*drawn, id]) for id in ids}
        candidates = [id for id in ids if target.startswith(spelled[id])]
        stops = [id for id in ids if id in self._text.stop_ids]
        return max(candidates or stops or ids, key=lambda id: len(spelled[id]))

    def _spell(self, output: str, ids: Sequence[int]) -> bytes:
        """Return the bytes of `ids`, without the space that SentencePiece puts before a text: they
        may end within a character, as decoded text may not."""
        spelled = b"".join(map(self._text.token_bytes.of, ids))
        return spelled if output.startswith(" ") else spelled.removeprefix(b" ")
