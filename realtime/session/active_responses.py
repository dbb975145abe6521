"""Answers: those of one session that are being made; at most one of the conversation, and some
beside it. Each runs in a task of its own, with its journal, from its beginning or from where it was
left."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from continuo.engine import EngineError, StaleEngineFence
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import count_chars, count_head_chars
from continuo.realtime.conversation.text_limits import TextLimits, refuse_if_too_long
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.engine_port import EnginePort
from continuo.realtime.generation.error_mapping import require_engine
from continuo.realtime.generation.generation import Generation
from continuo.realtime.generation.output_items import OutputItems
from continuo.realtime.generation.prompt import Prompt, build_prompt
from continuo.realtime.generation.tool_calls import make_output_parser
from continuo.realtime.ids import conversation_id_of, deterministic_id_factory, generate_id
from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import StoredRequest, decode_request, is_same_model
from continuo.realtime.persistence.token_journal import JournalFlusher, TokenJournal
from continuo.realtime.protocol.commands import CreateSessionResponse
from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.rate_limit import TenantRateLimits
from continuo.realtime.session.state import Action, StateMachine, Trigger
from continuo.realtime.session.unit_of_work import UnitOfWork
from continuo.realtime.store import (
    IdempotentRequest,
    ResponseCheckpoint,
    RunningResponse,
    StoreError,
)
from continuo.realtime.store import OwnershipLost as Replaced

log = logging.getLogger(__name__)


class ActiveResponses:
    """`standing` is where the session is: the end of an answer is a step of it."""

    def __init__(
        self,
        session_id: str,
        engine: EnginePort,
        journal_flusher: JournalFlusher,
        unit_of_work: UnitOfWork,
        limits: Limits,
        tenant_rate_limits: TenantRateLimits,
        cache_scope: str,
        state_machine: StateMachine,
    ) -> None:
        self._session_id = session_id
        self._engine = engine
        self._journal_flusher = journal_flusher
        self._unit_of_work = unit_of_work
        self._limits = limits
        self._tenant_rate_limits = tenant_rate_limits
        self._cache_scope = cache_scope
        self._state_machine = state_machine
        self._text_limits = TextLimits.for_model(engine.ready, unit_of_work.conversation.template)
        self._main: Generation | None = None
        self._out_of_band: dict[str, Generation] = {}
        self._journals: dict[str, TokenJournal] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_idle: Callable[[], None] = lambda: None

    @property
    def main(self) -> Generation | None:
        """Of the conversation."""
        return self._main

    def __iter__(self) -> Iterator[Generation]:
        yield from self._out_of_band.values()
        if self._main is not None:
            yield self._main

    def call_when_idle(self, callback: Callable[[], None]) -> None:
        """`act` is called when none is being made any more: at once if none is."""
        self._on_idle = callback
        self._notify_if_idle()

    def _notify_if_idle(self) -> None:
        if self._main is None and not self._out_of_band:
            self._on_idle()

    def find_out_of_band(self, response_id: str) -> Generation | None:
        return self._out_of_band.get(response_id)

    # ------------------------------------------------------------ beginning

    async def create(
        self, command: CreateSessionResponse, idempotent_request: IdempotentRequest | None
    ) -> str:
        """Gives its id, when it is accepted. Raises Refusal, StoreError; then nothing has
        changed."""
        require_engine(self._engine)
        if command.conversation_id not in (None, self.conversation_id):
            raise Refusal(
                f"Invalid 'response.conversation': expected 'auto', 'none' or the id of this "
                f"session's conversation, '{self.conversation_id}'.",
                code="invalid_value",
                param="response.conversation",
            )
        if (
            command.is_out_of_band
            and len(self._out_of_band) >= self._limits.out_of_band_responses_max
        ):
            raise Refusal(
                "Too many responses beside the conversation: the limit is "
                f"{self._limits.out_of_band_responses_max} at a time.",
                code="rate_limit_exceeded",
                param="response.conversation",
            )
        context = None if command.context is None else tuple(map(self._resolve, command.context))
        if context is not None:
            self._text_limits.check_response(command.settings, context)
        prompt = await self._build_prompt(
            command.settings, context, self._unit_of_work.conversation
        )
        answer = Response(
            id=generate_id("resp"),
            conversation=None if command.is_out_of_band else self.conversation_id,
            settings=command.settings,
            metadata=command.metadata,
        )
        answering = self._new_generation(
            answer, has_own_engine_session=command.is_out_of_band or context is not None
        )
        accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        running = self._spawn(answering, self._run(answering, prompt, None, accepted))
        asked = StoredRequest(
            settings=None if command.settings == self._unit_of_work.settings else command.settings,
            metadata=command.metadata,
            context=context,
            model=self._engine.ready.digest,
        )
        if idempotent_request is not None:
            idempotent_request = msgspec.structs.replace(
                idempotent_request, result=answer.id.encode()
            )
        seed = prompt.sampling.seed
        assert seed is not None, "a prompt has one"
        try:
            await self._unit_of_work.begin_response(
                answer, asked, seed, prompt.length, idempotent_request
            )
        except StoreError:
            accepted.set_result(False)
            await asyncio.wait([running])  # before anything else is asked of the same strand
            raise
        except BaseException:
            accepted.set_result(False)
            raise
        self._add(answering)
        accepted.set_result(True)
        return answer.id

    def resume_stored(self, stored_responses: Iterable[RunningResponse]) -> None:
        """With answers that were being made when the session was left."""
        for one in stored_responses:
            begun, asked = one.checkpoint, decode_request(one.checkpoint)
            answer = Response(
                id=begun.id,
                conversation=None if begun.entry is None else self.conversation_id,
                settings=asked.settings or self._unit_of_work.settings,
                metadata=asked.metadata,
            )
            own = begun.entry is None or asked.context is not None
            answering = self._new_generation(answer, has_own_engine_session=own)
            self._unit_of_work.resume_response(begun, asked)
            self._add(answering)
            self._spawn(answering, self._run_resumed(answering, begun, asked, one.ids))

    @property
    def conversation_id(self) -> str:
        return conversation_id_of(self._session_id)

    def _new_generation(self, response: Response, *, has_own_engine_session: bool) -> Generation:
        """`own`: not in the engine's session of the conversation."""
        strand = self._unit_of_work.engine_session
        if has_own_engine_session:
            strand = strand.fork(f"{self._session_id}.{response.id}")
        place = _no_placement if response.conversation is None else self._placement_of(response.id)
        reader = make_output_parser(response.settings, self._unit_of_work.conversation.template)
        return Generation(
            response,
            strand,
            OutputItems(response, place, deterministic_id_factory(response.id)),
            reader,
        )

    def _add(self, generation: Generation) -> None:
        if generation.response.conversation is None:
            self._out_of_band[generation.response.id] = generation
        else:
            self._main = generation

    def _spawn(
        self, generation: Generation, run: Coroutine[None, None, None]
    ) -> "asyncio.Task[None]":
        task = asyncio.create_task(run, name=generation.response.id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _build_prompt(
        self,
        settings: GenerationSettings,
        context: tuple[Item, ...] | None,
        now: Conversation,
    ) -> Prompt:
        """Raises Refusal if there is no room for a single token."""
        ours = self._unit_of_work.settings
        same = (settings.instructions, settings.tools) == (ours.instructions, ours.tools)
        chars = 0 if same else count_head_chars(settings)
        ready, window, tokens_max = (
            self._engine.ready,
            self._unit_of_work.context_window,
            self._text_limits.request_tokens_max,
        )
        param = "response.input" if context is not None else "conversation"

        def make() -> Prompt:
            if context is None:
                conversation = window.fit(now.without_open_responses().with_settings(settings))
            else:
                fresh = Conversation.start(now.template, settings)
                conversation = fresh.with_spans(now.reuse_spans(context), tokens_max)
            return build_prompt(conversation, settings, ready, param)

        chars += sum(count_chars(item) for item in context or ())
        with refuse_if_too_long(param, ready.max_model_len):
            return await self._unit_of_work.run_tokenization(chars, now, make)

    def _resolve(self, item: Item | ItemReference) -> Item:
        if isinstance(item, ItemReference):
            return self._unit_of_work.find(item.item_id, "item_reference_invalid_item_id")
        return item

    def _placement_of(self, response_id: str) -> Callable[[tuple[Item, ...]], str | None]:
        def place(items: tuple[Item, ...]) -> str | None:
            self._unit_of_work.conversation = self._unit_of_work.conversation.update_open_response(
                response_id, items
            )
            return self._unit_of_work.conversation.previous_item_id(items[-1].id)

        return place

    # ------------------------------------------------------------ being made

    async def _run(
        self,
        generation: Generation,
        prompt: Prompt,
        sampled: Sequence[int] | None,
        accepted: asyncio.Future[bool] | None,
        *,
        is_journaled: bool = True,
    ) -> None:
        """`said`: the ids it has said already, elsewhere. `kept`: the store knows how it began."""
        answer_id = generation.response.id
        ledger = self._unit_of_work.session_writer
        journal = TokenJournal(
            ledger, answer_id, generation.sampled_ids, len(sampled or ()), is_journaled=is_journaled
        )
        self._journals[answer_id] = journal
        tell = partial(self._unit_of_work.event_log.append_output, answer_id)
        generation.on_interrupted = partial(
            self._unit_of_work.event_log.interrupt_response, answer_id
        )
        try:
            with self._journal_flusher.track(journal):
                await generation.run(prompt, tell, accepted, sampled)
        except StaleEngineFence:
            self._unit_of_work.session_writer.on_replaced()
            return
        finally:
            del self._journals[answer_id]
        if not generation.is_refused:
            await self._finish(generation)
        if generation.engine_session is not self._unit_of_work.engine_session:
            with contextlib.suppress(EngineError):
                await generation.engine_session.close()

    async def _run_resumed(
        self,
        generation: Generation,
        checkpoint: ResponseCheckpoint,
        inputs: StoredRequest,
        sampled: Sequence[int],
    ) -> None:
        """From the same prompt, with the same seed; where there is none any more, it ends with what
        it has said. What another model has said of it is forgotten: it is made from its
        beginning."""
        ours = is_same_model(inputs.model, self._engine.ready.digest)
        if not ours:
            sampled = ()
        settings = generation.response.settings
        seeded = msgspec.structs.replace(settings.sampling, seed=checkpoint.seed)
        settings = msgspec.structs.replace(settings, sampling=seeded)
        now = self._unit_of_work.conversation
        if checkpoint.entry is not None:
            now = now.before_response(checkpoint.id)
        try:
            prompt = await self._build_prompt(settings, inputs.context, now)
        except Refusal:
            prompt = None
        if prompt is not None and not ours:
            await self._restart(generation, prompt, checkpoint, inputs)
            return
        if prompt is not None and prompt.length == checkpoint.prompt:
            await self._run(generation, prompt, sampled, None)
            return
        generation.end_as_lost(
            sampled,
            self._engine.text,
            partial(self._unit_of_work.event_log.append_output, checkpoint.id),
        )
        await self._finish(generation)

    async def _restart(
        self,
        generation: Generation,
        prompt: Prompt,
        checkpoint: ResponseCheckpoint,
        inputs: StoredRequest,
    ) -> None:
        """Make an answer from its beginning, on this model. If the store cannot record that, the
        answer is not journaled."""
        inputs, kept = msgspec.structs.replace(inputs, model=self._engine.ready.digest), True
        try:
            await self._unit_of_work.restart_response(checkpoint, inputs, prompt.length)
        except Replaced:
            self._unit_of_work.session_writer.on_replaced()
            return
        except StoreError as error:
            log.warning("answer %s is made again, and not journaled: %s", checkpoint.id, error)
            kept = False
        await self._run(generation, prompt, None, None, is_journaled=kept)

    async def _finish(self, generation: Generation) -> None:
        answer = generation.response
        self._tenant_rate_limits.charge_usage(answer.usage)
        try:
            await self._unit_of_work.end_response(answer, generation.sampled_ids)
        except Replaced:
            self._unit_of_work.session_writer.on_replaced()
        if answer.conversation is None:
            del self._out_of_band[answer.id]
        else:
            self._main = None
            if Action.SYNC_ENGINE in self._state_machine.advance(Trigger.RESPONSE_ENDED):
                await self._unit_of_work.sync_engine()
        self._notify_if_idle()

    # ------------------------------------------------------------ pausing, stopping

    async def wait_until_committed(self) -> None:
        """Returns when the answer of the conversation has its place in it."""
        main = self._main
        ends = [task for task in self._tasks if main and task.get_name() == main.response.id]
        if ends:
            await asyncio.wait(ends)

    async def pause_all(self) -> None:
        """They go on when they are resumed. Raises EngineError."""
        for answering in self:
            await self._engine.pause(answering.engine_session.session_id)

    async def resume_all(self) -> None:
        """Harmless without a pause. Raises EngineError."""
        for answering in self:
            await self._engine.resume(answering.engine_session.session_id)

    async def flush_journals(self) -> None:
        """What they have said is in the journal; as far as the store can be written."""
        for journal in [*self._journals.values()]:
            with contextlib.suppress(StoreError):
                await journal.flush()

    async def cancel_all(self) -> None:
        """Stops all, within a step."""
        with contextlib.suppress(EngineError):
            for answering in [*self]:
                await answering.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def abandon_all(self) -> None:
        """Nothing more is heard of them here: the engine does not answer, or others listen."""
        for task in self._tasks:
            task.cancel()


def _no_placement(items: tuple[Item, ...]) -> str | None:
    return None
