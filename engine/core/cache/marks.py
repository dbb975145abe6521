"""Marks: the positions before `committed` at which a lease stays continuable, for rewinds and
forks. Pure.

    anchor ── 64 ── 64 ── 64 ── 64 ── newest ≤ committed
    anchor ─── 128 ──── 128 ─── … once there would be more than MARKS_MAX between them

The anchor is the last page boundary before the running answer. So a rewind into the answer owes at
most MARK_SPACING_TOKENS tokens or half the answer, and a rewind to its start less than a page. The
newest mark is the last page boundary that was committed: what is published ends there. All marks
are at page boundaries, where nodes of the tree end.

The tree has a state at the end of each row that prefilled a published prompt, and one where prompts
branch, so that the head that they share is computed once:

    first    | state ......... state .... | state       rows end where the step was full
    second   | ................ branch ... | state       the tree has these pages, but no state
    third    | ................ state .... | state       computes nothing of the head

The second one ends a row at the branch. A branch less than BRANCH_PAGES_MIN behind the last state
gets none: the additional row, of all others the first, would save too little.

A model that has windows, but no recurrent state, keeps all pages of the newest answer as well, so
that a rewind into it owes nothing: unless the answer is longer than `answer_tokens_max`, or the
pool needs the room. Then the marks remain.
"""

MARKS_MAX = 4
"""Maximum number of marks inside an answer, besides its anchor and the newest mark."""
MARK_SPACING_TOKENS = 64
"""Distance of marks inside an answer at first; doubled whenever there are too many."""
BRANCH_PAGES_MIN = 4
"""Minimum pages of the tree between a state and a branch that gets one too."""

ANSWER_TOKENS_MIN = 1024
"""Tokens of an answer that all windows keep, however short they are."""


def answer_tokens_max(window: int) -> int:
    """Return the tokens up to which a window of `window` tokens keeps an answer whole: as many as
    the windows of all marks have, so that the answer costs no more memory than its marks may."""
    return max(ANSWER_TOKENS_MIN, (MARKS_MAX + 2) * window)


def add_mark(marks: list[int], anchor: int, spacing: int, position: int) -> tuple[list[int], int]:
    """Add a mark after all others. Returns the marks that remain, and their spacing."""
    kept = [x for x in marks if x <= anchor or (x - anchor) % spacing == 0]
    if sum(x > anchor for x in kept) > MARKS_MAX:
        spacing *= 2
        kept = [x for x in kept if x <= anchor or (x - anchor) % spacing == 0]
    return [*kept, position], spacing


def first_spacing(page_size: int) -> int:
    """Return the spacing of the first marks of an answer: MARK_SPACING_TOKENS in whole pages."""
    return -(-MARK_SPACING_TOKENS // page_size) * page_size
