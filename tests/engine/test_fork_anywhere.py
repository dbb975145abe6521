"""Forks at every position of a log, with and without a provisional span behind it: the child and
the parent both go on from what is theirs, and next to nothing is computed again."""

import pytest

from tests.support.desk import Desk
from tests.support.digest_runner import oracle
from tests.support.talks import words

AHEAD = pytest.mark.parametrize("ahead", [0, 1])


@AHEAD
@pytest.mark.parametrize("spoken", [0, 3, 10])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_fork_anywhere(page_size: int, spoken: int, ahead: int) -> None:
    log = words(22, seed=1)
    for at in range(1, len(log) + 1):
        desk = Desk(pages=64 if page_size > 1 else 256, page_size=page_size)
        desk.open("parent")
        desk.append("parent", list(log))
        if spoken:
            desk.append("parent", words(spoken, seed=2), span="provisional")
        desk.run()
        assert desk.sequence("parent").committed == len(log) + spoken
        before = desk.runner.tokens_run
        desk.fork("parent", "child", at)
        desk.append("child", [5, 6])
        desk.append("parent", words(spoken, seed=2), span="commit")
        for session in ("child", "parent"):
            desk.generate(session, 3)
        desk.run(ahead=ahead)
        assert desk.said("child") == oracle([*log[:at], 5, 6], 3)
        assert desk.said("parent") == oracle(log + words(spoken, seed=2), 3)
        assert desk.ended("child").cached_tokens == at
        assert desk.runner.tokens_run - before <= (2 + 2) + (1 + 2)
