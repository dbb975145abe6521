"""A turn: the generation of one response on a sequence."""

from array import array
from collections import Counter

from continuo.engine.batch import PenalizedIds, SampleParams
from continuo.engine.sampling import Sampling
from continuo.engine.text import GrammarMatcher, StopStringMatcher
from continuo.engine.wire.messages import KVResidency, TurnEndReason

_MASK = (1 << 64) - 1


def uniform(seed: int, k: int) -> float:
    """Return the uniform random number in [0, 1) for drawing output id `k` (from 0) of a turn: 53
    bits of SplitMix64 (Steele, Lea, Flood 2014) of seed and k."""
    z = (seed * 0xD1342543DE82EF95 + (k + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


class Turn:
    """State of one turn, from `generate` to exactly one TurnEnded."""

    __slots__ = (
        "_greedy_sample",
        "cached_tokens",
        "first_id_s",
        "first_step_s",
        "id",
        "is_admitted",
        "launched_tokens",
        "matcher",
        "max_output_tokens",
        "model_s_at_request",
        "output_tokens",
        "penalized",
        "prompt_tokens",
        "requested_s",
        "residency",
        "sampling",
        "seed",
        "stop_ids",
        "stop_watch",
        "stopped_by",
    )

    def __init__(
        self,
        turn_id: str,
        sampling: Sampling,
        seed: int,
        max_output_tokens: int,
        stop_watch: StopStringMatcher | None,
        matcher: GrammarMatcher | None,
        requested_s: float,
    ) -> None:
        self.id = turn_id
        self.sampling = sampling
        self.seed = seed
        self.max_output_tokens = max_output_tokens
        self.stop_watch = stop_watch
        self.matcher = matcher
        self.stopped_by: str | None = None
        """The stop string found in the output, if any."""
        self.stop_ids = frozenset[int]() if sampling.ignore_eos else frozenset(sampling.stop_ids)
        self.prompt_tokens = 0
        """Length of the log when the turn began."""
        self.launched_tokens = 0
        """Number of output ids that all launched steps draw, including steps not collected yet."""
        self.output_tokens = 0
        """Number of output ids in the log."""
        self.is_admitted = False
        self.penalized: PenalizedIds | None = None
        self.cached_tokens: int | None = None
        """Prompt tokens whose KV was found when the turn was first admitted; None before that."""
        self.residency: KVResidency = "none"
        self._greedy_sample: SampleParams | None = None
        self.model_s_at_request = 0.0
        """`Counters.model_s` at the time of the request."""
        self.requested_s = requested_s
        self.first_step_s = 0.0
        self.first_id_s = 0.0

    @property
    def can_run_ahead(self) -> bool:
        """Whether the next row may be launched before the last id has been collected. Penalties and
        grammars depend on that id."""
        return self.penalized is None and self.matcher is None

    def begin(self, ids: "array[int]", emitted: int = 0) -> TurnEndReason | None:
        """Begin the turn on the log `ids`, whose last `emitted` ids are output that the turn has
        emitted before; the others are its prompt. Returns the reason of its end if the emitted ids
        complete the turn, else None."""
        s = self.sampling
        self.prompt_tokens = len(ids) - emitted
        self.launched_tokens = self.output_tokens = emitted
        stop = (
            self.stop_watch.push(ids[self.prompt_tokens :])
            if emitted and self.stop_watch is not None
            else None
        )
        if self.matcher is not None:
            for id in ids[self.prompt_tokens :]:
                self.matcher.accept(id)
        if s.repetition_penalty != 1.0 or s.presence_penalty or s.frequency_penalty:
            seen = set(ids) if s.repetition_penalty != 1.0 else set[int]()
            self.penalized = PenalizedIds(seen, dict(Counter(ids[self.prompt_tokens :])))
        if not emitted:
            return None
        self.stopped_by = stop
        return self.finish_reason(ids[-1])

    def finish_reason(self, last_id: int) -> TurnEndReason | None:
        """Return the reason why the turn ends after `last_id`; None if it continues."""
        if self.stopped_by is not None or last_id in self.stop_ids:
            return "stop"
        return "length" if self.output_tokens >= self.max_output_tokens else None

    def next_sample(self) -> SampleParams:
        """Count one more launched output id and return the parameters for drawing it. A greedy turn
        returns the same object each time."""
        self.launched_tokens += 1
        if self.sampling.temperature:
            number = uniform(self.seed, self.launched_tokens - 1)
            return SampleParams(self.sampling, number, self.penalized, self.matcher)
        if self._greedy_sample is None:
            self._greedy_sample = SampleParams(self.sampling, 0.0, self.penalized, self.matcher)
        return self._greedy_sample

    def accept(self, token_id: int) -> TurnEndReason | None:
        """Apply a drawn id, which is already in the log. Returns the reason why the turn ends with
        it, or None."""
        self.output_tokens += 1
        if self.matcher is not None:
            self.matcher.accept(token_id)
        if self.penalized is not None:
            self.penalized.seen_ids.add(token_id)
            counts = self.penalized.output_counts
            counts[token_id] = counts.get(token_id, 0) + 1
        if self.stop_watch is not None:
            self.stopped_by = self.stop_watch.push([token_id])
        return self.finish_reason(token_id)
