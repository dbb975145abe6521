"""Sequence: its ids, how many of them reached KV, what is owed. Turn: one answer in the making.

    committed  ≤  launched  ≤  len(ids) + promised

`committed` is what the lease has; `launched` adds what is on its way to it; `promised` ids have
been ordered but are still on the device. The rest is owed. There is no prefill phase and no decode
phase: a step runs part of what is owed, and draws an id where the end is reached and a turn wants
one.
"""

from array import array
from collections import Counter

from continuo.engine.batch import Penalties, Sample
from continuo.engine.core.cache import Lease
from continuo.engine.core.deferred_commands import Waiting
from continuo.engine.text import Matcher, StopWatch
from continuo.engine.wire.flight_recorder import mark_of
from continuo.engine.wire.messages import (
    Attach,
    Close,
    Fork,
    Reason,
    Residency,
    Sampling,
    TurnEnded,
)
from continuo.engine.wire.token_log import Log

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


class Sequence:
    """A session's tokens and its hold on KV."""

    __slots__ = (
        "aside",
        "closing",
        "deferred",
        "ended",
        "found",
        "id",
        "ids",
        "last_feed",
        "lease",
        "log",
        "mark",
        "opening",
        "paused",
        "promised",
        "publish_to",
        "reached",
        "timeout_s",
        "touched_s",
        "turn",
        "turns",
    )

    def __init__(
        self, id: str, lease: Lease, log: Log, timeout_s: float | None, now: float
    ) -> None:
        self.id = id
        self.mark = mark_of(id)
        """Names it in the flight recorder."""
        self.lease = lease
        self.log = log
        self.ids = log.ids
        """The log's own array."""
        self.timeout_s = timeout_s
        self.promised = 0
        self.last_feed: tuple[int, int] = (-1, -1)
        """(batch number, row) that draws the promised id."""
        self.turn: Turn | None = None
        self.ended: TurnEnded | None = None
        """How the last turn has ended, or how far it was when it was paused."""
        self.paused = False
        self.turns = 0
        """Turns begun; the first one's prompt is what a streaming session publishes."""
        self.publish_to = 0
        """Publish ids[:publish_to] once they are committed; 0: nothing to publish."""
        self.aside: array[int] = array("i")
        """A provisional span that waits for the turn to end."""
        self.reached = 0
        """How far KV has ever reached into the present ids, here or where the session was before;
        committed less: KV was lost."""
        self.deferred = Waiting()
        """Commands that wait for the turn, or the step in flight, to end."""
        self.closing: Close | None = None
        self.opening: Attach | Fork | None = None
        """The command it was opened for, until that has taken effect."""
        self.found: Residency = "none"
        """The longest way its KV had to come since the last turn."""
        self.touched_s = now

    @property
    def committed(self) -> int:
        return self.lease.committed

    @property
    def launched(self) -> int:
        return self.lease.reach

    @property
    def flying(self) -> int:
        """Tokens on their way to KV."""
        return self.lease.reserved

    @property
    def busy(self) -> bool:
        """A turn runs, or tokens are in flight: the log and the lease must not be changed."""
        return self.turn is not None or self.lease.reserved > 0

    @property
    def end(self) -> int:
        return len(self.ids) + self.promised

    @property
    def owed(self) -> int:
        lease = self.lease
        return len(self.ids) + self.promised - lease.committed - lease.reserved

    def has_said(self, turn: str, prompt: int, ids: "array[int]") -> bool:
        """Whether this turn, running or ended, answers to ids[:prompt] and has said the rest."""
        if self.turn is not None:
            known, began, length = self.turn.id, self.turn.began, len(self.ids)
        elif self.ended is not None:
            known, began = self.ended.turn, self.ended.prompt_tokens
            length = min(self.ended.length, len(self.ids))
        else:
            return False
        same = known == turn and began == prompt and len(ids) <= length
        return same and self.ids[: len(ids)] == ids

    @property
    def wants_to_draw(self) -> bool:
        turn = self.turn
        return turn is not None and turn.ordered < turn.limit
