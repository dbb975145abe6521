"""Simulation of engines, gateways, a store and clients with random faults, from one seed, and the
checks of its outcome."""

import asyncio
import hashlib
import logging
import traceback
import warnings
from functools import lru_cache
from random import Random
from typing import Any

import msgspec

from continuo.engine.text import ModelText
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.tokenization import Span
from continuo.realtime.persistence.session_codec import encode_entry, to_entries
from continuo.realtime.protocol.items import Item, MessageItem
from continuo.realtime.registry.access import ForkRequest, ResumeRequest
from continuo.realtime.registry.registry import Registry
from continuo.realtime.session.session import Session
from tests.simulation.client import SimulatedClient
from tests.simulation.hosts import LIMITS, HostSettings, SimulatedEngine, SimulatedGateway
from tests.simulation.network import Endpoint, Network, NetworkLoop
from tests.simulation.storage import SimulatedStore, SimulatedStoreClient
from tests.simulation.virtual import SimulatedProcess, discard_tasks, virtual_time
from tests.support.digest_runner import oracle

RECOVERY_TIMEOUT_S = 120.0
"""Virtual time after the last fault within which every client must finish."""
MESSAGES = ("hello", "and then?", "a b c", "tell me more", "no, wait", "why?")


class SimulationResult:
    """Result of a simulation: the hash of its trace, and its faults."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.fault_names: list[str] = []
        self.event_count = 0

    def record(self, line: str) -> None:
        self.event_count += 1
        self._hash.update(line.encode())

    @property
    def trace(self) -> str:
        return self._hash.hexdigest()


class ErrorLogHandler(logging.Handler):
    """Log handler that collects the errors logged by the product."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(logging.Formatter().format(record))


@lru_cache
def _text(folder: str) -> ModelText:
    return ModelText(folder)


class Simulation:
    def __init__(self, loop: NetworkLoop, seed: int, folder: str) -> None:
        self.loop = loop
        self.rng = Random(f"world {seed}")
        self.failover_rng = Random(f"fail-over {seed}")
        """Separate generator, so that a life without failover does not depend on it."""
        self.result = SimulationResult()
        self.network = loop.network = Network(loop, Random(f"network {seed}"))
        self.storage = SimulatedStore(loop, Random(f"store {seed}"), self._tell)
        self.host_settings = HostSettings(
            loop,
            folder,
            _text(folder),
            step_s=self.rng.choice([0.002, 0.01, 0.03]),
            steps_ahead=self.rng.randrange(2),
            pages=self.rng.choice([150, 600]),
        )
        self._started_count = 0
        self.killed_tasks: list[asyncio.Task[Any]] = []
        names = [f"engine-{n}" for n in range(self.rng.choice([1, 1, 2]))]
        self.engines = {name: self._engine(name) for name in names}
        self.gateways = {name: self._gateway(name) for name in ("gate-0", "gate-1")}
        count = self.rng.choice([1, 1, 2, 3])
        self.clients: list[SimulatedClient] = []
        self._processes: list[SimulatedProcess] = []
        for n in range(count):
            process = SimulatedProcess(loop, f"person-{n}")
            self._processes.append(process)
            rng = Random(f"person {n} of {seed}")
            self.clients.append(
                SimulatedClient(str(n), rng, self._make_dial(process), self.storage)
            )

    def _tell(self, line: str) -> None:
        self.result.record(f"{self.loop.now:.6f} {line}")

    # ------------------------------------------------------------ processes

    def _engine(self, name: str) -> SimulatedEngine:
        self._started_count += 1
        return SimulatedEngine(self.host_settings, name, self._started_count)

    def _gateway(self, name: str) -> SimulatedGateway:
        self._started_count += 1
        return SimulatedGateway(
            self.host_settings,
            name,
            self._started_count,
            SimulatedStoreClient(self.storage),
            list(self.engines),
        )

    def _make_dial(self, process: SimulatedProcess) -> Any:
        def dial(rng: Random, request: ResumeRequest | ForkRequest | None) -> Endpoint | None:
            gateway = self.gateways[rng.choice(sorted(self.gateways))]
            if gateway.process.is_dead or gateway.name in self.network.unreachable:
                return None
            link = self.network.link(process, gateway.process)
            local, remote = link.endpoints
            local.deliver(lambda: gateway.accept(remote, request))
            self._record_frames(process.name, local)
            return local

        return dial

    def _record_frames(self, client: str, endpoint: Endpoint) -> None:
        """Wrap a client's endpoint so that the trace has every frame that the client receives."""
        receive = endpoint._receive

        def recorded_receive(data: Any) -> None:
            self._tell(f"{client} {data}")
            receive(data)

        endpoint._receive = recorded_receive  # type: ignore[method-assign]

    # ------------------------------------------------------------ faults

    async def inject_faults(self, until_s: float) -> None:
        """Inject random faults until `until_s`, then stop them."""
        rng = self.rng
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        while self.loop.now < until_s:
            fault = rng.choice(FAULTS)
            self.result.fault_names.append(fault.__name__)
            self._tell(fault.__name__)
            await fault(self, rng)
            await asyncio.sleep(rng.expovariate(1.0))
        self.stop_faults()

    async def fail_over_store(self, until_s: float) -> None:
        """Fail the store over to its replica once or twice in two lives of five.

        The failover follows at once or after an outage, and loses up to a second of confirmed
        changes, changes of a session's owner included.
        """
        rng = self.failover_rng
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            await asyncio.sleep(rng.uniform(0.0, until_s / 2))
            self.storage.replica.catch_up()
            if rng.random() < 0.5:
                await drop_a_client(self, rng)
            await asyncio.sleep(rng.uniform(0.05, 1.0))
            if rng.random() < 0.5:
                await store_away(self, rng)
            if self.storage.fail_over():
                self.result.fault_names.append("fail_over")
                self._tell("fail_over")

    def stop_faults(self) -> None:
        self._tell("healed")
        self.storage.is_unavailable, self.storage.loss_rate = False, 0.0
        self.storage.resume()

    def kill_process(self, process: SimulatedProcess, rng: Random) -> None:
        """Kill a process; in one of five cases its peers get no notice, as when its host fails."""
        process.kill()
        self.killed_tasks += process.tasks
        silent = rng.random() < 0.2
        for link in self.network.links_of(process):
            notices = [
                None if endpoint.process is process or silent else rng.uniform(0.0, 0.05)
                for endpoint in link.endpoints
            ]
            if rng.random() < 0.5:
                link.sever(*notices)
            else:  # data already sent arrives
                for endpoint in link.endpoints:
                    if endpoint.process is process:
                        endpoint.close()


Fault = Any


async def cut_a_link(simulation: Simulation, rng: Random) -> None:
    if simulation.network.links:
        link = rng.choice(simulation.network.links)
        link.sever(*(rng.uniform(0.0, 0.3) for _ in link.endpoints))


async def half_open(simulation: Simulation, rng: Random) -> None:
    """Cut a link without notice to its ends, or with a late one."""
    if simulation.network.links:
        link = rng.choice(simulation.network.links)
        link.sever(*(rng.choice([None, rng.uniform(1.0, 8.0)]) for _ in link.endpoints))


async def kill_a_gateway(simulation: Simulation, rng: Random) -> None:
    name = rng.choice(sorted(simulation.gateways))
    simulation.kill_process(simulation.gateways[name].process, rng)
    await asyncio.sleep(rng.uniform(0.05, 3.0))
    simulation.gateways[name] = simulation._gateway(name)


async def kill_an_engine(simulation: Simulation, rng: Random) -> None:
    name = rng.choice(sorted(simulation.engines))
    simulation.kill_process(simulation.engines[name].process, rng)
    await asyncio.sleep(rng.uniform(0.05, 3.0))
    simulation.engines[name] = simulation._engine(name)


async def pause_a_gateway(simulation: Simulation, rng: Random) -> None:
    process = simulation.gateways[rng.choice(sorted(simulation.gateways))].process
    process.pause()
    await asyncio.sleep(rng.uniform(0.2, 15.0))
    process.resume()


async def pause_an_engine(simulation: Simulation, rng: Random) -> None:
    process = simulation.engines[rng.choice(sorted(simulation.engines))].process
    process.pause()
    await asyncio.sleep(rng.uniform(0.2, 12.0))
    process.resume()


async def store_away(simulation: Simulation, rng: Random) -> None:
    simulation.storage.is_unavailable = True
    await asyncio.sleep(rng.uniform(0.1, 4.0))
    simulation.storage.is_unavailable = False


async def store_asleep(simulation: Simulation, rng: Random) -> None:
    simulation.storage.is_paused = True
    await asyncio.sleep(rng.uniform(0.1, 4.0))
    simulation.storage.resume()


async def store_shaky(simulation: Simulation, rng: Random) -> None:
    simulation.storage.loss_rate = rng.choice([0.05, 0.3])
    await asyncio.sleep(rng.uniform(0.5, 5.0))
    simulation.storage.loss_rate = 0.0


async def drop_a_client(simulation: Simulation, rng: Random) -> None:
    await rng.choice(simulation.clients).disconnect()


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


async def run_client(client: SimulatedClient, turns: int) -> None:
    rng = client.rng
    for _ in range(turns):
        await client.send_message(rng.choice(MESSAGES))
        if rng.random() < 0.3:
            await client.send_message(rng.choice(MESSAGES))
        response = await client.start_response(rng.choice([3, 20, 60]))
        await asyncio.sleep(rng.choice([0.0, 0.05, 0.5]))
        action = rng.random()
        if action < 0.15:
            await client.cancel_response()
        elif action < 0.3:
            await client.send_message("while you speak")
        elif action < 0.4:
            await client.start_response(4, conversation="none", input=[_message("beside")])
        if response is not None and rng.random() < 0.85:
            await client.wait_response(response)
            items = [
                name for name, text in client.output_texts.items() if text.response_id == response
            ]
            if items and rng.random() < 0.15:
                await client.truncate_item(
                    items[0], rng.randrange(1 + len(client.output_texts[items[0]].text))
                )
            elif items and rng.random() < 0.1:
                await client.delete_item(rng.choice(list(client.items)))
        await asyncio.sleep(rng.choice([0.0, 0.1, 1.0]))


def _message(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


# ---------------------------------------------------------------- checks


async def finish_client(simulation: Simulation, client: SimulatedClient) -> None:
    """Wait for all responses after the last fault, then run one more turn."""
    for response in list(client.responses):
        await client.wait_response(response)
    await client.send_message("the last one")
    response = None
    while response is None:
        response = await client.start_response(5)
        await asyncio.sleep(0.1)
    await client.wait_response(response)
    await asyncio.sleep(1.0)


def find_session(simulation: Simulation, client: SimulatedClient) -> Session:
    """Find the session of a client: the copy with the highest fence in the gateways."""
    copies = [
        session
        for gateway in simulation.gateways.values()
        if gateway.registry is not None
        and (session := gateway.registry.find(client.session_id)) is not None
    ]
    assert copies, f"no gateway has {client.session_id}"
    return max(copies, key=lambda session: session.stored.lease.fence)


def check_client(simulation: Simulation, client: SimulatedClient) -> None:
    """Assert that session, store and client agree, and that every response is a fresh prefill's."""
    session = find_session(simulation, client)
    conversation = session.conversation
    assert not conversation.has_open_response, "a response is still open"
    items = {item.id: item for item in conversation.items()}
    assert list(items) == client.item_order, f"{list(items)} was received as {client.item_order}"
    assert items.keys() == client.items.keys(), f"{items.keys() ^ client.items.keys()}"
    for name, item in items.items():
        received = "".join(part.get("text", "") for part in client.items[name]["content"])
        assert received == _text_of(item), f"{name}: {received!r} is not {_text_of(item)!r}"
    for name, stored in client.stored_texts.items():
        current = _text_of(items[name]) if name in items else None
        assert current == stored or client.lost_facts["item", name], (
            f"{name}: {current!r} is not {stored!r}"
        )
    snapshot = simulation.storage.execute(simulation.storage.tables.load, client.session_id)
    assert snapshot is not None, "the session is not in the store"
    assert snapshot.metadata.fence == session.stored.lease.fence, (
        "the gateway does not own the session"
    )
    assert snapshot.entries == tuple(encode_entry(piece) for piece in to_entries(conversation, ()))
    assert snapshot.running_responses == (), "a response is still open in the store"
    responses = [span for span in conversation.spans if span.sampled_ids is not None]
    assert len({span.response_id for span in responses}) == len(responses)
    assert {span.response_id for span in responses} <= set(client.responses_by_mark.values())
    if not client.has_edited_history and not conversation.out_of_window:
        for span in responses:
            _check_response(client, conversation, span)
    else:
        _check_response(client, conversation, responses[-1])


def _text_of(item: Item) -> str:
    assert isinstance(item, MessageItem)
    return "".join(part.text for part in item.parts)


def _check_response(client: SimulatedClient, conversation: Conversation, span: Span) -> None:
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


async def end_session(simulation: Simulation, client: SimulatedClient) -> None:
    """End the session by a close, by a delete, or by its expiry."""
    ending = client.rng.choice(["close", "delete", "wait"])
    client.has_ended_session = True
    if ending == "close":
        await client.request(lambda event: event["type"] == "session.closed", type="session.close")
    elif ending == "delete":
        name = client.rng.choice(sorted(simulation.gateways))
        gateway = simulation.gateways[name]
        while (registry := gateway.registry) is None:
            await asyncio.sleep(0.1)
        deleted = await gateway.process.run(_delete(registry, client.session_id))
        assert deleted, f"{client.session_id} was not found"
    await client.disconnect()


async def _delete(registry: Registry, session: str) -> bool:
    return await registry.delete(session, "")


async def run_simulation(simulation: Simulation) -> None:
    """Run the clients under faults, then check the clients, the sessions and the shutdown."""
    rng = simulation.rng
    running = [
        process.run(run_client(client, rng.choice([1, 2, 3, 4])), process.name)
        for client, process in zip(simulation.clients, simulation._processes, strict=True)
    ]
    until_s = rng.choice([2.0, 6.0, 15.0])
    failing_over = simulation.loop.create_task(simulation.fail_over_store(until_s))
    await simulation.loop.create_task(simulation.inject_faults(until_s))
    await failing_over
    await wait_all(simulation, running)
    for phase in (finish_client, end_session):
        tasks = [
            process.run(phase(simulation, client), process.name)
            for client, process in zip(simulation.clients, simulation._processes, strict=True)
        ]
        await wait_all(simulation, tasks)
        if phase is finish_client:
            for client in simulation.clients:
                check_client(simulation, client)
    await asyncio.sleep(LIMITS.resume_window_s + 50.0)
    await check_shutdown(simulation)


async def wait_all(simulation: Simulation, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for tasks of the clients, with a timeout. Raises the first exception of a task."""
    _, hung = await asyncio.wait(
        tasks, timeout=RECOVERY_TIMEOUT_S, return_when=asyncio.FIRST_EXCEPTION
    )
    for task in tasks:
        if task.done():
            task.result()
    waiting = [client.pending_summary for client in simulation.clients]
    assert not hung, f"clients wait for ever: {waiting}"


async def check_shutdown(simulation: Simulation) -> None:
    """Shut everything down; assert that no session, task or page is left."""
    for client in simulation.clients:
        metadata = simulation.storage.execute(simulation.storage.tables.find, client.session_id)
        assert metadata is None, f"{client.session_id} is still stored"
    for gateway in simulation.gateways.values():
        registry = gateway.registry
        assert registry is not None, f"{gateway.name} did not get ready: {gateway.run_task}"
        assert not registry.open_sessions.of_tenant(""), "a gateway keeps an ended session"
        gateway.process.context.run(gateway.stop_requested.set)
    async with asyncio.timeout(RECOVERY_TIMEOUT_S):
        await asyncio.gather(*(gateway.run_task for gateway in simulation.gateways.values()))
    await asyncio.sleep(30.0)
    for gateway in simulation.gateways.values():
        assert [task for task in gateway.process.tasks if not task.done()] == []
    for engine in simulation.engines.values():
        engine.check_empty()


def simulate(rng: Random, folder: str) -> SimulationResult:
    """Run one life, drawn from `rng` alone. Raises AssertionError if a check fails."""
    seed = rng.getrandbits(48)
    loop = NetworkLoop()
    error_log = ErrorLogHandler()
    logging.getLogger().addHandler(error_log)
    loop_errors: list[str] = []

    def record_error(loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        lines = traceback.format_exception(error) if isinstance(error, BaseException) else []
        loop_errors.append(f"{context.get('message')}: {''.join(lines)}")

    loop.set_exception_handler(record_error)
    try:
        with warnings.catch_warnings(), virtual_time(loop, seed):
            warnings.filterwarnings("ignore", "coroutine '.*' was never awaited")  # of killed tasks
            simulation = Simulation(loop, seed, folder)
            try:
                loop.run_until_complete(run_simulation(simulation))
            except AssertionError as error:
                raise AssertionError(
                    f"{error}; {error_log.messages[:1]} {loop_errors[:1]}"
                ) from error
            else:
                assert error_log.messages == [], error_log.messages[0]
                assert loop_errors == [], loop_errors
            finally:
                unfinished = [task for task in asyncio.all_tasks(loop) if not task.done()]
                discard_tasks([*simulation.killed_tasks, *unfinished])
            return simulation.result
    finally:
        logging.getLogger().removeHandler(error_log)
