"""StepTimeModel: predicts the duration of a step, by online least squares over measured ones."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from continuo.engine.core.schedule.budget import StepLoad

DECAY = 0.98
"""Factor applied to the weights of all past observations at each new one."""
OBSERVATIONS_MIN = 8
"""Number of observations before the coefficients are fitted; until then a step is predicted from
its tokens alone, by the longest time that a token has taken so far."""
OUTLIER_RATIO_MAX = 4.0
"""Maximum of an observed duration, as a multiple of its prediction; longer durations are
clipped."""
REFIT_EVERY = 32
"""Number of observations between fits of the coefficients."""
_SCALES = np.array([1.0, 8.0, 256.0, 256.0 * 4096.0])
"""Divisors of the features: of 1, and of a step's rows, tokens and attention."""

_Floats = npt.NDArray[np.float64]


class StepTimeModel:
    """Exponentially weighted least squares over the steps so far, by the normal equations; negative
    coefficients are replaced by zero."""

    def __init__(self) -> None:
        self._observations = 0
        """Number of observations fitted."""
        self._pending: list[tuple[StepLoad, float]] = []
        """Observations since the last fit."""
        self._pending_max = 1
        """Number of them with which the next fit is made."""
        self._products: _Floats = np.eye(4) * 1e-6
        """Weighted sums of the products of two features."""
        self._sums: _Floats = np.zeros(4)
        """The same of each feature and the seconds."""
        self._coefficients = [0.0] * 4
        """Coefficients of the features without their scales."""

    @property
    def is_fitted(self) -> bool:
        return self._observations >= OBSERVATIONS_MIN

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Record the `seconds` that the device took for a step of `load`. Most observations cost
        only a list append: they are fitted together."""
        self._pending.append((load, seconds))
        if len(self._pending) >= self._pending_max:
            self._fit()

    def _fit(self) -> None:
        """Fit the coefficients to all observations, of which the pending ones are the newest."""
        loads = [(1, load.rows, load.tokens, load.attention) for load, _ in self._pending]
        features: _Floats = np.array(loads) / _SCALES
        seconds: _Floats = np.array([seconds for _, seconds in self._pending])
        if self.is_fitted:
            predicted: _Floats = features @ (_SCALES * self._coefficients)
            seconds = np.minimum(seconds, OUTLIER_RATIO_MAX * predicted + 1e-4)
        count = len(self._pending)
        weighted: _Floats = features.T * DECAY ** np.arange(count - 1, -1, -1)
        self._products = DECAY**count * self._products + weighted @ features
        self._sums = DECAY**count * self._sums + weighted @ seconds
        self._observations += count
        if self.is_fitted:
            solution = _solve(self._products.tolist(), self._sums.tolist())
            self._coefficients = (np.maximum(solution, 0.0) / _SCALES).tolist()
            self._pending_max = REFIT_EVERY
        else:
            token_s = max(spent_s / max(load.tokens, 1) for load, spent_s in self._pending)
            self._coefficients[2] = max(self._coefficients[2], token_s)
        self._pending.clear()

    def predict(self, load: StepLoad) -> float:
        """Return the predicted duration of a step, in seconds."""
        a, b, c, d = self._coefficients
        return a + b * load.rows + c * load.tokens + d * load.attention

    def tokens_within(self, seconds: float, load: StepLoad, start: int, tokens_max: int) -> int:
        """Return how many tokens, up to `tokens_max`, of a sequence with `start` tokens in KV fit
        beside `load` in a step of `seconds`."""
        low, high = 0, tokens_max
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict(load.with_row(start, middle)) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
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
