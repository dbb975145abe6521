"""Simulated lives, as digests of all frames that their clients sent and received.

A life is one small world of tests/simulation: engines, gateways, a store and clients on virtual
time, and their faults, all from one seed. Its trace has one line for each frame at a client's end
of a connection: a command sent, an event received, or the code of a close. Ids are those of the
wire: the simulation draws them from the seed. The sentences of error objects and of closes are
masked. A trace holds nothing else: no time, no call of the store, no name of a class.

lives.txt holds one digest for GROUP seeds. If one differs, print the trace of each of its seeds
(`python -m tests.frozen --trace SEED`) here and in a checkout that is known to be good.
"""

import hashlib
import json
import multiprocessing
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from random import Random

from tests.frozen.masking import masked_frame
from tests.realtime.conftest import chat_folder
from tests.simulation.world import ClientFrame, simulate

FILE = Path(__file__).parent / "data" / "lives.txt"
GROUP = 50
LIVES = 10_000
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@cache
def _folder() -> str:
    """The tokenizer and template that all worlds read, deleted when the process exits."""
    _FOLDERS.append(tempfile.TemporaryDirectory())
    return str(chat_folder(Path(_FOLDERS[-1].name)))


def _line(frame: ClientFrame) -> str:
    """A line of the trace; clients are identified by the number at the end of their name."""
    client = f"person-{frame.client.rpartition('-')[2]}"
    match frame.kind, frame.content:
        case "closed", None:
            return f"{client} closed"
        case "closed", (code, _):
            return f"{client} closed {int(code)}"
        case _, str() as content:
            return f"{client} {frame.kind} {masked_frame(content)}"
        case _:
            raise AssertionError(f"a frame that is not JSON: {frame}")


def trace(seed: int) -> list[str]:
    """The lines of one life. Raises AssertionError if the life violates an invariant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [_line(frame) for frame in simulate(Random(seed), _folder()).frames]


def digest(group: int) -> str:
    """The digest of the seeds [group * GROUP, (group + 1) * GROUP): 16 hex digits."""
    hasher = hashlib.sha256()
    for seed in range(group * GROUP, (group + 1) * GROUP):
        hasher.update(json.dumps([seed, trace(seed)]).encode())
    return hasher.hexdigest()[:16]


def frozen() -> dict[int, str]:
    """Digests by group."""
    if not FILE.exists():
        return {}
    rows = (line.split() for line in FILE.read_text().splitlines())
    return {int(seeds.partition("-")[0]) // GROUP: recorded for seeds, recorded in rows}


def _with_group(group: int) -> tuple[int, str]:
    return group, digest(group)


def digests(groups: Iterable[int], jobs: int) -> Iterator[tuple[int, str]]:
    """Yield the digests in order, computed by `jobs` processes."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_with_group, groups)


def seeds_of(group: int) -> str:
    return f"{group * GROUP}-{(group + 1) * GROUP - 1}"


def check(lives: int, jobs: int) -> list[int]:
    """Compare the first `lives` lives with the file. Returns the groups that differ."""
    recorded = frozen()
    groups = range(min(-(-lives // GROUP), len(recorded)))
    different: list[int] = []
    for group, computed in digests(groups, jobs):
        is_same = computed == recorded[group]
        if not is_same:
            different.append(group)
        print(f"seeds {seeds_of(group)}: {'as frozen' if is_same else 'DIFFER'}")
    return different


def write(lives: int, jobs: int) -> None:
    """Append the digests that the file lacks. To rewrite the file, delete it first."""
    missing = range(len(frozen()), -(-lives // GROUP))
    with FILE.open("a") as file:
        for group, computed in digests(missing, jobs):
            print(seeds_of(group), computed, file=file, flush=True)
            print(f"seeds {seeds_of(group)}: written", flush=True)
