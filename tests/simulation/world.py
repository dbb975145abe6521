"""One life of a small world: engines, gateways, a store and people, what befalls them, and what
must hold in the end. All of it follows from a seed."""

import asyncio
import hashlib
import logging
import traceback
import warnings
from functools import lru_cache
from random import Random
from typing import Any, Literal, NamedTuple

import msgspec

from continuo.engine.text import ModelText
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.persistence.session_codec import encode_entry, to_entries
from continuo.realtime.protocol.items import Item, MessageItem
from continuo.realtime.registry.access import ForkRequest, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.session import Session
from tests.simulation.client import Person
from tests.simulation.hosts import LIMITS, EngineHost, GatewayHost, Host
from tests.simulation.network import End, Network, NetworkLoop
from tests.simulation.storage import Handle, Storage
from tests.simulation.virtual import Process, bury, virtual
from tests.support.digest_runner import oracle

HEALED_S = 120.0
"""In which everybody must come to an end when nothing goes wrong any more."""
WORDS = ("hello", "and then?", "a b c", "tell me more", "no, wait", "why?")


class Frame(NamedTuple):
    """A frame at a client's end of its connection."""

    client: str
    kind: Literal["sent", "received", "closed"]
    content: Any
    """JSON; of `closed` the code and the reason, or None where the connection was cut."""


class Outcome:
    """Of a life: its trace as a hash, and how much happened."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.faults: list[str] = []
        self.events = 0
        self.frames: list[Frame] = []
        """Of all clients, in order."""

    def tell(self, line: str) -> None:
        self.events += 1
        self._hash.update(line.encode())

    @property
    def trace(self) -> str:
        return self._hash.hexdigest()


class Complaints(logging.Handler):
    """What the product itself takes for a fault of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(logging.Formatter().format(record))


@lru_cache
def _text(folder: str) -> ModelText:
    return ModelText(folder)


class World:
    def __init__(self, loop: NetworkLoop, seed: int, folder: str) -> None:
        self.loop = loop
        self.chance = Random(f"world {seed}")
        self.losses = Random(f"fail-over {seed}")
        """Apart: where the store does not fail over, all goes as it would without this."""
        self.outcome = Outcome()
        self.network = loop.network = Network(loop, Random(f"network {seed}"))
        self.storage = Storage(loop, Random(f"store {seed}"), self._tell)
        self.host = Host(
            loop,
            folder,
            _text(folder),
            step_s=self.chance.choice([0.002, 0.01, 0.03]),
            ahead=self.chance.randrange(2),
            pages=self.chance.choice([150, 600]),
        )
        self._lives = 0
        self._healing = False
        self.buried: list[asyncio.Task[Any]] = []
        names = [f"engine-{n}" for n in range(self.chance.choice([1, 1, 2]))]
        self.engines = {name: self._engine(name) for name in names}
        self.gateways = {name: self._gateway(name) for name in ("gate-0", "gate-1")}
        count = self.chance.choice([1, 1, 2, 3])
        self.people: list[Person] = []
        self._processes: list[Process] = []
        for n in range(count):
            process = Process(loop, f"person-{n}")
            self._processes.append(process)
            chance = Random(f"person {n} of {seed}")
            self.people.append(Person(str(n), chance, self._dialler(process), self.storage))

    def _tell(self, line: str) -> None:
        self.outcome.tell(f"{self.loop.now:.6f} {line}")

    # ------------------------------------------------------------ hosts

    def _engine(self, name: str) -> EngineHost:
        self._lives += 1
        return EngineHost(self.host, name, self._lives)

    def _gateway(self, name: str) -> GatewayHost:
        self._lives += 1
        return GatewayHost(self.host, name, self._lives, Handle(self.storage), list(self.engines))

    def _dialler(self, process: Process) -> Any:
        def dial(chance: Random, wish: ResumeRequest | ForkRequest | None) -> End | None:
            gateway = self.gateways[chance.choice(sorted(self.gateways))]
            if gateway.process.dead or gateway.name in self.network.unreachable:
                return None
            link = self.network.link(process, gateway.process)
            ours, theirs = link.ends
            ours.post(lambda: gateway.accept(theirs, wish))
            self._note_frames(process.name, ours)
            return ours

        return dial

    def _note_frames(self, client: str, end: End) -> None:
        frames = self.outcome.frames
        hear, send, closed = end._hear, end.send, end.end

        def noted(what: Any) -> None:
            self._tell(f"{client} {what}")
            frames.append(Frame(client, "received", what))
            hear(what)

        def noted_send(what: Any) -> None:
            frames.append(Frame(client, "sent", what))
            send(what)

        def noted_end(why: Any = None) -> None:
            frames.append(Frame(client, "closed", why))
            closed(why)

        end._hear = noted  # type: ignore[method-assign]
        end.send = noted_send  # type: ignore[method-assign]
        end.end = noted_end  # type: ignore[method-assign]

    # ------------------------------------------------------------ what befalls it

    async def befall(self, until_s: float) -> None:
        chance = self.chance
        await asyncio.sleep(chance.uniform(0.0, 0.5))
        while self.loop.now < until_s:
            fault = chance.choice(FAULTS)
            self.outcome.faults.append(fault.__name__)
            self._tell(fault.__name__)
            await fault(self, chance)
            await asyncio.sleep(chance.expovariate(1.0))
        self.heal()

    async def lose(self, until_s: float) -> None:
        """In two lives of five the store fails over, at once or after some time in which there is
        none, and has lost up to a second of what it had confirmed: perhaps that a session has
        changed hands."""
        chance = self.losses
        for _ in range(chance.choice([0, 0, 0, 1, 2])):
            await asyncio.sleep(chance.uniform(0.0, until_s / 2))
            self.storage.replica.catch_up()
            if chance.random() < 0.5:
                await drop_a_client(self, chance)
            await asyncio.sleep(chance.uniform(0.05, 1.0))
            if chance.random() < 0.5:
                await store_away(self, chance)
            if self.storage.fail_over():
                self.outcome.faults.append("fail_over")
                self._tell("fail_over")

    def heal(self) -> None:
        self._tell("healed")
        self.storage.away, self.storage.shaky = False, 0.0
        self.storage.wake()

    def kill(self, process: Process, chance: Random) -> None:
        """Its peers hear of it, or do not: its host is gone then."""
        process.kill()
        self.buried += process.tasks
        silent = chance.random() < 0.2
        for link in self.network.of(process):
            notices = [
                None if end.process is process or silent else chance.uniform(0.0, 0.05)
                for end in link.ends
            ]
            if chance.random() < 0.5:
                link.sever(*notices)
            else:  # what it has sent arrives
                for end in link.ends:
                    if end.process is process:
                        end.close()


Fault = Any


async def cut_a_link(world: World, chance: Random) -> None:
    if world.network.links:
        link = chance.choice(world.network.links)
        link.sever(*(chance.uniform(0.0, 0.3) for _ in link.ends))


async def half_open(world: World, chance: Random) -> None:
    """Nobody is told; or one end is, much later."""
    if world.network.links:
        link = chance.choice(world.network.links)
        link.sever(*(chance.choice([None, chance.uniform(1.0, 8.0)]) for _ in link.ends))


async def kill_a_gateway(world: World, chance: Random) -> None:
    name = chance.choice(sorted(world.gateways))
    world.kill(world.gateways[name].process, chance)
    await asyncio.sleep(chance.uniform(0.05, 3.0))
    world.gateways[name] = world._gateway(name)


async def kill_an_engine(world: World, chance: Random) -> None:
    name = chance.choice(sorted(world.engines))
    world.kill(world.engines[name].process, chance)
    await asyncio.sleep(chance.uniform(0.05, 3.0))
    world.engines[name] = world._engine(name)


async def pause_a_gateway(world: World, chance: Random) -> None:
    process = world.gateways[chance.choice(sorted(world.gateways))].process
    process.pause()
    await asyncio.sleep(chance.uniform(0.2, 15.0))
    process.go_on()


async def pause_an_engine(world: World, chance: Random) -> None:
    process = world.engines[chance.choice(sorted(world.engines))].process
    process.pause()
    await asyncio.sleep(chance.uniform(0.2, 12.0))
    process.go_on()


async def store_away(world: World, chance: Random) -> None:
    world.storage.away = True
    await asyncio.sleep(chance.uniform(0.1, 4.0))
    world.storage.away = False


async def store_asleep(world: World, chance: Random) -> None:
    world.storage.asleep = True
    await asyncio.sleep(chance.uniform(0.1, 4.0))
    world.storage.wake()


async def store_shaky(world: World, chance: Random) -> None:
    world.storage.shaky = chance.choice([0.05, 0.3])
    await asyncio.sleep(chance.uniform(0.5, 5.0))
    world.storage.shaky = 0.0


async def drop_a_client(world: World, chance: Random) -> None:
    await chance.choice(world.people).drop()


FAULTS: tuple[Fault, ...] = (
    cut_a_link,
    cut_a_link,
    half_open,
    kill_a_gateway,
    kill_an_engine,
    pause_a_gateway,
    pause_an_engine,
    store_away,
    store_asleep,
    store_shaky,
    drop_a_client,
    drop_a_client,
    drop_a_client,
)


# ---------------------------------------------------------------- what people do


async def live(person: Person, turns: int) -> None:
    chance = person.chance
    for _ in range(turns):
        await person.say(chance.choice(WORDS))
        if chance.random() < 0.3:
            await person.say(chance.choice(WORDS))
        response = await person.respond(chance.choice([3, 20, 60]))
        await asyncio.sleep(chance.choice([0.0, 0.05, 0.5]))
        what = chance.random()
        if what < 0.15:
            await person.cancel()
        elif what < 0.3:
            await person.say("while you speak")
        elif what < 0.4:
            await person.respond(4, conversation="none", input=[_message("beside")])
        if response is not None and chance.random() < 0.85:
            await person.over(response)
            said = [name for name, text in person.texts.items() if text.response == response]
            if said and chance.random() < 0.15:
                await person.truncate(
                    said[0], chance.randrange(1 + len(person.texts[said[0]].text))
                )
            elif said and chance.random() < 0.1:
                await person.delete(chance.choice(list(person.items)))
        await asyncio.sleep(chance.choice([0.0, 0.1, 1.0]))


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


# ---------------------------------------------------------------- what must hold


async def settle(world: World, person: Person) -> None:
    """Nothing goes wrong any more: all that was asked is answered, and one turn more."""
    for response in list(person.responses):
        await person.over(response)
    await person.say("the last one")
    response = None
    while response is None:
        response = await person.respond(5)
        await asyncio.sleep(0.1)
    await person.over(response)
    await asyncio.sleep(1.0)


def found(world: World, person: Person) -> Session:
    """Where it is now; one gateway at most has it with a client."""
    there = [
        session
        for gateway in world.gateways.values()
        if gateway.registry is not None
        and (session := gateway.registry.find(person.session)) is not None
    ]
    assert there, f"{person.session} is nowhere"
    return max(there, key=lambda session: session.fence)


def check(world: World, person: Person) -> None:
    session = found(world, person)
    conversation = session.conversation
    assert not conversation.has_open_response, "nothing is being made"
    items = {item.id: item for item in conversation.items()}
    assert list(items) == person.order, f"{list(items)} is told as {person.order}"
    assert items.keys() == person.items.keys(), f"{items.keys() ^ person.items.keys()}"
    for name, item in items.items():
        told = "".join(part.get("text", "") for part in person.items[name]["content"])
        assert told == _words(item), f"{name}: {told!r} is not {_words(item)!r}"
    for name, words in person.kept.items():
        there = _words(items[name]) if name in items else None
        assert there == words or person.lost["item", name], f"{name}: {there!r} is not {words!r}"
    snapshot = world.storage.do(world.storage.tables.load, person.session)
    assert snapshot is not None, "the store has it"
    assert snapshot.metadata.fence == session.fence, "who has it owns it"
    assert snapshot.entries == tuple(encode_entry(piece) for piece in to_entries(conversation, ()))
    assert snapshot.running_responses == (), "nothing is being made there either"
    answers = [span for span in conversation.spans if span.sampled_ids is not None]
    assert len({span.response_id for span in answers}) == len(answers)
    assert {span.response_id for span in answers} <= set(person.asks.values())
    if not person.edited and not conversation.out_of_window:
        for span in answers:
            _check_answer(person, conversation, span)
    else:
        _check_answer(person, conversation, answers[-1])


def _words(item: Item) -> str:
    assert isinstance(item, MessageItem)
    return "".join(part.text for part in item.parts)


def _check_answer(person: Person, conversation: Conversation, span: Span) -> None:
    """It is what a fresh prefill of all before it gives."""
    before = conversation.spans[: conversation.spans.index(span)]
    asked, header = msgspec.structs.replace(conversation, spans=before).render_header()
    expected = oracle([*asked.ids(), *header], 60, stop_ids=[0])
    assert span.sampled_ids is not None, "an answer"
    assert span.response_id is not None, "an answer"
    assert list(span.sampled_ids) == expected[: len(span.sampled_ids)], "as a fresh prefill would"
    response = person.responses.get(span.response_id)
    if response is not None and response["status"] == "completed":
        assert span.sampled_ids[-1] == 0, "it ended by itself"


async def leave(world: World, person: Person) -> None:
    """In one of the ways there are."""
    way = person.chance.choice(["close", "delete", "wait"])
    person.ended = True
    if way == "close":
        await person.ask(lambda event: event["type"] == "session.closed", type="session.close")
    elif way == "delete":
        name = person.chance.choice(sorted(world.gateways))
        gateway = world.gateways[name]
        while (registry := gateway.registry) is None:
            await asyncio.sleep(0.1)
        assert await gateway.process.run(_delete(registry, person.session)), "it was there"
    await person.drop()


async def _delete(registry: Registry, session: str) -> bool:
    return await registry.delete(session, "")


async def life(world: World) -> None:
    chance = world.chance
    living = [
        process.run(live(person, chance.choice([1, 2, 3, 4])), process.name)
        for person, process in zip(world.people, world._processes, strict=True)
    ]
    until_s = chance.choice([2.0, 6.0, 15.0])
    losing = world.loop.create_task(world.lose(until_s))
    await world.loop.create_task(world.befall(until_s))
    await losing
    await all_of(world, living)
    for act in (settle, leave):
        doing = [
            process.run(act(world, person), process.name)
            for person, process in zip(world.people, world._processes, strict=True)
        ]
        await all_of(world, doing)
        if act is settle:
            for person in world.people:
                check(world, person)
    await asyncio.sleep(LIMITS.resume_window_s + 50.0)
    await over(world)


async def all_of(world: World, doing: list[asyncio.Task[None]]) -> None:
    """Within the time there is when nothing goes wrong."""
    _, hung = await asyncio.wait(doing, timeout=HEALED_S, return_when=asyncio.FIRST_EXCEPTION)
    for task in doing:
        if task.done():
            task.result()
    waiting = [person.waits_for for person in world.people]
    assert not hung, f"nothing comes any more: {waiting}"


async def over(world: World) -> None:
    """Everything closes, and nothing is left."""
    for person in world.people:
        card = world.storage.do(world.storage.tables.find, person.session)
        assert card is None, f"{person.session} is still there"
    for gateway in world.gateways.values():
        registry = gateway.registry
        assert registry is not None, f"{gateway.name} never came up: {gateway.running}"
        assert registry.list_sessions("") == [], "a gateway keeps what is over"
        gateway.process.context.run(gateway.stopping.set)
    async with asyncio.timeout(HEALED_S):
        await asyncio.gather(*(gateway.running for gateway in world.gateways.values()))
    await asyncio.sleep(30.0)
    for gateway in world.gateways.values():
        assert [task for task in gateway.process.tasks if not task.done()] == []
    for engine in world.engines.values():
        engine.check_empty()


def simulate(chance: Random, folder: str) -> Outcome:
    """Raises AssertionError where something does not hold. All follows from what `chance` gives."""
    seed = chance.getrandbits(48)
    loop = NetworkLoop()
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    problems: list[str] = []

    def note(loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        told = traceback.format_exception(error) if isinstance(error, BaseException) else []
        problems.append(f"{context.get('message')}: {''.join(told)}")

    loop.set_exception_handler(note)
    try:
        with warnings.catch_warnings(), virtual(loop, seed):
            warnings.filterwarnings("ignore", "coroutine '.*' was never awaited")  # of the buried
            world = World(loop, seed, folder)
            try:
                loop.run_until_complete(life(world))
            except AssertionError as error:
                raise AssertionError(f"{error}; {complaints.heard[:1]} {problems[:1]}") from error
            else:
                assert complaints.heard == [], complaints.heard[0]
                assert problems == [], problems
            finally:
                every = [task for task in asyncio.all_tasks(loop) if not task.done()]
                bury([*world.buried, *every])
            return world.outcome
    finally:
        logging.getLogger().removeHandler(complaints)
