"""Active responses of one session: at most one in the conversation, and some out of band.

Each response is generated in its own task, and its token ids are written to its token journal.
Generation starts at the beginning, or resumes after the token ids that the store has.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from continuo.engine import EngineClient, EngineError, StaleEngineFence
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import count_chars, count_head_chars, role_of
from continuo.realtime.conversation.text_limits import TextLimits, refuse_if_too_long
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.error_mapping import require_engine
from continuo.realtime.generation.generation import Generation
from continuo.realtime.generation.output_grammar import check_enforceable
from continuo.realtime.generation.output_items import OutputItems
from continuo.realtime.generation.prompt import Prompt, build_prompt
from continuo.realtime.generation.tool_calls import make_output_parser
from continuo.realtime.ids import conversation_id_of, deterministic_id_factory, generate_id
from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import StoredRequest, decode_request
from continuo.realtime.persistence.token_journal import JournalFlusher, TokenJournal
from continuo.realtime.protocol.commands import CreateSessionResponse
from continuo.realtime.protocol.events import ConversationEvent
from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.protocol.validation import invalid_parameter
from continuo.realtime.session.state import SessionState, Trigger
from continuo.realtime.session.unit_of_work import UnitOfWork
from continuo.realtime.store import (
    IdempotentRequest,
    LeaseLost,
    ResponseCheckpoint,
    RunningResponse,
    StoreError,
)
from continuo.realtime.tenants.tenants import Tenant
from continuo.realtime.tenants.turn_slots import TurnSlot

log = logging.getLogger(__name__)


class ActiveResponses:
    """The responses that a session is generating."""

    def __init__(
        self,
        session_id: str,
        engine: EngineClient,
        journal_flusher: JournalFlusher,
        unit_of_work: UnitOfWork,
        limits: Limits,
        tenant: Tenant,
    ) -> None:
        """Args:
        session_id: id of the session; ids of engine sessions for responses begin with it.
        engine: all engines of the gateway.
        journal_flusher: writes the journals of all sessions of the gateway periodically.
        unit_of_work: that of the session: each response starts and ends by a change of it.
        limits: for the number of responses out of band at a time.
        tenant: has the turn slots and the rate limits that responses are charged to.
        """
        self._session_id = session_id
        self._engine = engine
        self._journal_flusher = journal_flusher
        self._unit_of_work = unit_of_work
        self._limits = limits
        self._tenant = tenant
        self._text_limits = TextLimits.for_model(engine.ready, unit_of_work.conversation.template)
        self._main: Generation | None = None
        self._out_of_band: dict[str, Generation] = {}
        self._journals: dict[str, TokenJournal] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def main(self) -> Generation | None:
        """The active response of the conversation. Returns None if there is none."""
        return self._main

    def __iter__(self) -> Iterator[Generation]:
        yield from self._out_of_band.values()
        if self._main is not None:
            yield self._main

    async def wait_until_idle(self) -> None:
        """Wait until no response is active, or all were abandoned."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def find_out_of_band(self, response_id: str) -> Generation | None:
        return self._out_of_band.get(response_id)

    # ------------------------------------------------------------ start

    async def create(
        self, command: CreateSessionResponse, idempotent_request: IdempotentRequest | None
    ) -> str:
        """Start a response. Returns its id once the store has its checkpoint.

        Raises Refusal and StoreError; then nothing has changed.
        """
        require_engine(self._engine)
        if command.conversation_id not in (None, self.conversation_id):
            raise invalid_parameter(
                "response.conversation",
                "expected 'auto', 'none' or the id of this session's conversation, "
                f"'{self.conversation_id}'.",
            )
        if (
            command.is_out_of_band
            and len(self._out_of_band) >= self._limits.out_of_band_responses_max
        ):
            raise Refusal(
                "Too many out-of-band responses: the limit is "
                f"{self._limits.out_of_band_responses_max} at a time.",
                code="rate_limit_exceeded",
                param="response.conversation",
            )
        context = None if command.context is None else tuple(map(self._resolve, command.context))
        if context is not None:
            self._text_limits.check_response(command.settings, context)
        enforced_tools = await self._check_enforceable(command.settings)
        conversation = self._unit_of_work.conversation
        reads_conversation = command.is_out_of_band and context is None
        last_item_id = conversation.last_item_id if reads_conversation else None
        prompt = await self._build_prompt(command.settings, enforced_tools, context, conversation)
        response = Response(
            id=generate_id("resp"),
            conversation=None if command.is_out_of_band else self.conversation_id,
            settings=command.settings,
            metadata=command.metadata,
        )
        generation = self._new_generation(
            response,
            self._tenant.turns.enter(),
            has_own_engine_session=command.is_out_of_band or context is not None,
        )
        accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        task = self._spawn(generation, self._run(generation, prompt, None, accepted))
        inputs = StoredRequest(
            settings=None if command.settings == self._unit_of_work.settings else command.settings,
            metadata=command.metadata,
            context=context,
            last_item_id=last_item_id,
            model=self._engine.ready.digest,
        )
        if idempotent_request is not None:
            idempotent_request = msgspec.structs.replace(
                idempotent_request, result=response.id.encode()
            )
        seed = prompt.sampling.seed
        assert seed is not None, "a prompt has a seed"
        try:
            await self._unit_of_work.begin_response(
                response, inputs, seed, prompt.length, idempotent_request
            )
        except StoreError:
            accepted.set_result(False)
            generation.turn_slot.release()
            await asyncio.wait([task])  # the turn must end before the engine session is used again
            raise
        except BaseException:
            accepted.set_result(False)
            generation.turn_slot.release()
            raise
        self._add(generation)
        accepted.set_result(True)
        return response.id

    def resume_stored(self, stored_responses: Iterable[RunningResponse]) -> None:
        """Resume the responses that were active when the session was last written."""
        for stored in stored_responses:
            checkpoint, inputs = stored.checkpoint, decode_request(stored.checkpoint)
            response = Response(
                id=checkpoint.id,
                conversation=None if checkpoint.entry is None else self.conversation_id,
                settings=inputs.settings or self._unit_of_work.settings,
                metadata=inputs.metadata,
            )
            has_own = checkpoint.entry is None or inputs.context is not None
            slot = self._tenant.turns.enter(is_accepted=True)
            generation = self._new_generation(response, slot, has_own_engine_session=has_own)
            self._unit_of_work.resume_response(checkpoint, inputs)
            self._add(generation)
            self._spawn(generation, self._run_resumed(generation, checkpoint, inputs, stored.ids))

    @property
    def conversation_id(self) -> str:
        return conversation_id_of(self._session_id)

    def _new_generation(
        self, response: Response, turn_slot: TurnSlot, *, has_own_engine_session: bool
    ) -> Generation:
        """Make the generation of a response. `has_own_engine_session`: it runs in a fork of the
        engine session of the conversation."""
        engine_session = self._unit_of_work.engine_session
        if has_own_engine_session:
            engine_session = engine_session.fork(f"{self._session_id}.{response.id}")
        # Without a reference to this object, which refers to the generation.
        place = partial(self._unit_of_work.place_output, response.id)
        if response.conversation is None:
            place = _no_placement
        template = self._unit_of_work.conversation.template
        parser = make_output_parser(response.settings, template)
        return Generation(
            response,
            engine_session,
            OutputItems(response, place, deterministic_id_factory(response.id)),
            parser,
            turn_slot,
            partial(self._unit_of_work.event_log.interrupt_response, response.id),
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
        task.add_done_callback(lambda _task: generation.turn_slot.release())
        return task

    async def _check_enforceable(self, settings: GenerationSettings) -> frozenset[str]:
        return await check_enforceable(
            settings,
            self._unit_of_work.conversation.template,
            CreateSessionResponse.field_names,
            self._engine.grammar_trials,
        )

    async def _build_prompt(
        self,
        settings: GenerationSettings,
        enforced_tools: frozenset[str],
        context: tuple[Item, ...] | None,
        now: Conversation,
    ) -> Prompt:
        """Build the prompt from the items `context`, or from the conversation `now` if `context` is
        None. `enforced_tools`: from `_check_enforceable`.

        Raises Refusal if there is no room for a single token of output.
        """
        session_settings = self._unit_of_work.settings
        is_same_head = (settings.instructions, settings.tools) == (
            session_settings.instructions,
            session_settings.tools,
        )
        size = 0 if is_same_head else count_head_chars(settings)
        ready, window, tokens_max = (
            self._engine.ready,
            self._unit_of_work.context_window,
            self._text_limits.request_tokens_max,
        )
        param = "conversation" if context is None else CreateSessionResponse.field_names.input

        def make() -> Prompt:
            if context is None:
                conversation = window.fit(now.without_open_responses().with_settings(settings))
            else:
                fresh = Conversation.start(now.template, settings)
                conversation = fresh.with_spans(now.reuse_spans(context), tokens_max)
            return build_prompt(conversation, settings, enforced_tools, ready, param)

        size += sum(count_chars(item) for item in context or ())
        only_appends = (
            context is None
            and not now.has_open_response
            and now.keeps_ids_with(settings)
            and not window.overflows(now)
        )
        size += now.rendered_length if only_appends else now.length
        with refuse_if_too_long(param, ready.max_model_len):
            return await self._unit_of_work.run_tokenization(size, make)

    def _resolve(self, item: Item | ItemReference) -> Item:
        if isinstance(item, ItemReference):
            return self._unit_of_work.find(item.item_id, "item_reference_invalid_item_id")
        return item

    # ------------------------------------------------------------ generation

    async def _run(
        self,
        generation: Generation,
        prompt: Prompt,
        sampled: Sequence[int] | None,
        accepted: asyncio.Future[bool] | None,
        *,
        is_journaled: bool = True,
    ) -> None:
        """Generate a response to its end and commit it.

        `sampled`: token ids that were sampled earlier, on another gateway or before a restart.
        `accepted`: as in `Generation.run`. `is_journaled`: whether the store has the checkpoint of
        the response, without which its ids cannot be journaled.
        """
        response_id = generation.response.id
        journal = TokenJournal(
            self._unit_of_work.session_writer,
            response_id,
            generation.sampled_ids,
            len(sampled or ()),
            is_journaled=is_journaled,
        )
        self._journals[response_id] = journal
        emit = partial(self._unit_of_work.event_log.append_output, response_id)
        try:
            with self._journal_flusher.track(journal):
                closing_events = await generation.run(prompt, emit, accepted, sampled)
        except StaleEngineFence:
            self._unit_of_work.session_writer.on_replaced()
            return
        finally:
            del self._journals[response_id]
        if not generation.is_refused:
            await self._finish(generation, closing_events)
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
        """Resume a stored response from the same prompt, with the same seed.

        If the same prompt can no longer be built, the response ends as failed, with the output
        sampled so far. If the token ids are of another model, they are discarded, and the response
        restarts from its beginning.
        """
        is_ours = inputs.model == self._engine.ready.digest
        if not is_ours:
            sampled = ()
        settings = generation.response.settings
        seeded = msgspec.structs.replace(settings.sampling, seed=checkpoint.seed)
        settings = msgspec.structs.replace(settings, sampling=seeded)
        now = self._conversation_before(checkpoint, inputs)
        try:
            enforced_tools = await self._check_enforceable(settings)
            prompt = await self._build_prompt(settings, enforced_tools, inputs.context, now)
        except Refusal:
            prompt = None
        if prompt is not None and not is_ours:
            await self._restart(generation, prompt, checkpoint, inputs)
            return
        if prompt is not None and prompt.length == checkpoint.prompt:
            await self._run(generation, prompt, sampled, None)
            return
        closing_events = generation.end_as_lost(
            sampled,
            self._engine.text,
            partial(self._unit_of_work.event_log.append_output, checkpoint.id),
            starts_in_reasoning=(
                prompt.sampling.starts_in_reasoning
                if prompt is not None
                else _starts_in_reasoning(settings, inputs.context, now)
            ),
        )
        await self._finish(generation, closing_events)

    def _conversation_before(
        self, checkpoint: ResponseCheckpoint, inputs: StoredRequest
    ) -> Conversation:
        """Return the conversation as it was when a stored response began. It may have changed since
        in other ways than by items at its end, and then the prompt has another length."""
        now = self._unit_of_work.conversation
        if checkpoint.entry is not None:
            return now.before_response(checkpoint.id)
        if inputs.last_item_id is not None:
            with contextlib.suppress(KeyError):
                return now.up_to_item(inputs.last_item_id)
        return now

    async def _restart(
        self,
        generation: Generation,
        prompt: Prompt,
        checkpoint: ResponseCheckpoint,
        inputs: StoredRequest,
    ) -> None:
        """Generate a stored response again from its beginning, on this model. If the store cannot
        record the restart, the response is not journaled."""
        inputs = msgspec.structs.replace(inputs, model=self._engine.ready.digest)
        is_journaled = True
        try:
            await self._unit_of_work.restart_response(checkpoint, inputs, prompt.length)
        except LeaseLost:
            self._unit_of_work.session_writer.on_replaced()
            return
        except StoreError as error:
            log.warning("response %s restarts without a journal: %s", checkpoint.id, error)
            is_journaled = False
        await self._run(generation, prompt, None, None, is_journaled=is_journaled)

    async def _finish(
        self, generation: Generation, closing_events: Sequence[ConversationEvent]
    ) -> None:
        response = generation.response
        self._tenant.rate_limits.charge_usage(response.usage)
        try:
            await self._unit_of_work.end_response(response, generation.sampled_ids, closing_events)
        except LeaseLost:
            self._unit_of_work.session_writer.on_replaced()
        if response.conversation is None:
            del self._out_of_band[response.id]
        else:
            self._main = None
            state = self._unit_of_work.state_machine.advance(Trigger.RESPONSE_ENDED)
            if state is SessionState.IDLE:
                await self._unit_of_work.sync_engine()

    # ------------------------------------------------------------ pause, cancel

    async def wait_until_committed(self, timeout_s: float | None = None) -> None:
        """Wait until the active response of the conversation, if any, is committed to the
        conversation. `timeout_s`: maximum wait; None: no limit."""
        main = self._main
        ends = [task for task in self._tasks if main and task.get_name() == main.response.id]
        if ends:
            await asyncio.wait(ends, timeout=timeout_s)

    async def pause_all(self) -> None:
        """Pause generation in the engine until `resume_all`. Raises EngineError."""
        # All slots first: a response that ends while the engine answers has released its own.
        for generation in self:
            generation.turn_slot.suspend()
        await self._tell_engine(self._engine.pause)

    async def resume_all(self) -> None:
        """Resume generation; harmless without a pause. Raises EngineError."""
        for generation in self:
            generation.turn_slot.resume()
        await self._tell_engine(self._engine.resume)

    async def _tell_engine(self, command: Callable[[str], Coroutine[None, None, None]]) -> None:
        """Call `command` with the engine session of each active response, all at the same time.
        Raises the first EngineError once all have been answered."""
        sessions = [generation.engine_session.session_id for generation in self]
        results = await asyncio.gather(*map(command, sessions), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        try:
            if errors:
                raise errors[0]
        finally:
            del results, errors  # which keep this frame

    async def flush_journals(self) -> None:
        """Write all sampled ids to the store. Errors of the store are ignored."""
        for journal in [*self._journals.values()]:
            with contextlib.suppress(StoreError):
                await journal.flush()

    async def cancel_all(self) -> None:
        """Cancel all responses, each within one engine step, and wait for their tasks."""
        with contextlib.suppress(EngineError):
            for generation in [*self]:
                await generation.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def abandon_all(self) -> None:
        """Cancel the tasks without sending commands to the engine, which does not respond, or now
        serves the session to another gateway."""
        for task in self._tasks:
            task.cancel()


def _no_placement(_items: tuple[Item, ...]) -> str | None:
    return None


def _starts_in_reasoning(
    settings: GenerationSettings, context: Sequence[Item] | None, now: Conversation
) -> bool:
    """Whether a response begins within reasoning whose prompt, from the items `context` or else
    from the conversation `now`, cannot be built."""
    items = [*now.items()] if context is None else context
    template = now.template.for_effort(settings.reasoning.effort)
    header = template.encode_header(role_of(items[-1]) if items else None)
    return template.opens_reasoning(header)
