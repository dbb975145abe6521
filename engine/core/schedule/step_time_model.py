"""StepTimeModel: predicts the duration of a step, by online least squares over measured ones."""

from continuo.engine.core.schedule.budget import StepLoad

DECAY = 0.98
"""Factor applied to the weights of all past observations at each new one."""
OBSERVATIONS_MIN = 8
"""Number of observations before predictions are used."""
OUTLIER_RATIO_MAX = 4.0
"""Maximum of an observed duration, as a multiple of its prediction; longer durations are
clipped."""
REFIT_EVERY = 32
"""Number of observations between fits of the coefficients."""
FEATURE_SCALES = (1.0, 8.0, 256.0, 256.0 * 4096.0)


class StepTimeModel:
    """Exponentially weighted least squares over the steps so far, by the normal equations; negative
    coefficients are replaced by zero."""

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
        """Record the `seconds` that the device took for a step of `load`. The observation is fitted
        at the next prediction, or after REFIT_EVERY steps, so that most steps without prefill cost
        only a list append."""
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
        """Return the predicted duration of a step, in seconds."""
        self._learn_pending()
        return self._predict(load)

    def _predict(self, load: StepLoad) -> float:
        return sum(c * x for c, x in zip(self._coefficients, _features(load), strict=True))

    def tokens_within(self, seconds: float, load: StepLoad, start: int, tokens_max: int) -> int:
        """Return how many tokens, up to `tokens_max`, of a sequence with `start` tokens in KV fit
        beside `load` in a step of `seconds`."""
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
    """Solve by Gaussian elimination with pivoting; an unknown without a pivot is zero."""
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
