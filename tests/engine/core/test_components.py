"""Tests of sessions on models with sliding windows and recurrent states, in exact counts."""

from collections.abc import Callable
from typing import Any

import pytest

from continuo.engine.batch import WindowGroup
from continuo.engine.wire.messages import CancelTurn, ForkSession, GetSessionInfo
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import VOCABULARY, oracle

pytestmark = pytest.mark.long
PAGE = 16


def window_core(
    window: int = 48, *, full: bool = False, host: int = 0, pages: int = 64
) -> CoreHarness:
    return CoreHarness(
        pages=1024,
        page_size=PAGE,
        batched_tokens=64,
        host_pages=1024 if host else 0,
        windows=(WindowGroup(window, pages, host),),
        has_full_layers=full,
    )


def state_core(
    *, slots: int = 64, host: int = 0, windows: tuple[WindowGroup, ...] = ()
) -> CoreHarness:
    return CoreHarness(
        pages=1024,
        page_size=PAGE,
        batched_tokens=64,
        host_pages=1024 if host else 0,
        windows=windows,
        state_slots=slots,
        host_state_slots=host,
    )


def words(count: int, first: int = 1) -> list[int]:
    return [(first + 7 * n) % VOCABULARY for n in range(count)]


def held_pages(core: CoreHarness, session: str) -> int:
    done = core.apply(GetSessionInfo(core.next_number(), session))
    assert done.info is not None
    return done.info.held_pages


def speak(core: CoreHarness, session: str, count: int, turn: str = "turn") -> list[int]:
    """Run a turn; its ids are those of one fresh prefill. Returns them."""
    log = list(core.sequence(session).ids)
    core.generate(session, count, turn)
    core.run(ahead=1)
    output = core.turn_ids(session, turn)
    assert output == oracle(log, count)
    return output


def computed_by(core: CoreHarness, action: Callable[[], object]) -> int:
    """Return how many tokens the device computes until an action and its effects are done."""
    before = core.runner.token_count
    action()
    core.run(ahead=1)
    return core.runner.token_count - before


def test_session_holds_only_the_pages_that_later_tokens_see() -> None:
    """A window of 48 tokens is 4 or 5 pages of 16, whatever the length of the session."""
    core = window_core()
    core.open("s")
    while len(core.sequence("s").ids) < 920:
        core.append("s", words(84))
        core.run()
        assert held_pages(core, "s") <= 9, "the window, and that before the last answer"
        speak(core, "s", 8, f"t{len(core.sequence('s').ids)}")
        assert held_pages(core, "s") in (4, 5)
    core.cache.audit()


def test_session_of_8k_on_gemma_3_holds_a_sixth_of_its_kv_and_the_window() -> None:
    """Five of its six layers have a window, here of 512 tokens. They keep that of each token of the
    last answer, too, so that an interruption inside it costs nothing."""
    core = window_core(512, full=True, pages=160)
    core.open("s")
    core.append("s", words(8000))
    core.run()
    answer = speak(core, "s", 192)
    tokens = len(core.sequence("s").ids)
    window_pages = held_pages(core, "s") - -(-tokens // PAGE)
    held = tokens / 6 + window_pages * PAGE * 5 / 6  # in tokens of all layers
    assert held <= (tokens / 6 + (512 + len(answer)) * 5 / 6) * 1.02
    core.cache.audit()


def test_one_shot_turn_frees_the_pages_it_no_longer_sees() -> None:
    core = window_core(pages=20)
    core.open("s", streaming=False)
    core.append("s", words(900))
    speak(core, "s", 300)
    core.close("s", keep_prefix=False)
    assert core.cache.usage.count_pages().leased == 0


@pytest.mark.parametrize("window", [48, 96, 128])
@pytest.mark.parametrize("spoken", [60, 300, 1000])
def test_barge_in_on_windows_owes_nothing_within_the_answer(window: int, spoken: int) -> None:
    """The pages of the newest answer are kept, also behind ids that were appended since, and given
    back when the next turn begins."""
    core = window_core(window, pages=128)
    core.open("s")
    core.append("s", words(500))
    speak(core, "s", spoken)
    core.append("s", words(40))
    core.run()
    for cut in range(500 + spoken - 1, 500, -(spoken // 7)):
        core.rewind("s", cut)
        assert core.sequence("s").committed == cut
    core.append("s", words(20))
    assert computed_by(core, lambda: speak(core, "s", 5, "next")) <= 20 + 5
    assert held_pages(core, "s") <= -(-window // PAGE) + 3


def test_answer_on_windows_that_is_very_long_keeps_its_marks() -> None:
    core = window_core(96, pages=256)
    core.open("s")
    core.append("s", words(500))
    speak(core, "s", 1200)
    assert held_pages(core, "s") <= 6 * 7, "the windows of six marks, not the answer"
    core.rewind("s", 1100)
    assert computed_by(core, lambda: speak(core, "s", 5, "next")) <= 600


def test_answer_of_a_request_is_not_kept() -> None:
    """A session that is not streaming is closed after its turn, as a rule."""
    core = window_core(96, pages=256)
    core.open("s", streaming=False)
    core.append("s", words(500))
    speak(core, "s", 600)
    assert held_pages(core, "s") <= 6 * 7


def test_ids_appended_to_windows_are_no_part_of_the_answer() -> None:
    core = window_core(48, pages=256)
    core.open("s")
    core.append("s", words(500))
    speak(core, "s", 60)
    core.append("s", words(900))
    core.run()
    assert held_pages(core, "s") <= 4 + 60 // PAGE + 6 * 4


@pytest.mark.parametrize("spoken", [40, 100, 400, 1000])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.63, 0.98, 1.0])
def test_barge_in_on_a_recurrent_state_owes_at_most_half_the_answer(
    spoken: int, share: float
) -> None:
    """The ids between the newest mark and the interruption are computed again, not the history."""
    heard = round(spoken * share)
    core = state_core()
    core.open("s")
    core.append("s", words(2000))
    speak(core, "s", 30, "before")
    core.append("s", words(100))
    start = len(core.sequence("s").ids)
    speak(core, "s", spoken)
    core.rewind("s", start + heard)
    owed = start + heard - core.sequence("s").committed
    assert owed <= max(64, spoken // 2)
    core.append("s", words(10))
    assert computed_by(core, lambda: speak(core, "s", 3, "next")) <= owed + 10 + 3


def test_marks_of_a_long_answer_are_few() -> None:
    core = state_core()
    core.open("s")
    core.append("s", words(100))
    speak(core, "s", 1900)
    marks = core.sequence("s").lease.marks
    assert len(marks) <= 6, "the start, at most four inside, the newest"
    assert (marks[0], marks[-1]) == (96, 1984)


def test_appended_ids_are_computed_before_the_turn_up_to_less_than_a_page() -> None:
    core = state_core()
    core.open("s")
    for end in range(100, 140, 4):
        assert computed_by(core, lambda end=end: core.append("s", words(4, end))) <= PAGE
    core.append("s", words(800))
    core.run()
    assert computed_by(core, lambda: speak(core, "s", 9)) <= PAGE + 9
    assert core.runner.token_count == len(core.sequence("s").ids) - 1, "none is computed twice"


def test_interrupted_answer_can_be_generated_again_for_less_than_a_page() -> None:
    core = state_core()
    core.open("s")
    core.append("s", words(1000))
    speak(core, "s", 30, "before")
    core.append("s", words(300))
    first = speak(core, "s", 40)
    core.rewind("s", len(core.sequence("s").ids) - 40)
    again: list[int] = []
    computed = computed_by(core, lambda: again.extend(speak(core, "s", 40, "again")))
    assert again == first
    assert computed <= PAGE + 40


def test_rewinds_to_the_end_of_one_answer_after_another_never_compute_the_history() -> None:
    core = state_core()
    core.open("s")
    core.append("s", words(3000))
    core.run()
    for turn in range(6):
        start = len(core.sequence("s").ids)
        core.append("s", words(40, turn))
        computed = computed_by(core, lambda turn=turn: speak(core, "s", 70, f"t{turn}"))
        assert computed <= 64 + 40 + 70
        core.rewind("s", start + 40 + 35)


def test_fork_shares_the_state_of_a_mark() -> None:
    core = state_core()
    core.open("s")
    core.append("s", words(700))
    speak(core, "s", 200)
    [states] = core.cache.components
    free = states.pool.free_count
    core.apply(ForkSession(core.next_number(), "s", "child", 800))
    assert states.pool.free_count == free
    child = core.sequence("child")
    assert 800 - child.committed < 64
    core.append("child", words(5))
    assert computed_by(core, lambda: speak(core, "child", 4)) <= 64 + 5 + 4
    assert computed_by(core, lambda: speak(core, "s", 4, "on")) <= 5


def test_prompt_shared_by_sessions_is_computed_once() -> None:
    """The end of a published prompt has a state and a whole window."""
    core = state_core(windows=(WindowGroup(48, 64),))
    core.open("s")
    core.append("s", words(1600))
    speak(core, "s", 5)
    for n in range(3):
        core.open(f"other {n}")
        core.append(f"other {n}", words(1600) + words(10, n))
        computed = computed_by(core, lambda n=n: speak(core, f"other {n}", 5))
        assert computed <= PAGE + 10 + 5


HEAD = words(2004)
"""Ids that many sessions begin with: 125 pages and 4 ids."""


def head_core(slots: int = 64, host: int = 0) -> CoreHarness:
    """Return a core whose steps have 512 ids, so that rows end at 512, 1,024 and 1,536 of HEAD."""
    return CoreHarness(
        pages=8192,
        page_size=PAGE,
        batched_tokens=512,
        host_pages=8192 if host else 0,
        state_slots=slots,
        host_state_slots=host,
    )


def speak_after(core: CoreHarness, name: str, prompt: list[int], **options: Any) -> int:
    """Run a turn of one id on a new session. Returns the tokens computed."""
    core.open(name, **options)
    core.append(name, prompt)
    return computed_by(core, lambda: speak(core, name, 1))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("own", [20, 40, 700])
def test_head_of_many_sessions_is_computed_once(own: int, streaming: bool) -> None:
    """The second session ends a row where the prompts branch; the others continue from there."""
    core, computed = head_core(), list[int]()
    for n in range(5):
        prompt = HEAD + [n] * own
        computed.append(speak_after(core, f"s{n}", prompt, streaming=streaming))
    assert computed == [2004 + own, 468 + own, 4 + own, 4 + own, 4 + own]


@pytest.mark.parametrize("own", [20, 700])
def test_head_that_is_appended_before_a_turn_is_computed_once(own: int) -> None:
    core, computed = head_core(), list[int]()
    for n in range(4):
        core.open(f"s{n}")
        prompt = HEAD + [n] * own
        computed.append(computed_by(core, lambda n=n, prompt=prompt: core.append(f"s{n}", prompt)))
        computed[-1] += computed_by(core, lambda n=n: speak(core, f"s{n}", 1))
    assert computed == [2004 + own, 468 + own, 4 + own, 4 + own]


@pytest.mark.parametrize("host", [0, 20])
def test_head_keeps_its_state_beside_many_idle_sessions(host: int) -> None:
    """A session that has lost all its KV therefore computes no more than its own part again."""
    core, computed = head_core(slots=12, host=host), list[int]()
    for n in range(8):
        core.open(f"s{n}")
        core.append(f"s{n}", HEAD + [n] * 40)
        computed.append(computed_by(core, lambda n=n: speak(core, f"s{n}", 70)) - 69)
    assert computed == [2044, 508] + [44] * 6
    core.append("s0", [9] * 30)
    computed = computed_by(core, lambda: speak(core, "s0", 1, "next"))
    assert computed == (31 if host else 44 + 70 + 30)
    for n in range(8):
        core.close(f"s{n}")
    while core.cache.tree.evict_unit(0):
        pass
    assert core.cache.components.states is not None
    assert core.cache.components.states.pool.free_count == 12, "all states can be evicted then"


def test_state_where_closed_sessions_branched_is_evicted_before_marks() -> None:
    core = head_core(slots=9)
    for n in range(2):
        speak_after(core, f"s{n}", HEAD + [n] * 40)
        core.close(f"s{n}")
    core.open("idle")
    core.append("idle", words(300, 3))
    speak(core, "idle", 200)
    marks = list(core.sequence("idle").lease.marks)
    speak_after(core, "s3", words(600, 4))
    assert core.sequence("idle").lease.marks == marks
    assert speak_after(core, "again", HEAD + [9] * 40) == 2044, "its state was evicted"


def test_branch_costs_one_row_and_one_state() -> None:
    """Beside those that the second session has anyway, and for no later session."""
    core, rows, states = head_core(), list[int](), list[int]()
    for n in range(5):
        before = core.runner.row_count
        speak_after(core, f"s{n}", HEAD + [n] * 40)
        rows.append(core.runner.row_count - before)
        states.append(core.cache.tree.unit_counts[0])
        core.close(f"s{n}", keep_prefix=False)
    assert rows == [5, 3, 2, 2, 2], "chunks, the branch, the last page boundary, the last id"
    assert states == [4, 6, 7, 8, 9], "at the end of each prompt, of three chunks, at the branch"


def test_branch_close_to_a_state_gets_none() -> None:
    """The row would save the later sessions less than four pages."""
    core, head = head_core(), words(512 + 63)
    computed = [speak_after(core, f"s{n}", head + [n] * 40) for n in range(3)]
    assert computed == [615, 103, 103]


def test_heads_within_a_head_have_a_state_each() -> None:
    """The prompts of all users begin alike, those of one tenant longer so."""
    core, computed = head_core(), list[int]()
    for n in range(4):
        for tenant in range(2):
            prompt = HEAD + [10 + tenant] * 400 + [n] * 40
            computed.append(speak_after(core, f"s{tenant}{n}", prompt))
    assert computed[:2] == [2444, 468 + 440]
    assert computed[4:] == [44] * 4


def test_next_request_with_the_whole_history_continues_after_the_last_answer() -> None:
    """Stateless clients send everything again; the tree has the state at the end of the answer."""
    core = state_core()
    history = words(900)
    for n in range(4):
        core.open(f"s{n}", streaming=False)
        core.append(f"s{n}", history)
        computed = computed_by(core, lambda n=n: speak(core, f"s{n}", 40))
        history = [*core.sequence(f"s{n}").ids, *words(30, n)]
        core.close(f"s{n}")
        assert n == 0 or computed <= PAGE + 30 + 40


def test_match_ends_where_a_window_page_was_evicted() -> None:
    core = window_core(40, full=True, pages=24)
    core.open("s")
    core.append("s", words(320))
    speak(core, "s", 5)
    core.close("s")
    assert core.cache.tree.evict_unit(0)
    core.open("again")
    core.append("again", words(320))
    speak(core, "again", 5)


def test_eviction_spills_and_recalls_what_continues_a_session() -> None:
    """The host tier takes all full pages, the last window and one state of an idle session."""
    core = state_core(slots=6, host=4, windows=(WindowGroup(40, 24, 24),))
    core.open("idle")
    core.append("idle", words(600))
    speak(core, "idle", 50)
    for n in range(3):
        core.open(f"other {n}")
        core.append(f"other {n}", words(200, n))
        speak(core, f"other {n}", 40)
    info = core.apply(GetSessionInfo(core.next_number(), "idle")).info
    assert info is not None
    assert (info.committed, info.held_pages) == (0, 0)
    assert info.host_tokens == 649
    core.append("idle", words(20))
    assert computed_by(core, lambda: speak(core, "idle", 5, "later")) <= 20 + 5


MEMORY = {
    "state": {"state_slots": 64, "host_state_slots": 64},
    "window": {"windows": (WindowGroup(48, 64, 64),)},
    "window and state": {
        "windows": (WindowGroup(40, 64, 64),),
        "state_slots": 64,
        "host_state_slots": 64,
    },
}
"""Memory besides full attention, for models of each kind."""


def core_for_one(**memory: Any) -> CoreHarness:
    """Return a core whose device has room for the pages of one of two long sessions."""
    return CoreHarness(pages=80, page_size=PAGE, batched_tokens=64, host_pages=400, **memory)


def spill_answer(core: CoreHarness, prompt: int, answer: int) -> None:
    """Let session `s` answer, and another take its place on the device."""
    core.open("s")
    core.append("s", words(prompt))
    speak(core, "s", answer)
    core.open("other")
    core.append("other", words(1000, 3))
    core.run()
    info = core.apply(GetSessionInfo(core.next_number(), "s")).info
    assert info is not None
    assert (info.held_pages, info.host_tokens) == (0, prompt + answer - 1)


@pytest.mark.parametrize("kind", MEMORY)
@pytest.mark.parametrize("heard", [5, 100, 199, 256, 333, 396])
def test_barge_in_on_a_spilled_session_owes_at_most_half_the_answer(kind: str, heard: int) -> None:
    """A voice answer is generated faster than it is played, so that its session may be on the host
    when the user interrupts it. Its marks are there too."""
    core = core_for_one(**MEMORY[kind])
    spill_answer(core, 500, 400)
    core.rewind("s", 500 + heard)
    core.append("s", words(20))
    assert computed_by(core, lambda: speak(core, "s", 5, "next")) <= 200 + 20 + 5


@pytest.mark.parametrize("kind", MEMORY)
def test_spilled_session_is_rewound_twice_and_recalled_with_its_marks(kind: str) -> None:
    core = core_for_one(**MEMORY[kind])
    spill_answer(core, 500, 400)
    core.rewind("s", 850)
    core.rewind("s", 700)
    core.append("s", words(5))
    core.run()
    core.rewind("s", 600)
    assert 600 - core.sequence("s").committed <= 128
    assert computed_by(core, lambda: speak(core, "s", 5, "next")) <= 128 + 5


@pytest.mark.parametrize("kind", MEMORY)
def test_fork_of_a_spilled_session_begins_at_a_mark(kind: str) -> None:
    core = core_for_one(**MEMORY[kind])
    spill_answer(core, 500, 400)
    core.apply(ForkSession(core.next_number(), "s", "child", 700))
    assert 700 - core.sequence("child").committed <= 128
    speak(core, "child", 5)


def test_host_with_room_for_one_mark_keeps_the_start_of_the_answer() -> None:
    core = core_for_one(state_slots=64, host_state_slots=2)
    spill_answer(core, 500, 400)
    core.rewind("s", 650)
    assert computed_by(core, lambda: speak(core, "s", 5, "next")) <= 150 + PAGE + 5


def test_host_of_one_state_keeps_the_history_but_no_mark() -> None:
    core = core_for_one(state_slots=64, host_state_slots=1)
    spill_answer(core, 500, 400)
    core.append("s", words(9))
    assert computed_by(core, lambda: speak(core, "s", 5, "next")) <= 9 + 5


def test_marks_inside_an_answer_leave_the_host_before_any_history() -> None:
    core = core_for_one(state_slots=64, host_state_slots=6)
    spill_answer(core, 500, 400)
    lease = core.sequence("s").lease
    assert len(lease.host_marks) == 5, "the host is full"
    core.generate("other", 3)
    core.run()
    core.open("third")
    core.append("third", words(1000, 5))
    speak(core, "third", 3)
    other = core.sequence("other").lease
    assert (len(other.host_marks), other.host_end) == (1, 1002), "it was spilled too"
    assert (lease.host_end, lease.host_marks) == (899, [496])
    core.rewind("s", 700)
    assert computed_by(core, lambda: speak(core, "s", 5, "next")) <= 200 + PAGE + 5


@pytest.mark.parametrize(("slots", "host"), [(10, 0), (6, 8)])
def test_session_under_pressure_loses_the_start_of_its_answer_last(slots: int, host: int) -> None:
    """A state at its end and one at the start of its answer remain of each idle session, on the
    device or on the host."""
    core = state_core(slots=slots, host=host)
    names = ["a", "b", "c"]
    for n, name in enumerate(names):
        core.open(name)
        core.append(name, words(900, n))
        speak(core, name, 100)
    if not host:
        assert [core.sequence(name).lease.marks[1:] == [] for name in names] == [True, True, False]
    for name in names:
        core.rewind(name, 950)
        assert computed_by(core, lambda name=name: speak(core, name, 3, "next")) <= 50 + PAGE + 3


def test_windows_under_pressure_lose_the_start_of_an_answer_last() -> None:
    core = window_core(48, full=True, pages=26)
    names = ["a", "b", "c"]
    for n, name in enumerate(names):
        core.open(name)
        core.append(name, words(500, n))
        speak(core, name, 100)
    assert core.sequence("a").lease.marks == [496]
    for name in names:
        core.rewind(name, 550)
        assert core.sequence(name).committed >= 496, "the start of the answer was lost"
        speak(core, name, 3, "next")


def test_running_session_gives_up_the_start_of_its_answer_last() -> None:
    core = state_core(slots=4)
    core.open("s")
    core.append("s", words(500))
    speak(core, "s", 100)
    assert core.sequence("s").lease.marks[0] == 496
    core.rewind("s", 550)
    assert computed_by(core, lambda: speak(core, "s", 3, "next")) <= 50 + PAGE + 3


def test_abandoned_step_on_a_recurrent_state_is_computed_again() -> None:
    """A cancelled turn has a step in flight, whose row is not kept."""
    core = state_core()
    core.open("s")
    core.append("s", words(200))
    core.generate("s", 50)
    for _ in range(9):
        core.launch()
        if core.steps_in_flight > 1:
            core.collect()
    core.apply(CancelTurn(core.next_number(), "s"))
    core.run()
    core.append("s", words(5))
    speak(core, "s", 5, "next")
