"""A turn: the generation of one response on a sequence."""

import math
from array import array
from itertools import takewhile

import msgspec

from continuo.engine.batch import PenalizedIds, SampleParams, TokenCounts
from continuo.engine.sampling import Sampling
from continuo.engine.text import DraftMask, DraftMasks, GrammarMatcher, StopStringMatcher
from continuo.engine.wire.messages import KVResidency, TurnEndReason
from continuo.engine.wire.token_log import TokenLog

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
        "arrival",
        "cached_tokens",
        "computed_tokens",
        "due_step",
        "first_id_s",
        "first_step",
        "first_step_s",
        "id",
        "is_admitted",
        "last_step",
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
        "traceparent",
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
        """Args:
        turn_id: chosen by the client; the same after a pause and on another engine.
        sampling: of the request, its limit on output not yet that of the session.
        seed: of the draws, also where the request has none; not used by a greedy turn.
        max_output_tokens: the limit of the request, or what the session has room for.
        stop_watch: finds its stop strings; None: it has none.
        matcher: masks the ids that its grammar does not allow; None: it has no grammar.
        requested_s: when the request arrived, by the engine's clock.
        """
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
        self.arrival = 0
        """Number of the turn, in the order in which turns were given to the scheduler."""
        self.first_step = 0
        """Number of steps planned when the turn began."""
        self.due_step = math.inf
        """Step at which it is due: no turn that begins later than that is served before it."""
        self.last_step = 0
        """Number of the last step with a row of the turn; at first, of the step when it began."""
        self.penalized: PenalizedIds | None = None
        self.cached_tokens: int | None = None
        """Prompt tokens whose KV was found, up to the first output id; None before the turn is
        admitted."""
        self.computed_tokens = 0
        """Prompt tokens computed for this turn, some of them twice if it was retracted."""
        self.residency: KVResidency = "none"
        self._greedy_sample: SampleParams | None = None
        self.model_s_at_request = 0.0
        """`Counters.model_s` at the time of the request."""
        self.requested_s = requested_s
        self.first_step_s = 0.0
        self.first_id_s = 0.0
        self.traceparent = ""
        """W3C trace context of the client's span of the turn; empty: none."""

    @property
    def can_run_ahead(self) -> bool:
        """Whether the next row can be sampled before the last id has been collected. Penalties and
        grammars depend on that id."""
        return self.penalized is None and self.matcher is None

    @property
    def can_draft(self) -> bool:
        """Whether rows of the turn may have drafts. Penalties depend on each id before."""
        return self.penalized is None

    def fit_drafts(self, drafts: "array[int]") -> "array[int]":
        """Return the drafts before the first one that would end the turn, or that its grammar does
        not allow."""
        if not self.stop_ids.isdisjoint(drafts):
            drafts = array("i", takewhile(lambda id: id not in self.stop_ids, drafts))
        return drafts if self.matcher is None else drafts[: self.matcher.count_allowed(drafts)]

    def begin(self, log: TokenLog, emitted: int = 0) -> TurnEndReason | None:
        """Begin the turn on `log`, whose last `emitted` ids are output that the turn has emitted
        before; the others are its prompt. Returns the reason of its end if the emitted ids complete
        the turn, else None."""
        s, ids = self.sampling, log.ids
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
            none = TokenCounts(array("i"))
            seen = log.count_ids() if s.repetition_penalty != 1.0 else none
            counts_output = s.presence_penalty or s.frequency_penalty
            output = TokenCounts(ids, self.prompt_tokens) if counts_output else none
            self.penalized = PenalizedIds(seen, output)
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

    def draft_samples(self, drafts: "array[int]") -> tuple[SampleParams, ...]:
        """Count as many more launched output ids as there are drafts, and return the parameters for
        drawing the id after each of them."""
        samples = [self.next_sample() for _ in drafts]
        if self.matcher is not None:
            masks = DraftMasks(self.matcher, drafts)
            samples = [
                msgspec.structs.replace(sample, mask=DraftMask(masks, count))
                for count, sample in enumerate(samples, 1)
            ]
        return tuple(samples)

    def count_prefill(self, start: int, count: int) -> None:
        """Record that `count` tokens of the log were computed from `start` on, before the first id
        of the output."""
        end = min(start + count, self.prompt_tokens)
        self.computed_tokens += max(end - start, 0)
        self.cached_tokens = max(end - self.computed_tokens, 0)

    def accept(self, token_id: int) -> TurnEndReason | None:
        """Apply a drawn id, which is already in the log. Returns the reason why the turn ends with
        it, or None."""
        self.output_tokens += 1
        if self.matcher is not None:
            self.matcher.accept(token_id)
        if self.penalized is not None:
            self.penalized.seen.update()
            self.penalized.output.update()
        if self.stop_watch is not None:
            self.stopped_by = self.stop_watch.push([token_id])
        return self.finish_reason(token_id)
