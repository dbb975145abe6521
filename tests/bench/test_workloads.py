"""Smoke runs of the benchmarks at tiny sizes: each measures something, and says what. No figure is
asserted, because the machine is shared. tests/bench/test_recovery.py has those that kill something.
"""

import asyncio
import gc
import json
import math
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from continuo import engine
from continuo.bench import main, plot
from continuo.bench.processes import start_continuo
from continuo.engine.config import BUNDLED_MODEL
from tests.browser.vitest import CHROMIUM, needs_chromium, needs_page

DEMO = Path(engine.__file__).parent / "bundled" / BUNDLED_MODEL
pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    server = start_continuo(folder, "serve", "--port", "0", "--no-web")
    url = asyncio.run(server.wait_for_output(r"ws(://\S+/v1)/realtime"))
    yield f"http{url}"
    server.stop()


@pytest.fixture(autouse=True)
def state_of_the_process() -> Iterator[None]:
    """Undo what `gateway` does to its process: it leaves a core to the gateway, and disables the
    garbage collector."""
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)
    gc.enable()


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a benchmark. Returns its JSON."""
    file = folder / "figures.json"
    assert main.main([*arguments, "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    numbers = [
        value for row in figures["rows"] for value in row.values() if isinstance(value, float)
    ]
    assert numbers
    assert all(map(math.isfinite, numbers))
    assert figures["run"]["command"].startswith(f"continuo bench {arguments[0]}")
    return figures


CLIENT_WORKLOADS = {
    "session-latency": ("chat", "--sessions 2 --turns 3"),
    "flatness": ("responses", "--sessions 2 --turns 3"),
    "throughput": ("realtime", "--rows 1 2 --tokens 4 --contexts 32"),
    "cold-beside-live": ("chat", "--sessions 2 --turns 3 --cold 64 --interruptions 2"),
    "commit-to-first-token": ("realtime", "--turns 40 --words 3 --pause-ms 1"),
    "barge-in": ("responses", "--histories 20 --turns 1"),
}


@pytest.mark.parametrize("name", CLIENT_WORKLOADS)
def test_workload_measures_a_server_by_its_url(name: str, base_url: str, tmp_path: Path) -> None:
    api, sizes = CLIENT_WORKLOADS[name]
    arguments = ("--base-url", base_url, "--api", api, "--runs", "1", *sizes.split())
    figures = run(tmp_path, name, *arguments)
    assert {row.get("target", "server") for row in figures["rows"]} == {"server"}
    assert figures["cpu"]
    assert all(0 < reading["own_cores"] < 64 for reading in figures["cpu"])


def test_session_latency_measures_this_engine_in_each_mode(tmp_path: Path) -> None:
    modes = ("engine", "engine/regular", "engine/no-session")
    svg, png = tmp_path / "turns.svg", tmp_path / "turns.png"
    plots = [svg, *([png] if _has_pillow() else [])]
    sizes = "--sessions 2 --turns 12 --runs 2 --threads 1"
    arguments = ("--model", str(DEMO), "--targets", *modes, *sizes.split())
    figures = run(tmp_path, "session-latency", *arguments, "--plot", *map(str, plots))
    assert [row["target"] for row in figures["rows"]] == list(modes)
    assert figures["plot"]["lines"].keys() == set(modes)
    assert all(len(line) == 11 for line in figures["plot"]["lines"].values())
    labels = [text.text for text in ElementTree.parse(svg).iter() if text.tag.endswith("text")]
    assert set(modes) < set(labels)
    assert not _has_pillow() or png.read_bytes().startswith(b"\x89PNG")


def _has_pillow() -> bool:
    try:
        import PIL  # noqa: F401 # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return True


def test_agent_loop_measures_both_strategies(base_url: str, tmp_path: Path) -> None:
    figures = run(tmp_path, "agent-loop", "--base-url", base_url, "--turns", "12")
    assert {row["strategy"] for row in figures["rows"]} == {"continue", "resend"}


def test_throughput_has_a_plot_and_the_prefill_of_cold_contexts(
    base_url: str, tmp_path: Path
) -> None:
    svg = tmp_path / "steps.svg"
    sizes = "--rows 1 2 --tokens 4 --contexts 32 48 --runs 1"
    figures = run(
        tmp_path, "throughput", "--base-url", base_url, *sizes.split(), "--plot", str(svg)
    )
    assert [row["context"] for row in figures["tables"]["Prefill of a cold context"]] == [32, 48]
    assert figures["plot"]["x"] == [1, 2]
    assert svg.read_text().startswith("<svg")


@pytest.mark.parametrize("heights", [[0.0, 0.0], [-0.7, -0.4], [-0.1, 3.0], [1e-9, 2e9]])
def test_any_heights_can_be_drawn(heights: list[float]) -> None:
    """A step is a difference of two times, and may be negative beside other work."""
    svg = ElementTree.fromstring(plot.render_svg(plot.Plot("T", "x", "y", {"a": heights}, [1, 2])))
    points = [line.get("points", "") for line in svg if line.tag.endswith("polyline")]
    assert all(math.isfinite(float(number)) for each in points for number in re.split("[ ,]", each))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gateway", "--plot", "x.svg"), "gateway has no plot"),
        (("throughput", "--plot", "x.pdf"), "not as x.pdf"),
    ],
)
def test_plot_that_cannot_be_drawn_is_refused_before_the_run(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main.main(arguments)
    assert message in f"{refused.value} {capsys.readouterr().err}"


OTHER_WORKLOADS = {
    "gateway": "--streams 2 --frames 2 --idle 0 --seconds 0.6",
    "gpu-counts": "--layers 2 --steps 1",
    "gpu-step": "--narrow --layers 1 --steps 2 --rounds 1 --only append",
    "idle-sessions": f"--model {DEMO} --sessions 4 --wakes 8 --times 2 --host-gib 0.01",
    "masked-step": "--ids 20 --vocabulary 4000",
    "sampled-step": "--sizes S:512:2 --steps 2 --rounds 1",
    "scheduling": "--only cache",
    "speculation": "--rounds 2 --tokens 60",
    "step-overhead": "--steps 20 --turns 3",
}


@pytest.mark.parametrize("name", OTHER_WORKLOADS)
def test_workload_of_this_server_or_engine(name: str, tmp_path: Path) -> None:
    run(tmp_path, name, *OTHER_WORKLOADS[name].split())


@needs_chromium
@needs_page
def test_longest_task_of_the_page(tmp_path: Path) -> None:
    """Each answer is shown to its end, and each of its tasks is in the trace."""
    arguments = ("--length", "300", "--rate", "0", "--only", "prose", "all")
    rows = run(tmp_path, "page", "--chromium", CHROMIUM, *arguments)["rows"]
    assert [row["answer"] for row in rows] == ["prose", "all"]
    assert all(row["longest_ms"] > row["p99_ms"] > 0 for row in rows)


def test_journey_lists_the_files_that_each_request_enters(tmp_path: Path) -> None:
    figures = run(tmp_path, "journey", "--files")
    append, response = figures["rows"]
    files = {
        name: {row["file"] for row in figures["tables"][f"Files of {name}"]}
        for name in ("append", "response")
    }
    assert (append["files"], response["files"]) == (len(files["append"]), len(files["response"]))
    for passed in (
        "realtime/transport/connection.py",
        "realtime/session/unit_of_work.py",
        "realtime/store/sqlite/tables.py",
        "engine/client/router.py",
        "engine/core/loop.py",
    ):
        assert passed in files["append"] & files["response"]
    assert "realtime/session/commands/add_item.py" in files["append"] - files["response"]
    assert "realtime/session/commands/create_response.py" in files["response"] - files["append"]


def test_help_lists_every_workload_and_the_options_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main.main(["--help"])
    assert exit_info.value.code == 0
    shown = capsys.readouterr().out
    for name in main.BENCHES:
        assert re.search(rf"^  {name}  +\w", shown, re.MULTILINE)
    assert "--json FILE" in shown


def test_start_measures_the_first_token_and_the_memory_of_both_processes(tmp_path: Path) -> None:
    (row,) = run(tmp_path, "start", "--models", "demo", "--times", "1")["rows"]
    assert (row["model"], row["times"]) == ("demo", 1)
    assert 0 < row["listening_s"] < row["first_token_s"] == row["worst_first_token_s"]
    assert row["gateway_mib"] > 10
    assert row["engine_mib"] > 50, "it has imported torch"


def test_every_workload_has_a_smoke_run() -> None:
    with_processes = {"append-acknowledged", "page", "parked-sessions", "recovery", "resume-storm"}
    others = {"agent-loop", "journey", "start", *with_processes}
    smoked = {*CLIENT_WORKLOADS, *OTHER_WORKLOADS, *others}
    assert smoked == set(main.BENCHES)


def test_unknown_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for target, problem in {
        "vllm": "vllm: not one of engine, websocket",
        "engine/slots": "the mode is not one of streaming, regular, no-session",
    }.items():
        with pytest.raises(SystemExit):
            main.main(["session-latency", "--targets", target])
        assert problem in capsys.readouterr().err
