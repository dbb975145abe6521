"""Tests of plans that would leave positions without KV: the loop refuses them, and only the turns
of the misplaced rows fail."""

import contextlib
import random
from abc import ABC, abstractmethod
from pathlib import Path

import msgspec
import pytest

from continuo.engine import Sampling, TurnFailed
from continuo.engine.core.schedule import ScheduledRow, Scheduler, StepPlan
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import oracle
from tests.support.engines import digest_engine
from tests.support.worlds import MEMORY_KINDS, random_memory

IDS = 8
PROMPTS = {f"s{n}": [(n * 31 + k) % 90 for k in range(20)] for n in range(4)}
FAULTY = "s2"


class FaultyScheduler(Scheduler, ABC):
    """Scheduler that misplaces the row of FAULTY in the step number `faulty_step`."""

    faulty_step = 0
    steps = 0

    def plan(self) -> StepPlan:
        plan = super().plan()
        self.steps += bool(plan.rows)
        if self.steps == self.faulty_step:
            for row in [row for row in plan.rows if row.sequence.id == FAULTY]:
                self.misplace(plan.rows, row)
        return plan

    @abstractmethod
    def misplace(self, rows: list[ScheduledRow], row: ScheduledRow) -> None:
        """Change the rows of a plan so that the row of FAULTY, or another one, is misplaced."""


class DoublingScheduler(FaultyScheduler):
    """Scheduler that plans a second row of a sequence."""

    def misplace(self, rows: list[ScheduledRow], row: ScheduledRow) -> None:
        if self.cache.reserve(row.sequence.lease, 1):
            rows.append(ScheduledRow(row.sequence, row.start + row.tokens, 1, None))


class SkippingScheduler(FaultyScheduler):
    """Scheduler that plans a row behind positions that have no KV."""

    def misplace(self, rows: list[ScheduledRow], row: ScheduledRow) -> None:
        rows[rows.index(row)] = msgspec.structs.replace(row, start=row.start + 1)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("faulty_step", [2, 3, 5])
@pytest.mark.parametrize("kind", ["full", *MEMORY_KINDS])
@pytest.mark.parametrize("scheduler", [DoublingScheduler, SkippingScheduler])
def test_misplaced_row_fails_only_its_own_turn(
    scheduler: type[FaultyScheduler], kind: str, faulty_step: int, ahead: int
) -> None:
    memory = random_memory(random.Random(3), kind, 4)
    core = CoreHarness(batched_tokens=32, scheduler=scheduler, allows_misplaced=True, **memory)
    assert isinstance(core.scheduler, FaultyScheduler)
    core.scheduler.faulty_step = faulty_step
    for session, prompt in PROMPTS.items():
        core.open(session)
        core.append(session, list(prompt))
        core.generate(session, IDS)
    core.run(ahead=ahead)
    misplaced = [s for s in PROMPTS if core.turn_end(s).reason == "failed"]
    assert core.counters.failed_audits == len(misplaced)
    assert misplaced or kind != "full"
    for session, prompt in PROMPTS.items():
        end = core.turn_end(session)
        assert core.turn_ids(session) == oracle(prompt, end.output_tokens)
        assert end.output_tokens == IDS or session == FAULTY
    if not misplaced:
        return
    end = core.turn_end(FAULTY)
    assert end.error is not None
    assert end.error.startswith("MisplacedRows: ")
    # The session stays open, and its next turn continues where the failed one ended.
    core.generate(FAULTY, IDS, "next")
    core.run(ahead=ahead)
    prompt = [*PROMPTS[FAULTY], *core.turn_ids(FAULTY)]
    assert core.turn_ids(FAULTY, "next") == oracle(prompt, IDS)


@pytest.mark.parametrize("ahead", [0, 1])
async def test_real_loop_lives_on(letters: Path, ahead: int) -> None:
    class FaultyFromTheThirdStep(DoublingScheduler):
        faulty_step = 3

        def misplace(self, rows: list[ScheduledRow], row: ScheduledRow) -> None:
            self.faulty_step = 0
            super().misplace(rows, row)

    async with digest_engine(
        letters, steps_ahead=ahead, scheduler=FaultyFromTheThirdStep
    ) as harness:
        engine = harness.engine
        prompt = PROMPTS[FAULTY][:10]
        session = await engine.open(FAULTY)
        await engine.append(session, list(prompt))
        failing = await engine.generate(session, Sampling(max_tokens=IDS))
        with contextlib.suppress(TurnFailed):
            async for piece in failing:
                prompt += piece.ids
        assert len(prompt) < 10 + IDS
        turn = await engine.generate(session, Sampling(max_tokens=IDS))
        assert [id async for piece in turn for id in piece.ids] == oracle(prompt, IDS)
        assert (await engine.fleet.stats()).failed_audits == 1
