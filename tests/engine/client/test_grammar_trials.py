"""Trials of grammars in processes: hostile ones are refused, in turns, and end with the server."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from continuo.engine import Busy, Grammar, cache_group
from continuo.engine.client import grammar_trials
from continuo.engine.client.grammar_trials import PROCESSES, TrialProcesses
from continuo.engine.text import grammar_trial
from tests.support.processes import is_running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

ORDINARY = '{"type": "object", "properties": {"city": {"type": "string"}}}'
PRIMES = (999_983, 999_979, 999_961, 999_959, 999_953)


def schema(value: object) -> Grammar:
    return Grammar("json_schema", value if isinstance(value, str) else json.dumps(value))


def endless(n: int = 0) -> Grammar:
    """A schema whose compilation would take minutes and gigabytes."""
    multiples = [{"type": "integer", "multipleOf": prime} for prime in PRIMES]
    return schema({"allOf": multiples, "title": f"{n}"})


@pytest.fixture
async def trials() -> AsyncIterator[TrialProcesses]:
    trials = TrialProcesses()
    yield trials
    await trials.stop()


def pids_of(trials: TrialProcesses) -> list[int]:
    processes = [each._process for each in trials._processes]  # pyright: ignore[reportPrivateUsage]
    return [process.pid for process in processes if process is not None]


def forks_of(pid: int) -> list[int]:
    return [int(fork) for fork in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_s_of_forks(pid: int) -> float:
    """Return the processor time of the forks of a process that have ended, in seconds."""
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


def write_trial_with(folder: Path, line: str) -> str:
    """Copy the program of the processes with another value of a constant. Returns its path."""
    name = line.split(" = ")[0]
    source = Path(grammar_trial.__file__).read_text()
    changed = re.sub(rf"^{name} = .*$", line, source, flags=re.MULTILINE)
    assert changed != source
    program = folder / "grammar_trial.py"
    program.write_text(changed)
    return str(program)


async def fork_of(trials: TrialProcesses) -> int:
    """Wait for a trial that runs, and return its process id."""
    await wait_until(lambda: any(map(forks_of, pids_of(trials))))
    return next(fork for pid in pids_of(trials) for fork in forks_of(pid))


def as_tenant(tenant: str, trials: TrialProcesses, grammar: Grammar) -> "asyncio.Task[str | None]":
    cache_group.set(tenant)
    return asyncio.create_task(trials.find_problem(grammar))


async def test_ordinary_schema_has_no_problem(trials: TrialProcesses) -> None:
    assert await trials.find_problem(schema(ORDINARY)) is None
    assert await trials.find_problem(schema(ORDINARY)) is None
    assert len(pids_of(trials)) == 1
    assert trials.size.held_bytes > 0


async def test_schema_that_compiles_for_minutes_is_refused_by_its_time(
    trials: TrialProcesses,
) -> None:
    before = os.times()
    problem = await trials.find_problem(endless())
    assert problem in ("it takes more than 1 s to compile", "it was not compiled within 30 s")
    (pid,) = pids_of(trials)
    assert not forks_of(pid)
    assert cpu_s_of_forks(pid) < 2.0
    assert os.times().user - before.user < 1.0, "this process compiles nothing"
    assert await trials.find_problem(schema(ORDINARY)) is None


async def test_schema_that_takes_much_memory_is_refused_by_it(
    trials: TrialProcesses, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The limit is lower than in production, where a slow machine reaches that of time first."""
    narrow = write_trial_with(tmp_path, "TRIAL_DATA_BYTES_MAX = 16 * MIB")
    monkeypatch.setattr(grammar_trials.grammar_trial, "__file__", narrow)
    found = await trials.find_problem(endless())
    assert found == "it takes more than 16 MiB of memory to compile"


async def test_grammar_larger_than_the_limit_is_refused(trials: TrialProcesses) -> None:
    found = await trials.find_problem(schema({"type": "integer", "multipleOf": 30_011}))
    assert found is not None
    assert "of memory; the limit is 8" in found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_trial_that_dies_is_a_problem_of_its_grammar(
    trials: TrialProcesses, number: signal.Signals
) -> None:
    trial = asyncio.create_task(trials.find_problem(endless()))
    os.kill(await fork_of(trials), number)
    assert await trial is not None
    assert await trials.find_problem(schema(ORDINARY)) is None


async def test_process_that_was_killed_is_started_again(trials: TrialProcesses) -> None:
    assert await trials.find_problem(schema(ORDINARY)) is None
    (killed,) = pids_of(trials)
    os.kill(killed, signal.SIGKILL)
    assert await trials.find_problem(schema('{"type": "array"}')) is None
    assert pids_of(trials) != [killed]


async def test_cancelled_trial_is_killed(trials: TrialProcesses) -> None:
    trial = asyncio.create_task(trials.find_problem(endless()))
    fork = await fork_of(trials)
    trial.cancel()
    await asyncio.wait([trial])
    await wait_until(lambda: not is_running(fork))
    assert await trials.find_problem(schema(ORDINARY)) is None


async def test_costly_schemas_of_a_tenant_do_not_delay_another(trials: TrialProcesses) -> None:
    costly = [as_tenant("hostile", trials, endless(n)) for n in range(2 * PROCESSES)]
    await fork_of(trials)
    assert await as_tenant("other", trials, schema(ORDINARY)) is None
    assert not any(trial.done() for trial in costly[1:])
    for trial in costly:
        trial.cancel()
    await asyncio.wait(costly)


async def test_tenants_take_turns(trials: TrialProcesses) -> None:
    """A tenant that comes last does not wait for all trials of those before it."""
    ended = list[str]()
    for tenant, count in (("one", 3), ("two", 3), ("three", 1)):
        for n in range(count):
            number = len(ended) + 10 * n + ord(tenant[0])
            trial = as_tenant(tenant, trials, schema({"const": f"{tenant} {number}"}))
            trial.add_done_callback(lambda _, tenant=tenant: ended.append(tenant))
    await wait_until(lambda: len(ended) == 7)
    assert ended[-1] != "three"


async def test_waiting_trials_of_a_tenant_are_bounded(
    trials: TrialProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_trials, "WAITING_MAX", 2)
    waiting = [as_tenant("hostile", trials, endless(n)) for n in range(3)]
    await fork_of(trials)
    with pytest.raises(Busy, match="2 other grammars wait"):
        await as_tenant("hostile", trials, endless(3))
    assert await as_tenant("other", trials, schema(ORDINARY)) is None
    for trial in waiting:
        trial.cancel()
    await asyncio.wait(waiting)


async def test_stop_ends_processes_and_trials(trials: TrialProcesses) -> None:
    trial = asyncio.create_task(trials.find_problem(endless()))
    fork = await fork_of(trials)
    processes = pids_of(trials)
    await trials.stop()
    with pytest.raises(Busy):
        await trial
    await wait_until(lambda: not any(map(is_running, [fork, *processes])))


SERVER = """
import asyncio
from continuo.engine import Grammar
from continuo.engine.client.grammar_trials import TrialProcesses

async def main():
    trials = TrialProcesses()
    await trials.find_problem(Grammar("json_schema", "{}"))
    print(*(each._process.pid for each in trials._processes if each._process), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_processes_end_with_a_killed_server() -> None:
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER), stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    pids = [int(pid) for pid in (await server.stdout.readline()).split()]
    assert pids
    assert all(map(is_running, pids))
    server.kill()
    await server.wait()
    await wait_until(lambda: not any(map(is_running, pids)))
