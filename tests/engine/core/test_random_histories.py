"""Random lives, step by step and without a clock: sessions of both kinds in a pool too small for
them, turns retracted, and steps that the device loses. Whatever happened, the log is what a slow
and obvious one says, branches of regular sessions included; an answer goes on from it as one fresh
prefill would; each turn ends once; the books balance after every step."""

import random

import pytest

from continuo.engine.core.schedule import Scheduler
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
from tests.support.core_harness import Desk
from tests.support.digest_runner import oracle
from tests.support.plain_log import PlainLog
from tests.support.retracting import RetractingScheduler

SESSIONS, DEEDS = 5, 60


class Lives:
    def __init__(self, seed: int) -> None:
        self.source = source = random.Random(seed)
        self.ahead = source.randint(0, 1)
        page_size = source.choice([1, 2, 4])
        self.desk = Desk(
            pages=source.randint(10, 40),
            page_size=page_size,
            host_pages=source.choice([0, 6, 60]),
            batched_tokens=source.choice([2, 5, 16]),
            rows=source.choice([1, 2, 8]),
            scheduler=source.choice([Scheduler, RetractingScheduler]),
        )
        self.turns = 0
        self.children = 0
        self.prompts: dict[str, tuple[str, list[int]]] = {}
        """Of each turn: its session, and the log when it began."""
        self.logs: dict[str, PlainLog] = {}
        self.asked: dict[int, LoopCommand] = {}
        self.heard = 0
        """Events that have come."""
        for n in range(SESSIONS):
            self.desk.open(f"s{n}", streaming=bool(n % 2), scope=f"scope {n % 3 % 2}")
            self.logs[f"s{n}"] = PlainLog()

    def live(self) -> None:
        for _ in range(DEEDS):
            self.deed()
            for _ in range(self.source.choice([0, 0, 1, 3, 9])):
                self.step()
        while self.step():
            pass
        self.check_turns()
        for session in list(self.desk.sessions._sequences):
            self.desk.close(session)
        cache = self.desk.cache
        assert (cache.leased_pages, cache.host_tier.used_pages) == (0, 0)
        assert cache.tree.unreferenced == cache.tree.size
        assert cache.pool.free_count + cache.tree.size == cache.pool.total

    def deed(self) -> None:
        desk, source = self.desk, self.source
        session = source.choice(list(desk.sessions._sequences))
        length = len(desk.sequence(session).ids)
        few = [source.randint(0, 3) for _ in range(source.randint(1, 9))]
        match source.randint(0, 11):
            case 0 | 1:
                self.ask(AppendIds(desk.n(), session, few))
            case 2:
                commit = source.random() < 0.5
                self.ask(AppendIds(desk.n(), session, few, "commit" if commit else "provisional"))
            case 3 | 4 | 5:
                self.turns += 1
                sampling = Sampling(max_tokens=source.randint(1, 12))
                self.ask(Generate(desk.n(), session, f"t{self.turns}", sampling))
            case 6:
                self.ask(RewindSession(desk.n(), session, source.randint(0, length)))
            case 7:
                self.ask(CancelTurn(desk.n(), session, drop=source.random() < 0.5))
            case 8:
                self.children += 1
                child, at = f"c{self.children}", source.randint(0, length)
                self.ask(ForkSession(desk.n(), session, child, at))
            case 9:
                self.use_a_name_again(session)
            case _:
                self.branch(session, few)

    def branch(self, session: str, ids: list[int]) -> None:
        """What only a regular session takes."""
        desk, source = self.desk, self.source
        finished = list(self.logs[session].finished)
        append = AppendIds(
            desk.n(),
            session,
            ids,
            after=source.choice([None, source.choice(finished or ["nobody"])]),
            replace=source.random() < 0.3,
            drop_previous_output=source.random() < 0.5,
            offset=source.choice([0, 0, 0, -2, 5]),
        )
        if desk.sequence(session).log.turn_tree is None and regular_only_option(append):
            assert desk.refuse(append).field == regular_only_option(append)
        else:
            self.ask(append)

    def use_a_name_again(self, session: str) -> None:
        desk, finished = self.desk, list(self.logs[session].finished)
        sequence = desk.sequence(session)
        if finished and sequence.log.turn_tree is not None and not sequence.is_busy:
            used = Generate(desk.n(), session, self.source.choice(finished), Sampling())
            assert desk.refuse(used).field == "turn"

    def ask(self, command: LoopCommand) -> None:
        self.asked[command.n] = command
        self.desk.tell(command)
        self.hear(dropping=isinstance(command, CancelTurn) and command.drop)

    def step(self) -> bool:
        """As the loop does it; now and then the device loses one."""
        desk = self.desk
        if self.source.random() < 0.02:
            desk.runner.fail_at.add(desk.counters.steps)
        launched = desk.launch()
        if desk.flying > self.ahead or (desk.flying and launched is None):
            desk.collect()
        elif launched is None:
            return False
        self.hear()
        return True

    def hear(self, *, dropping: bool = False) -> None:
        """What has happened, in its order; then every log is what it should be."""
        events, self.heard = self.desk.events[self.heard :], len(self.desk.events)
        for event in events:
            match event:
                case TurnTokens():
                    self.logs[event.session].said(event.turn, event.ids)
                case TurnEnded():
                    self.logs[event.session].ended(event.turn, dropped=dropping)
                case CommandDone() if event.n in self.asked:
                    self.done(self.asked.pop(event.n))
                case CommandRefused() if event.n in self.asked:
                    command = self.asked.pop(event.n)
                    if isinstance(command, AppendIds) and event.code == "bad_request":
                        assert self.logs[command.session].refuses(command)
                case _:
                    pass
        for session, sequence in self.desk.sessions._sequences.items():
            assert list(sequence.ids[: sequence.log.length]) == self.logs[session].ids

    def done(self, command: LoopCommand) -> None:
        match command:
            case AppendIds() if command.span != "provisional":
                self.logs[command.session].append(command)
            case Generate():
                self.prompts[command.turn] = (command.session, self.logs[command.session].ids)
                self.logs[command.session].began(command.turn)
            case RewindSession():
                self.logs[command.session].rewind(command.to)
            case ForkSession():
                assert command.at is not None
                self.logs[command.child] = self.logs[command.session].fork(command.at)
            case _:
                pass

    def check_turns(self) -> None:
        ends = [end.turn for end in self.desk.heard(TurnEnded)]
        assert sorted(ends) == sorted(self.prompts), "each turn that began ends, once"
        for turn, (session, prompt) in self.prompts.items():
            said, end = self.desk.said(session, turn), self.desk.ended(session, turn)
            assert said == oracle(prompt, len(said))
            assert (end.output_tokens, end.prompt_tokens) == (len(said), len(prompt))


@pytest.mark.parametrize("seed", range(40))
def test_lives(seed: int) -> None:
    Lives(seed).live()
