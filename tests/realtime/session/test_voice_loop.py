"""A spoken conversation on the bundled model: words as they are recognised, with second thoughts;
answers that are interrupted and cut to what was heard.

What each answer says is what one fresh prefill of the same ids would; after a commit only the end
of what was said is computed; the history is never computed again.
"""

import asyncio
import contextlib
import random
import statistics
from collections.abc import AsyncIterator, Sequence

import pytest

from continuo.engine import EngineClient, EngineConfig, Sampling
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
from tests.support.sessions import Ears

PARTIAL_S = 0.15
REVISED = 0.2
ANSWER_TOKENS = 32
SPOKEN = (
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
        self, engine: EngineClient, session: Session, ears: Ears, source: random.Random
    ) -> None:
        self.engine = engine
        self.session = session
        self.ears = ears
        self.source = source
        self.answers = 0

    async def speak(self, words: Sequence[str]) -> None:
        """A recogniser's partial transcripts; some are taken back by the next."""
        for count in range(1, len(words) + 1):
            heard = words[:count]
            if count < len(words) and self.source.random() < REVISED:
                heard = [*heard[:-1], self.source.choice(("with", "tall", "flour", "sum"))]
            await self.session.execute(ReplaceText(" ".join(heard)))
            await asyncio.sleep(PARTIAL_S)

    async def fresh_answer(self, tokens: int) -> list[int]:
        """What the model says to the same ids where nothing of them is known: another scope."""
        asked, header = self.session.conversation.render_header()
        sampling = Sampling(max_tokens=tokens, ignore_eos=True)
        turn = await self.engine.complete(
            [*asked.ids(), *header], sampling, cache_scope=generate_id("x")
        )
        said = [id async for piece in turn for id in piece.ids]
        assert turn.ended is not None
        assert turn.ended.cached_tokens == 0, "it was fresh"
        return said

    async def respond(self, tokens: int, *, interrupted: bool) -> Response:
        """The whole answer, or as far as it had come at some moment."""
        before = self.deltas
        wish = GenerationSettings(max_output_tokens=tokens, sampling=Sampling(ignore_eos=True))
        await self.session.execute(CreateSessionResponse(settings=wish))
        self.answers += 1
        if interrupted:
            after = self.source.randrange(1, 12)
            while self.deltas < before + after and not self.ended:
                await asyncio.sleep(0.002)
            with contextlib.suppress(Refusal):  # it has ended by itself
                await self.session.execute(CancelResponse())
        tell = await self.ears.until(ResponseEnded, self.answers)
        assert isinstance(tell, ResponseEnded)
        return tell.answer

    @property
    def deltas(self) -> int:
        return sum(isinstance(tell, TextDelta) for tell in self.ears.heard)

    @property
    def ended(self) -> bool:
        return sum(isinstance(tell, ResponseEnded) for tell in self.ears.heard) == self.answers

    async def cut(self, answer: Response) -> None:
        """To what was heard of it."""
        (item,) = answer.items
        assert isinstance(item, MessageItem)
        text = item.parts[0].text
        heard = self.source.randrange(1, len(text) + 1)
        await self.session.execute(TruncateItem(item.id, 0, text_end=heard))
        cut = self.session.conversation.find(item.id)
        assert isinstance(cut, MessageItem)
        assert cut.parts[0].text == text[:heard]

    def sampled(self, answer: Response) -> list[int]:
        spans = [span for span in self.session.conversation.spans if span.response_id == answer.id]
        return list(spans[0].sampled_ids or ())


@pytest.fixture(params=range(2), ids=lambda seed: f"seed {seed}")
async def voice(request: pytest.FixtureRequest) -> AsyncIterator[Voice]:
    engine = await EngineClient.start(EngineConfig(dtype="float32", device="cpu"))
    store = await open_store("sqlite://:memory:")
    try:
        template = engine.text.template
        assert template is not None
        registry = Registry(engine, template, GenerationSettings(), Limits(), store)
        ears = Ears()
        session = await registry.open(ears)
        yield Voice(engine, session, ears, random.Random(request.param))
        await registry.close(session)
    finally:
        await engine.stop()


@pytest.mark.timeout(300)
async def test_a_spoken_conversation(voice: Voice) -> None:
    prefilled, known = list[int](), 0
    for number, line in enumerate(SPOKEN):
        interrupted = 0 < number < len(SPOKEN) - 1
        await voice.speak(line.split())
        await voice.session.execute(CommitText(generate_id("item")))
        expected = await voice.fresh_answer(ANSWER_TOKENS)
        answer = await voice.respond(ANSWER_TOKENS, interrupted=interrupted)
        said = voice.sampled(answer)
        assert said, "something was said"
        assert said == expected[: len(said)]
        assert interrupted or said == expected
        usage = answer.usage
        assert usage is not None
        prefilled.append(usage.input_tokens - usage.cached_tokens)
        assert usage.cached_tokens >= known - 1, "the history is not computed again"
        known = usage.input_tokens
        if interrupted:
            await voice.cut(answer)
    assert statistics.median(prefilled) <= 8, prefilled


@pytest.mark.timeout(300)
@pytest.mark.parametrize("voice", [0], indirect=True)
async def test_five_hundred_turns_just_go_on(voice: Voice) -> None:
    """The bundled model reads 2,048 tokens; what does not fit is dropped, and stays retrievable."""
    limit, dropped = voice.engine.ready.max_model_len, 0
    for number in range(500):
        item = MessageItem(
            id=f"u{number}",
            role="user",
            parts=(ContentPart("input_text", f"What is {number} plus 1?"),),
        )
        await voice.session.execute(AddItem(item))
        again = len(voice.session.conversation.out_of_window) > dropped
        dropped = len(voice.session.conversation.out_of_window)
        expected = await voice.fresh_answer(8) if again else None
        answer = await voice.respond(8, interrupted=False)
        voice.ears.heard.clear()
        voice.answers = 0
        assert answer.status == "incomplete", "it says what it was allowed to"
        assert voice.session.conversation.length <= limit
        assert expected is None or voice.sampled(answer) == expected
    conversation = voice.session.conversation
    assert dropped > 500, "most of it has left the context"
    assert sum(1 for _ in conversation.items()) == 1000
    assert conversation.find("u0") is not None
