"""A device that says what it is told to, whatever it reads: what no small model would say."""

import itertools
from collections.abc import Sequence

from continuo.engine.batch import Batch, BatchResult, Geometry, SampleParams, TokenMask
from continuo.engine.text import ModelText
from tests.support.digest_runner import Digest, DigestRunner, extend


class ScriptedRunner(DigestRunner):
    """The first turn says the first text, the next one the next, and so on, around again; each then
    ends. `read` is all it has read, in order."""

    def __init__(self, geometry: Geometry, text: ModelText, says: Sequence[str]) -> None:
        super().__init__(geometry)
        self._text = text
        self._says = itertools.cycle(says)
        self._begun: dict[Digest, tuple[str, list[int]]] = {}
        """What a turn says, and the ids it has drawn, by all that stands before the next."""
        self.read: list[int] = []

    def launch(self, batch: Batch) -> BatchResult:
        for row in batch.rows:
            self.read += row.ids
        return super().launch(batch)

    def draw(self, past: Digest, sample: SampleParams) -> int:
        if past not in self._begun:
            self._begun[past] = next(self._says), []
        said, drawn = self._begun[past]
        if sample.mask is None:
            id = [*self._text.encode(said), self._text.stop_ids[0]][len(drawn)]
        else:
            id = self._allowed(said, drawn, sample.mask)
        self._begun[extend(past, id)] = said, [*drawn, id]
        return id

    def _allowed(self, said: str, drawn: list[int], mask: TokenMask) -> int:
        """Of the ids that may be drawn, the one that says most of what is left."""
        bits = mask.compute_bitmask()
        ids = [id for id in range(8 * len(bits)) if bits[id >> 3] >> (id & 7) & 1]
        if self._spelt(drawn) == said:
            return next(id for id in ids if id in self._text.stop_ids)
        spelt = {id: self._spelt([*drawn, id]) for id in ids}
        return max((id for id in ids if said.startswith(spelt[id])), key=lambda id: len(spelt[id]))

    def _spelt(self, ids: Sequence[int]) -> str:
        detokenizer = self._text.create_detokenizer()
        return detokenizer.push(ids) + detokenizer.flush()
