"""A turn: the generation of one response on a sequence."""

from array import array
from collections import Counter

from continuo.engine.batch import Penalties, Sample
from continuo.engine.text import Matcher, StopWatch
from continuo.engine.wire.messages import Reason, Residency, Sampling

_MASK = (1 << 64) - 1


def uniform(seed: int, k: int) -> float:
    """The one uniform in [0, 1) that output k of a turn uses. SplitMix64 (Steele, Lea, Flood 2014)
    of seed and k, 53 bits."""
    z = (seed * 0xD1342543DE82EF95 + (k + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


class Turn:
    """One answer: from `generate` to exactly one TurnEnded."""

    __slots__ = (
        "_greedy",
        "admitted",
        "asked_s",
        "began",
        "cached",
        "first_id_s",
        "id",
        "limit",
        "mark_s",
        "matcher",
        "ordered",
        "outputs",
        "penalties",
        "residency",
        "sampling",
        "seed",
        "stop_ids",
        "stopped_by",
        "taken_up_s",
        "watch",
    )

    def __init__(
        self,
        id: str,
        sampling: Sampling,
        seed: int,
        limit: int,
        watch: StopWatch | None,
        matcher: Matcher | None,
        now: float,
    ) -> None:
        self.id = id
        self.sampling = sampling
        self.seed = seed
        self.limit = limit
        """Output ids at most."""
        self.watch = watch
        self.matcher = matcher
        self.stopped_by: str | None = None
        """The stop string that has come."""
        self.stop_ids = frozenset[int]() if sampling.ignore_eos else frozenset(sampling.stop_ids)
        self.began = 0
        """Length of the log when the turn began: its prompt."""
        self.ordered = 0
        """Ids asked of the device so far, those still promised included."""
        self.outputs = 0
        """Ids that have come back."""
        self.admitted = False
        self.penalties: Penalties | None = None
        self.cached: int | None = None
        """Prompt tokens found in KV when the turn was first taken up."""
        self.residency: Residency = "none"
        self._greedy: Sample | None = None
        self.mark_s = 0.0
        """Device seconds when it was asked for."""
        self.asked_s = now
        self.taken_up_s = 0.0
        self.first_id_s = 0.0

    @property
    def runs_ahead(self) -> bool:
        """Whether a row may be launched while its last id is still promised."""
        return self.penalties is None and self.matcher is None

    def begin(self, ids: "array[int]", said: int = 0) -> Reason | None:
        """The turn's prompt is all of `ids` but the last `said`, which it has said already. Returns
        why it is over, if with these it is."""
        s = self.sampling
        self.began = len(ids) - said
        self.ordered = self.outputs = said
        stop = self.watch.push(ids[self.began :]) if said and self.watch is not None else None
        if self.matcher is not None:
            for id in ids[self.began :]:
                self.matcher.accept(id)
        if s.repetition_penalty != 1.0 or s.presence_penalty or s.frequency_penalty:
            seen = set(ids) if s.repetition_penalty != 1.0 else set[int]()
            self.penalties = Penalties(
                s.repetition_penalty,
                s.presence_penalty,
                s.frequency_penalty,
                seen,
                dict(Counter(ids[self.began :])),
            )
        if not said:
            return None
        self.stopped_by = stop
        return self.over(ids[-1])

    def over(self, last: int) -> Reason | None:
        """Why it ends, if it does, `last` being what it has said last."""
        if self.stopped_by is not None or last in self.stop_ids:
            return "stop"
        return "length" if self.outputs >= self.limit else None

    def next_sample(self) -> Sample:
        """How to draw the turn's next id; the same each time if the turn is greedy."""
        self.ordered += 1
        if self._greedy is not None:
            return self._greedy
        sample = self._sample()
        if not self.sampling.temperature:
            self._greedy = sample
        return sample

    def _sample(self) -> Sample:
        s = self.sampling
        return Sample(
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            min_p=s.min_p,
            uniform=uniform(self.seed, self.ordered - 1) if s.temperature else 0.0,
            logprobs=-1 if s.logprobs is None else s.logprobs,
            bias=tuple(s.logit_bias.items()),
            penalties=self.penalties,
            mask=self.matcher,
        )

    def took(self, id: int) -> Reason | None:
        """An id has come back and is part of the log. Returns why the turn is over, if it is."""
        self.outputs += 1
        if self.matcher is not None:
            self.matcher.accept(id)
        if self.penalties is not None:
            self.penalties.seen.add(id)
            self.penalties.counts[id] = self.penalties.counts.get(id, 0) + 1
        if self.watch is not None:
            self.stopped_by = self.watch.push([id])
        return self.over(id)
