"""Session: does what the table says, against the engine's door and the store.

One Ask at a time (`do`); an answer runs beside, in a task of its own. All it says goes through its
transcript to whoever is attached. Limits are checked before anything changes; a Refusal means that
nothing has.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import assert_never

import msgspec

from engine import EngineError, EngineLost, SessionInfo, UnknownSession
from realtime.errors import Refusal
from realtime.limits import TEXT_CHARS_MAX, Limits
from realtime.names import fresh, within
from realtime.protocol import core
from realtime.session.answering import Answering
from realtime.session.calls import reader_for, vet
from realtime.session.conversation import Conversation
from realtime.session.history import History, Origin
from realtime.session.journal import Journal
from realtime.session.output import Output
from realtime.session.position import Position
from realtime.session.prompting import Prompt, prompt_of
from realtime.session.refusals import no_answer, not_kept, refusal_of
from realtime.session.rendering import chars_of, chars_of_head
from realtime.session.state import Action, Event, State, step
from realtime.session.status import KV, Status
from realtime.session.stored import Asked
from realtime.session.strand import Door, Strand
from realtime.session.transcript import Gap, Listener
from realtime.session.truncating import shortened, spoken
from realtime.session.window import Window
from realtime.store import StaleFence, Store, StoreError

log = logging.getLogger(__name__)

_LOOK_S = 0.5
"""How long a resumed client waits to be told where its KV is."""


class Session:
    def __init__(
        self,
        session_id: str,
        door: Door,
        limits: Limits,
        store: Store,
        history: History,
        *,
        scope: str = "",
    ) -> None:
        self.id = session_id
        self._door = door
        self._limits = limits
        self._store = store
        self._scope = scope
        self._state = State.IDLE
        self._history = history
        self._transcript = history.transcript
        self._answering: Answering | None = None
        self._apart: dict[str, Answering] = {}
        self._journals: dict[str, Journal] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_replaced: Callable[[], None] = lambda: None
        """Called when another gateway turns out to own the session."""

    @property
    def settings(self) -> core.Settings:
        return self._history.settings

    @property
    def conversation(self) -> Conversation:
        return self._history.conversation

    @property
    def state(self) -> State:
        return self._state

    # ------------------------------------------------------------ who listens

    async def start(self, listener: Listener, resume: core.Resume | None = None) -> None:
        """Says what there is already; a fork has items. Raises Refusal."""
        self._transcript.attach(listener)
        if self.conversation.spans:
            await self._kept(self._history.write_all())
        self._transcript.open(core.Opened(self.settings, resume))
        previous = None
        for item in self.conversation.items():
            self._transcript.record(core.ItemAdded(item, previous))
            previous = item.id

    async def resume(self, listener: Listener, since: Position | None, resume: core.Resume) -> None:
        """Says what was missed since a position, or everything if that cannot be told exactly, then
        all that comes. Raises Refusal."""
        kv = await self._residency()
        resume = msgspec.structs.replace(resume, kv=kv)
        if since is not None:
            exact = core.Resumed(self.settings, msgspec.structs.replace(resume, resumed="exact"))
            try:
                self._transcript.go_on(listener, since, exact, self._before)
            except Gap:
                pass
            else:
                return
        await self._kept(self._history.step_epoch())
        epoch = self._transcript.epoch
        resume = msgspec.structs.replace(resume, resumed="snapshot", epoch=epoch)
        self._transcript.snapshot(listener, self._everything(resume))

    def _everything(self, resume: core.Resume) -> Iterator[core.Tell]:
        yield core.Resumed(self.settings, resume)
        previous = None
        for item in self.conversation.items():
            if not self.conversation.is_open(item.id):
                yield core.ItemAdded(item, previous)
            previous = item.id
        if self._history.draft:
            yield core.TextAppended(len(self._history.draft))
        running = [*self._apart.values(), *([self._answering] if self._answering else [])]
        for answering in running:
            yield core.AnswerStarted(answering.answer)

    def _before(self, item_id: str) -> str | None:
        try:
            return self.conversation.previous(item_id)
        except KeyError:
            return None

    def aside(self) -> str:
        """An event id for what is said now and is no part of the conversation."""
        return self._transcript.now.aside().event_id()

    def detach(self) -> None:
        """Nobody listens; what runs goes on."""
        self._transcript.detach()

    def on_gap(self, act: Callable[[], None]) -> None:
        """`act` is called when what a client has seen turns out not to be what is said here."""
        self._transcript.on_gap = act

    @property
    def epoch(self) -> str:
        """Of the positions told."""
        return self._transcript.epoch

    async def hold(self, for_s: float, *, parked: bool) -> None:
        """In the store. Raises StoreError."""
        await self._history.ledger.hold(for_s, parked=parked)

    async def _residency(self) -> core.Residency:
        """Where the KV is now."""
        strand = self._history.strand
        try:
            async with asyncio.timeout(_LOOK_S):
                info = await self._door.info(strand.session)
        except (EngineError, TimeoutError):
            info = None
        if not self.conversation.spans:
            return "none"
        if info is None or not info.committed + info.host_pages:
            return "recomputed"
        return "host" if info.host_pages else "hot"

    async def _kept(self, write: Awaitable[None]) -> None:
        """Raises Refusal where the store does."""
        try:
            await write
        except StoreError as error:
            raise self._refused(error) from error

    def _refused(self, error: StoreError) -> Refusal:
        if isinstance(error, StaleFence):
            self.on_replaced()
        return not_kept(error)

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
        except StoreError as error:
            raise self._refused(error) from error
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
        """Ends it: it was never there. Stops what runs, within a step. Never raises; where engine
        or store do not answer, they are told when they are back, or let go of it in time."""
        await self._release()
        try:
            await self._history.ledger.close()
        except StoreError as error:
            log.warning("session %s stays in the store until its time is over: %s", self.id, error)

    async def leave(self) -> None:
        """Lets go of it here: it goes on from the store. Never raises."""
        for journal in self._journals.values():
            with contextlib.suppress(StoreError):
                await journal.flush()
        self._history.ledger.leave()
        self.detach()
        await self._release()

    async def _release(self) -> None:
        """Stops what runs, and lets go of the engine."""
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
                step(self._state, Event.CONFIGURE)
                await vet(settings, self.conversation.template, "session.")
                await self._history.change(
                    lambda now: now.configured(settings),
                    push=self._pushes,
                    tells=lambda now: [core.Configured(settings)],
                    settings=settings,
                    window=Window(self._door.ready.max_model_len, settings.truncation),
                    param="session.instructions",
                    chars=chars_of_head(settings),
                )
            case core.AddItem():
                await self._add(ask)
            case core.FetchItem(item_id=item_id):
                step(self._state, Event.LOOK)
                item = self._history.find(item_id, "item_retrieve_invalid_item_id")
                self._transcript.aside(core.ItemFetched(item))
            case core.DropItem(item_id=item_id):
                step(self._state, Event.EDIT)
                self._history.find_whole(item_id, "item_delete_invalid_item_id")
                await self._history.change(
                    lambda now: now.drop(item_id),
                    push=self._pushes,
                    tells=lambda now: [core.ItemDropped(item_id)],
                    param="item_id",
                )
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

    def _pushes(self) -> bool:
        """Whether what changes now goes to the engine at once."""
        return Action.PUSH in step(self._state, Event.EDIT)[1]

    async def _truncate(self, ask: core.TruncateItem) -> None:
        step(self._state, Event.LOOK)
        code = "item_truncate_invalid_item_id"
        item = self._history.find(ask.item_id, code)
        end = ask.text_end
        told = core.ItemTruncated(ask.item_id, ask.content_index, ask.audio_end_ms, end)
        spoken(item)
        if end is not None:
            if self._state is State.CANCELLING and self.conversation.is_open(ask.item_id):
                await self._settled()
            step(self._state, Event.EDIT)
            item = spoken(self._history.find_whole(ask.item_id, code))
            short = shortened(item, ask, end)
            if short is not item:
                await self._history.change(
                    lambda now: now.truncate(short, self._door.text),
                    push=self._pushes,
                    tells=lambda now: [told],
                    param="text_end",
                )
                return
        self._transcript.aside(told)

    async def _settled(self) -> None:
        """Returns when the answer that is being cancelled has its place in the conversation."""
        ends = [task for task in self._tasks if task.get_name() == self._answering_id]
        if ends:
            await asyncio.wait(ends)

    @property
    def _answering_id(self) -> str | None:
        return None if self._answering is None else self._answering.answer.id

    async def _draft(self, ask: core.TextBuffer) -> None:
        step(self._state, Event.EDIT)
        match ask:
            case core.AppendText(text=text):
                await self._set_draft(self._history.draft + text)
            case core.ReplaceText(text=text):
                await self._set_draft(text)
            case core.ClearText():
                await self._history.change(
                    _same,
                    push=self._pushes,
                    tells=lambda now: [core.TextCleared()],
                    param="text",
                    draft="",
                )
            case core.CommitText(item_id=item_id):
                text = self._history.draft
                if not text.strip():
                    raise Refusal(
                        "Error committing input text buffer: it is empty.",
                        code="input_text_buffer_commit_empty",
                    )
                part = core.Part("input_text", text)
                item = core.MessageItem(id=item_id, role="user", parts=(part,))

                def tells(now: Conversation) -> list[core.Tell]:
                    previous = now.previous(item_id)
                    return [core.TextCommitted(item_id, previous), core.ItemAdded(item, previous)]

                await self._history.change(
                    lambda now: now.add(item),
                    push=self._pushes,
                    tells=tells,
                    param="text",
                    chars=len(text),
                    draft="",
                )
            case _:
                assert_never(ask)

    async def _set_draft(self, text: str) -> None:
        if len(text) > TEXT_CHARS_MAX:
            raise Refusal(
                f"The input text buffer would hold {len(text):,} characters; it holds "
                f"{TEXT_CHARS_MAX:,}.",
                code="string_above_max_length",
                param="text",
            )
        told = core.TextAppended(len(text))
        await self._history.change(
            _same, push=self._pushes, tells=lambda now: [told], param="text", draft=text
        )

    async def _add(self, ask: core.AddItem) -> None:
        item, after = ask.item, ask.after
        step(self._state, Event.EDIT)
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
        if known is not None:
            self._transcript.aside(core.ItemAdded(item, self.conversation.previous(item.id)))
            return
        await self._history.change(
            lambda now: now.add(item, after),
            push=self._pushes,
            tells=lambda now: [core.ItemAdded(item, now.previous(item.id))],
            param="item",
            chars=chars_of(item),
        )

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
        answering = Answering(answer, strand, Output(answer, place, within(answer.id)), reader)
        accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._run(answering, prompt, accepted)
        asked = Asked(
            settings=None if ask.settings == self.settings else ask.settings,
            metadata=ask.metadata,
            context=None if ask.context is None else self._context(ask.context),
        )
        try:
            seed = prompt.sampling.seed
            assert seed is not None, "a prompt has one"
            await self._history.begin(answer, asked, seed, prompt.length)
        except BaseException:
            accepted.set_result(False)
            raise
        self._state = state
        if ask.apart:
            self._apart[answer.id] = answering
        else:
            self._answering = answering
        accepted.set_result(True)

    def _run(self, answering: Answering, prompt: Prompt, accepted: asyncio.Future[bool]) -> None:
        answer = self._answer(answering, prompt, accepted)
        task = asyncio.create_task(answer, name=answering.answer.id)
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
            closed, window = self.conversation.closed(), self._history.window
            conversation = await self._history.beside(
                chars, lambda: window.fitted(closed.configured(settings))
            )
        else:
            items = self._context(ask.context)
            template = self.conversation.template
            chars += sum(chars_of(item) for item in items)
            spans = self.conversation.recalled(items)
            conversation = await self._history.beside(
                chars, lambda: Conversation.start(template, settings).with_spans(spans)
            )
        param = "response.input" if ask.context is not None else "conversation"
        return prompt_of(conversation, settings, self._door.ready, param)

    async def _answer(
        self, answering: Answering, prompt: Prompt, accepted: asyncio.Future[bool]
    ) -> None:
        answer_id = answering.answer.id
        journal = Journal(
            self._store, lambda: self._history.ledger.lease, answer_id, answering.sampled
        )
        self._journals[answer_id] = journal
        try:
            with journal.kept():
                await answering.run(prompt, partial(self._transcript.of, answer_id), accepted)
        finally:
            del self._journals[answer_id]
        if not answering.refused:
            await self._ended(answering)
        if answering.strand is not self._history.strand:
            with contextlib.suppress(EngineError):
                await answering.strand.close()

    async def _ended(self, answering: Answering) -> None:
        answer = answering.answer
        try:
            await self._history.end(answer, answering.sampled)
        except StaleFence:
            self.on_replaced()
            return
        finally:
            if answer.conversation is None:
                del self._apart[answer.id]
            else:
                self._answering = None
                self._state, _ = step(self._state, Event.ENDED)
        if answer.conversation is not None and self._state is State.IDLE:
            await self._history.push()

    def _place(self, answer_id: str) -> Callable[[tuple[core.Item, ...]], str | None]:
        def place(items: tuple[core.Item, ...]) -> str | None:
            self._history.conversation = self._history.conversation.show(answer_id, items)
            return self.conversation.previous(items[-1].id)

        return place

    def _context(self, context: Iterable[core.Item | core.ItemReference]) -> tuple[core.Item, ...]:
        return tuple(self._resolve(item) for item in context)

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
