"""Session: does what the table says, against the engine's door.

One Ask at a time (`do`); an answer runs beside, in a task of its own. All it says goes to `tell`,
in order. Limits are checked before anything changes; a Refusal means that nothing has.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from engine import ChatTemplate, EngineError, EngineLost, SessionInfo, UnknownSession
from realtime.errors import Refusal
from realtime.limits import TEXT_CHARS_MAX, Limits
from realtime.names import fresh
from realtime.protocol import core
from realtime.session.answering import Answering, Teller
from realtime.session.calls import reader_for, vet
from realtime.session.conversation import Conversation
from realtime.session.history import History, Origin
from realtime.session.output import Output
from realtime.session.prompting import Prompt, prompt_of
from realtime.session.refusals import no_answer, refusal_of
from realtime.session.rendering import chars_of, chars_of_head
from realtime.session.state import Action, Event, State, step
from realtime.session.status import KV, Status
from realtime.session.strand import Door, Strand
from realtime.session.truncating import shortened, spoken
from realtime.session.window import Window

log = logging.getLogger(__name__)


class Session:
    def __init__(
        self,
        session_id: str,
        door: Door,
        template: ChatTemplate,
        settings: core.Settings,
        tell: Teller,
        limits: Limits,
        *,
        scope: str = "",
        origin: Origin | None = None,
    ) -> None:
        """`origin`: it begins as a fork of another session."""
        self.id = session_id
        self.settings = settings
        self._door = door
        self._tell = tell
        self._limits = limits
        self._scope = scope
        self._state = State.IDLE
        begun = origin.conversation if origin else Conversation.start(template, settings)
        self._history = History(
            begun,
            Strand(door, session_id, scope=scope, parent=origin.strand if origin else None),
            Window(door.ready.max_model_len, settings.truncation),
            limits.off_loop_chars,
        )
        self._answering: Answering | None = None
        self._apart: dict[str, Answering] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def conversation(self) -> Conversation:
        return self._history.conversation

    @property
    def state(self) -> State:
        return self._state

    def start(self) -> None:
        """Says what there is already; a fork has items."""
        self._tell(core.Opened(self.settings))
        previous = None
        for item in self.conversation.items():
            self._tell(core.ItemAdded(item, previous))
            previous = item.id

    def fork(self, at: str | None) -> Origin:
        """What a session begins with that shares this one's history and KV up to and including an
        item (None: all). Raises Refusal."""
        if at is not None:
            self._history.find_whole(at, "item_fork_invalid_item_id")
        return Origin(self.settings, self.conversation.upto(at), self._history.strand)

    async def do(self, ask: core.Ask) -> None:
        """Raises Refusal."""
        try:
            async with asyncio.timeout(self._limits.ask_s_max):
                await self._do(ask)
        except EngineError as error:
            if isinstance(error, EngineLost):
                self._history.strand.forget()
            raise refusal_of(error) from error
        except TimeoutError:
            self._history.strand.forget()
            raise no_answer(self._limits.ask_s_max) from None

    async def status(self) -> Status:
        """How it is. Raises Refusal."""
        try:
            async with asyncio.timeout(self._limits.ask_s_max):
                info = await self._door.info(self._history.strand.session)
        except TimeoutError:
            raise no_answer(self._limits.ask_s_max) from None
        except UnknownSession:
            info = None
        except EngineError as error:
            raise refusal_of(error) from error
        return self.status_with({} if info is None else {info.session: info})

    def status_with(self, infos: Mapping[str, SessionInfo]) -> Status:
        """How it is, by what the engine says of its sessions."""
        info = infos.get(self._history.strand.session)
        return Status(
            state=self._state.value,
            tokens=self.conversation.length,
            items=sum(1 for _ in self.conversation.items()),
            dropped_items=len(self.conversation.dropped),
            kv=KV(
                place="none" if info is None or not info.committed else "device",
                tokens=0 if info is None else info.committed,
                pages=0 if info is None else info.held_pages,
                host_pages=0 if info is None else info.host_pages,
            ),
        )

    async def close(self) -> None:
        """Stops what runs, within a step, and lets go of the engine. Never raises EngineError. If
        the engine does not answer it is told when it is back."""
        running = [*self._apart.values()]
        if self._answering is not None:
            running.append(self._answering)
        self._state, _ = step(self._state, Event.CLOSE)
        strands = {self._history.strand, *(answering.strand for answering in running)}
        try:
            async with asyncio.timeout(self._limits.close_s_max):
                with contextlib.suppress(EngineError):
                    for answering in running:
                        await answering.cancel()
                if self._tasks:
                    await asyncio.wait(self._tasks)
                await _release(strands)
        except TimeoutError:
            log.warning("session %s: closed without the engine, which does not answer", self.id)
            for task in self._tasks:
                task.cancel()
            self._tasks.add(asyncio.create_task(_release(strands), name=f"release {self.id}"))

    # ------------------------------------------------------------ asks

    async def _do(self, ask: core.Ask) -> None:
        match ask:
            case core.Configure(settings=settings):
                _, actions = step(self._state, Event.CONFIGURE)
                await vet(settings, self.conversation.template, "session.")
                await self._history.change(
                    lambda now: now.configured(settings),
                    push=Action.PUSH in actions,
                    window=Window(self._door.ready.max_model_len, settings.truncation),
                    param="session.instructions",
                    chars=chars_of_head(settings),
                )
                self.settings = settings
                self._tell(core.Configured(settings))
            case core.AddItem():
                await self._add(ask)
            case core.FetchItem(item_id=item_id):
                step(self._state, Event.LOOK)
                item = self._history.find(item_id, "item_retrieve_invalid_item_id")
                self._tell(core.ItemFetched(item))
            case core.DropItem(item_id=item_id):
                _, actions = step(self._state, Event.EDIT)
                self._history.find_whole(item_id, "item_delete_invalid_item_id")
                await self._history.change(
                    lambda now: now.drop(item_id), push=Action.PUSH in actions, param="item_id"
                )
                self._tell(core.ItemDropped(item_id))
            case core.TruncateItem():
                await self._truncate(ask)
            case core.Respond():
                await self._respond(ask)
            case core.Cancel(answer_id=answer_id):
                await self._cancel(answer_id)
            case core.AppendText() | core.ReplaceText() | core.ClearText() | core.CommitText():
                await self._draft(ask)
            case _:
                assert_never(ask)

    async def _truncate(self, ask: core.TruncateItem) -> None:
        step(self._state, Event.LOOK)
        code = "item_truncate_invalid_item_id"
        item = self._history.find(ask.item_id, code)
        end = ask.text_end
        spoken(item)
        if end is not None:
            if self._state is State.CANCELLING and self.conversation.is_open(ask.item_id):
                await self._settled()
            _, actions = step(self._state, Event.EDIT)
            item = spoken(self._history.find_whole(ask.item_id, code))
            short = shortened(item, ask, end)
            if short is not item:
                await self._history.change(
                    lambda now: now.truncate(short, self._door.text),
                    push=Action.PUSH in actions,
                    param="text_end",
                )
        self._tell(
            core.ItemTruncated(ask.item_id, ask.content_index, ask.audio_end_ms, ask.text_end)
        )

    async def _settled(self) -> None:
        """Returns when the answer that is being cancelled has its place in the conversation."""
        ends = [task for task in self._tasks if task.get_name() == self._answering_id]
        if ends:
            await asyncio.wait(ends)

    @property
    def _answering_id(self) -> str | None:
        return None if self._answering is None else self._answering.answer.id

    async def _draft(self, ask: core.TextBuffer) -> None:
        _, actions = step(self._state, Event.EDIT)
        push = Action.PUSH in actions
        match ask:
            case core.AppendText(text=text):
                await self._set_draft(self._history.draft + text, push)
            case core.ReplaceText(text=text):
                await self._set_draft(text, push)
            case core.ClearText():
                await self._history.change(_same, push=push, param="text", draft="")
                self._tell(core.TextCleared())
            case core.CommitText(item_id=item_id):
                text = self._history.draft
                if not text.strip():
                    raise Refusal(
                        "Error committing input text buffer: it is empty.",
                        code="input_text_buffer_commit_empty",
                    )
                part = core.Part("input_text", text)
                item = core.MessageItem(id=item_id, role="user", parts=(part,))
                await self._history.change(
                    lambda now: now.add(item), push=push, param="text", chars=len(text), draft=""
                )
                previous = self.conversation.previous(item_id)
                self._tell(core.TextCommitted(item_id, previous))
                self._tell(core.ItemAdded(item, previous))
            case _:
                assert_never(ask)

    async def _set_draft(self, text: str, push: bool) -> None:
        if len(text) > TEXT_CHARS_MAX:
            raise Refusal(
                f"The input text buffer would hold {len(text):,} characters; it holds "
                f"{TEXT_CHARS_MAX:,}.",
                code="string_above_max_length",
                param="text",
            )
        await self._history.change(_same, push=push, param="text", draft=text)
        self._tell(core.TextAppended(len(text)))

    async def _add(self, ask: core.AddItem) -> None:
        item, after = ask.item, ask.after
        _, actions = step(self._state, Event.EDIT)
        known = self.conversation.find(item.id)
        if known is not None and known != item:
            raise Refusal(
                f"Error adding item: an item with id '{item.id}' already exists.",
                code="item_create_duplicate_item_id",
                param="item.id",
            )
        if after is not None and after != core.ROOT and self.conversation.find(after) is None:
            raise Refusal(
                f"Error adding item: the previous item with id '{after}' does not exist.",
                code="item_create_invalid_previous_item_id",
                param="previous_item_id",
            )
        if known is None:
            await self._history.change(
                lambda now: now.add(item, after),
                push=Action.PUSH in actions,
                param="item",
                chars=chars_of(item),
            )
        self._tell(core.ItemAdded(item, self.conversation.previous(item.id)))

    async def _respond(self, ask: core.Respond) -> None:
        event = Event.RESPOND_APART if ask.apart else Event.RESPOND
        state, _ = step(self._state, event)
        if ask.apart and len(self._apart) >= self._limits.apart_responses_max:
            raise Refusal(
                "Too many responses beside the conversation: the limit is "
                f"{self._limits.apart_responses_max} at a time.",
                code="rate_limit_exceeded",
                param="response.conversation",
            )
        await vet(ask.settings, self.conversation.template, "response.")
        prompt = await self._prompt(ask)
        answer = core.Answer(
            id=fresh("resp"),
            conversation=None if ask.apart else self.conversation_id,
            settings=ask.settings,
            metadata=ask.metadata,
        )
        own = ask.apart or ask.context is not None
        strand = self._history.strand
        if own:
            name = f"{self.id}.{answer.id}"
            strand = Strand(self._door, name, scope=self._scope, parent=strand)
        place = _nowhere if ask.apart else self._place(answer.id)
        reader = reader_for(ask.settings, self.conversation.template)
        answering = Answering(answer, strand, Output(answer, place, fresh), reader)
        if ask.apart:
            self._apart[answer.id] = answering
        else:
            self._answering = answering
            self._history.conversation = self._history.conversation.open(answer.id)
        self._state = state
        self._tell(core.AnswerStarted(answer))
        task = asyncio.create_task(self._answer(answering, prompt), name=answer.id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _cancel(self, answer_id: str | None) -> None:
        if answer_id is not None and answer_id in self._apart:
            await self._apart[answer_id].cancel()
            return
        running = self._answering
        if answer_id is not None and running is not None and answer_id != running.answer.id:
            raise Refusal(
                f"Cancellation failed: response '{answer_id}' is not active.",
                code="response_cancel_not_active",
                param="response_id",
            )
        state, _ = step(self._state, Event.CANCEL)
        assert running is not None, "answering is what the state says"
        self._state = state
        await running.cancel()

    # ------------------------------------------------------------ answers

    @property
    def conversation_id(self) -> str:
        return "conv_" + self.id.removeprefix("sess_")

    async def _prompt(self, ask: core.Respond) -> Prompt:
        """Raises Refusal if there is no room for a single token."""
        settings, ours = ask.settings, self.settings
        same = (settings.instructions, settings.tools) == (ours.instructions, ours.tools)
        chars = 0 if same else chars_of_head(settings)
        if ask.context is None:
            closed, window = self._history.conversation.closed(), self._history.window
            conversation = await self._history.beside(
                chars, lambda: window.fitted(closed.configured(settings))
            )
        else:
            items = [self._resolve(item) for item in ask.context]
            template = self.conversation.template
            chars += sum(chars_of(item) for item in items)
            spans = self.conversation.recalled(items)
            conversation = await self._history.beside(
                chars, lambda: Conversation.start(template, settings).with_spans(spans)
            )
        param = "response.input" if ask.context is not None else "conversation"
        return prompt_of(conversation, settings, self._door.ready, param)

    async def _answer(self, answering: Answering, prompt: Prompt) -> None:
        await answering.run(prompt, self._tell)
        answer = answering.answer
        if answer.conversation is None:
            del self._apart[answer.id]
            self._tell(core.AnswerEnded(answer))
        else:
            self._answering = None
            self._state, actions = step(self._state, Event.ENDED)
            settled = self._history.conversation.settle(answer.id, answer.items, answering.sampled)
            self._history.conversation = settled
            self._tell(core.AnswerEnded(answer))
            if Action.PUSH in actions:
                await self._history.push()
        if answering.strand is not self._history.strand:
            with contextlib.suppress(EngineError):
                await answering.strand.close()

    def _place(self, answer_id: str) -> Callable[[tuple[core.Item, ...]], str | None]:
        def place(items: tuple[core.Item, ...]) -> str | None:
            self._history.conversation = self._history.conversation.show(answer_id, items)
            return self.conversation.previous(items[-1].id)

        return place

    def _resolve(self, item: core.Item | core.ItemReference) -> core.Item:
        if isinstance(item, core.ItemReference):
            return self._history.find(item.item_id, "item_reference_invalid_item_id")
        return item


async def _release(strands: Iterable[Strand]) -> None:
    for strand in strands:
        with contextlib.suppress(EngineError):
            await strand.close()


def _same(conversation: Conversation) -> Conversation:
    return conversation


def _nowhere(items: tuple[core.Item, ...]) -> str | None:
    return None
