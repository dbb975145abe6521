"""Competitors on the workload of session-latency: same weights, ids, threads and clients.

    transformers      resend                generate() on the whole context, without a cache
                      session-cache         generate() with a DynamicCache per session
                      continuous-batching   whole context resent; KV pages shared by prefix
    llama-cpp-python  resend                Llama.generate() on the whole context, prefix cached
                      resend-slots          whole context resent to a slot per session, prefix
                                            cached, slots batched
                      slots                 the same, but only new ids are sent

A competitor runs in a process of its own, with the first of these Python interpreters that has the
modules it requires: the one named by CONTINUO_PEERS_PYTHON, the one that runs Continuo, and the one
of `.venv-peers` in the root of the repository.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from continuo.bench.competitors.checkpoint import count_parameters
from continuo.bench.competitors.workload import Ids, Prompts, Workload, WorkloadResult

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 3600.0
"""Time limit of one mode, in seconds. No turn begins after it; the finished turns are reported."""
GRACE_S = 600.0
"""Time beyond the limit after which the process is killed: for loading, and for the turns in flight
when the limit is reached."""

Outputs = list[list[Ids]]
"""The ids generated in each turn: outputs[session][turn]."""


class Competitor(NamedTuple):
    """A competitor (another engine) in one mode: a way to compute the turns of a session, listed
    above. `module`: the Python module that its process runs; `required_modules`: the packages that
    the module imports."""

    name: str
    mode: str
    module: str
    required_modules: tuple[str, ...]
    note: str

    def is_selected(self, names: Sequence[str] | None) -> bool:
        return names is None or self.name in names or f"{self.name} {self.mode}" in names


ONE_BY_ONE = "sessions take turns, one at a time"
_TRANSFORMERS = (
    "transformers",
    "continuo.bench.competitors.run_transformers",
    ("torch", "transformers"),
)
_LLAMA_CPP = ("llama-cpp-python", "continuo.bench.competitors.run_llama_cpp", ("llama_cpp", "gguf"))
COMPETITORS = (
    Competitor(_TRANSFORMERS[0], "resend", _TRANSFORMERS[1], _TRANSFORMERS[2], ONE_BY_ONE),
    Competitor(_TRANSFORMERS[0], "session-cache", _TRANSFORMERS[1], _TRANSFORMERS[2], ONE_BY_ONE),
    Competitor(
        _TRANSFORMERS[0],
        "continuous-batching",
        _TRANSFORMERS[1],
        _TRANSFORMERS[2],
        "sessions batched, re-sent, prefix shared",
    ),
    Competitor(
        _LLAMA_CPP[0],
        "resend",
        _LLAMA_CPP[1],
        _LLAMA_CPP[2],
        f"{ONE_BY_ONE}, a Llama for each; KV f16",
    ),
    Competitor(
        _LLAMA_CPP[0],
        "resend-slots",
        _LLAMA_CPP[1],
        _LLAMA_CPP[2],
        "sessions batched, re-sent; KV f16",
    ),
    Competitor(_LLAMA_CPP[0], "slots", _LLAMA_CPP[1], _LLAMA_CPP[2], "sessions batched; KV f16"),
)
HOW_TO_INSTALL = {
    "transformers": "pip install transformers",
    "llama-cpp-python": (
        "python3 -m venv .venv-peers && "
        ".venv-peers/bin/python -m pip install -r bench/competitors/requirements.txt"
    ),
}


@dataclasses.dataclass(frozen=True)
class CompetitorResult:
    """Client wall clock per turn in milliseconds, without the first turn: means over all turns and
    over the last ten of each session. The means are None if the competitor could not be measured;
    `note` has the reason."""

    name: str
    mode: str
    mean_all_ms: float | None
    mean_last10_ms: float | None
    has_equal_outputs: bool | None
    """Whether the generated ids equal the expected ones, or without these, the ids of the first
    competitor that ran. None: not compared."""
    note: str
    outputs: Outputs | None = dataclasses.field(default=None, repr=False)


def measure(  # noqa: PLR0913 - the size of a workload, all by keyword
    model_folder: Path,
    *,
    sessions: int,
    turns: int,
    ids_in: int,
    ids_out: int,
    prompts: Prompts,
    names: Sequence[str] | None,
    threads: int,
    dtype: str = "auto",
    expected: Outputs | None = None,
    limit_s: float = LIMIT_S,
) -> list[CompetitorResult]:
    """Run `prompts[session][turn]` on each selected competitor, one after another.

    `names`: competitors ("transformers") or modes ("transformers resend"); None: all. `dtype` auto:
    the dtype that Continuo uses for this model on a CPU. `expected`: the outputs to compare with.
    """
    assert len(prompts) == sessions, "one list of turns for each session"
    assert all(len(ids) == ids_in for session in prompts for ids in session)
    assert all(len(session) == turns > 1 for session in prompts)
    if dtype == "auto":
        dtype = _auto_dtype(model_folder)
    results: list[CompetitorResult] = []
    for competitor in COMPETITORS:
        if not competitor.is_selected(names):
            continue
        job = Workload(
            str(model_folder), competitor.mode, dtype, threads, ids_out, prompts, limit_s
        )
        result = _run(competitor, job, expected)
        results.append(result)
        expected = expected or result.outputs
    return results


def find_interpreter(required_modules: Sequence[str]) -> Path | None:
    """Return the first Python interpreter that has all these modules. Returns None if none has."""
    configured = os.environ.get("CONTINUO_PEERS_PYTHON")
    preferred = [Path(configured)] if configured else []
    script = "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    for python in [*preferred, Path(sys.executable), ROOT / ".venv-peers" / "bin" / "python"]:
        # -I: folders of the current directory must not be importable as packages.
        if (
            python.exists()
            and not subprocess.run(
                [python, "-I", "-c", script, *required_modules], check=False, capture_output=True
            ).returncode
        ):
            return python
    return None


def _run(competitor: Competitor, job: Workload, expected: Outputs | None) -> CompetitorResult:
    python = find_interpreter(competitor.required_modules)
    if python is None:
        reason = f"not installed: {HOW_TO_INSTALL[competitor.name]}"
        return _result_without_figures(competitor, reason)
    try:
        result = _run_process(python, competitor.module, job)
    except _CompetitorError as error:
        return _result_without_figures(competitor, str(error))
    notes = [result.version, job.dtype, competitor.note]
    turns, done = len(job.prompts[0]), min(len(row) for row in result.seconds)
    if done < turns:
        notes.append(f"stopped after {done} of {turns} turns ({job.limit_s:.0f} s)")
    if done < 2:
        return _result_without_figures(competitor, "; ".join(notes))
    rows = [row[1:] for row in result.seconds]
    has_equal_outputs = None
    if expected is not None:
        difference = _first_difference(result.outputs, expected)
        has_equal_outputs = difference is None
        if difference is not None:
            notes.append(f"ids differ from turn {difference + 1} on")
    return CompetitorResult(
        competitor.name,
        competitor.mode,
        _mean_ms(rows),
        _mean_ms([row[-10:] for row in rows]),
        has_equal_outputs,
        "; ".join(notes),
        result.outputs,
    )


def _run_process(python: Path, module: str, job: Workload) -> WorkloadResult:
    """Run a workload in a process and process group of its own. Raises _CompetitorError."""
    env = dict(os.environ, PYTHONPATH=str(ROOT), TRANSFORMERS_VERBOSITY="error")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        env[name] = str(job.threads)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [python, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=env,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(json.dumps(job), timeout=job.limit_s + GRACE_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise _CompetitorError(f"did not end within {error.timeout:.0f} s") from None
            raise
        if process.returncode:
            errors.seek(0)
            lines = errors.read().strip().splitlines() or ["no message"]
            raise _CompetitorError(f"failed ({process.returncode}): {lines[-1]}")
    return WorkloadResult(*json.loads(output.splitlines()[-1]))


class _CompetitorError(Exception):
    """Raised when a competitor's process fails or exceeds its time."""


def _result_without_figures(competitor: Competitor, note: str) -> CompetitorResult:
    return CompetitorResult(competitor.name, competitor.mode, None, None, None, note)


def _auto_dtype(folder: Path) -> str:
    # Imported here, because the environment of a competitor may lack the packages of the engine.
    from continuo.engine.device.build import CPU_FP32_PARAMETERS_MAX  # noqa: PLC0415

    return "float32" if count_parameters(folder) <= CPU_FP32_PARAMETERS_MAX else "bfloat16"


def _mean_ms(rows: Sequence[Sequence[float]]) -> float:
    seconds = [each for row in rows for each in row]
    return sum(seconds) / len(seconds) * 1e3


def _first_difference(outputs: Outputs, expected: Outputs) -> int | None:
    """Return the index of the first turn in which the ids of any session differ. Returns None if
    all are equal. Turns that only `outputs` or only `expected` has are not compared.
    """
    differences = [
        next((turn for turn, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        for ours, theirs in zip(outputs, expected, strict=True)
    ]
    return min((turn for turn in differences if turn is not None), default=None)
