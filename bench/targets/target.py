"""The interface of a target, and the record of one turn."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

Ids = list[int]
Prompts = list[list[Ids]]
"""The ids to send in each turn: prompts[session][turn]."""


class Output(NamedTuple):
    """The output that a turn requests: exactly `tokens` tokens, whatever they are."""

    tokens: int
    temperature: float = 0.0
    top_p: float = 1.0


class Turn(NamedTuple):
    """The record of one turn. Times are in seconds of time.perf_counter."""

    start_s: float
    token_s: Sequence[float]
    """Arrival of each token. Tokens that arrive in one piece have the same time."""
    output: Ids | str
    """Ids, or their text where the target sends text."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Tokens of the prompt whose KV existed before. None: the target does not report it."""
    model_s: float | None = None
    """Time for which the device computed during the turn, for any session."""
    queued_s: float | None = None
    """Time from the request until the first step of the turn. None: the target does not report
    it."""

    @property
    def first_s(self) -> float:
        return self.token_s[0] - self.start_s

    @property
    def wall_s(self) -> float:
        return self.token_s[-1] - self.start_s

    @property
    def computed_tokens(self) -> int | None:
        """Tokens of the prompt that were computed for this turn."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return self.prompt_tokens - self.cached_tokens


class Session(ABC):
    """A conversation with a target."""

    async def draft(self, ids: Ids) -> None:  # noqa: B027 - most targets send nothing
        """Send the unfinished input of the next turn, in place of what was sent before. A target
        that cannot compute it ahead receives nothing; it gets all of it with the turn."""

    @abstractmethod
    async def turn(self, ids: Ids, output: Output) -> Turn:
        """Send `ids`, all of the turn's input, and generate; returns at the end of the turn."""

    async def turns(self, prompts: Sequence[Ids], output: Output, until_s: float) -> list[Turn]:
        """Run turns, one after another; none begins after `until_s`."""
        turns: list[Turn] = []
        for ids in prompts:
            if time.perf_counter() >= until_s:
                break
            turns.append(await self.turn(ids, output))
        return turns

    @abstractmethod
    async def interrupted_turn(self, ids: Ids, output: Output, received: int, kept: int) -> None:
        """Run a turn, cancel it after `received` tokens, and cut its output to `kept` tokens."""

    async def close(self) -> None:  # noqa: B027 - not every session holds something
        """Close the session at the target."""


class Target(AbstractAsyncContextManager["Target"], ABC):
    """Serves sessions. Entering the context starts its processes, if it has any of its own."""

    name: str
    note: str = ""
    """Version and settings, once started."""
    accepts_drafts: bool = False
    """Whether it computes the unfinished input of a turn ahead."""
    step_bytes: float | None = None
    """Bytes of weights that a step reads. None: unknown."""

    async def resize(self, sessions: int, context: int) -> None:
        """Make room for `sessions` sessions of `context` ids, and for no more where room costs
        time. Called before the sessions of a measurement are opened."""

    @abstractmethod
    async def open(self, scope: str) -> Session:
        """Open a session. Sessions of different `scope` share no KV."""

    async def __aexit__(self, *_exception: object) -> None:
        """Stop the processes of the target."""
