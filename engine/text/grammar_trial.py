"""Trial of a grammar: compile it, compute its first masks, and measure both.

As a script, this file is a process that tries the grammars of clients. Each trial runs in a fork,
under limits of time and memory that the kernel enforces:

    gateway ── source, a JSON string a line ───▶ this process ── fork ──▶ trial
            ◀── problem, a JSON string a line ──              ◀── pipe ──

The process ends when its input ends, so it does not outlive the gateway, even a killed one. The
file imports nothing of this package, so that the process starts in a tenth of a second and holds
11 MB.
"""

import ctypes
import json
import mmap
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

import llguidance

MIB = 1024 * 1024
TRIAL_CPU_S_MAX = 1
"""Maximum processor time of a trial, in whole seconds, after which the kernel kills it."""
TRIAL_WALL_S_MAX = 30
"""Maximum duration of a trial, however little processor time it gets."""
TRIAL_DATA_BYTES_MAX = 256 * MIB
"""Maximum memory that a trial takes at any time."""
MASKS_S_MAX = 0.05
"""Maximum thread time of the first masks of a grammar, in seconds; a slower grammar is refused."""
GRAMMAR_BYTES_MAX = 8 * MIB
"""Maximum memory of a grammar with its first masks; a larger grammar is refused."""
_FIRST_MASKS = 3
_NICENESS = 5
"""A trial leaves the processor to the gateway and the engine, which serve all tenants."""
_PAGE_BYTES = mmap.PAGESIZE

LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=400_000,
    step_lexer_fuel=100_000,
    max_grammar_size=200_000,
    max_items_in_row=8_000,
    max_lexer_states=16_000,
)
"""Cost limits of the library. They bound the time of a mask to milliseconds, and that of
compilation for all but some numeric keywords, like a large `multipleOf`."""
_ERROR_LOCATION = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_DUMP = re.compile(r"\n<state>|\n *\d+ \| ")


class Trial(NamedTuple):
    """A grammar that was compiled, with its first masks."""

    matcher: llguidance.LLMatcher
    problem: str
    """Why the grammar is invalid or its masks are too slow; "" if neither."""
    size_bytes: int | None
    """Memory that the process has allocated meanwhile; None: unknown on this system."""


def try_grammar(vocabulary: llguidance.LLTokenizer, source: str) -> Trial:
    """Compile a grammar and compute its first masks. `source`: as from `grammar_from_lark`."""
    before_bytes = count_allocated_bytes()
    matcher = llguidance.LLMatcher(vocabulary, source, log_level=0, limits=LIMITS)
    if matcher.is_error():
        return Trial(matcher, shorten_problem(matcher.get_error()), 0)
    problem = _find_slowness(matcher) or ""
    if before_bytes is None or (now_bytes := count_allocated_bytes()) is None:
        return Trial(matcher, problem, None)
    return Trial(matcher, problem, now_bytes - before_bytes)


def find_problem(vocabulary: llguidance.LLTokenizer, source: str) -> str:
    """Explain in one line why a grammar cannot be enforced. Returns "" if it can. For a process
    with one thread: what others allocate would count."""
    trial = try_grammar(vocabulary, source)
    if trial.problem:
        return trial.problem
    if trial.matcher.is_stopped():
        return "no value satisfies it: a reference refers to itself"
    return find_size_problem(trial.size_bytes or 0)


def find_size_problem(size_bytes: int) -> str:
    """Explain that a compiled grammar is too large. Returns "" if it is not."""
    if size_bytes <= GRAMMAR_BYTES_MAX:
        return ""
    size = f"{size_bytes / MIB:.1f} MiB"
    return f"it takes {size} of memory; the limit is {GRAMMAR_BYTES_MAX / MIB:g}"


def shorten_problem(problem: str) -> str:
    """Reduce an error message of llguidance to one line, without location and state dump."""
    line = " ".join(_DUMP.split(problem, maxsplit=1)[0].split())
    return _ERROR_LOCATION.sub("", line)[:300]


def _find_slowness(matcher: llguidance.LLMatcher) -> str | None:
    """Compute the first masks of a grammar, in a copy of its matcher, and explain in one line why
    they take too long. Returns None if they do not. The matcher itself computes the first mask."""
    start_s = time.thread_time()
    mask = matcher.compute_bitmask()
    trial = matcher.deep_copy()
    for _ in range(_FIRST_MASKS - 1):
        drawn = next((8 * n + byte.bit_length() - 1 for n, byte in enumerate(mask) if byte), None)
        if drawn is None or trial.is_stopped() or not trial.consume_token(drawn):
            break
        mask = trial.compute_bitmask()
    spent_s = time.thread_time() - start_s
    if spent_s > MASKS_S_MAX:
        return (
            f"its first masks take {1000 * spent_s:.0f} ms; the limit is {1000 * MASKS_S_MAX:.0f}"
        )
    return None


class _HeapStatistics(ctypes.Structure):
    """The result of glibc's mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def count_allocated_bytes() -> int | None:
    """Return how much memory the allocator has given to all threads. None: without glibc 2.33."""
    read_statistics = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if read_statistics is None:
        return None
    read_statistics.restype = _HeapStatistics
    statistics = read_statistics()
    return statistics.uordblks + statistics.hblkhd


# ---------------------------------------------------------------------- the process


def _serve() -> None:
    vocabulary = llguidance.LLTokenizer("byte")
    for line in iter(sys.stdin.buffer.readline, b""):
        problem = _try_in_fork(vocabulary, json.loads(line))
        sys.stdout.buffer.write(json.dumps(problem).encode() + b"\n")
        sys.stdout.buffer.flush()


def _try_in_fork(vocabulary: llguidance.LLTokenizer, source: str) -> str:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _try_and_exit(vocabulary, source, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        problem = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return _explain_death(os.WTERMSIG(status))
    return problem or ("its compilation fails" if os.WEXITSTATUS(status) else "")


def _explain_death(number: int) -> str:
    if number == signal.SIGXCPU:
        return f"it takes more than {TRIAL_CPU_S_MAX} s to compile"
    if number == signal.SIGALRM:
        return f"it was not compiled within {TRIAL_WALL_S_MAX} s"
    if number in (
        signal.SIGABRT,
        signal.SIGKILL,
    ):  # of the allocator, and of a kernel out of memory
        return f"it takes more than {TRIAL_DATA_BYTES_MAX // MIB} MiB of memory to compile"
    return f"its compilation ends with signal {number}"


def _try_and_exit(vocabulary: llguidance.LLTokenizer, source: str, writing: int) -> None:
    status = 1
    try:
        _limit_resources()
        os.write(writing, find_problem(vocabulary, source).encode())
        status = 0
    except MemoryError:
        os.abort()
    finally:
        os._exit(status)


def _limit_resources() -> None:
    import resource  # noqa: PLC0415 - Windows, which imports this file, has none

    os.nice(_NICENESS)
    signal.alarm(TRIAL_WALL_S_MAX)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_CPU_S_MAX, TRIAL_CPU_S_MAX + 1))
    statistics = Path("/proc/self/statm")
    if statistics.exists():
        held_bytes = int(statistics.read_text().split()[5]) * _PAGE_BYTES
        limit_bytes = held_bytes + TRIAL_DATA_BYTES_MAX
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


if __name__ == "__main__":
    _serve()
