"""Tests of the scheduler under load, in exact counts of steps and tokens, on the loads of
`continuo bench scheduling`. Some run on the null device that checks outputs."""

import statistics

import pytest

from continuo.bench.scheduling_scenarios import (
    LoadedEngine,
    prompt_ids,
    run_appended_prompts,
    run_burst,
    run_cold_prompts,
    run_decode_pressure,
    run_early_stops,
    run_more_turns_than_rows,
    run_shared_prompt,
)
from tests.support.digest_runner import DigestRunner, oracle

pytestmark = pytest.mark.long
AHEAD = pytest.mark.parametrize("ahead", [0, 1])
HOST = pytest.mark.parametrize("host_pages", [0, 2_000])


def check_outputs(loaded: LoadedEngine) -> None:
    loaded.core.cache.audit()
    for name, prompt in loaded.prompts.items():
        assert loaded.outputs[name] == oracle(prompt, len(loaded.outputs[name]))


# ---- sharing in flight ---------------------------------------------------------------------


def count_uncached(loaded: LoadedEngine) -> int:
    """Return how many prompt tokens the turns report as not cached."""
    return sum(end.prompt_tokens - end.cached_tokens for end in loaded.ended.values())


@AHEAD
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("scopes", "computed"), [(1, 1_632), (2, 2 * 1_616), (8, 12_824)])
def test_prompt_in_flight_is_computed_once_in_each_scope(
    ahead: int, late: bool, scopes: int, computed: int
) -> None:
    loaded = run_shared_prompt(late=late, scopes=scopes, ahead=ahead, make_runner=DigestRunner)
    check_outputs(loaded)
    assert loaded.computed_tokens <= computed
    assert count_uncached(loaded) == loaded.computed_tokens - 8 * 3, "all but later outputs"


@AHEAD
@pytest.mark.parametrize("late", [False, True])
def test_common_start_of_prompts_in_flight_is_computed_once(ahead: int, late: bool) -> None:
    """Each of eight prompts has 40 ids of its own after 1,600 that all have."""
    loaded = run_shared_prompt(late=late, own=40, ahead=ahead, make_runner=DigestRunner)
    check_outputs(loaded)
    assert loaded.computed_tokens <= 1_944
    assert count_uncached(loaded) == loaded.computed_tokens - 8 * 3


@AHEAD
@pytest.mark.parametrize("at_once", [False, True])
def test_appended_prompt_is_computed_once_before_any_turn(ahead: int, at_once: bool) -> None:
    loaded = run_appended_prompts(at_once=at_once, ahead=ahead, make_runner=DigestRunner)
    check_outputs(loaded)
    assert loaded.computed_tokens <= 1_632


@AHEAD
@pytest.mark.parametrize("begun_after", [0, 1, 2, 3, 4, 5])
def test_turn_shares_what_another_has_computed_whenever_it_begins(
    ahead: int, begun_after: int
) -> None:
    """The prompts have their first 900 ids in common; the second is otherwise different."""
    loaded, common = LoadedEngine(ahead=ahead, make_runner=DigestRunner), prompt_ids(900, seed=1)
    loaded.begin("first", common + prompt_ids(700, seed=2), 4)
    for _ in range(begun_after):
        loaded.step()
    for n in range(3):
        loaded.begin(f"second {n}", common + prompt_ids(300, seed=3), 4)
    loaded.run()
    check_outputs(loaded)
    assert loaded.computed_over_needed <= 1.05


@AHEAD
def test_short_prompts_in_flight_are_shared(ahead: int) -> None:
    loaded, prompt = LoadedEngine(ahead=ahead, make_runner=DigestRunner), prompt_ids(48, seed=1)
    for n in range(30):
        loaded.begin(f"s{n}", prompt, 2)
    loaded.run()
    check_outputs(loaded)
    assert loaded.computed_over_needed <= 1.0
    assert max(loaded.first_id_steps.values()) <= 2 + 2 * ahead


def test_turn_does_not_wait_for_the_same_prefix_in_another_scope() -> None:
    loaded, prompt = LoadedEngine(make_runner=DigestRunner), prompt_ids(100, seed=1)
    for n in range(2):
        loaded.begin(f"s{n}", prompt, 4, scope=f"scope {n}")
    loaded.run()
    check_outputs(loaded)
    assert set(loaded.first_id_steps.values()) == {1}


@AHEAD
def test_turn_goes_on_when_the_one_that_it_waited_for_is_cancelled(ahead: int) -> None:
    loaded, prompt = LoadedEngine(ahead=ahead, make_runner=DigestRunner), prompt_ids(1_600, seed=1)
    loaded.begin("cancelled", prompt, 4)
    loaded.begin("other", prompt, 4)
    loaded.step()
    loaded.step()
    loaded.cancel("cancelled")
    loaded.run()
    assert loaded.outputs["other"] == oracle(prompt, 4)
    assert loaded.computed_tokens <= 1_600 + 512 + 2 * 4


# ---- admission -----------------------------------------------------------------------------


@AHEAD
@HOST
@pytest.mark.parametrize(
    ("count", "length", "steps_before"),
    [(16, 1_000, 181), (32, 1_000, 371), (64, 1_000, 823), (16, 3_000, 301)],
)
def test_burst_into_a_small_pool_computes_each_prompt_once(
    ahead: int, host_pages: int, count: int, length: int, steps_before: int
) -> None:
    loaded = run_burst(count, length, ahead=ahead, host_pages=host_pages)
    assert loaded.computed_over_needed <= 1.0
    assert loaded.steps <= 1.05 * steps_before


@AHEAD
@HOST
@pytest.mark.parametrize(
    ("count", "length", "outputs", "pool", "steps_before"),
    [
        (16, 200, 400, 3_200, (1_033, 1_033)),
        (16, 200, 400, 3_600, (925, 937)),
        (8, 1_000, 200, 3_600, (624, 625)),
    ],
)
def test_decodes_that_outgrow_the_pool_recompute_little(
    ahead: int,
    host_pages: int,
    count: int,
    length: int,
    outputs: int,
    pool: int,
    steps_before: tuple[int, int],
) -> None:
    loaded = run_decode_pressure(
        count, length, outputs, pool, ahead=ahead, host_pages=host_pages, make_runner=DigestRunner
    )
    check_outputs(loaded)
    assert loaded.computed_over_needed <= (1.0 if host_pages else 1.2)
    assert loaded.steps <= 1.05 * steps_before[ahead]


@AHEAD
@pytest.mark.parametrize(("count", "pool"), [(16, 3_600), (64, 3_600), (64, 20_000)])
@pytest.mark.parametrize("max_tokens", [None, 3_000])
def test_limit_that_outputs_do_not_reach_does_not_delay_admission(
    ahead: int, count: int, pool: int, max_tokens: int | None
) -> None:
    """The outputs of all turns stop after 20 ids, whatever they may have. Before the first has
    ended, nothing is known of outputs: that costs at most the 20 steps of one output."""
    for after_one, learning_steps in ((True, 0), (False, 20)):
        load = (count, 200, 20, pool)
        exact = run_early_stops(*load, 20, after_one=after_one, ahead=ahead)
        loaded = run_early_stops(*load, max_tokens, after_one=after_one, ahead=ahead)
        assert {len(ids) for ids in loaded.outputs.values()} == {20}
        assert loaded.computed_over_needed <= 1.02
        assert loaded.steps <= 1.1 * exact.steps + learning_steps
        first_id_steps = (max(each.first_id_steps.values()) for each in (loaded, exact))
        assert next(first_id_steps) <= 1.1 * next(first_id_steps) + learning_steps


@AHEAD
def test_admitted_turn_does_not_wait_for_turns_that_have_no_room(ahead: int) -> None:
    """The others are before it in the queue, but wait for the pages that it has."""
    loaded = LoadedEngine(pages=100, ahead=ahead)
    loaded.begin("admitted", prompt_ids(1_500, seed=0), 4)
    loaded.step()
    for n in range(6):
        loaded.begin(f"s{n}", prompt_ids(1_000, seed=n + 1), 4, priority=-1)
    loaded.run()
    assert loaded.first_id_steps["admitted"] <= 3 + ahead
    assert loaded.computed_over_needed <= 1.0


# ---- order ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "first_ids"), [(16, (2, 17, 32)), (64, (2, 64, 125))])
def test_cold_prompts_are_prefilled_one_after_the_other(
    count: int, first_ids: tuple[int, int, int]
) -> None:
    steps = run_cold_prompts(count).first_id_steps.values()
    assert (min(steps), statistics.median(steps), max(steps)) == first_ids


def test_shorter_prompts_are_prefilled_first() -> None:
    loaded = LoadedEngine()
    for n, length in enumerate((2_000, 500, 1_000)):
        loaded.begin(f"s{n}", prompt_ids(length, seed=n), 1)
    loaded.run()
    assert [loaded.first_id_steps[f"s{n}"] for n in range(3)] == [7, 1, 3]


@AHEAD
def test_turn_is_not_overtaken_once_it_has_waited_four_times_its_own_steps(ahead: int) -> None:
    """Shorter prompts keep arriving, one in each step, and each fills a step. The last one that
    overtakes is due four steps after it came, and before the long one."""
    loaded = LoadedEngine(ahead=ahead)
    loaded.begin("long", prompt_ids(2_048, seed=0), 1)
    patience = 4 * 4
    for n in range(60):
        loaded.begin(f"s{n}", prompt_ids(512, seed=n + 1), 1)
        loaded.step()
    loaded.run()
    overtaken = patience - 4
    assert overtaken < loaded.first_id_steps["long"] <= patience + 4 + 2 + ahead


@AHEAD
def test_turns_with_a_lower_priority_number_are_first(ahead: int) -> None:
    loaded = LoadedEngine(ahead=ahead)
    for n, priority in enumerate((0, 5, -3, 0)):
        loaded.begin(f"s{n}", prompt_ids(1_024, seed=n), 1, priority=priority)
    loaded.run()
    steps = {n: loaded.first_id_steps[f"s{n}"] for n in range(4)}
    assert sorted(steps, key=steps.__getitem__) == [2, 0, 3, 1]


def test_turn_is_not_overtaken_when_its_deadline_is_near() -> None:
    """Steps take 10 ms: of two equal prompts that shorter ones overtake, the one with a deadline of
    100 ms has its first id in time."""
    loaded = LoadedEngine()
    loaded.step_s = 0.01
    loaded.begin("warm", prompt_ids(16, seed=99), 100)
    for _ in range(60):
        loaded.step()
    loaded.begin("patient", prompt_ids(1_024, seed=0), 1)
    loaded.begin("urgent", prompt_ids(1_024, seed=1), 1, deadline_ms=60)
    for n in range(20):
        loaded.begin(f"s{n}", prompt_ids(500, seed=n + 2), 1)
        loaded.step()
    loaded.run()
    assert loaded.first_id_steps["urgent"] <= 7
    assert loaded.first_id_steps["patient"] > 8


# ---- rows ----------------------------------------------------------------------------------


@AHEAD
def test_more_turns_than_rows_rotate(ahead: int) -> None:
    loaded = run_more_turns_than_rows(ahead=ahead)
    assert max(loaded.gaps.values()) <= 3
    assert loaded.steps <= 128 * 400 // 64 + 10


# ---- groups --------------------------------------------------------------------------------


def steps_of_fair_turn(tokens: int, share: float = 0.5) -> int:
    """Return the steps in which a prompt is prefilled with its share of the tokens of each."""
    return -(-tokens // int(512 * share))


@AHEAD
@pytest.mark.parametrize("queued", [1, 8, 64])
def test_group_is_not_delayed_by_the_prompts_that_another_queues(ahead: int, queued: int) -> None:
    loaded = LoadedEngine(ahead=ahead)
    for n in range(queued):
        loaded.begin(f"s{n}", prompt_ids(1_000, seed=n), 4, group="busy")
    loaded.step()
    loaded.begin("other", prompt_ids(1_000, seed=99), 4, group="quiet")
    loaded.run()
    assert loaded.first_id_steps["other"] <= steps_of_fair_turn(1_000) + 3


@AHEAD
def test_prefill_is_shared_by_weight(ahead: int) -> None:
    loaded = LoadedEngine(ahead=ahead)
    for n in range(24):
        group, weight = ("heavy", 3.0) if n % 2 else ("light", 1.0)
        loaded.begin(f"s{n}", prompt_ids(1_024, seed=n), 1, group=group, weight=weight)
    for _ in range(24):
        loaded.step()
    heavy = sum(f"s{n}" in loaded.first_id_steps for n in range(1, 24, 2))
    light = sum(f"s{n}" in loaded.first_id_steps for n in range(0, 24, 2))
    assert 2 * light < heavy <= 4 * light


@AHEAD
def test_group_has_its_rows_when_another_has_more_turns_than_rows(ahead: int) -> None:
    loaded = LoadedEngine(ahead=ahead, rows=16)
    for n in range(100):
        loaded.begin(f"s{n}", prompt_ids(16, seed=n), 60, group="busy")
    for _ in range(20):
        loaded.step()
    loaded.begin("other", prompt_ids(16, seed=999), 30, group="quiet")
    loaded.run()
    assert loaded.first_id_steps["other"] <= 1 + 3
    assert loaded.gaps["other"] <= 2


@AHEAD
def test_group_has_its_pages_when_another_fills_the_pool(ahead: int) -> None:
    loaded = LoadedEngine(ahead=ahead, pages=225, make_runner=DigestRunner)
    for n in range(30):
        loaded.begin(f"s{n}", prompt_ids(200, seed=n), 300, group="busy")
    for _ in range(150):
        loaded.step()
    loaded.begin("other", prompt_ids(1_000, seed=999), 20, group="quiet")
    loaded.run()
    check_outputs(loaded)
    assert loaded.first_id_steps["other"] <= steps_of_fair_turn(1_000) + 3


@AHEAD
def test_groups_that_fill_the_pool_together_finish(ahead: int) -> None:
    loaded = LoadedEngine(ahead=ahead, pages=100, make_runner=DigestRunner)
    for n in range(24):
        length, outputs = 50 + 40 * (n % 5), 60 + 50 * (n % 3)
        loaded.begin(f"s{n}", prompt_ids(length, seed=n), outputs, group=f"group {n % 3}")
        loaded.step()
    loaded.run()
    check_outputs(loaded)
    assert loaded.computed_over_needed <= 1.6


def test_group_has_at_most_its_maximum_share_of_the_rows() -> None:
    loaded = LoadedEngine(rows=8, max_group_share=0.5)
    for n in range(8):
        loaded.begin(f"s{n}", prompt_ids(16, seed=n), 20, group="capped")
    loaded.run()
    assert loaded.steps >= 8 * 20 / 4
