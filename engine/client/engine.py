"""Engine: text in, text out. The engine alone, for scripts.

    async with Engine() as engine:
        chat = engine.chat()
        print(await chat.ask("My name is Ada."))
        async for text in chat.ask("What is my name?"):
            print(text, end="")

Each question costs its own tokens alone: the KV of the conversation stays. If the engine process
dies, another one is started, and the text continues where it was.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any

import msgspec

from continuo.engine.client.engine_client import EngineClient
from continuo.engine.client.turn_stream import OutputChunk, TurnStream
from continuo.engine.config import BUNDLED_MODEL, EngineConfig
from continuo.engine.errors import BadRequest, SessionDetached, TooLong
from continuo.engine.sampling import Sampling
from continuo.engine.text import ChatMessage, ChatTemplate, EffortSetting
from continuo.engine.wire.messages import TurnEnded


class Engine:
    def __init__(self, model: str | EngineConfig = BUNDLED_MODEL) -> None:
        """`model`: a folder in the Hugging Face layout, a hub id, or `demo`; or all settings."""
        self._config = EngineConfig(model=model) if isinstance(model, str) else model
        self._client: EngineClient | None = None

    @property
    def client(self) -> EngineClient:
        """The client of the engine, for all that has token ids. Raises BadRequest before the engine
        is started."""
        if self._client is None:
            raise BadRequest("the engine is not started: use `async with Engine() as engine`")
        return self._client

    async def __aenter__(self) -> "Engine":
        """Start the engine process and load the model. Raises ModelError."""
        self._client = await EngineClient.start(self._config)
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.client.stop()

    def complete(self, text: str, sampling: Sampling | None = None) -> "Output":
        """Continue `text`, without a chat template. Raises EngineLost if the engine process
        dies."""
        client = self.client
        ids = [*client.text.bos_ids, *client.text.encode(text)]
        prepared = _prepare(sampling, client, len(ids))

        async def generate(output: Output) -> None:
            await output.read(await client.complete(ids, prepared))

        return Output(client, generate)

    def chat(self, instructions: str = "", *, effort: EffortSetting = "off") -> "Chat":
        """Begin a conversation. `effort`: how much a model that can reason does so. Raises
        BadRequest if the model has no chat template."""
        template = self.client.text.template
        if template is None:
            raise BadRequest("the model has no chat template: use `complete`")
        return Chat(self.client, template.for_effort(effort), instructions)


class Chat:
    """A conversation: a session of the engine, and its messages. Several questions wait for each
    other."""

    def __init__(self, client: EngineClient, template: ChatTemplate, instructions: str) -> None:
        self._client = client
        self._template = template
        self._instructions = instructions
        self.messages: list[ChatMessage] = []
        self._ids: list[int] = []
        """Token ids of all messages."""
        self._ends: list[int] = []
        """Length of `_ids` at the end of each message."""
        self._log_length = 0
        """Length of the session's log, a prefix of `_ids`."""
        self._is_log_known = True
        """Whether no command has failed since the log was last known."""
        self._session: str | None = None
        self._lock = asyncio.Lock()

    def ask(self, text: str, sampling: Sampling | None = None) -> "Output":
        """Add a message of the user, and generate the answer. Raises TooLong if no token of it
        would fit into the context; the conversation is unchanged then."""

        async def generate(output: Output) -> None:
            async with self._lock:
                await self._answer(output, text, sampling)

        return Output(self._client, generate)

    async def close(self) -> None:
        """Close the session. A conversation that is not closed ends with its engine."""
        if self._session is not None:
            await self._client.close(self._session)

    async def _answer(self, output: "Output", text: str, sampling: Sampling | None) -> None:
        messages = [*self.messages, ChatMessage(role="user", content=text)]
        if not self.messages and self._instructions:
            messages.insert(0, ChatMessage(role="system", content=self._instructions))
        new = messages[len(self.messages) :]
        extension = self._template.extend(
            self.messages, new, with_header=True, is_sampled=bool(self.messages)
        )
        kept = extension.kept_messages
        ends = self._ends[:kept]
        ids = [*self._ids[: ends[-1] if ends else 0], *extension.ids]
        for segment in extension.segments:
            ends.append((ends[-1] if ends else 0) + len(segment))
        prepared = _prepare(sampling, self._client, len(ids))
        in_reasoning = self._template.opens_reasoning(extension.header)
        prepared = msgspec.structs.replace(prepared, starts_in_reasoning=in_reasoning)
        turn = await self._generate(ids, _common_prefix_length(self._ids, ids), prepared)
        try:
            await output.read(turn, lambda: self._attach([*ids, *turn.ids], turn))
            self._is_log_known = True
        finally:
            answer = ChatMessage(role="assistant", content=output.text, reasoning=output.reasoning)
            self.messages = [*messages, answer]
            self._log_length = len(ids) + len(turn.ids)
            self._ids = [*ids, *turn.ids, *self._template.encode_ending(turn.ids)]
            self._ends = [*ends, len(self._ids)]

    async def _generate(self, ids: list[int], kept: int, sampling: Sampling) -> TurnStream:
        """Make `ids` the log of the session, of which `kept` are those of `_ids`, and start a
        turn."""
        if self._session is None:
            self._session = await self._client.open()
        start = min(kept, self._log_length)
        is_log_known, self._is_log_known = self._is_log_known, False
        try:
            if not is_log_known:
                await self._attach(ids)
            else:
                if start < self._log_length:
                    await self._client.rewind(self._session, start)
                await self._client.append(self._session, ids[start:])
            return await self._client.generate(self._session, sampling)
        except SessionDetached:
            await self._attach(ids)
            return await self._client.generate(self._session, sampling)

    async def _attach(self, ids: list[int], turn: TurnStream | None = None) -> None:
        """Restore the session on the engine process that replaces a lost one."""
        assert self._session is not None
        await self._client.attach(self._session, ids, unfinished=turn)


class Output:
    """The text of one turn as it is generated: await it for the whole text, or iterate over its
    pieces. The turn proceeds in any case, until `cancel`."""

    def __init__(
        self, client: EngineClient, generate: "Callable[[Output], Coroutine[Any, Any, None]]"
    ) -> None:
        self._client = client
        self.text = ""
        self.reasoning = ""
        self.ended: TurnEnded | None = None
        """How the turn ended: the reason, and the numbers of tokens."""
        self._turn: TurnStream | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(generate(self))
        self._task.add_done_callback(lambda _: self._changed.set())

    def __await__(self) -> Generator[Any, None, str]:
        yield from asyncio.shield(self._task).__await__()
        return self.text

    async def __aiter__(self) -> AsyncIterator[str]:
        shown = 0
        while True:
            self._changed.clear()
            if len(self.text) > shown:
                piece = self.text[shown:]
                shown += len(piece)
                yield piece
            elif self._task.done():
                self._task.result()
                return
            else:
                await self._changed.wait()

    async def cancel(self) -> str:
        """Stop generating, within one step of the model. Returns the text so far, which stays in
        the conversation."""
        while self._turn is None and not self._task.done():
            await asyncio.sleep(0)
        if self._turn is not None and not self._turn.has_ended:
            await self._client.cancel(self._turn.session, self._turn.id)
        return await self

    async def read(
        self, turn: TurnStream, attach: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Read a turn to its end. `attach` restores its session when its engine was lost."""
        self._turn = turn
        while turn.ended is None:
            try:
                await turn.consume(self._add)
            except SessionDetached:
                if attach is None:
                    raise
                await attach()
        self.ended = turn.ended

    def _add(self, chunk: OutputChunk) -> None:
        if chunk.channel.kind == "text":
            self.text += chunk.text
            self._changed.set()
        elif chunk.channel.kind == "reasoning":
            self.reasoning += chunk.text


def _common_prefix_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the leading ids that are equal."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _prepare(sampling: Sampling | None, client: EngineClient, prompt_tokens: int) -> Sampling:
    """Add the stop ids of the model to sampling parameters, and limit the output to the room in the
    context. Raises TooLong if there is none."""
    sampling = sampling or Sampling()
    room = client.ready.max_model_len - prompt_tokens
    if room < 1:
        raise TooLong(
            f"the prompt is {prompt_tokens:,} tokens, and the context of the model holds "
            f"{client.ready.max_model_len:,}; one must be left for the output"
        )
    stop_ids = tuple(id for id in client.text.stop_ids if id < client.ready.vocab_size)
    return msgspec.structs.replace(
        sampling,
        stop_ids=sampling.stop_ids or stop_ids,
        max_tokens=min(sampling.max_tokens or room, room),
    )
