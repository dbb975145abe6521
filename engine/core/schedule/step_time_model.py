"""StepTimeModel: predicts the duration of a step, by online least squares over measured ones."""

from collections.abc import Iterable

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
ROWS_SCALE, TOKENS_SCALE, ATTENTION_SCALE = 8.0, 256.0, 256.0 * 4096.0

_Features = tuple[float, float, float]
"""Rows, tokens and attention of a step, each divided by its scale."""


class StepTimeModel:
    """Exponentially weighted least squares over the steps so far, by the normal equations; negative
    coefficients are replaced by zero."""

    def __init__(self) -> None:
        self._observations = 0
        self._products = (1e-6, 0.0, 0.0, 0.0, 1e-6, 0.0, 0.0, 1e-6, 0.0, 1e-6)
        """Weighted sums of the products of two features, of which the first is always 1: the upper
        triangle of their matrix, row by row."""
        self._sums = (0.0, 0.0, 0.0, 0.0)
        """The same of each feature and the seconds."""
        self._coefficients = [0.0] * 4
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
        """Add one observation to the sums. Written out, because it is done for every step."""
        features = x, y, z = _scale(load)
        if self._observations >= OBSERVATIONS_MIN:
            seconds = min(seconds, OUTLIER_RATIO_MAX * self._predict(features) + 1e-4)
        self._observations += 1
        n, nx, ny, nz, xx, xy, xz, yy, yz, zz = self._products
        self._products = (
            *(DECAY * n + 1, DECAY * nx + x, DECAY * ny + y, DECAY * nz + z),
            *(DECAY * xx + x * x, DECAY * xy + x * y, DECAY * xz + x * z),
            *(DECAY * yy + y * y, DECAY * yz + y * z, DECAY * zz + z * z),
        )
        s, sx, sy, sz = self._sums
        self._sums = (
            *(DECAY * s + seconds, DECAY * sx + x * seconds),
            *(DECAY * sy + y * seconds, DECAY * sz + z * seconds),
        )
        if self._observations <= OBSERVATIONS_MIN or self._observations % REFIT_EVERY == 0:
            self._refit()

    def _refit(self) -> None:
        n, nx, ny, nz, xx, xy, xz, yy, yz, zz = self._products
        matrix = [[n, nx, ny, nz], [nx, xx, xy, xz], [ny, xy, yy, yz], [nz, xz, yz, zz]]
        self._coefficients = [max(c, 0.0) for c in _solve(matrix, self._sums)]

    def predict(self, load: StepLoad) -> float:
        """Return the predicted duration of a step, in seconds."""
        self._learn_pending()
        return self._predict(_scale(load))

    def _predict(self, features: _Features) -> float:
        a, b, c, d = self._coefficients
        x, y, z = features
        return a + b * x + c * y + d * z

    def tokens_within(self, seconds: float, load: StepLoad, start: int, tokens_max: int) -> int:
        """Return how many tokens, up to `tokens_max`, of a sequence with `start` tokens in KV fit
        beside `load` in a step of `seconds`."""
        self._learn_pending()
        low, high = 0, tokens_max
        while low < high:
            middle = (low + high + 1) // 2
            if self._predict(_scale(load.with_row(start, middle))) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low


def _scale(load: StepLoad) -> _Features:
    return (
        load.rows / ROWS_SCALE,
        load.tokens / TOKENS_SCALE,
        load.attention / ATTENTION_SCALE,
    )


def _solve(matrix: list[list[float]], right: Iterable[float]) -> list[float]:
    """Solve by Gaussian elimination with pivoting; an unknown without a pivot is zero."""
    size = len(matrix)
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
