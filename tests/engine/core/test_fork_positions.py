"""Forks at every position of a log, with and without a provisional span behind it: the child and
the parent both go on from what is theirs, and next to nothing is computed again."""

import pytest

from continuo.engine.wire.messages import ForkSession
from tests.support.core_harness import Desk
from tests.support.digest_runner import oracle
from tests.support.engine_sessions import words

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


@AHEAD
@pytest.mark.parametrize("back", ["fork", "rewind"])
@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_back_below_what_the_tree_owns(page_size: int, back: str, ahead: int) -> None:
    """Into pages that were published, and at their edges: the shared page that must be written is
    copied, and nothing in it is computed again. Whoever else shares it is left alone."""
    log = words(2 * page_size + 7, seed=1)
    desk = Desk(pages=96 if page_size < 256 else 16, page_size=page_size, batched_tokens=512)
    desk.open("other")
    desk.append("other", list(log))
    desk.generate("other", 3)
    desk.run(ahead=ahead)
    others = log + desk.said("other")
    owned = desk.sequence("other").lease.path
    assert len(owned) * page_size == len(log) // page_size * page_size, "the tree owns full pages"
    edges = {1, 2, page_size // 2, page_size - 1, page_size, page_size + 1, 2 * page_size - 1}
    for at in sorted(edges - {0}):
        name = f"at {at}"
        if back == "fork":
            before = desk.runner.tokens_run
            desk.fork("other", name, at)
        else:
            desk.fork("other", name)
            before = desk.runner.tokens_run
            assert desk.rewind(name, at).length == at
        desk.append(name, [5, 6])
        desk.generate(name, 3)
        desk.run(ahead=ahead)
        assert desk.said(name) == oracle([*log[:at], 5, 6], 3)
        assert desk.ended(name).cached_tokens == at
        assert desk.runner.tokens_run - before <= 2 + 2 + ahead
        desk.close(name)
    desk.append("other", [4])
    desk.generate("other", 3, "again")
    desk.run(ahead=ahead)
    assert desk.said("other", "again") == oracle([*others, 4], 3)


@AHEAD
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_fork_while_a_turn_runs(page_size: int, ahead: int) -> None:
    """What the turn began with does not change: a child of it need not wait, nor compute it again.
    At every step of the turn, also while steps are in flight."""
    log = words(21, seed=1)
    for steps in range(1, 12):
        desk = Desk(pages=64 if page_size > 1 else 256, page_size=page_size, batched_tokens=16)
        desk.open("parent")
        desk.append("parent", list(log))
        desk.generate("parent", 8)
        for _ in range(steps):
            desk.launch()
            while desk.flying > ahead:
                desk.collect()
        committed = desk.sequence("parent").committed
        running = not desk.has_ended("parent")
        for at in (1, 10, len(log)):
            child = f"child {at}"
            desk.fork("parent", child, at)
            desk.append(child, [5, 6])
            desk.generate(child, 3)
        desk.run(ahead=ahead)
        assert desk.said("parent") == oracle(log, 8)
        for at in (1, 10, len(log)):
            child = f"child {at}"
            assert desk.said(child) == oracle([*log[:at], 5, 6], 3)
            assert desk.ended(child).cached_tokens >= min(at, committed)
        assert running or steps > 8


def test_fork_of_what_a_turn_says_waits_for_its_end() -> None:
    desk = Desk()
    desk.open("parent")
    desk.append("parent", words(9, seed=1))
    desk.generate("parent", 6)
    for _ in range(3):
        desk.step()
    assert desk.tell(ForkSession(desk.n(), "parent", "child", 10)) is None
    assert desk.tell(ForkSession(desk.n(), "parent", "all", None)) is None
    desk.run()
    assert desk.sequence("child").log.length == 10
    assert desk.sequence("all").log.length == 15
