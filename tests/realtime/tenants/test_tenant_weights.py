"""Shares of tenants in the engine, through the gateway, in exact counts of rows and steps."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from continuo.engine.core.schedule import StepLoad, StepPlan
from continuo.realtime.server.config.settings import GatewaySettings, load_access_policy
from tests.support.engines import EngineHarness
from tests.support.waiting import wait_until
from tests.support.web_servers import ACME, UMBRELLA, RunningServer, serve_harness

ROWS = 6
KEYS = """
[tenants.acme]
weight = {weight}
[[keys]]
key = "key-one"
tenant = "acme"
[[keys]]
key = "key-two"
tenant = "umbrella"
"""


@pytest.fixture
def engine_options() -> dict[str, Any]:
    return {"rows": ROWS, "pages": 4096}


class StepRecorder:
    """Counts the rows of each group in each step; holds the engine between two steps."""

    def __init__(self, harness: EngineHarness) -> None:
        self.steps: list[Counter[str]] = []
        self._harness = harness
        self._plan = harness.scheduler.plan
        self._steps_max = 0
        harness.scheduler.plan = self._plan_and_count  # type: ignore[method-assign]

    def _plan_and_count(self) -> StepPlan:
        if len(self.steps) >= self._steps_max:
            return StepPlan([], StepLoad())
        plan = self._plan()
        if plan.rows:
            self.steps.append(Counter(row.sequence.group for row in plan.rows))
        return plan

    async def run(self, steps: int) -> list[Counter[str]]:
        """Run that many steps. Returns the rows of each group in each of them."""
        first = len(self.steps)
        self._steps_max = first + steps
        assert self._harness._loop is not None
        self._harness._loop.wake()
        await wait_until(lambda: len(self.steps) == self._steps_max)
        return self.steps[first:]


async def begin_responses(
    server: RunningServer, recorder: StepRecorder, headers: dict[str, str], count: int
) -> None:
    """Begin background responses, and wait until the engine has them."""
    turns = recorder._harness.scheduler.admission.turns
    expected = len(turns) + count
    body = {"model": "demo", "input": "hi", "max_output_tokens": 300, "ignore_eos": True}
    for _ in range(count):
        status, _ = await server.request(
            "POST", "/v1/responses", {**body, "background": True}, headers
        )
        assert status == 200
    await wait_until(lambda: len(turns) == expected)


def settings_of(folder: Path, weight: float) -> GatewaySettings:
    file = folder / "keys.toml"
    file.write_text(KEYS.format(weight=weight))
    return GatewaySettings(api_keys_file=str(file), served_model_name=("demo",))


@pytest.mark.parametrize(("weight", "rows"), [(2, (4, 2)), (0.2, (1, 5)), (1.0, (3, 3))])
async def test_rows_are_shared_by_weight(
    harness: EngineHarness, tmp_path: Path, weight: float, rows: tuple[int, int]
) -> None:
    recorder = StepRecorder(harness)
    async with serve_harness(harness, settings_of(tmp_path, weight)) as server:
        groups = [server.registry.group_of(name) for name in ("acme", "umbrella")]
        assert [group.weight for group in groups] == [weight, 1.0]
        for headers in (ACME, UMBRELLA):
            await begin_responses(server, recorder, headers, 8)
        await recorder.run(20)  # until all prompts are computed
        shares = sum(await recorder.run(60), Counter[str]())
        assert tuple(shares[group.id] / 60 for group in groups) == rows


async def test_reloaded_weight_applies_to_what_begins_afterwards(
    harness: EngineHarness, tmp_path: Path
) -> None:
    recorder = StepRecorder(harness)
    async with serve_harness(harness, settings_of(tmp_path, 1.0)) as server:
        await begin_responses(server, recorder, ACME, 1)
        reloaded = load_access_policy(settings_of(tmp_path, 3.0))
        server.registry.tenants.replace_limits(reloaded.limits_of)
        await begin_responses(server, recorder, ACME, 1)
        assert [sequence.weight for sequence in harness.scheduler.admission.turns] == [1.0, 3.0]


@pytest.mark.long
async def test_first_token_beside_the_many_answers_of_another_tenant(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """The other tenant has 128 answers, more than twenty times the rows of a step."""
    recorder = StepRecorder(harness)
    async with serve_harness(harness, settings_of(tmp_path, 1.0)) as server:
        await begin_responses(server, recorder, ACME, 128)
        await recorder.run(60)
        await begin_responses(server, recorder, UMBRELLA, 1)
        group = server.registry.group_of("umbrella").id
        turn = next(s.turn for s in harness.scheduler.admission.turns if s.group == group)
        assert turn is not None
        steps = 0
        while not turn.launched_tokens:
            steps += len(await recorder.run(1))
        assert steps <= 3
        after = await recorder.run(50)
        assert all(rows[group] == 1 for rows in after), "it is never interrupted"
