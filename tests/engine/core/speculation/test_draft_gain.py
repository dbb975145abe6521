"""Tests of the measured gain of drafts: a session drafts where that is faster, and only there."""

import pytest

from continuo.engine.core.speculation.draft_gain import (
    PAUSE_IDS_MAX,
    PAUSE_IDS_MIN,
    PLAIN_EVERY,
    PLAIN_ROWS_MIN,
    TRIAL_ROWS,
    DraftGain,
)


def run(gain: DraftGain, rows: int, ids: int, drafted_s: float, plain_s: float = 1.0) -> int:
    """Collect `rows` rows, of which those with drafts draw `ids`. Returns the rows with drafts."""
    drafted = 0
    for _ in range(rows):
        if gain.is_drafting:
            drafted += 1
            gain.observe_drafted(ids, drafted_s)
        else:
            gain.observe_plain(plain_s)
    return drafted


def test_first_rows_are_measured_without_drafts() -> None:
    gain = DraftGain(4)
    for _ in range(PLAIN_ROWS_MIN):
        assert not gain.is_drafting
        gain.observe_plain(1.0)
    assert gain.is_drafting


def test_session_with_a_gain_drafts_in_almost_every_row() -> None:
    gain = DraftGain(4)
    drafted = run(gain, 1000, ids=3, drafted_s=2.0)
    assert gain.gain == pytest.approx(1.5)
    assert drafted >= 1000 - PLAIN_ROWS_MIN - 1000 // PLAIN_EVERY - 1


def test_drafts_that_are_drawn_too_slowly_have_no_gain() -> None:
    assert run(DraftGain(4), 1000, ids=3, drafted_s=2.9) > 900
    assert run(DraftGain(4), 1000, ids=3, drafted_s=3.1) < 50


def test_session_without_a_gain_pauses_twice_as_long_after_each_trial() -> None:
    gain = DraftGain(4)
    pauses: list[int] = []
    for _ in range(4):
        while not gain.is_drafting:
            gain.observe_plain(1.0)
        for _ in range(TRIAL_ROWS):
            assert gain.is_drafting
            gain.observe_drafted(1, 1.2)
        pauses.append(0)
        while not gain.is_drafting:
            gain.observe_plain(1.0)
            pauses[-1] += 1
    assert pauses == [PAUSE_IDS_MIN << n for n in range(4)]


def test_trials_without_a_gain_cost_little_of_a_long_output() -> None:
    """Each row of a trial takes half as long again."""
    gain, rows = DraftGain(4), 4 * PAUSE_IDS_MAX
    assert run(gain, rows, ids=1, drafted_s=1.5) * 0.5 <= 0.002 * rows


def test_session_drafts_again_when_its_output_repeats_itself() -> None:
    gain = DraftGain(4)
    run(gain, 200, ids=1, drafted_s=1.5)
    assert run(gain, 2 * PAUSE_IDS_MIN, ids=4, drafted_s=1.5) > 0
    assert run(gain, 1000, ids=4, drafted_s=1.5) > 800


def test_one_slow_row_does_not_end_drafting() -> None:
    gain = DraftGain(4)
    run(gain, 50, ids=3, drafted_s=1.0)
    gain.observe_drafted(3, 1000.0)
    assert gain.is_drafting
