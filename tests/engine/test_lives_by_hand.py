"""Random lives, step by step and without a clock: sessions of both kinds in a pool too small for
them, turns retracted, and steps that the device loses. Whatever happened, an answer goes on from
the log as one fresh prefill would; each turn ends once; the books balance after every step."""

import random

import pytest

from engine.messages import Append, Cancel, Fork, Generate, Rewind, Sampling, TurnEnded
from engine.schedule import Scheduler
from tests.support.desk import Desk
from tests.support.digest_runner import oracle
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
        for n in range(SESSIONS):
            self.desk.open(f"s{n}", streaming=bool(n % 2), scope=f"scope {n % 3 % 2}")

    def live(self) -> None:
        for _ in range(DEEDS):
            self.deed()
            for _ in range(self.source.choice([0, 0, 1, 3, 9])):
                self.step()
        while self.step():
            pass
        self.check_turns()
        for session in list(self.desk.sessions._table):
            self.desk.close(session)
        cache = self.desk.cache
        assert (cache.leased, cache.host.used) == (0, 0)
        assert cache.tree.unheld == cache.tree.size
        assert cache.pool.free + cache.tree.size == cache.pool.total

    def deed(self) -> None:
        desk, source = self.desk, self.source
        session = source.choice(list(desk.sessions._table))
        length = len(desk.sequence(session).ids)
        few = [source.randint(0, 3) for _ in range(source.randint(1, 9))]
        match source.randint(0, 8):
            case 0 | 1:
                desk.tell(Append(desk.n(), session, few))
            case 2:
                commit = source.random() < 0.5
                desk.tell(Append(desk.n(), session, few, "commit" if commit else "provisional"))
            case 3 | 4 | 5:
                self.turns += 1
                sampling = Sampling(max_tokens=source.randint(1, 12))
                desk.tell(Generate(desk.n(), session, f"t{self.turns}", sampling))
            case 6:
                desk.tell(Rewind(desk.n(), session, source.randint(0, length)))
            case 7:
                desk.tell(Cancel(desk.n(), session, drop=source.random() < 0.5))
            case _:
                self.children += 1
                child, at = f"c{self.children}", source.randint(0, length)
                desk.tell(Fork(desk.n(), session, child, at))
        self.watch()

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
        self.watch()
        return True

    def watch(self) -> None:
        for session, sequence in self.desk.sessions._table.items():
            turn = sequence.turn
            if turn is not None and turn.id not in self.prompts:
                self.prompts[turn.id] = (session, list(sequence.ids[: turn.began]))

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
