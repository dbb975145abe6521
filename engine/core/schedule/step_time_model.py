"""The predicted duration of a step, fitted to measured ones while running."""

from continuo.engine.core.schedule.budget import Load

FORGET = 0.98
"""Weight of the past at each new observation."""


FITTED_AFTER = 8
"""Observations before predictions are trusted."""


OUTLIER = 4.0
"""An observation counts for at most this many times what was predicted."""


REFIT_EVERY = 32
"""Observations from one fit to the next."""


SCALES = (1.0, 8.0, 256.0, 256.0 * 4096.0)


class StepTime:
    """Least squares over the steps so far, older ones forgotten (exponentially weighted normal
    equations); coefficients below zero are taken as zero."""

    def __init__(self) -> None:
        size = len(SCALES)
        self._seen = 0
        self._products = [[1e-6 * (i == j) for j in range(size)] for i in range(size)]
        self._sums = [0.0] * size
        self._fit = [0.0] * size
        self._unread: list[tuple[Load, float]] = []

    @property
    def fitted(self) -> bool:
        return self._seen + len(self._unread) >= FITTED_AFTER

    def observe(self, load: Load, seconds: float) -> None:
        """The device took `seconds` for a step of `load`. Learnt from when somebody asks, or after
        a number of steps: where nobody plans cold work, a step costs a list's append."""
        self._unread.append((load, seconds))
        if len(self._unread) >= REFIT_EVERY:
            self._read()

    def _read(self) -> None:
        for load, seconds in self._unread:
            self._learn(load, seconds)
        self._unread.clear()

    def _learn(self, load: Load, seconds: float) -> None:
        if self._seen >= FITTED_AFTER:
            seconds = min(seconds, OUTLIER * self._predict(load) + 1e-4)
        self._seen += 1
        x = _features(load)
        for i, xi in enumerate(x):
            self._sums[i] = FORGET * self._sums[i] + xi * seconds
            row = self._products[i]
            for j, xj in enumerate(x):
                row[j] = FORGET * row[j] + xi * xj
        if self._seen <= FITTED_AFTER or self._seen % REFIT_EVERY == 0:
            self._fit = [max(c, 0.0) for c in _solve(self._products, self._sums)]

    def predict(self, load: Load) -> float:
        """Seconds."""
        self._read()
        return self._predict(load)

    def _predict(self, load: Load) -> float:
        return sum(c * x for c, x in zip(self._fit, _features(load), strict=True))

    def tokens_within(self, seconds: float, load: Load, start: int, most: int) -> int:
        """How many tokens, at most `most`, of a sequence with `start` in KV can join `load` so that
        the step takes no more than `seconds`."""
        self._read()
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self._predict(load.plus(start, middle)) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low


def _features(load: Load) -> tuple[float, ...]:
    values = (1, load.rows, load.tokens, load.attention)
    return tuple(value / scale for value, scale in zip(values, SCALES, strict=True))


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination with pivoting; a column without one counts as zero."""
    size = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for i in range(size):
        best = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[best] = rows[best], rows[i]
        if abs(rows[i][i]) < 1e-12:
            continue
        for r in range(size):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [rows[i][size] / rows[i][i] if abs(rows[i][i]) >= 1e-12 else 0.0 for i in range(size)]
