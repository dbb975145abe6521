"""Tests of speculative decoding on the null device: outputs, events and pages are those of turns
without drafts."""

import random
from array import array
from pathlib import Path
from typing import Any

import pytest

from continuo.engine.batch import WindowGroup
from continuo.engine.config import SpeculativeConfig
from continuo.engine.core.cache import radix_tree
from continuo.engine.core.cache.radix_tree import RadixNode, RadixTree
from continuo.engine.core.schedule import Scheduler
from continuo.engine.core.sequence import Sequence
from continuo.engine.core.speculation import PromptLookup, Speculation, TreeLookup
from continuo.engine.core.speculation import prompt_lookup as lookup
from continuo.engine.core.turn import Turn
from continuo.engine.sampling import Grammar, Sampling
from continuo.engine.text import GrammarCompiler
from continuo.engine.text.tokenizer.tokenizer import Tokenizer
from continuo.engine.wire.messages import CancelTurn, TurnEnded, TurnTokens
from tests.support.core_harness import CoreHarness
from tests.support.digest_runner import VOCABULARY, oracle
from tests.support.drafting import EagerGain, OracleDrafter, oracle_speculation
from tests.support.engine_sessions import prompt_ids
from tests.support.engines import digest_engine, tiny_tokenizer, write_tiny_model
from tests.support.retracting import RetractingScheduler

AHEAD = pytest.mark.parametrize("ahead", [0, 1])
SIZES = pytest.mark.parametrize("page_size", [1, 16, 256])
NUMBERS = Grammar("json_schema", '{"type": "array", "items": {"type": "integer"}, "minItems": 3}')
END = 96


class RightDrafter(OracleDrafter):
    """Drafter that never errs, and always proposes as many drafts as there may be."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))

    def propose(self, sequence: Sequence, count: int) -> "array[int]":
        return array("i", oracle(sequence.ids, count))


class WrongDrafter(RightDrafter):
    def __init__(self, draft: int) -> None:
        super().__init__()
        self._draft = draft

    def propose(self, sequence: Sequence, count: int) -> "array[int]":
        del sequence
        return array("i", [self._draft] * count)


def right_speculation(length: int) -> Speculation:
    return Speculation(RightDrafter(), length, EagerGain)


def harness_with_prompt(speculation: Speculation | None, **options: Any) -> CoreHarness:
    core = CoreHarness(pages=400, batched_tokens=64, speculation=speculation, **options)
    core.open("s")
    core.append("s", prompt_ids(9))
    return core


def test_right_drafts_are_drawn_in_one_step() -> None:
    core = harness_with_prompt(right_speculation(4))
    core.generate("s", 20)
    assert core.run() == 4
    assert core.turn_ids("s") == oracle(prompt_ids(9), 20)
    assert [len(event.ids) for event in core.events_of(TurnTokens)] == [5, 5, 5, 5]
    counters = core.counters
    assert (counters.draft_rows, counters.draft_tokens, counters.accepted_tokens) == (4, 16, 16)
    assert counters.tokens_drawn == 20


def test_wrong_drafts_change_no_step_and_no_output() -> None:
    core = harness_with_prompt(Speculation(WrongDrafter(VOCABULARY - 1), 4, EagerGain))
    core.generate("s", 12)
    expected = oracle(prompt_ids(9), 12)
    assert VOCABULARY - 1 not in expected
    assert core.run() == 12
    assert core.turn_ids("s") == expected
    assert core.counters.accepted_tokens == 0
    assert core.counters.draft_tokens > 12


def test_turn_draws_no_more_than_its_limit() -> None:
    core = harness_with_prompt(right_speculation(8))
    core.generate("s", 11)
    assert core.run() == 2
    assert core.turn_ids("s") == oracle(prompt_ids(9), 11)
    assert core.turn_end("s").reason == "length"
    assert core.counters.draft_tokens == 8 + 1


@SIZES
def test_lease_holds_no_page_of_refused_drafts(page_size: int) -> None:
    core = CoreHarness(
        pages=-(-400 // page_size) + 2,
        page_size=page_size,
        batched_tokens=64,
        speculation=oracle_speculation(random.Random(1), 16),
    )
    core.open("s")
    core.append("s", prompt_ids(9))
    core.generate("s", 60)
    lease = core.sequence("s").lease
    while core.step() is not None:
        assert len(lease.pages) == -(-lease.committed // page_size)
    assert core.counters.accepted_tokens < core.counters.draft_tokens
    assert core.turn_ids("s") == oracle(prompt_ids(9), 60)


def test_cancel_discards_the_drafts_in_flight() -> None:
    core = harness_with_prompt(right_speculation(4))
    core.generate("s", 40)
    core.step()
    core.launch()
    core.apply(CancelTurn(core.next_number(), "s"))
    core.collect()
    assert core.turn_ids("s") == oracle(prompt_ids(9), 5)
    assert core.sequence("s").committed <= 14
    log = core.sequence("s").ids.tolist()
    core.generate("s", 10, turn="next")
    core.run()
    assert core.turn_ids("s", "next") == oracle(log, 10)


def test_turn_with_drafts_does_not_wait_for_them_with_the_row_of_another() -> None:
    """While a row with drafts is in flight, its turn has no further row; the other one does."""
    core = harness_with_prompt(Speculation(OnlyFor("s"), 4, EagerGain))
    core.open("other")
    core.append("other", prompt_ids(9, 1))
    core.generate("s", 20)
    core.generate("other", 20)
    core.run(ahead=1)
    assert core.turn_ids("s") == oracle(prompt_ids(9), 20)
    assert core.turn_ids("other") == oracle(prompt_ids(9, 1), 20)
    assert [len(e.ids) for e in core.events_of(TurnTokens) if e.session == "other"] == [1] * 20
    assert core.counters.accepted_tokens > 0


class OnlyFor(RightDrafter):
    def __init__(self, session: str) -> None:
        super().__init__()
        self._session = session

    def expects_match(self, sequence: Sequence) -> bool:
        return sequence.id == self._session

    def propose(self, sequence: Sequence, count: int) -> "array[int]":
        ids = super().propose(sequence, count)
        return ids if sequence.id == self._session else array("i")


def test_drafts_leave_a_token_for_each_further_row() -> None:
    core = CoreHarness(pages=400, batched_tokens=10, rows=4, speculation=right_speculation(8))
    for n in range(4):
        core.open(f"s{n}")
        core.append(f"s{n}", prompt_ids(3, n))
    core.run()
    for n in range(4):
        core.generate(f"s{n}", 30)
    while (step := core.step()) is not None:
        running = sum(not core.has_turn_ended(f"s{n}") for n in range(4))
        assert len(step.rows) >= running
        assert sum(row.tokens for row in step.rows) <= 10
    for n in range(4):
        assert core.turn_ids(f"s{n}") == oracle(prompt_ids(3, n), 30)


def test_drafts_take_no_page_from_another_turn() -> None:
    core = CoreHarness(pages=8, page_size=4, batched_tokens=32, speculation=right_speculation(8))
    for n in range(2):
        core.open(f"s{n}")
        core.append(f"s{n}", prompt_ids(6, n))
        core.generate(f"s{n}", 9)
    core.run()
    assert core.scheduler.admission.retractions == 0
    for n in range(2):
        assert core.turn_ids(f"s{n}") == oracle(prompt_ids(6, n), 9)


def test_draft_that_makes_its_step_raise_fails_no_turn() -> None:
    core = harness_with_prompt(Speculation(WrongDrafter(VOCABULARY), 3, EagerGain), vocabulary=98)
    core.runner.raising_ids = {VOCABULARY}
    core.generate("s", 8)
    core.run()
    assert core.turn_end("s").reason == "length"
    assert core.turn_ids("s") == oracle(prompt_ids(9), 8)
    assert core.counters.failed_steps > 0


def test_draft_after_which_logits_are_not_finite_fails_no_turn_that_does_not_draw_it() -> None:
    core = harness_with_prompt(Speculation(WrongDrafter(VOCABULARY - 1), 3, EagerGain))
    core.runner.nan_ids = {VOCABULARY - 1}
    core.generate("s", 8)
    core.run()
    assert core.turn_ids("s") == oracle(prompt_ids(9), 8)


def test_row_that_fails_after_a_right_draft_fails_the_turn_after_its_ids() -> None:
    expected = oracle(prompt_ids(9), 8)
    core = harness_with_prompt(right_speculation(4))
    core.runner.nan_ids = {expected[6]}
    core.generate("s", 8)
    core.run()
    assert core.turn_ids("s") == expected[:7]
    assert core.turn_end("s").reason == "failed"


# ---- what ends or constrains a turn ----------------------------------------------------------


OPTIONS: dict[str, dict[str, Any]] = {
    "sampled": {"temperature": 1.0, "seed": 5},
    "log-probabilities": {"temperature": 1.0, "seed": 6, "logprobs": 3},
    "stop id": {"stop_ids": tuple(range(0, 97, 9))},
    "stop string": {"stop": ("q", "Zz", "7")},
    "grammar": {"grammar": NUMBERS, "stop_ids": (END,)},
    "sampled grammar": {"grammar": NUMBERS, "stop_ids": (END,), "temperature": 1.0, "seed": 3},
    "penalties": {"repetition_penalty": 1.5, "frequency_penalty": 0.5},
}


async def run_turns(
    folder: Path, speculation: Speculation | None, sampling: Sampling, **options: Any
) -> tuple[list[Any], int]:
    """Run turns on sessions that share steps. Returns what they received, and the drafts drawn."""
    make = None if speculation is None else lambda: speculation
    received: list[Any] = []
    async with digest_engine(folder, pages=400, speculation=make, **options) as harness:
        engine = harness.engine
        for seed in range(3):
            session = await engine.open()
            for turn_number in range(3):
                await engine.append(session, prompt_ids(7, seed + turn_number))
                turn = await engine.generate(session, sampling)
                ids, logprobs, text = list[int](), list[Any](), ""
                async for piece in turn:
                    ids += piece.ids
                    text += piece.text
                    logprobs += piece.logprobs or []
                ended = turn.ended
                assert ended is not None
                received.append((ids, text, logprobs, ended.reason, ended.stop, ended.length))
        stats = await engine.fleet.stats()
    return received, stats.accepted_tokens


@AHEAD
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_output_is_that_of_turns_without_drafts(
    tmp_path: Path, options: dict[str, Any], ahead: int
) -> None:
    folder = write_tiny_model(tmp_path)
    sampling = Sampling(**{"max_tokens": 25, **options})
    plain, _ = await run_turns(folder, None, sampling, steps_ahead=ahead)
    speculation = oracle_speculation(random.Random(ahead))
    drafted, accepted = await run_turns(folder, speculation, sampling, steps_ahead=ahead)
    assert drafted == plain
    assert (accepted > 10) == ("repetition_penalty" not in options), "penalties allow no drafts"


@SIZES
@pytest.mark.parametrize("scheduler", [Scheduler, RetractingScheduler])
async def test_output_does_not_depend_on_drafts_at_any_page_size(
    tmp_path: Path, page_size: int, scheduler: type[Scheduler]
) -> None:
    folder = write_tiny_model(tmp_path)
    sampling = Sampling(max_tokens=30, temperature=0.9, seed=8)
    options: dict[str, Any] = {
        "page_size": page_size,
        "batched_tokens": 512,
        "scheduler": scheduler,
    }
    plain, _ = await run_turns(folder, None, sampling, **options)
    drafted, accepted = await run_turns(
        folder, oracle_speculation(random.Random(2)), sampling, **options
    )
    assert drafted == plain
    assert accepted > 50


# ---- prompt lookup ---------------------------------------------------------------------------


def propose(ids: list[int], count: int, least: int = 2, most: int = 3) -> list[int]:
    core = CoreHarness(vocabulary=1000)
    core.open("s")
    core.append("s", ids)
    return PromptLookup(least, most).propose(core.sequence("s"), count).tolist()


def test_drafts_repeat_what_followed_the_last_ids() -> None:
    assert propose([1, 2, 3, 4, 5, 9, 2, 3], 3) == [4, 5, 9]
    assert propose([1, 2, 3, 4, 5, 9, 3], 3) == []


def test_longer_match_is_preferred_and_then_the_newer_one() -> None:
    assert propose([7, 2, 3, 10, 8, 2, 3, 20, 7, 2, 3], 1) == [10]
    assert propose([7, 2, 3, 10, 7, 2, 3, 20, 7, 2, 3], 1) == [20]


def test_drafts_continue_a_period() -> None:
    assert propose([5, 6, 7, 5, 6, 7, 5, 6], 7) == [7, 5, 6, 7, 5, 6, 7]


def test_index_of_the_least_recently_used_session_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookup, "INDEXED_SESSIONS_MAX", 2)
    core, drafter = CoreHarness(), PromptLookup(1, 1)
    for name in "abac":
        if name not in core.sessions._sequences:
            core.open(name)
            core.append(name, [1, 2, 1])
        assert drafter.propose(core.sequence(name), 1).tolist() == [2]
    indexed = {name: core.sequence(name).log.index is not None for name in "abc"}
    assert indexed == {"a": True, "b": False, "c": True}
    assert drafter.propose(core.sequence("b"), 1).tolist() == [2]


def test_drafts_end_before_a_stop_id_and_where_the_grammar_does_not_allow_them() -> None:
    turn = Turn("t", Sampling(stop_ids=(5,)), 0, 99, None, None, 0.0)
    assert turn.fit_drafts(array("i", [4, 5, 6])).tolist() == [4]
    compiler = GrammarCompiler(Tokenizer(tiny_tokenizer()), VOCABULARY, (), lambda: None)
    matcher = compiler.create_matcher(Grammar("lark", "start: /[0-9]+/"), (END,))
    turn = Turn("t", Sampling(stop_ids=(END,)), 0, 99, None, matcher, 0.0)
    digits, letter = [52 + 4, 52 + 2], 3
    assert turn.fit_drafts(array("i", [*digits, letter, *digits])).tolist() == digits


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_tree_continues_a_log_as_the_newest_session_with_it_did(page_size: int, cut: int) -> None:
    core, base = CoreHarness(page_size=page_size, vocabulary=1000), list(range(16, 32))
    for number in range(2):
        name = f"closed {number}"
        core.open(name, scope="a")
        core.append(name, [*base, *range(100 * number + 100, 100 * number + 112)])
        core.run()
        core.close(name)
    ids = [*base, *range(200, 200 + cut)]
    core.open("s", scope="a")
    core.append("s", ids)
    core.open("other", scope="b")
    core.append("other", ids)
    for _ in range(2):  # before any of its pages is matched, and after
        drafter = TreeLookup(core.cache.tree)
        assert drafter.propose(core.sequence("s"), 5).tolist() == [*range(200 + cut, 205 + cut)]
        assert drafter.expects_match(core.sequence("s"))
        assert not drafter.propose(core.sequence("other"), 5)
        core.run()
    core.append("s", [999])
    assert not drafter.propose(core.sequence("s"), 5)


def test_continuation_follows_a_bounded_number_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix_tree, "CONTINUATION_PAGES_MAX", 3)
    tree, ids, path = RadixTree(2), array("i", range(20)), list[RadixNode]()
    for page in range(10):
        key = ids[2 * page : 2 * page + 2].tobytes()
        path.append(tree.insert("", path[-1] if path else None, key, page)[0])
    assert tree.find_continuation("", ids[:7], [], 3).tolist() == [7, 8, 9]
    assert tree.find_continuation("", ids[:9], [], 3).tolist() == []
    assert tree.find_continuation("", ids[:9], path[:1], 20).tolist() == [*range(9, 20)]


def test_answer_to_a_prompt_that_is_sent_again_is_drafted_from_the_tree() -> None:
    def configure(tree: RadixTree) -> Speculation:
        config = SpeculativeConfig(method="ngram", num_speculative_tokens=4, prompt_lookup_max=5)
        speculation = Speculation.configure(config, tree)
        speculation._make_gain = EagerGain
        return speculation

    core = CoreHarness(pages=400, batched_tokens=64, speculation=configure)
    accepted: list[int] = []
    for name in ("first", "again"):
        core.open(name)
        core.append(name, prompt_ids(9))
        core.generate(name, 30, turn=name)
        core.run()
        assert core.turn_ids(name, name) == oracle(prompt_ids(9), 30)
        core.close(name)
        accepted.append(core.counters.accepted_tokens)
    assert accepted[0] == 0
    assert accepted[1] >= 20


def test_each_turn_ends_once_and_reports_its_tokens() -> None:
    core = harness_with_prompt(oracle_speculation(random.Random(4)))
    for n in range(6):
        core.generate("s", 7 + n, turn=f"t{n}")
        core.run(ahead=n % 2)
        assert core.turn_end("s", f"t{n}").output_tokens == 7 + n
    assert len(core.events_of(TurnEnded)) == 6


def test_barge_in_on_windows_owes_nothing_within_an_answer_of_drafts() -> None:
    """Rows of several tokens seldom begin at a page boundary, where a mark would be kept."""
    core = CoreHarness(
        pages=400,
        page_size=16,
        batched_tokens=64,
        windows=(WindowGroup(48, 128, 0),),
        has_full_layers=False,
        speculation=right_speculation(6),
    )
    core.open("s")
    core.append("s", prompt_ids(100))
    core.generate("s", 300)
    core.run(ahead=1)
    assert core.counters.accepted_tokens > 100
    for cut in range(399, 100, -40):
        core.rewind("s", cut)
        assert core.sequence("s").committed == cut
