"""Tests of invalid arguments: a bad command is refused by field, and affects no other session.

Commands are sent through the engine client, and by a client that checks none of its arguments.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from continuo.engine.client.engine_client import EngineClient, UnfinishedTurn
from continuo.engine.config import BUNDLED_MODEL, EngineConfig
from continuo.engine.errors import (
    BadRequest,
    CommandFailed,
    EngineError,
    TooLong,
    UnknownEngineSession,
)
from continuo.engine.sampling import Grammar, Sampling
from continuo.engine.wire.handshake import ClientHandshake
from continuo.engine.wire.link import Link
from continuo.engine.wire.messages import (
    AppendIds,
    AttachSession,
    CommandDone,
    CommandRefused,
    EngineCommand,
    EngineEvent,
    ForkSession,
    Generate,
    ListSessions,
    OpenSession,
    Ping,
    Pong,
    RewindSession,
)
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.engine_sessions import collect_ids
from tests.support.engines import EngineHarness, digest_engine
from tests.support.event_buffer import EventBuffer

pytestmark = pytest.mark.slow

PROMPT = [1, 2, 3]
BAD_IDS = [VOCABULARY, 1 << 30, 1 << 33, 1 << 70, -1]
BAD_KINDS: list[Any] = [[1.5], [True], ["1"], [None], "abc", 7, None, [[1]]]

ClientCall = Callable[[EngineClient], Awaitable[object]]


@pytest.fixture
async def harness(letters: Path) -> AsyncIterator[EngineHarness]:
    async with digest_engine(letters, step_s=0.002) as harness:
        yield harness


@contextlib.asynccontextmanager
async def bystander(harness: EngineHarness) -> AsyncIterator[None]:
    """Run a turn of another session meanwhile, and check its output and the engine."""
    await harness.engine.open("other")
    await harness.engine.append("other", PROMPT)
    turn = await harness.engine.generate("other", Sampling(max_tokens=25))
    yield
    assert await collect_ids(turn) == oracle(PROMPT, 25)
    assert harness.launch_count == 1, "the engine was not restarted"
    stats = await harness.engine.fleet.stats()
    assert (stats.failed_steps, stats.failed_audits) == (0, 0)


def unfinished(output_tokens: Any = 1, **sampling: Any) -> UnfinishedTurn:
    return UnfinishedTurn("t", seeded(**sampling), output_tokens)


def seeded(**sampling: Any) -> Sampling:
    return msgspec.structs.replace(Sampling(seed=1), **sampling)


@pytest.mark.parametrize("id", BAD_IDS)
async def test_engine_client_refuses_an_id_outside_the_vocabulary(
    harness: EngineHarness, id: int
) -> None:
    engine = harness.engine
    async with bystander(harness):
        await engine.open("s")
        for call in (
            engine.append("s", [1, id]),
            engine.append("s", [1, id], "provisional"),
            engine.attach("s", [1, 2, id, 3]),
            engine.attach("new", [1, 2, id, 3], unfinished=unfinished()),
            engine.complete([1, id], Sampling(max_tokens=1)),
        ):
            with pytest.raises(BadRequest) as refused:
                await call
            assert refused.value.field == "ids"
        for call in (
            engine.generate("s", Sampling(stop_ids=(id,))),
            engine.attach("new", PROMPT, unfinished=unfinished(stop_ids=(id,))),
        ):
            with pytest.raises(BadRequest) as refused:
                await call
            assert refused.value.field == "stop_ids"
        assert await engine.append("s", PROMPT) == 3, "no id of a refused command was kept"
        assert {info.session for info in await engine.fleet.list_sessions()} == {"s", "other"}


@pytest.mark.parametrize("ids", BAD_KINDS)
async def test_engine_client_refuses_ids_that_are_no_list_of_ints(
    harness: EngineHarness, ids: Any
) -> None:
    async with bystander(harness):
        await harness.engine.open("s")
        for call in (
            harness.engine.append("s", ids),
            harness.engine.attach("new", ids),
            harness.engine.complete(ids, Sampling(max_tokens=1)),
        ):
            with pytest.raises(BadRequest) as refused:
                await call
            assert refused.value.field == "ids"


async def test_numpy_integers_are_accepted_as_ids(harness: EngineHarness) -> None:
    await harness.engine.open("s")
    assert await harness.engine.append("s", np.array(PROMPT)) == 3  # pyright: ignore
    turn = await harness.engine.generate("s", Sampling(max_tokens=5))
    assert await collect_ids(turn) == oracle(PROMPT, 5)


CALLS: dict[str, tuple[ClientCall, str]] = {
    "session not a string": (lambda e: e.append(5, PROMPT), "session"),  # pyright: ignore
    "surrogate": (lambda e: e.append("\ud800", PROMPT), "session"),
    "span": (lambda e: e.append("s", PROMPT, "all"), "span"),  # pyright: ignore
    "offset": (lambda e: e.append("s", PROMPT, offset=1 << 64), "offset"),
    "after": (lambda e: e.append("s", PROMPT, after=1), "after"),  # pyright: ignore
    "rewind": (lambda e: e.rewind("s", 1.5), "to"),  # pyright: ignore
    "rewind below": (lambda e: e.rewind("s", -1), "to"),
    "rewind above": (lambda e: e.rewind("s", 1 << 62), "to"),
    "fork": (lambda e: e.fork("s", "1"), "at"),  # pyright: ignore
    "fork below": (lambda e: e.fork("s", -1), "at"),
    "fork to a list": (lambda e: e.fork("s", child=["c"]), "child"),  # pyright: ignore
    "capacity": (lambda e: e.open("n", capacity_tokens="9"), "capacity_tokens"),  # pyright: ignore
    "capacity 0": (lambda e: e.open("n", capacity_tokens=0), "capacity_tokens"),
    "timeout": (lambda e: e.open("n", timeout_s=float("nan")), "timeout_s"),
    "fence": (lambda e: e.open("n", fence=1 << 64), "fence"),
    "output below": (lambda e: e.attach("n", PROMPT, unfinished=unfinished(-1)), "resumed"),
    "output above": (lambda e: e.attach("n", PROMPT, unfinished=unfinished(4)), "resumed"),
    "output half": (lambda e: e.attach("n", PROMPT, unfinished=unfinished(0.5)), "resumed"),
    "temperature": (
        lambda e: e.generate("s", Sampling(temperature="hot")),  # pyright: ignore
        "temperature",
    ),
    "seed": (lambda e: e.generate("s", Sampling(seed=1 << 70)), "seed"),
    "stop": (lambda e: e.generate("s", Sampling(stop="x")), "stop"),  # pyright: ignore
    "bias": (
        lambda e: e.generate("s", Sampling(logit_bias={1 << 33: 1.0})),
        "logit_bias",
    ),
    "close": (lambda e: e.close(None), "session"),  # pyright: ignore
    "cancel": (lambda e: e.cancel("s", 3), "turn"),  # pyright: ignore
}


@pytest.mark.parametrize("name", CALLS)
async def test_engine_client_checks_arguments_before_sending(
    harness: EngineHarness, name: str
) -> None:
    call, field = CALLS[name]
    async with bystander(harness):
        await harness.engine.open("s")
        await harness.engine.append("s", PROMPT)
        with pytest.raises(BadRequest) as refused:
            await call(harness.engine)
        assert refused.value.field == field
        assert (await harness.engine.info("s")).length == 3
        infos = await harness.engine.fleet.list_sessions()
        assert {info.session for info in infos} == {"s", "other"}


async def test_engine_client_refuses_commands_too_long_for_a_frame(harness: EngineHarness) -> None:
    """A frame longer than the limit of the link would close the link."""
    async with bystander(harness):
        await harness.engine.open("s")
        with pytest.raises(TooLong, match="200 at most"):
            await harness.engine.append("s", [1] * 1_000_000)
        grammar = Grammar("lark", "x" * (33 << 20))
        with pytest.raises(BadRequest, match="at most"):
            await harness.engine.generate("s", Sampling(grammar=grammar, stop_ids=(0,)))


# ---- a client that checks no arguments


class RawClient(EventBuffer[EngineEvent]):
    """A client without checks, on a link over TCP."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = asyncio.Event()
        self.link: Link[EngineCommand, EngineEvent] = Link(
            msgspec.msgpack.Decoder(list[EngineEvent]),
            lambda events: self.add(*events),
            self.lost.set,
            ClientHandshake(b""),
        )

    async def request(self, command: EngineCommand) -> CommandDone | CommandRefused:
        self.link.send(command)
        reply = await self.wait_until(
            lambda e: isinstance(e, CommandDone | CommandRefused) and e.n == command.n
        )
        assert isinstance(reply, CommandDone | CommandRefused)
        return reply

    def send_raw(self, messages: list[object] | bytes) -> None:
        """Send messages of any type in one frame."""
        body = messages if isinstance(messages, bytes) else msgspec.msgpack.encode(messages)
        self.link._write(body)  # pyright: ignore[reportPrivateUsage]


@contextlib.asynccontextmanager
async def raw_client(harness: EngineHarness, port: int) -> AsyncIterator[RawClient]:
    raw = RawClient()
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: raw.link, "127.0.0.1", port)
    await raw.wait_until(lambda event: type(event).__name__ == "EngineReady")
    yield raw
    raw.link.abort()


def attach(n: int, session: str = "s", ids: list[int] | None = None, **more: Any) -> AttachSession:
    return AttachSession(n, OpenSession(n, session), PROMPT if ids is None else ids, **more)


def turn_of(resumed: int, **sampling: Any) -> Generate:
    return Generate(9, "s", "t", seeded(**sampling), resumed)


COMMANDS: dict[str, tuple[EngineCommand, str]] = {
    **{f"attach {id}": (attach(9, ids=[1, id]), "ids") for id in BAD_IDS[:3] + BAD_IDS[4:]},
    **{f"append {id}": (AppendIds(9, "old", [id]), "ids") for id in BAD_IDS[:3] + BAD_IDS[4:]},
    "span": (attach(9, provisional=[1 << 33]), "provisional"),
    "long span": (attach(9, provisional=[1] * 201), "provisional"),
    "long log": (attach(9, ids=[1] * 201), "ids"),
    "resumed below": (attach(9, generate=turn_of(-1)), "resumed"),
    "resumed above": (attach(9, generate=turn_of(4)), "resumed"),
    "stop id": (attach(9, generate=turn_of(0, stop_ids=(1 << 30,))), "stop_ids"),
    "bias": (attach(9, generate=turn_of(0, logit_bias={1 << 30: 1.0})), "logit_bias"),
    "top_k": (attach(9, generate=turn_of(0, top_k=-1)), "top_k"),
    "no grammar": (
        attach(9, generate=turn_of(0, grammar=Grammar("lark", "nonsense"), stop_ids=(0,))),
        "grammar",
    ),
    "generate resumed": (Generate(9, "old", "t", Sampling(seed=1), -5), "resumed"),
    "generate top_k": (Generate(9, "old", "t", Sampling(seed=1, top_k=-5)), "top_k"),
    "generate stop": (Generate(9, "old", "t", Sampling(seed=1, stop_ids=(-1,))), "stop_ids"),
    "fork": (ForkSession(9, "old", "s", -1), "at"),
    "rewind": (RewindSession(9, "old", 1 << 40), "to"),
}


@pytest.mark.parametrize("name", COMMANDS)
async def test_engine_refuses_bad_commands_of_an_unchecked_client(
    harness: EngineHarness, name: str
) -> None:
    """A refused command changes no state, and opens no session."""
    command, field = COMMANDS[name]
    async with bystander(harness), raw_client(harness, await harness.listen()) as client:
        assert isinstance(await client.request(OpenSession(1, "old")), CommandDone)
        assert isinstance(await client.request(AppendIds(2, "old", PROMPT)), CommandDone)
        refused = await client.request(command)
        assert isinstance(refused, CommandRefused), refused
        assert refused.field == field
        reply = await client.request(ListSessions(3))
        assert isinstance(reply, CommandDone)
        lengths = {info.session: info.length for info in reply.sessions or []}
        assert lengths.keys() == {"old", "other"}
        assert lengths["old"] == 3
        assert isinstance(await client.request(attach(4)), CommandDone), (
            "the session can be attached afterwards"
        )


async def test_refused_attach_keeps_the_existing_session(harness: EngineHarness) -> None:
    async with bystander(harness), raw_client(harness, await harness.listen()) as client:
        await client.request(attach(1))
        assert isinstance(await client.request(attach(2, ids=[1 << 30])), CommandRefused)
        appended = await client.request(AppendIds(3, "s", [4]))
        assert isinstance(appended, CommandDone)
        assert appended.length == 4


UNREADABLE: list[dict[str, object]] = [
    {"type": "Append", "n": 5, "session": "s", "ids": [1.5]},
    {"type": "Append", "n": 5, "session": "s", "ids": [1 << 64 - 1]},
    {"type": "Append", "n": 5, "session": None, "ids": [1]},
    {"type": "Bogus", "n": 5},
    {"n": 5},
    {"type": "Open", "n": 5, "session": b"\xff"},
]


@pytest.mark.parametrize("message", UNREADABLE)
async def test_unreadable_command_is_refused_by_its_number(
    harness: EngineHarness, message: dict[str, object]
) -> None:
    """The commands before and after it in its frame take effect."""
    async with bystander(harness), raw_client(harness, await harness.listen()) as client:
        client.send_raw([OpenSession(4, "s"), message, AppendIds(6, "s", PROMPT)])
        replies = {
            n: await client.wait_until(lambda e, n=n: getattr(e, "n", None) == n) for n in (4, 5, 6)
        }
        refused = replies[5]
        assert isinstance(refused, CommandRefused)
        assert refused.code == "bad_request"
        assert isinstance(replies[4], CommandDone)
        assert isinstance(replies[6], CommandDone)


@pytest.mark.parametrize(
    "frame", [b"GET / HTTP/1.1", b"\xc1", b"\x05", b"\x91\x05", b"\x91\x80", b"\x91" * 5000]
)
async def test_link_with_a_malformed_frame_is_closed_alone(
    harness: EngineHarness, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    port = await harness.listen()
    async with (
        bystander(harness),
        raw_client(harness, port) as other,
        raw_client(harness, port) as client,
    ):
        client.send_raw(frame)
        async with asyncio.timeout(20):
            await client.lost.wait()
        other.link.send(Ping(0))
        await other.wait_until(lambda event: isinstance(event, Pong))
        assert "Fatal error" not in caplog.text
        assert "Traceback" not in caplog.text


# ---- exceptions in the engine


async def test_exception_in_a_command_closes_only_its_session(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = harness.engine
    async with bystander(harness):
        await engine.open("s")
        await engine.append("s", PROMPT)

        def fail(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(harness.cache, "fork", fail)
        with pytest.raises(CommandFailed, match="ZeroDivisionError: a bug"):
            await engine.fork("s", child="c")
        assert caplog.text.count("Traceback") == 1
        for session in ("s", "c"):
            with pytest.raises(UnknownEngineSession):
                await engine.append(session, PROMPT)
        await engine.open("s")
        assert await engine.append("s", PROMPT) == 3


@pytest.mark.parametrize("deferred", [False, True])
async def test_exception_in_an_attach_leaves_no_session(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, deferred: bool
) -> None:
    """An attach that waits for a turn to end is covered too."""
    engine = harness.engine
    async with bystander(harness):
        if deferred:
            await engine.open("s")
            await engine.append("s", PROMPT)
            await engine.generate("s", Sampling(max_tokens=100))

        def fail(self: object, *_: object) -> None:
            raise ZeroDivisionError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr("continuo.engine.core.transitions.common_prefix_length", fail)
            with pytest.raises(CommandFailed):
                await engine.attach("s", [4, 5, 6])
        assert (await engine.fleet.stats()).sessions == 1, "the session of the bystander"
        await engine.attach("s", PROMPT, fence=1)
        assert (await engine.info("s")).length == 3


# ---- a real engine process, with the bundled model on the native decoder


async def test_engine_process_survives_all_bad_ids() -> None:
    engine = await EngineClient.start(EngineConfig(model=BUNDLED_MODEL, device="cpu", threads=1))
    try:
        pid, vocabulary = engine.pid, engine.ready.vocab_size
        ids = engine.text.encode("Hello, ")
        expected = await collect_ids(await engine.complete(ids, Sampling(max_tokens=40)))
        await engine.open("other")
        await engine.append("other", ids)
        turn = await engine.generate("other", Sampling(max_tokens=40))
        for id in (vocabulary, 6920, 1 << 30, 1 << 33, -1, 1.5):
            with pytest.raises(EngineError):
                await engine.attach("s", [1, 2, id, 3])  # pyright: ignore
            with pytest.raises(EngineError):
                await engine.append("other", [id])  # pyright: ignore
        assert await collect_ids(turn) == expected
        assert engine.pid == pid
        assert (await engine.info("other")).length == len(ids) + len(expected)
    finally:
        await engine.stop()
