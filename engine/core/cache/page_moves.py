"""PageMoves: the page moves of the next batch, in the order in which the device executes them.

    a page is allocated for      recorded
    tokens to be computed        blank, if pages are blanked
    a copy, or a recall          the copy, or the load, which fills the whole page

A page that is blanked holds nothing of its last owner when its first row is computed. A row that
reads a position which no step has computed thus fails, and does not read the KV of another
session. A page of the host tier needs no blank: the spill that it is allocated for fills it.
Positions behind the end of a copied page, or of one that a rewind has cut, keep what they held.
"""

from collections.abc import Iterable

from continuo.engine.batch import FULL_GROUP, PageMove


class PageMoves(list[PageMove]):
    """A list that the cache owns and empties; its parts append to it."""

    def __init__(self, *, blanks_pages: bool = False) -> None:
        """`blanks_pages`: whether `blank` records anything. It costs a write for each page."""
        super().__init__()
        self._blanks_pages = blanks_pages

    def blank(self, units: Iterable[int], group: int = FULL_GROUP) -> None:
        """Record that pages, or state slots, were allocated for tokens to be computed."""
        if self._blanks_pages:
            self.extend(PageMove("blank", unit, unit, group) for unit in units)
