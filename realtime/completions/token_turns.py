"""Token turns: turns whose prompt is raw text or token ids, without a chat template.

    prompt ── encode ──▶ ids ── complete ──▶ turn ── read ──▶ chunks of output

A turn is not stored, and does not outlive its engine or its client. It takes a turn slot of its
tenant like a response, and waits if all of them are taken.
"""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import msgspec

from continuo.engine import (
    EngineClient,
    EngineError,
    Grammar,
    OutputChunk,
    Sampling,
    SessionGroup,
    TooLong,
    TurnStream,
)
from continuo.realtime.completions.turn_register import StartTurn, TokenTurn, TurnRegister
from continuo.realtime.conversation.text_limits import TextLimits
from continuo.realtime.errors import context_length_exceeded
from continuo.realtime.generation.error_mapping import map_engine_error, require_engine
from continuo.realtime.generation.observation import ResponseObservation
from continuo.realtime.generation.output_grammar import check_grammar
from continuo.realtime.generation.prompt import check_logit_bias
from continuo.realtime.generation.tokenizer_threads import TokenizerThreads
from continuo.realtime.ids import generate_id
from continuo.realtime.protocol.validation import invalid_parameter
from continuo.realtime.tenants.tenants import Tenants
from continuo.realtime.tenants.turn_slots import TurnSlot

RawPrompt = str | Sequence[int]


class TokenTurns:
    """Starts turns on raw prompts, within the limits of their tenants."""

    def __init__(
        self,
        engine: EngineClient,
        group_of: Callable[[str], SessionGroup],
        tenants: Tenants,
        tokenizer_threads: TokenizerThreads,
    ) -> None:
        """`group_of` returns the group of a tenant."""
        self.engine = engine
        self.group_of = group_of
        self.tenants = tenants
        self._tokenizer_threads = tokenizer_threads
        self.register = TurnRegister()
        """The turns that have arrived and not ended."""

    @property
    def context_tokens(self) -> int:
        return self.engine.ready.max_model_len

    async def encode(self, prompt: RawPrompt, tenant: str, param: str) -> list[int]:
        """Return the ids of a prompt, and charge one request. A text begins with the tokenizer's
        BOS token, if it has one, and control tokens written in it are parsed. Raises Refusal."""
        require_engine(self.engine)
        limits = self.tenants.of(tenant).rate_limits
        with limits.charge_request():
            if not isinstance(prompt, str):
                return self._check_ids(prompt, param)
            text = self.engine.text
            if text.template is not None:
                TextLimits.for_model(self.engine.ready, text.template).check(len(prompt), param)
            with limits.charge_text(len(prompt), 2 * self.context_tokens):
                try:
                    ids = await self._tokenizer_threads.run(
                        len(prompt), lambda: text.encode(prompt)
                    )
                except TooLong as error:
                    detail = f"'{param}': {error.message}."
                    raise context_length_exceeded(self.context_tokens, detail, param) from error
        return [*text.bos_ids, *ids] if ids[: len(text.bos_ids)] != [*text.bos_ids] else ids

    async def check_grammar(self, grammar: Grammar | None, tenant: str, param: str) -> None:
        """Check that the grammar of a turn, if it has one, can be enforced. Raises Refusal."""
        if grammar is None:
            return
        limits = self.tenants.of(tenant).rate_limits
        with limits.charge_text(len(grammar.source), 2 * self.context_tokens):
            await check_grammar(grammar, param, self.engine.grammar_trials)

    def _check_ids(self, ids: Sequence[int], param: str) -> list[int]:
        size = self.engine.ready.vocab_size
        for place, id in enumerate(ids):
            if not 0 <= id < size:
                raise invalid_parameter(
                    f"{param}[{place}]", f"{id} is no token id; the model has 0 to {size - 1:,}."
                )
        return list(ids)

    def bound_sampling(self, sampling: Sampling, length: int, param: str) -> Sampling:
        """Return the sampling parameters of a turn on a prompt of `length` tokens: with the stop
        ids of the model, and at most as many tokens as the context has room for. Raises Refusal."""
        check_logit_bias(sampling, self.engine.ready)
        room = self.context_tokens - length
        if room < 1:
            detail = f"The prompt is {length:,} tokens, and one must be left for the output."
            raise context_length_exceeded(self.context_tokens, detail, param)
        vocabulary = self.engine.ready.vocab_size
        stop_ids = {
            *sampling.stop_ids,
            *(id for id in self.engine.text.stop_ids if id < vocabulary),
        }
        return msgspec.structs.replace(
            sampling,
            max_tokens=min(sampling.max_tokens or room, room),
            stop_ids=tuple(sorted(stop_ids)),
        )

    def arrive(self, turn: TokenTurn) -> TokenTurn:
        """Register a turn, and return it. Each turn must be closed, also one that is refused."""
        self.register.add(turn)
        return turn

    async def begin(self, turn: TokenTurn, sampling: Sampling, start: StartTurn) -> None:
        """Start a turn, unless it has to wait: then `read` starts it. `start` starts the turn at
        the engine. Raises Refusal."""
        turn.sampling, turn.start = sampling, start
        if turn.is_cancelled or self.register.has_earlier(turn):
            return
        slot = await self._enter(turn)
        if not slot.is_waiting:
            await self._start(turn)

    async def complete(
        self, turn: TokenTurn, ids: Sequence[int], sampling: Sampling, param: str
    ) -> None:
        """Begin a turn on `ids`. Raises Refusal."""
        bounded = self.bound_sampling(sampling, len(ids), param)
        group = self.group_of(turn.tenant)

        def start(traceparent: str) -> Awaitable[TurnStream]:
            return self.engine.complete(ids, bounded, group=group, traceparent=traceparent)

        await self.begin(turn, bounded, start)

    async def complete_all(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, tenant: str, param: str
    ) -> list[TokenTurn]:
        """Enter a turn on each prompt. Raises Refusal; then none runs."""
        turns: list[TokenTurn] = []
        try:
            for ids in prompts:
                turns.append(self.arrive(TokenTurn(tenant, sampling)))
                await self.complete(turns[-1], ids, sampling, param)
        except BaseException:
            await self.close_all(turns)
            raise
        return turns

    async def read(self, turn: TokenTurn) -> AsyncGenerator[OutputChunk, None]:
        """Yield the output of a turn, and close it. Raises Refusal."""
        try:
            if turn.stream is None:
                await self._start(turn)
            if turn.stream is not None and turn.observation is not None:
                async for chunk in turn.stream:
                    turn.observation.on_output(len(chunk.ids))
                    yield chunk
        except EngineError as error:
            raise map_engine_error(error) from error
        finally:
            await self.close(turn)

    async def cancel(self, turn: TokenTurn, *, discard_output: bool = False) -> None:
        """Cancel a turn: it ends soon, or does not start."""
        turn.is_cancelled = True
        turn.changed.set()
        if turn.slot is not None and turn.slot.is_waiting:
            turn.slot.release()
        await self._cancel_at_engine(turn, discard_output=discard_output)

    async def cut(self, turn: TokenTurn) -> None:
        """End a turn whose output so far another turn continues. A turn that waits ends as soon as
        it has started."""
        turn.is_cut = True
        await self._cancel_at_engine(turn, discard_output=False)

    async def _cancel_at_engine(self, turn: TokenTurn, *, discard_output: bool) -> None:
        if turn.stream is not None:
            with contextlib.suppress(EngineError):
                await self.engine.cancel(
                    turn.stream.session, turn.stream.id, discard_output=discard_output
                )

    async def close(self, turn: TokenTurn) -> None:
        """Cancel a turn that has not ended, charge its tokens, give its slot back, and remove it
        from the register. Idempotent."""
        if turn.is_closed:
            return
        turn.is_closed = True
        try:
            if turn.stream is not None and turn.ended is None:
                await self.cancel(turn)
        finally:
            if turn.slot is not None:
                turn.slot.release()
            self.tenants.of(turn.tenant).rate_limits.charge_usage(turn.usage)
            _observe_end(turn)
            try:
                if turn.settle is not None:
                    await turn.settle()
            finally:
                self.register.remove(turn)

    async def close_all(self, turns: Sequence[TokenTurn]) -> None:
        for turn in turns:
            await self.close(turn)

    async def cancel_tenant(self, tenant: str) -> None:
        """Cancel the turns of a deleted tenant."""
        for turn in self.register.of_tenant(tenant):
            await self.cancel(turn)

    async def _enter(self, turn: TokenTurn) -> TurnSlot:
        """Take a turn slot, or a place in the queue. Raises Refusal."""
        await self.tenants.follow(turn.tenant)
        turn.slot = self.tenants.of(turn.tenant).turns.enter()
        turn.observation = ResponseObservation(generate_id("turn"))
        return turn.slot

    async def _start(self, turn: TokenTurn) -> None:
        """Start a turn at the engine after the earlier turns of its session, when it has its slot,
        unless it is cancelled before. Raises Refusal."""
        await self.register.wait_for_earlier(turn)
        if turn.is_cancelled:
            return
        slot = turn.slot or await self._enter(turn)
        if turn.is_cancelled or not await slot.wait() or turn.is_cancelled:
            return
        try:
            await self._start_at_engine(turn)
        except EngineError as error:
            raise map_engine_error(error) from error
        if turn.is_cancelled or turn.is_cut:
            await self._cancel_at_engine(turn, discard_output=turn.is_cancelled)

    async def _start_at_engine(self, turn: TokenTurn) -> None:
        assert turn.start is not None, "the request has been examined"
        assert turn.observation is not None, "a turn with a slot is observed"
        turn.stream = await turn.start(turn.observation.traceparent)
        turn.observation.start()


def _observe_end(turn: TokenTurn) -> None:
    if turn.observation is None:
        return
    if turn.ended is not None:
        turn.observation.on_turn_ended(turn.ended)
    turn.observation.end_token_turn(turn.status, turn.usage)
