"""The predicted duration of a step, fitted to measured ones while running."""

from continuo.engine.core.schedule.budget import StepLoad

DECAY = 0.98
"""Weight of the past at each new observation."""


OBSERVATIONS_MIN = 8
"""Observations before predictions are trusted."""


OUTLIER_RATIO_MAX = 4.0
"""An observation counts for at most this many times what was predicted."""


REFIT_EVERY = 32
"""Observations from one fit to the next."""


FEATURE_SCALES = (1.0, 8.0, 256.0, 256.0 * 4096.0)


class StepTimeModel:
    """Least squares over the steps so far, older ones forgotten (exponentially weighted normal
    equations); coefficients below zero are taken as zero."""

    def __init__(self) -> None:
        size = len(FEATURE_SCALES)
        self._observations = 0
        self._products = [[1e-6 * (i == j) for j in range(size)] for i in range(size)]
        self._sums = [0.0] * size
        self._coefficients = [0.0] * size
        self._pending: list[tuple[StepLoad, float]] = []

    @property
    def is_fitted(self) -> bool:
        return self._observations + len(self._pending) >= OBSERVATIONS_MIN

    def observe(self, load: StepLoad, seconds: float) -> None:
        """The device took `seconds` for a step of `load`. Learnt from when somebody asks, or after
        a number of steps: where nobody plans cold work, a step costs a list's append."""
        self._pending.append((load, seconds))
        if len(self._pending) >= REFIT_EVERY:
            self._learn_pending()

    def _learn_pending(self) -> None:
        for load, seconds in self._pending:
            self._learn(load, seconds)
        self._pending.clear()

    def _learn(self, load: StepLoad, seconds: float) -> None:
        if self._observations >= OBSERVATIONS_MIN:
            seconds = min(seconds, OUTLIER_RATIO_MAX * self._predict(load) + 1e-4)
        self._observations += 1
        x = _features(load)
        for i, xi in enumerate(x):
            self._sums[i] = DECAY * self._sums[i] + xi * seconds
            row = self._products[i]
            for j, xj in enumerate(x):
                row[j] = DECAY * row[j] + xi * xj
        if self._observations <= OBSERVATIONS_MIN or self._observations % REFIT_EVERY == 0:
            self._coefficients = [max(c, 0.0) for c in _solve(self._products, self._sums)]

    def predict(self, load: StepLoad) -> float:
        """Seconds."""
        self._learn_pending()
        return self._predict(load)

    def _predict(self, load: StepLoad) -> float:
        return sum(c * x for c, x in zip(self._coefficients, _features(load), strict=True))

    def tokens_within(self, seconds: float, load: StepLoad, start: int, tokens_max: int) -> int:
        """How many tokens, at most `most`, of a sequence with `start` in KV can join `load` so that
        the step takes no more than `seconds`."""
        self._learn_pending()
        low, high = 0, tokens_max
        while low < high:
            middle = (low + high + 1) // 2
            if self._predict(load.with_row(start, middle)) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low


def _features(load: StepLoad) -> tuple[float, ...]:
    values = (1, load.rows, load.tokens, load.attention)
    return tuple(value / scale for value, scale in zip(values, FEATURE_SCALES, strict=True))


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
