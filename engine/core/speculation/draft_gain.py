"""DraftGain: what drafts gain one session, in ids drawn per second, and whether it drafts. Pure.

Measured are the seconds from one row of a turn to the next, as its client waits for them: so the
cost of computing drafts counts, that of steps which could not run ahead, and that of other rows.

    gain = (ids per second with drafts) / (ids per second without)

A session without a gain stops drafting for a number of ids, which doubles each time; then a few
rows try again.
"""

TRIAL_ROWS = 4
"""Rows with drafts after which the gain is judged."""
PLAIN_ROWS_MIN = 2
"""Rows without drafts that are measured before the first one with drafts."""
PLAIN_EVERY = 64
"""Rows with drafts after which one without is measured."""
PAUSE_IDS_MIN, PAUSE_IDS_MAX = 64, 4096
"""Ids drawn without drafts after the first trial without a gain, and after many."""
WEIGHT = 1 / 8
"""Weight of the last row in the moving averages."""
OUTLIER_RATIO_MAX = 4.0
"""Maximum seconds of a row, as a multiple of their average; longer ones are clipped."""


class MovingAverage:
    """Exponentially weighted average of the ids drawn by a row, and of its seconds."""

    __slots__ = ("ids", "rows", "seconds")

    def __init__(self) -> None:
        self.rows = 0
        self.ids = 0.0
        self.seconds = 0.0

    def add(self, ids: int, seconds: float) -> None:
        self.rows += 1
        weight = max(WEIGHT, 1 / self.rows)
        if self.rows > TRIAL_ROWS:
            seconds = min(seconds, OUTLIER_RATIO_MAX * self.seconds)
        self.ids += (ids - self.ids) * weight
        self.seconds += (seconds - self.seconds) * weight


class DraftGain:
    __slots__ = ("_drafted", "_pause_ids", "_plain", "_rows_since_plain", "_wait_ids", "length")

    def __init__(self, length: int) -> None:
        """`length`: the most drafts of a row."""
        self.length = length
        """Drafts of the next row: twice the ids that the last one has drawn, up to the most."""
        self._plain = MovingAverage()
        self._drafted = MovingAverage()
        self._rows_since_plain = 0
        self._pause_ids = PAUSE_IDS_MIN
        self._wait_ids = 0
        """Ids to draw before the next trial."""

    @property
    def is_drafting(self) -> bool:
        return (
            not self._wait_ids
            and self._plain.rows >= PLAIN_ROWS_MIN
            and self._rows_since_plain < PLAIN_EVERY
        )

    @property
    def gain(self) -> float:
        """Ids per second with drafts, relative to those without; 1 while either is unknown."""
        drafted, plain = self._drafted, self._plain
        if not drafted.seconds or not plain.seconds:
            return 1.0
        return drafted.ids / drafted.seconds * plain.seconds / plain.ids

    def observe_plain(self, seconds: float) -> None:
        """Record a row without drafts."""
        self._plain.add(1, seconds)
        self._rows_since_plain = 0
        self._wait_ids = max(self._wait_ids - 1, 0)

    def observe_drafted(self, ids: int, seconds: float) -> None:
        """Record a row with drafts that has drawn `ids`, or one that has waited for an id in vain
        because drafts were expected."""
        self._drafted.add(ids, seconds)
        self._rows_since_plain += 1
        if self._drafted.rows < TRIAL_ROWS:
            return
        if self.gain > 1:
            self._pause_ids = PAUSE_IDS_MIN
        else:
            self._wait_ids = self._pause_ids
            self._pause_ids = min(2 * self._pause_ids, PAUSE_IDS_MAX)
            self._drafted = MovingAverage()
