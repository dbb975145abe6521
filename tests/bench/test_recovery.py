"""Tests of the recovery benchmarks at small sizes, with real processes and a real Redis."""

import json
from pathlib import Path

import pytest

from continuo.bench import main
from continuo.bench.resume_storm import QUESTION_COUNT
from tests.support.redis_process import needs_redis

pytestmark = [needs_redis, pytest.mark.timeout(200)]


def measure(folder: Path, *arguments: str) -> list[dict[str, float]]:
    file = folder / "figures.json"
    assert main.main([*arguments, "--json", str(file)]) == 0
    return json.loads(file.read_text())["rows"]


def test_append_acknowledged_measures_each_durability(tmp_path: Path) -> None:
    rows = measure(tmp_path, "append-acknowledged", "--seconds", "0.5")
    assert [row["durability"] for row in rows] == ["normal", "normal", "strict", "strict"]
    assert all(row["count"] > 0 and 0 < row["p50_ms"] <= row["p99_ms"] for row in rows)


def test_parked_sessions_are_small_and_are_removed_at_their_ttl(tmp_path: Path) -> None:
    arguments = ("--sessions", "200", "--turns", "2", "--ttl", "15")
    (row,) = measure(tmp_path, "parked-sessions", *arguments)
    assert row["removed"] == 200
    assert 0 < row["bytes_each"] <= row["target_bytes"]


def test_resume_storm_loses_no_event(tmp_path: Path) -> None:
    arguments = ("--sessions", "40", "--tokens", "30", "--rate", "10")
    (row,) = measure(tmp_path, "resume-storm", *arguments)
    assert row["in_an_answer"] == row["exact"] == 40
    assert row["not_resumed"] == row["lost_or_doubled"] == 0
    assert row["different_answers"] == QUESTION_COUNT


def test_recovery_measures_each_fault(tmp_path: Path) -> None:
    rows = measure(tmp_path, "recovery", "--times", "1")
    assert len(rows) == 6
    started, loaded = rows[4:]
    assert started["times"] == loaded["times"] == 4, "one engine start for each fault"
    assert started["median_s"] > loaded["median_s"]
    assert all(0 < row["median_s"] <= row["worst_s"] for row in rows)


def test_every_benchmark_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in main.BENCHES:
        with pytest.raises(SystemExit) as exit_info:
            main.main([name, "--help"])
        assert exit_info.value.code == 0
        assert "--json" in capsys.readouterr().out
