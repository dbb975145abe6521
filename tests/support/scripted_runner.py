"""A device that says what it is told to, whatever it reads: what no small model would say."""

import itertools
from collections.abc import Sequence

from engine.batch import Batch, Geometry, Sample, Sampled
from engine.text import Text
from tests.support.digest_runner import Digest, DigestRunner, extend


class ScriptedRunner(DigestRunner):
    """The first turn says the first text, the next one the next, and so on, around again; each then
    ends. `read` is all it has read, in order."""

    def __init__(self, geometry: Geometry, text: Text, says: Sequence[str]) -> None:
        super().__init__(geometry)
        self._lines = itertools.cycle([*text.encode(said), text.stop_ids[0]] for said in says)
        self._left: dict[Digest, list[int]] = {}
        """What is still to be said, by all that stands before it."""
        self.read: list[int] = []

    def launch(self, batch: Batch) -> Sampled:
        for row in batch.rows:
            self.read += row.ids
        return super().launch(batch)

    def draw(self, past: Digest, sample: Sample) -> int:
        if past not in self._left:
            self._left[past] = next(self._lines)
        id, *rest = self._left[past]
        if sample.mask is not None:
            allowed = sample.mask.allowed()
            assert allowed[id >> 3] >> (id & 7) & 1, "the script says what may not be said"
        self._left[extend(past, id)] = rest
        return id
