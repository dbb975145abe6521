"""StepTime: how long a step takes, and how much of it prefill chunks may take. Pure.

Beside live rows (decodes and short turns) chunks prolong a step by at most half, because each live
turn waits for its end. Without live rows a step may take PREFILL_S_MAX: so long a new turn may have
to wait for its first step. A short turn need not: the step is discarded for it, as long as little
time is lost so.
"""

import numpy as np
import numpy.typing as npt

from continuo.engine.core.schedule.packing import StepRows
from continuo.engine.core.schedule.step import StepLoad

PREFILL_S_MAX = 0.05
"""Maximum seconds of a step that only prefills."""
PREFILL_S_MIN = 0.002
"""Seconds that prefill chunks may always add to a step."""
PREFILL_SHARE = 0.5
"""Time that prefill chunks may add to a step, as a share of the time of its live rows."""
PREFILL_GROWTH = 1.5
"""Factor by which the time limit of prefill grows with each further step without live rows."""
CHUNK_TOKENS_MIN = 16
"""Minimum tokens of a prefill chunk, even if the time for prefill is used up."""
CHUNK_TOKENS_MIN_ALONE = 48
"""The same in a step without live rows. With fewer tokens, a large model on a CPU spends much of
the step on reading its weights."""
DISCARDED_SHARE = 0.25
"""Maximum share of the time of all steps that may be spent on steps which are then discarded,
because a short turn has begun."""
DISCARDED_S_MAX = 0.5
"""Maximum seconds of such steps in immediate succession."""
STEP_S_WEIGHT = 0.1
"""Weight of the last step in the moving average of their duration."""
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
        self._pending: list[tuple[StepLoad, float]] = []
        """Observations since the last fit."""
        self._pending_max = 1
        """Number of them with which the next fit is made."""
        self._products: _Floats = np.eye(4) * 1e-6
        """Weighted sums of the products of two features; `_sums`: of each one and the seconds."""
        self._sums: _Floats = np.zeros(4)
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
            solution, *_ = np.linalg.lstsq(self._products, self._sums, rcond=1e-12)
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


class StepTime:
    def __init__(self) -> None:
        self._model = StepTimeModel()
        self.live_load = StepLoad()
        """Load of the live rows in the last step that had any, set by the scheduler; empty once
        `_prefill_s` was computed from it."""
        self._prefill_s = PREFILL_S_MAX
        """Time that prefill chunks may take in the next step, in seconds."""
        self.discardable_s = DISCARDED_S_MAX
        """Time that may be spent on steps which are then discarded, in seconds."""
        self.step_s = 0.0
        """Moving average of the seconds of a step; 0 before the first."""

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Record the seconds that a step took on the device."""
        self._model.observe(load, seconds)
        self.step_s += (seconds - self.step_s) * STEP_S_WEIGHT
        if self.discardable_s < DISCARDED_S_MAX:
            earned_s = seconds * DISCARDED_SHARE
            self.discardable_s = min(self.discardable_s + earned_s, DISCARDED_S_MAX)

    def observe_discarded(self, seconds: float) -> None:
        """Record the seconds that were spent on a step which was discarded for a short turn."""
        self.discardable_s -= seconds

    def step_s_max(self, live: StepLoad) -> float:
        """Return the time limit of a step with prefill chunks, in seconds. `live`: load of its live
        rows.

        With live rows: their predicted time, and a share of it for the chunks. Without: the time
        for chunks alone. As live rows usually reappear soon, the first such step has as much of it
        as the step before; each later one has PREFILL_GROWTH times as much, up to PREFILL_S_MAX.
        """
        live_s = self._model.predict(self.live_load)
        if self.live_load.rows:
            self._prefill_s = min(max(live_s * PREFILL_SHARE, PREFILL_S_MIN), PREFILL_S_MAX)
            self.live_load = StepLoad()
        if live.rows:
            return live_s + self._prefill_s
        limit_s = self._prefill_s
        self._prefill_s = min(limit_s * PREFILL_GROWTH, PREFILL_S_MAX)
        return limit_s

    def chunk_tokens(self, start: int, step_s_max: float, rows: StepRows, *, is_first: bool) -> int:
        """Return the tokens of a prefill chunk from position `start` that fit beside `rows` in a
        step of `step_s_max` seconds. For the first chunk of a step, at least CHUNK_TOKENS_MIN or
        CHUNK_TOKENS_MIN_ALONE."""
        load, tokens_max = rows.load, rows.remaining_tokens
        fits = self._model.tokens_within(step_s_max, load, start, tokens_max)
        if is_first:
            fits = max(fits, CHUNK_TOKENS_MIN if load.rows else CHUNK_TOKENS_MIN_ALONE)
        return min(fits, tokens_max)
