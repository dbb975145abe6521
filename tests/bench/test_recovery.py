"""The benches of what survives, small: real processes, a real Redis, and figures that are there."""

import json
from pathlib import Path

import pytest

from continuo.bench import main
from continuo.bench.resume_storm import QUESTION_COUNT
from tests.support.redis_process import needs_redis

pytestmark = [needs_redis, pytest.mark.timeout(200)]


def measured(folder: Path, *words: str) -> list[dict[str, float]]:
    file = folder / "figures.json"
    assert main.main([*words, "--json", str(file)]) == 0
    return json.loads(file.read_text())["rows"]


def test_an_append_is_acknowledged(tmp_path: Path) -> None:
    rows = measured(tmp_path, "append-acknowledged", "--seconds", "0.5")
    assert [row["durability"] for row in rows] == ["normal", "normal", "strict", "strict"]
    assert all(row["count"] > 0 and 0 < row["p50_ms"] <= row["p99_ms"] for row in rows)


def test_parked_sessions_are_small_and_go(tmp_path: Path) -> None:
    words = ("--sessions", "200", "--turns", "2", "--ttl", "15")
    (row,) = measured(tmp_path, "parked-sessions", *words)
    assert row["removed"] == 200
    assert 0 < row["bytes_each"] <= row["target_bytes"]


def test_a_storm_loses_nothing(tmp_path: Path) -> None:
    words = ("--sessions", "40", "--tokens", "30", "--rate", "10")
    (row,) = measured(tmp_path, "resume-storm", *words)
    assert row["in_an_answer"] == row["exact"] == 40
    assert row["not_resumed"] == row["lost_or_doubled"] == 0
    assert row["different_answers"] == QUESTION_COUNT


def test_recovery_is_timed(tmp_path: Path) -> None:
    rows = measured(tmp_path, "recovery", "--times", "1")
    assert len(rows) == 5
    started, loaded = rows[3:]
    assert started["times"] == loaded["times"] == 3, "an engine for each fault"
    assert started["median_s"] > loaded["median_s"]
    assert all(0 < row["median_s"] <= row["worst_s"] for row in rows)


def test_every_bench_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for name in main.BENCHES:
        with pytest.raises(SystemExit) as left:
            main.main([name, "--help"])
        assert left.value.code == 0
        assert "--json" in capsys.readouterr().out
