"""Answers: those of one session that are being made; at most one of the conversation, and some
beside it. Each runs in a task of its own, with its journal, from its beginning or from where it was
left."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from continuo.engine import EngineError, StaleFence
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import chars_of, chars_of_head
from continuo.realtime.conversation.text_limits import TextBounds, named
from continuo.realtime.errors import Refusal
from continuo.realtime.generation.engine_port import Door
from continuo.realtime.generation.error_mapping import check_engine
from continuo.realtime.generation.generation import Answering
from continuo.realtime.generation.output_items import Output
from continuo.realtime.generation.prompt import Prompt, prompt_of
from continuo.realtime.generation.tool_calls import reader_for
from continuo.realtime.ids import conversation_of, fresh, within
from continuo.realtime.limits import Limits
from continuo.realtime.persistence.session_codec import Asked, asked_of, is_of
from continuo.realtime.persistence.token_journal import Journal, Scribe
from continuo.realtime.protocol.commands import Respond
from continuo.realtime.protocol.items import Item, ItemReference
from continuo.realtime.protocol.response import Answer as Response
from continuo.realtime.protocol.settings import Settings
from continuo.realtime.rate_limit import Allowance
from continuo.realtime.session.state import Action, Event, Standing
from continuo.realtime.session.unit_of_work import History
from continuo.realtime.store import Answer, Begun, Once, StoreError
from continuo.realtime.store import StaleFence as Replaced

log = logging.getLogger(__name__)


class Answers:
    """`standing` is where the session is: the end of an answer is a step of it."""

    def __init__(
        self,
        session: str,
        door: Door,
        scribe: Scribe,
        history: History,
        limits: Limits,
        allowance: Allowance,
        scope: str,
        standing: Standing,
    ) -> None:
        self._session = session
        self._door = door
        self._scribe = scribe
        self._history = history
        self._limits = limits
        self._allowance = allowance
        self._scope = scope
        self._standing = standing
        self._texts = TextBounds.of(door.ready, history.conversation.template)
        self._main: Answering | None = None
        self._apart: dict[str, Answering] = {}
        self._journals: dict[str, Journal] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._when_none: Callable[[], None] = lambda: None

    @property
    def main(self) -> Answering | None:
        """Of the conversation."""
        return self._main

    def __iter__(self) -> Iterator[Answering]:
        yield from self._apart.values()
        if self._main is not None:
            yield self._main

    def when_none(self, act: Callable[[], None]) -> None:
        """`act` is called when none is being made any more: at once if none is."""
        self._when_none = act
        self._look_for_none()

    def _look_for_none(self) -> None:
        if self._main is None and not self._apart:
            self._when_none()

    def apart(self, answer_id: str) -> Answering | None:
        return self._apart.get(answer_id)

    # ------------------------------------------------------------ beginning

    async def begin(self, ask: Respond, once: Once | None) -> str:
        """Gives its id, when it is accepted. Raises Refusal, StoreError; then nothing has
        changed."""
        check_engine(self._door)
        if ask.conversation not in (None, self.conversation_id):
            raise Refusal(
                f"Invalid 'response.conversation': expected 'auto', 'none' or the id of this "
                f"session's conversation, '{self.conversation_id}'.",
                code="invalid_value",
                param="response.conversation",
            )
        if ask.apart and len(self._apart) >= self._limits.apart_responses_max:
            raise Refusal(
                "Too many responses beside the conversation: the limit is "
                f"{self._limits.apart_responses_max} at a time.",
                code="rate_limit_exceeded",
                param="response.conversation",
            )
        context = None if ask.context is None else tuple(map(self._resolve, ask.context))
        if context is not None:
            self._texts.check_response(ask.settings, context)
        prompt = await self._prompt(ask.settings, context, self._history.conversation)
        answer = Response(
            id=fresh("resp"),
            conversation=None if ask.apart else self.conversation_id,
            settings=ask.settings,
            metadata=ask.metadata,
        )
        answering = self._answering(answer, own=ask.apart or context is not None)
        accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        running = self._start(answering, self._run(answering, prompt, None, accepted))
        asked = Asked(
            settings=None if ask.settings == self._history.settings else ask.settings,
            metadata=ask.metadata,
            context=context,
            model=self._door.ready.digest,
        )
        if once is not None:
            once = msgspec.structs.replace(once, result=answer.id.encode())
        seed = prompt.sampling.seed
        assert seed is not None, "a prompt has one"
        try:
            await self._history.begin(answer, asked, seed, prompt.length, once)
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

    def go_on(self, found: Iterable[Answer]) -> None:
        """With answers that were being made when the session was left."""
        for one in found:
            begun, asked = one.begun, asked_of(one.begun)
            answer = Response(
                id=begun.id,
                conversation=None if begun.entry is None else self.conversation_id,
                settings=asked.settings or self._history.settings,
                metadata=asked.metadata,
            )
            own = begun.entry is None or asked.context is not None
            answering = self._answering(answer, own=own)
            self._history.gone_on(begun, asked)
            self._add(answering)
            self._start(answering, self._run_on(answering, begun, asked, one.ids))

    @property
    def conversation_id(self) -> str:
        return conversation_of(self._session)

    def _answering(self, answer: Response, *, own: bool) -> Answering:
        """`own`: not in the engine's session of the conversation."""
        strand = self._history.strand
        if own:
            strand = strand.beside(f"{self._session}.{answer.id}")
        place = _nowhere if answer.conversation is None else self._place(answer.id)
        reader = reader_for(answer.settings, self._history.conversation.template)
        return Answering(answer, strand, Output(answer, place, within(answer.id)), reader)

    def _add(self, answering: Answering) -> None:
        if answering.answer.conversation is None:
            self._apart[answering.answer.id] = answering
        else:
            self._main = answering

    def _start(
        self, answering: Answering, run: Coroutine[None, None, None]
    ) -> "asyncio.Task[None]":
        task = asyncio.create_task(run, name=answering.answer.id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _prompt(
        self,
        settings: Settings,
        context: tuple[Item, ...] | None,
        now: Conversation,
    ) -> Prompt:
        """Raises Refusal if there is no room for a single token."""
        ours = self._history.settings
        same = (settings.instructions, settings.tools) == (ours.instructions, ours.tools)
        chars = 0 if same else chars_of_head(settings)
        ready, window, tokens_max = self._door.ready, self._history.window, self._texts.tokens_max
        param = "response.input" if context is not None else "conversation"

        def make() -> Prompt:
            if context is None:
                conversation = window.fitted(now.closed().configured(settings))
            else:
                fresh = Conversation.start(now.template, settings)
                conversation = fresh.with_spans(now.recalled(context), tokens_max)
            return prompt_of(conversation, settings, ready, param)

        chars += sum(chars_of(item) for item in context or ())
        with named(param, ready.max_model_len):
            return await self._history.beside(chars, now, make)

    def _resolve(self, item: Item | ItemReference) -> Item:
        if isinstance(item, ItemReference):
            return self._history.find(item.item_id, "item_reference_invalid_item_id")
        return item

    def _place(self, answer_id: str) -> Callable[[tuple[Item, ...]], str | None]:
        def place(items: tuple[Item, ...]) -> str | None:
            self._history.conversation = self._history.conversation.show(answer_id, items)
            return self._history.conversation.previous(items[-1].id)

        return place

    # ------------------------------------------------------------ being made

    async def _run(
        self,
        answering: Answering,
        prompt: Prompt,
        said: Sequence[int] | None,
        accepted: asyncio.Future[bool] | None,
        *,
        kept: bool = True,
    ) -> None:
        """`said`: the ids it has said already, elsewhere. `kept`: the store knows how it began."""
        answer_id = answering.answer.id
        ledger = self._history.ledger
        journal = Journal(ledger, answer_id, answering.sampled, len(said or ()), kept=kept)
        self._journals[answer_id] = journal
        tell = partial(self._history.transcript.of, answer_id)
        answering.on_interrupted = partial(self._history.transcript.interrupted, answer_id)
        try:
            with self._scribe.keeping(journal):
                await answering.run(prompt, tell, accepted, said)
        except StaleFence:
            self._history.ledger.on_replaced()
            return
        finally:
            del self._journals[answer_id]
        if not answering.refused:
            await self._end(answering)
        if answering.strand is not self._history.strand:
            with contextlib.suppress(EngineError):
                await answering.strand.close()

    async def _run_on(
        self, answering: Answering, begun: Begun, asked: Asked, said: Sequence[int]
    ) -> None:
        """From the same prompt, with the same seed; where there is none any more, it ends with what
        it has said. What another model has said of it is forgotten: it is made from its
        beginning."""
        ours = is_of(asked.model, self._door.ready.digest)
        if not ours:
            said = ()
        settings = answering.answer.settings
        seeded = msgspec.structs.replace(settings.sampling, seed=begun.seed)
        settings = msgspec.structs.replace(settings, sampling=seeded)
        now = self._history.conversation
        if begun.entry is not None:
            now = now.before(begun.id)
        try:
            prompt = await self._prompt(settings, asked.context, now)
        except Refusal:
            prompt = None
        if prompt is not None and not ours:
            await self._run_again(answering, prompt, begun, asked)
            return
        if prompt is not None and prompt.length == begun.prompt:
            await self._run(answering, prompt, said, None)
            return
        answering.break_off(said, self._door.text, partial(self._history.transcript.of, begun.id))
        await self._end(answering)

    async def _run_again(
        self, answering: Answering, prompt: Prompt, begun: Begun, asked: Asked
    ) -> None:
        """Make an answer from its beginning, on this model. If the store cannot record that, the
        answer is not journaled."""
        asked, kept = msgspec.structs.replace(asked, model=self._door.ready.digest), True
        try:
            await self._history.begin_again(begun, asked, prompt.length)
        except Replaced:
            self._history.ledger.on_replaced()
            return
        except StoreError as error:
            log.warning("answer %s is made again, and not journaled: %s", begun.id, error)
            kept = False
        await self._run(answering, prompt, None, None, kept=kept)

    async def _end(self, answering: Answering) -> None:
        answer = answering.answer
        self._allowance.spend(answer.usage)
        try:
            await self._history.end(answer, answering.sampled)
        except Replaced:
            self._history.ledger.on_replaced()
        if answer.conversation is None:
            del self._apart[answer.id]
        else:
            self._main = None
            if Action.PUSH in self._standing.step(Event.ENDED):
                await self._history.push()
        self._look_for_none()

    # ------------------------------------------------------------ pausing, stopping

    async def settled(self) -> None:
        """Returns when the answer of the conversation has its place in it."""
        main = self._main
        ends = [task for task in self._tasks if main and task.get_name() == main.answer.id]
        if ends:
            await asyncio.wait(ends)

    async def pause(self) -> None:
        """They go on when they are resumed. Raises EngineError."""
        for answering in self:
            await self._door.pause(answering.strand.session)

    async def resume(self) -> None:
        """Harmless without a pause. Raises EngineError."""
        for answering in self:
            await self._door.resume(answering.strand.session)

    async def flush(self) -> None:
        """What they have said is in the journal; as far as the store can be written."""
        for journal in [*self._journals.values()]:
            with contextlib.suppress(StoreError):
                await journal.flush()

    async def stop(self) -> None:
        """Stops all, within a step."""
        with contextlib.suppress(EngineError):
            for answering in [*self]:
                await answering.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def give_up(self) -> None:
        """Nothing more is heard of them here: the engine does not answer, or others listen."""
        for task in self._tasks:
            task.cancel()


def _nowhere(items: tuple[Item, ...]) -> str | None:
    return None
