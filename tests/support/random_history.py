"""RandomHistory: random commands on the sessions of a world, step by step and without a clock.

Sessions of both kinds share a pool too small for them; turns are retracted, and steps fail. After
any history, the token log equals `PlainLog`, branches of regular sessions included; an output
equals that of one fresh prefill; each turn ends once; the audit holds after every step.
"""

import random
from typing import Any

from continuo.engine.batch import Runner
from continuo.engine.core.speculation import Speculation
from continuo.engine.wire.messages import (
    AppendIds,
    CancelTurn,
    CommandDone,
    CommandRefused,
    ForkSession,
    Generate,
    LoopCommand,
    RewindSession,
    Sampling,
    TurnEnded,
    TurnTokens,
)
from continuo.engine.wire.token_log import regular_only_option
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.drafting import oracle_speculation
from tests.support.plain_log import ReferenceTokenLog
from tests.support.worlds import World, crowded_world, small_world

ACTIONS = 60
STEPS_MAX = 10_000
"""Steps in which all turns end that run after the last action."""
SAMPLED: dict[str, Any] = {"temperature": 1.0, "logprobs": 2}


class RandomHistory:
    """Random commands on the null device. A subclass may have another device, and say what it
    draws."""

    ids_max = 3
    """Largest id of an append. Sessions whose ids are few share prefixes."""
    drafted_turns = ({}, SAMPLED)
    """Sampling parameters of a turn with drafts: one of these."""

    def __init__(
        self,
        world: World,
        source: random.Random,
        seed: int,
        device: Runner[Any] | None = None,
    ) -> None:
        """`source`: draws the commands; `seed`: of the drafts and the common heads. `device`: in
        place of the null device."""
        self.world, self.source = world, source
        self.drafts = random.Random(seed) if world.has_drafts else None
        self.core = CoreHarness(
            pages=world.pages,
            page_size=world.page_size,
            max_model_len=world.session_tokens,
            host_pages=world.host_pages,
            batched_tokens=world.batched_tokens,
            rows=world.rows,
            max_group_share=world.max_group_share,
            audit_every=world.audit_every,
            scheduler=world.scheduler,
            speculation=self.make_speculation(self.drafts) if self.drafts is not None else None,
            device=device,
            **world.memory,
        )
        self.turns = 0
        self.children = 0
        self.prompts: dict[str, tuple[str, list[int], Sampling]] = {}
        """The session of each turn, its log when the turn began, and its sampling parameters."""
        self.logs: dict[str, ReferenceTokenLog] = {}
        self.compared = 0
        """Number of ids that were compared with one fresh prefill."""
        self.pending: dict[int, LoopCommand] = {}
        self.received = 0
        """Number of events received."""
        for n in range(world.sessions):
            scope, (group, weight) = f"scope {n % 3 % 2}", world.group(n)
            streaming = bool(n % 2)
            self.core.open(f"s{n}", streaming=streaming, scope=scope, group=group, weight=weight)
            self.logs[f"s{n}"] = ReferenceTokenLog()
        if world.has_heads:
            self.append_heads(random.Random(seed))

    def make_speculation(self, source: random.Random) -> Speculation:
        return oracle_speculation(source)

    def append_heads(self, source: random.Random) -> None:
        """Let the prompts of all sessions begin alike for a while, so that they branch."""
        longest = self.core.device.geometry.max_model_len // 2
        for session in self.logs:
            head = [n % 4 for n in range(source.randint(1, longest))]
            self.send(AppendIds(self.core.next_number(), session, head))

    def run(self) -> None:
        for _ in range(ACTIONS):
            self.act()
            for _ in range(self.source.choice([0, 0, 1, 3, 9])):
                self.step()
        for _ in range(STEPS_MAX):
            if not self.step():
                break
        self.check_turns()
        for session in list(self.core.sessions._sequences):
            self.core.close(session)
        cache = self.core.cache
        for component in cache.components:
            in_tree = sum(node.units[component.index] >= 0 for node in cache.tree.nodes())
            assert component.pool.free_count + in_tree == component.pool.total
            assert component.host_pool.free_count == component.host_pool.total
        assert (cache.usage.leased_pages, cache.host_tier.used_pages) == (0, 0)
        assert cache.tree.unreferenced == cache.tree.size
        assert cache.pool.free_count + cache.tree.size == cache.pool.total

    def act(self) -> None:
        core, source = self.core, self.source
        session = source.choice(list(core.sessions._sequences))
        length = len(core.sequence(session).ids)
        count = source.randint(1, self.world.append_max)
        few = [source.randint(0, self.ids_max) for _ in range(count)]
        if source.random() < self.world.talk:
            self.talk(session, few)
            return
        match source.randint(0, 11):
            case 0 | 1:
                self.send(AppendIds(core.next_number(), session, few))
            case 2:
                commit = source.random() < 0.5
                self.send(
                    AppendIds(
                        core.next_number(), session, few, "commit" if commit else "provisional"
                    )
                )
            case 3 | 4 | 5:
                self.generate(session)
            case 6:
                self.send(RewindSession(core.next_number(), session, source.randint(0, length)))
            case 7:
                self.send(CancelTurn(core.next_number(), session, drop=source.random() < 0.5))
            case 8:
                self.children += 1
                child, at = f"c{self.children}", source.randint(0, length)
                self.send(ForkSession(core.next_number(), session, child, at))
            case 9:
                self.reuse_a_turn_id(session)
            case _:
                self.branch(session, few)

    def talk(self, session: str, ids: list[int]) -> None:
        """Append and generate; a session that is nearly full is rewound first."""
        core, source = self.core, self.source
        length = len(core.sequence(session).ids)
        if length + len(ids) + self.world.output_max > self.world.session_tokens:
            to = source.randint(0, length // 2)
            self.send(RewindSession(core.next_number(), session, to))
        self.send(AppendIds(core.next_number(), session, ids))
        self.generate(session)

    def generate(self, session: str) -> None:
        self.turns += 1
        limit, priority = self.source.randint(1, self.world.output_max), self.turns % 3 - 1
        chosen = self.drafts.choice(self.drafted_turns) if self.drafts is not None else {}
        sampling = Sampling(max_tokens=limit, priority=priority, **chosen)
        self.send(Generate(self.core.next_number(), session, f"t{self.turns}", sampling))

    def branch(self, session: str, ids: list[int]) -> None:
        """Append with options that only a regular session accepts."""
        core, source = self.core, self.source
        finished = list(self.logs[session].finished_turns)
        append = AppendIds(
            core.next_number(),
            session,
            ids,
            after=source.choice([None, source.choice(finished or ["missing"])]),
            replace=source.random() < 0.3,
            drop_previous_output=source.random() < 0.5,
            offset=source.choice([0, 0, 0, -2, 5]),
        )
        if core.sequence(session).log.turn_tree is None and regular_only_option(append):
            assert core.expect_refusal(append).field == regular_only_option(append)
        else:
            self.send(append)

    def reuse_a_turn_id(self, session: str) -> None:
        core, finished = self.core, list(self.logs[session].finished_turns)
        sequence = core.sequence(session)
        if finished and sequence.log.turn_tree is not None and not sequence.is_busy:
            used = Generate(core.next_number(), session, self.source.choice(finished), Sampling())
            assert core.expect_refusal(used).field == "turn"

    def send(self, command: LoopCommand) -> None:
        self.pending[command.n] = command
        self.core.submit(command)
        self.receive(discarding=isinstance(command, CancelTurn) and command.drop)
        for session in self.core.sessions._sequences:
            self.check_log(session)

    def step(self) -> bool:
        """Launch and collect as the loop does; some steps fail. Returns False when idle."""
        core = self.core
        if self.source.random() < self.world.failing:
            core.runner.failing_steps.add(core.counters.steps)
        launched = core.launch()
        if core.steps_in_flight > self.world.ahead or (core.steps_in_flight and launched is None):
            core.collect()
        elif launched is None:
            return False
        self.receive()
        return True

    def receive(self, *, discarding: bool = False) -> None:
        """Apply new events to the plain logs, in order; then compare the logs with output."""
        events, self.received = self.core.events[self.received :], len(self.core.events)
        for event in events:
            match event:
                case TurnTokens():
                    self.logs[event.session].append_output(event.turn, event.ids)
                case TurnEnded():
                    self.logs[event.session].end_turn(event.turn, dropped=discarding)
                case CommandDone() if event.n in self.pending:
                    self.done(self.pending.pop(event.n))
                case CommandRefused() if event.n in self.pending:
                    command = self.pending.pop(event.n)
                    if isinstance(command, AppendIds) and event.code == "bad_request":
                        assert self.logs[command.session].refuses(command)
                case _:
                    pass
        for session in {each.session for each in events if isinstance(each, TurnTokens)}:
            self.check_log(session)

    def check_log(self, session: str) -> None:
        sequence = self.core.sequence(session)
        assert list(sequence.ids[: sequence.log.length]) == self.logs[session].ids

    def done(self, command: LoopCommand) -> None:
        match command:
            case AppendIds() if command.span != "provisional":
                self.logs[command.session].append(command)
            case Generate():
                log = self.logs[command.session].ids
                self.prompts[command.turn] = command.session, log, command.sampling
                self.logs[command.session].begin_turn(command.turn)
            case RewindSession():
                self.logs[command.session].rewind(command.to)
            case ForkSession():
                assert command.at is not None
                self.logs[command.child] = self.logs[command.session].fork(command.at)
            case _:
                pass

    def check_turns(self) -> None:
        ends = [end.turn for end in self.core.events_of(TurnEnded)]
        assert sorted(ends) == sorted(self.prompts), "each turn ends exactly once"
        for turn, (session, prompt, sampling) in self.prompts.items():
            output, end = self.core.turn_ids(session, turn), self.core.turn_end(session, turn)
            self.check_output(prompt, output, sampling, end.seed)
            self.compared += len(output)
            assert (end.output_tokens, end.prompt_tokens) == (len(output), len(prompt))

    def check_output(
        self, prompt: list[int], output: list[int], sampling: Sampling, seed: int
    ) -> None:
        """Compare an output with that of one fresh prefill of its prompt."""
        assert output == oracle(prompt, len(output), sampling=sampling, seed=seed)


def small_history(seed: int, kind: str = "full", *, has_drafts: bool = False) -> RandomHistory:
    source = random.Random(f"{kind} {seed}" if kind != "full" else seed)
    has_heads = "state" in kind and bool(seed % 2)
    world = small_world(source, kind, has_drafts=has_drafts, has_heads=has_heads)
    return RandomHistory(world, source, seed)


def crowded_history(seed: int) -> RandomHistory:
    source = random.Random(f"crowded {seed}")
    return RandomHistory(crowded_world(source), source, seed)
