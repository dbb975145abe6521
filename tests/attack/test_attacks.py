"""Tests of a second of each attack: no bystander gets an error or a wrong answer.

`make attack` runs them for half an hour, with connections that are held longer, and measures how
long bystanders wait.
"""

from collections.abc import Iterator
from random import Random

import pytest

from tests.attack.attacks import ATTACKS
from tests.attack.pieces import draw_plan
from tests.attack.run import ATTACKERS, Report, attack
from tests.attack.target import Server, serving

pytestmark = pytest.mark.timeout(240)
HOLD_S = 4


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """The attacked server, and the control."""
    server_folder = tmp_path_factory.mktemp("server")
    control_folder = tmp_path_factory.mktemp("control")
    with serving(server_folder) as server, serving(control_folder) as control:
        yield server, control


@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_does_not_disturb_bystanders(
    name: str, servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_attack(name, 0, servers, monkeypatch)


@pytest.mark.parametrize("kind", ["chunk", "ping"])
async def test_small_pieces_of_a_kind_do_not_disturb_bystanders(
    kind: str, servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process of the attackers draws pieces of that kind in its first round."""
    seed = next(seed for seed in range(10_000) if first_kinds(seed) == {kind})
    await check_attack("small_pieces", seed, servers, monkeypatch)


def first_kinds(seed: int) -> set[str]:
    seeds = (seed * ATTACKERS + attacker for attacker in range(ATTACKERS))
    return {draw_plan(Random(seed)).kind for seed in seeds}


async def check_attack(
    name: str, seed: int, servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, control = servers
    monkeypatch.setenv("CONTINUO_ATTACK_HOLD_S", str(HOLD_S))
    report = Report()
    before_bytes, engines = server.memory_bytes(), server.engines()
    report.add(await attack(server, control, name, seconds=1, seed=seed))
    report.check(server, before_bytes, engines)
    assert report.violations == []
    assert report.outcomes[0].pair.server.answers > 0
