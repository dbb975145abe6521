"""A voice conversation on the bundled model: partial transcripts that are revised, and responses
that are interrupted and truncated to the part that was played.

Each response equals one after a fresh prefill of the same ids; after a commit only the end of the
transcript is prefilled; the history is never prefilled again.
"""

import asyncio
import contextlib
import random
import statistics
from collections.abc import AsyncIterator, Sequence

import pytest

from continuo.engine import EngineClient, EngineConfig, Sampling, SessionGroup
from continuo.realtime.errors import Refusal
from continuo.realtime.ids import generate_id
from continuo.realtime.limits import Limits
from continuo.realtime.protocol.commands import (
    AddItem,
    CancelResponse,
    CommitText,
    CreateSessionResponse,
    ReplaceText,
    TruncateItem,
)
from continuo.realtime.protocol.events import ResponseEnded, TextDelta
from continuo.realtime.protocol.items import ContentPart, MessageItem
from continuo.realtime.protocol.response import Response
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.session import Session
from continuo.realtime.store import open_store
from tests.support.sessions import EventRecorder

pytestmark = pytest.mark.slow

PARTIAL_S = 0.15
REVISED_RATIO = 0.2
RESPONSE_TOKENS = 32
UTTERANCES = (
    "hello there how are you doing today",
    "my name is Mira and I live near the sea",
    "please tell me a story about a small boat",
    "no stop that one and tell me another story",
    "what is the weather like where you are",
    "count from one to ten for me please",
    "now say that again but a little slower",
    "thank you that was very kind of you",
)


class Voice:
    def __init__(
        self, engine: EngineClient, session: Session, recorder: EventRecorder, source: random.Random
    ) -> None:
        self.engine = engine
        self.session = session
        self.recorder = recorder
        self.source = source
        self.responses = 0

    async def speak(self, words: Sequence[str]) -> None:
        """Send partial transcripts as a speech recogniser does; some are revised by the next."""
        for count in range(1, len(words) + 1):
            partial = words[:count]
            if count < len(words) and self.source.random() < REVISED_RATIO:
                partial = [*partial[:-1], self.source.choice(("with", "tall", "flour", "sum"))]
            await self.session.execute(ReplaceText(" ".join(partial)))
            await asyncio.sleep(PARTIAL_S)

    async def reference_ids(self, tokens: int) -> list[int]:
        """The ids of a response to the same prompt in another cache scope, so without cached KV."""
        prompt, header = self.session.conversation.render_header()
        sampling = Sampling(max_tokens=tokens, ignore_eos=True)
        turn = await self.engine.complete(
            [*prompt.ids(), *header], sampling, group=SessionGroup(generate_id("x"))
        )
        ids = [id async for piece in turn for id in piece.ids]
        assert turn.ended is not None
        assert turn.ended.cached_tokens == 0, "the reference found cached KV"
        return ids

    async def respond(self, tokens: int, *, interrupted: bool) -> Response:
        """A whole response, or one cancelled after a random number of deltas."""
        before = self.deltas
        settings = GenerationSettings(max_output_tokens=tokens, sampling=Sampling(ignore_eos=True))
        await self.session.execute(CreateSessionResponse(settings=settings))
        self.responses += 1
        if interrupted:
            after = self.source.randrange(1, 12)
            while self.deltas < before + after and not self.ended:
                await asyncio.sleep(0.002)
            with contextlib.suppress(Refusal):  # if the response has ended before
                await self.session.execute(CancelResponse())
        event = await self.recorder.wait_for(ResponseEnded, self.responses)
        assert isinstance(event, ResponseEnded)
        return event.response

    @property
    def deltas(self) -> int:
        return sum(isinstance(event, TextDelta) for event in self.recorder.events)

    @property
    def ended(self) -> bool:
        return (
            sum(isinstance(event, ResponseEnded) for event in self.recorder.events)
            == self.responses
        )

    async def truncate(self, response: Response) -> None:
        """Truncate the response at a random position."""
        (item,) = response.items
        assert isinstance(item, MessageItem)
        text = item.parts[0].text
        end = self.source.randrange(1, len(text) + 1)
        await self.session.execute(TruncateItem(item.id, 0, text_end=end))
        truncated = self.session.conversation.find(item.id)
        assert isinstance(truncated, MessageItem)
        assert truncated.parts[0].text == text[:end]

    def sampled(self, response: Response) -> list[int]:
        spans = [
            span for span in self.session.conversation.spans if span.response_id == response.id
        ]
        return list(spans[0].sampled_ids or ())


@pytest.fixture(params=range(2), ids=lambda seed: f"seed {seed}")
async def voice(request: pytest.FixtureRequest) -> AsyncIterator[Voice]:
    engine = await EngineClient.start(EngineConfig(dtype="float32", device="cpu"))
    store = await open_store("sqlite://:memory:")
    try:
        template = engine.text.template
        assert template is not None
        registry = Registry(engine, template, GenerationSettings(), Limits(), store)
        recorder = EventRecorder()
        session = await registry.open(recorder)
        yield Voice(engine, session, recorder, random.Random(request.param))
        await registry.close(session)
    finally:
        await engine.stop()


@pytest.mark.timeout(300)
async def test_voice_conversation_prefills_only_new_tokens(voice: Voice) -> None:
    prefilled, cached = list[int](), 0
    for number, line in enumerate(UTTERANCES):
        interrupted = 0 < number < len(UTTERANCES) - 1
        await voice.speak(line.split())
        await voice.session.execute(CommitText(generate_id("item")))
        expected = await voice.reference_ids(RESPONSE_TOKENS)
        response = await voice.respond(RESPONSE_TOKENS, interrupted=interrupted)
        ids = voice.sampled(response)
        assert ids, "the response is empty"
        assert ids == expected[: len(ids)]
        assert interrupted or ids == expected
        usage = response.usage
        assert usage is not None
        prefilled.append(usage.prefilled_after_commit)
        assert usage.cached_tokens >= cached - 1, "a part of the history was prefilled again"
        cached = usage.input_tokens
        if interrupted:
            await voice.truncate(response)
    assert statistics.median(prefilled) <= 8, prefilled


@pytest.mark.timeout(300)
@pytest.mark.parametrize("voice", [0], indirect=True)
async def test_five_hundred_turns_continue_beyond_the_context_window(voice: Voice) -> None:
    """The context window is 2,048 tokens; older items leave the window and can still be fetched."""
    limit, out_of_window = voice.engine.ready.max_model_len, 0
    for number in range(500):
        item = MessageItem(
            id=f"u{number}",
            role="user",
            parts=(ContentPart("input_text", f"What is {number} plus 1?"),),
        )
        await voice.session.execute(AddItem(item))
        rewound = len(voice.session.conversation.out_of_window) > out_of_window
        out_of_window = len(voice.session.conversation.out_of_window)
        expected = await voice.reference_ids(8) if rewound else None
        response = await voice.respond(8, interrupted=False)
        voice.recorder.events.clear()
        voice.responses = 0
        assert response.status == "incomplete", "max_output_tokens does not end the response"
        assert voice.session.conversation.length <= limit
        assert expected is None or voice.sampled(response) == expected
    conversation = voice.session.conversation
    assert out_of_window > 500, "most items are still in the context window"
    assert sum(1 for _ in conversation.items()) == 1000
    assert conversation.find("u0") is not None
