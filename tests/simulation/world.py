"""Simulation of engines, gateways, a store and clients with random faults, from one seed, and the
checks of its outcome."""

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
"""Virtual time after the last fault within which every client must finish."""
WORDS = ("hello", "and then?", "a b c", "tell me more", "no, wait", "why?")


class Frame(NamedTuple):
    """Frame at a client's end of a connection."""

    client: str
    kind: Literal["sent", "received", "closed"]
    content: Any
    """JSON; for `closed` the code and the reason, or None if the connection was cut."""


class Outcome:
    """Result of a simulation: the hash of its trace, its faults and the frames of its clients."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.faults: list[str] = []
        self.events = 0
        self.frames: list[Frame] = []
        """Frames of all clients, in order."""

    def tell(self, line: str) -> None:
        self.events += 1
        self._hash.update(line.encode())

    @property
    def trace(self) -> str:
        return self._hash.hexdigest()


class Complaints(logging.Handler):
    """Log handler that collects the errors logged by the product."""

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
        self.rng = Random(f"world {seed}")
        self.losses = Random(f"fail-over {seed}")
        """Separate generator, so that a life without failover does not depend on it."""
        self.outcome = Outcome()
        self.network = loop.network = Network(loop, Random(f"network {seed}"))
        self.storage = Storage(loop, Random(f"store {seed}"), self._tell)
        self.host = Host(
            loop,
            folder,
            _text(folder),
            step_s=self.rng.choice([0.002, 0.01, 0.03]),
            ahead=self.rng.randrange(2),
            pages=self.rng.choice([150, 600]),
        )
        self._started_count = 0
        self.buried: list[asyncio.Task[Any]] = []
        names = [f"engine-{n}" for n in range(self.rng.choice([1, 1, 2]))]
        self.engines = {name: self._engine(name) for name in names}
        self.gateways = {name: self._gateway(name) for name in ("gate-0", "gate-1")}
        count = self.rng.choice([1, 1, 2, 3])
        self.people: list[Person] = []
        self._processes: list[Process] = []
        for n in range(count):
            process = Process(loop, f"person-{n}")
            self._processes.append(process)
            rng = Random(f"person {n} of {seed}")
            self.people.append(Person(str(n), rng, self._make_dial(process), self.storage))

    def _tell(self, line: str) -> None:
        self.outcome.tell(f"{self.loop.now:.6f} {line}")

    # ------------------------------------------------------------ processes

    def _engine(self, name: str) -> EngineHost:
        self._started_count += 1
        return EngineHost(self.host, name, self._started_count)

    def _gateway(self, name: str) -> GatewayHost:
        self._started_count += 1
        return GatewayHost(
            self.host, name, self._started_count, Handle(self.storage), list(self.engines)
        )

    def _make_dial(self, process: Process) -> Any:
        def dial(rng: Random, request: ResumeRequest | ForkRequest | None) -> End | None:
            gateway = self.gateways[rng.choice(sorted(self.gateways))]
            if gateway.process.dead or gateway.name in self.network.unreachable:
                return None
            link = self.network.link(process, gateway.process)
            local, remote = link.ends
            local.post(lambda: gateway.accept(remote, request))
            self._record_frames(process.name, local)
            return local

        return dial

    def _record_frames(self, client: str, endpoint: End) -> None:
        """Wrap the methods of a client's endpoint so that every frame is recorded."""
        frames = self.outcome.frames
        receive, send, close = endpoint._receive, endpoint.send, endpoint.end

        def recorded_receive(data: Any) -> None:
            self._tell(f"{client} {data}")
            frames.append(Frame(client, "received", data))
            receive(data)

        def recorded_send(data: Any) -> None:
            frames.append(Frame(client, "sent", data))
            send(data)

        def recorded_close(reason: Any = None) -> None:
            frames.append(Frame(client, "closed", reason))
            close(reason)

        endpoint._receive = recorded_receive  # type: ignore[method-assign]
        endpoint.send = recorded_send  # type: ignore[method-assign]
        endpoint.end = recorded_close  # type: ignore[method-assign]

    # ------------------------------------------------------------ faults

    async def befall(self, until_s: float) -> None:
        """Inject random faults until `until_s`, then stop them."""
        rng = self.rng
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        while self.loop.now < until_s:
            fault = rng.choice(FAULTS)
            self.outcome.faults.append(fault.__name__)
            self._tell(fault.__name__)
            await fault(self, rng)
            await asyncio.sleep(rng.expovariate(1.0))
        self.heal()

    async def lose(self, until_s: float) -> None:
        """Fail the store over to its replica once or twice in two lives of five.

        The failover follows at once or after an outage, and loses up to a second of confirmed
        changes, changes of a session's owner included.
        """
        rng = self.losses
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            await asyncio.sleep(rng.uniform(0.0, until_s / 2))
            self.storage.replica.catch_up()
            if rng.random() < 0.5:
                await drop_a_client(self, rng)
            await asyncio.sleep(rng.uniform(0.05, 1.0))
            if rng.random() < 0.5:
                await store_away(self, rng)
            if self.storage.fail_over():
                self.outcome.faults.append("fail_over")
                self._tell("fail_over")

    def heal(self) -> None:
        self._tell("healed")
        self.storage.away, self.storage.shaky = False, 0.0
        self.storage.wake()

    def kill(self, process: Process, rng: Random) -> None:
        """Kill a process; in one of five cases its peers get no notice, as when its host fails."""
        process.kill()
        self.buried += process.tasks
        silent = rng.random() < 0.2
        for link in self.network.of(process):
            notices = [
                None if endpoint.process is process or silent else rng.uniform(0.0, 0.05)
                for endpoint in link.ends
            ]
            if rng.random() < 0.5:
                link.sever(*notices)
            else:  # data already sent arrives
                for endpoint in link.ends:
                    if endpoint.process is process:
                        endpoint.close()


Fault = Any


async def cut_a_link(simulation: World, rng: Random) -> None:
    if simulation.network.links:
        link = rng.choice(simulation.network.links)
        link.sever(*(rng.uniform(0.0, 0.3) for _ in link.ends))


async def half_open(simulation: World, rng: Random) -> None:
    """Cut a link without notice to its ends, or with a late one."""
    if simulation.network.links:
        link = rng.choice(simulation.network.links)
        link.sever(*(rng.choice([None, rng.uniform(1.0, 8.0)]) for _ in link.ends))


async def kill_a_gateway(simulation: World, rng: Random) -> None:
    name = rng.choice(sorted(simulation.gateways))
    simulation.kill(simulation.gateways[name].process, rng)
    await asyncio.sleep(rng.uniform(0.05, 3.0))
    simulation.gateways[name] = simulation._gateway(name)


async def kill_an_engine(simulation: World, rng: Random) -> None:
    name = rng.choice(sorted(simulation.engines))
    simulation.kill(simulation.engines[name].process, rng)
    await asyncio.sleep(rng.uniform(0.05, 3.0))
    simulation.engines[name] = simulation._engine(name)


async def pause_a_gateway(simulation: World, rng: Random) -> None:
    process = simulation.gateways[rng.choice(sorted(simulation.gateways))].process
    process.pause()
    await asyncio.sleep(rng.uniform(0.2, 15.0))
    process.go_on()


async def pause_an_engine(simulation: World, rng: Random) -> None:
    process = simulation.engines[rng.choice(sorted(simulation.engines))].process
    process.pause()
    await asyncio.sleep(rng.uniform(0.2, 12.0))
    process.go_on()


async def store_away(simulation: World, rng: Random) -> None:
    simulation.storage.away = True
    await asyncio.sleep(rng.uniform(0.1, 4.0))
    simulation.storage.away = False


async def store_asleep(simulation: World, rng: Random) -> None:
    simulation.storage.asleep = True
    await asyncio.sleep(rng.uniform(0.1, 4.0))
    simulation.storage.wake()


async def store_shaky(simulation: World, rng: Random) -> None:
    simulation.storage.shaky = rng.choice([0.05, 0.3])
    await asyncio.sleep(rng.uniform(0.5, 5.0))
    simulation.storage.shaky = 0.0


async def drop_a_client(simulation: World, rng: Random) -> None:
    await rng.choice(simulation.people).drop()


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


# ---------------------------------------------------------------- clients


async def live(client: Person, turns: int) -> None:
    rng = client.rng
    for _ in range(turns):
        await client.say(rng.choice(WORDS))
        if rng.random() < 0.3:
            await client.say(rng.choice(WORDS))
        response = await client.respond(rng.choice([3, 20, 60]))
        await asyncio.sleep(rng.choice([0.0, 0.05, 0.5]))
        action = rng.random()
        if action < 0.15:
            await client.cancel()
        elif action < 0.3:
            await client.say("while you speak")
        elif action < 0.4:
            await client.respond(4, conversation="none", input=[_message("beside")])
        if response is not None and rng.random() < 0.85:
            await client.over(response)
            items = [name for name, text in client.texts.items() if text.response == response]
            if items and rng.random() < 0.15:
                await client.truncate(items[0], rng.randrange(1 + len(client.texts[items[0]].text)))
            elif items and rng.random() < 0.1:
                await client.delete(rng.choice(list(client.items)))
        await asyncio.sleep(rng.choice([0.0, 0.1, 1.0]))


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


# ---------------------------------------------------------------- checks


async def settle(simulation: World, client: Person) -> None:
    """Wait for all responses after the last fault, then run one more turn."""
    for response in list(client.responses):
        await client.over(response)
    await client.say("the last one")
    response = None
    while response is None:
        response = await client.respond(5)
        await asyncio.sleep(0.1)
    await client.over(response)
    await asyncio.sleep(1.0)


def found(simulation: World, client: Person) -> Session:
    """Find the session of a client: the copy with the highest fence in the gateways."""
    copies = [
        session
        for gateway in simulation.gateways.values()
        if gateway.registry is not None
        and (session := gateway.registry.find(client.session)) is not None
    ]
    assert copies, f"no gateway has {client.session}"
    return max(copies, key=lambda session: session.fence)


def check(simulation: World, client: Person) -> None:
    """Assert that session, store and client agree, and that every response is a fresh prefill's."""
    session = found(simulation, client)
    conversation = session.conversation
    assert not conversation.has_open_response, "a response is still open"
    items = {item.id: item for item in conversation.items()}
    assert list(items) == client.order, f"{list(items)} was received as {client.order}"
    assert items.keys() == client.items.keys(), f"{items.keys() ^ client.items.keys()}"
    for name, item in items.items():
        received = "".join(part.get("text", "") for part in client.items[name]["content"])
        assert received == _text_of(item), f"{name}: {received!r} is not {_text_of(item)!r}"
    for name, stored in client.kept.items():
        current = _text_of(items[name]) if name in items else None
        assert current == stored or client.lost["item", name], (
            f"{name}: {current!r} is not {stored!r}"
        )
    snapshot = simulation.storage.do(simulation.storage.tables.load, client.session)
    assert snapshot is not None, "the session is not in the store"
    assert snapshot.metadata.fence == session.fence, "the gateway does not own the session"
    assert snapshot.entries == tuple(encode_entry(piece) for piece in to_entries(conversation, ()))
    assert snapshot.running_responses == (), "a response is still open in the store"
    responses = [span for span in conversation.spans if span.sampled_ids is not None]
    assert len({span.response_id for span in responses}) == len(responses)
    assert {span.response_id for span in responses} <= set(client.asks.values())
    if not client.edited and not conversation.out_of_window:
        for span in responses:
            _check_response(client, conversation, span)
    else:
        _check_response(client, conversation, responses[-1])


def _text_of(item: Item) -> str:
    assert isinstance(item, MessageItem)
    return "".join(part.text for part in item.parts)


def _check_response(client: Person, conversation: Conversation, span: Span) -> None:
    """Assert that a response has the ids that a fresh prefill of all spans before it gives."""
    before = conversation.spans[: conversation.spans.index(span)]
    prompt, header = msgspec.structs.replace(conversation, spans=before).render_header()
    expected = oracle([*prompt.ids(), *header], 60, stop_ids=[0])
    assert span.sampled_ids is not None, "not a response"
    assert span.response_id is not None, "not a response"
    assert list(span.sampled_ids) == expected[: len(span.sampled_ids)], "not a fresh prefill's ids"
    response = client.responses.get(span.response_id)
    if response is not None and response["status"] == "completed":
        assert span.sampled_ids[-1] == 0, "completed without a stop id"


async def leave(simulation: World, client: Person) -> None:
    """End the session by a close, by a delete, or by its expiry."""
    ending = client.rng.choice(["close", "delete", "wait"])
    client.ended = True
    if ending == "close":
        await client.ask(lambda event: event["type"] == "session.closed", type="session.close")
    elif ending == "delete":
        name = client.rng.choice(sorted(simulation.gateways))
        gateway = simulation.gateways[name]
        while (registry := gateway.registry) is None:
            await asyncio.sleep(0.1)
        deleted = await gateway.process.run(_delete(registry, client.session))
        assert deleted, f"{client.session} was not found"
    await client.drop()


async def _delete(registry: Registry, session: str) -> bool:
    return await registry.delete(session, "")


async def life(simulation: World) -> None:
    """Run the clients under faults, then check the clients, the sessions and the shutdown."""
    rng = simulation.rng
    running = [
        process.run(live(client, rng.choice([1, 2, 3, 4])), process.name)
        for client, process in zip(simulation.people, simulation._processes, strict=True)
    ]
    until_s = rng.choice([2.0, 6.0, 15.0])
    failing_over = simulation.loop.create_task(simulation.lose(until_s))
    await simulation.loop.create_task(simulation.befall(until_s))
    await failing_over
    await all_of(simulation, running)
    for phase in (settle, leave):
        tasks = [
            process.run(phase(simulation, client), process.name)
            for client, process in zip(simulation.people, simulation._processes, strict=True)
        ]
        await all_of(simulation, tasks)
        if phase is settle:
            for client in simulation.people:
                check(simulation, client)
    await asyncio.sleep(LIMITS.resume_window_s + 50.0)
    await over(simulation)


async def all_of(simulation: World, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for tasks of the clients, with a timeout. Raises the first exception of a task."""
    _, hung = await asyncio.wait(tasks, timeout=HEALED_S, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        if task.done():
            task.result()
    waiting = [client.waits_for for client in simulation.people]
    assert not hung, f"clients wait for ever: {waiting}"


async def over(simulation: World) -> None:
    """Shut everything down; assert that no session, task or page is left."""
    for client in simulation.people:
        metadata = simulation.storage.do(simulation.storage.tables.find, client.session)
        assert metadata is None, f"{client.session} is still stored"
    for gateway in simulation.gateways.values():
        registry = gateway.registry
        assert registry is not None, f"{gateway.name} did not get ready: {gateway.running}"
        assert registry.list_sessions("") == [], "a gateway keeps an ended session"
        gateway.process.context.run(gateway.stopping.set)
    async with asyncio.timeout(HEALED_S):
        await asyncio.gather(*(gateway.running for gateway in simulation.gateways.values()))
    await asyncio.sleep(30.0)
    for gateway in simulation.gateways.values():
        assert [task for task in gateway.process.tasks if not task.done()] == []
    for engine in simulation.engines.values():
        engine.check_empty()


def simulate(rng: Random, folder: str) -> Outcome:
    """Run one life, drawn from `rng` alone. Raises AssertionError if a check fails."""
    seed = rng.getrandbits(48)
    loop = NetworkLoop()
    error_log = Complaints()
    logging.getLogger().addHandler(error_log)
    loop_errors: list[str] = []

    def record_error(loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        lines = traceback.format_exception(error) if isinstance(error, BaseException) else []
        loop_errors.append(f"{context.get('message')}: {''.join(lines)}")

    loop.set_exception_handler(record_error)
    try:
        with warnings.catch_warnings(), virtual(loop, seed):
            warnings.filterwarnings("ignore", "coroutine '.*' was never awaited")  # of killed tasks
            simulation = World(loop, seed, folder)
            try:
                loop.run_until_complete(life(simulation))
            except AssertionError as error:
                raise AssertionError(f"{error}; {error_log.heard[:1]} {loop_errors[:1]}") from error
            else:
                assert error_log.heard == [], error_log.heard[0]
                assert loop_errors == [], loop_errors
            finally:
                unfinished = [task for task in asyncio.all_tasks(loop) if not task.done()]
                bury([*simulation.buried, *unfinished])
            return simulation.outcome
    finally:
        logging.getLogger().removeHandler(error_log)
