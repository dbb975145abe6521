"""Tests of a second of each attack: no bystander gets an error or a wrong answer.

`make attack` runs them for half an hour, with connections that are held longer, and measures how
long bystanders wait.
"""

from collections.abc import Iterator

import pytest

from tests.attack.attacks import ATTACKS
from tests.attack.run import Report, attack
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
    server, control = servers
    monkeypatch.setenv("CONTINUO_ATTACK_HOLD_S", str(HOLD_S))
    report = Report()
    before_bytes, engines = server.memory_bytes(), server.engines()
    report.add(await attack(server, control, name, seconds=1, seed=0))
    report.check(server, before_bytes, engines)
    assert report.violations == []
    assert report.outcomes[0].pair.server.answers > 0
