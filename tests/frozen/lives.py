"""Simulated lives, as digests of all that their clients sent and received.

A life is one small world of tests/simulation: engines, gateways, a store and clients on virtual
time, and what goes wrong with them, all from a seed. Its trace has one line for each frame at a
client's end of a connection: a command sent, an event received, or the code of a close. Ids are
those of the wire: the simulation draws them from the seed. The sentences of error objects and of
closes are masked. Nothing else is in a trace: no time, no call of the store, no name of a class.

lives.txt holds one digest for GROUP seeds. Where one differs, print the trace of each of its seeds
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
from tests.simulation.world import Frame, simulate

FILE = Path(__file__).parent / "data" / "lives.txt"
GROUP = 50
LIVES = 10_000
UNSTABLE = {6061}
"""Seeds whose lives differ from one process to the next, in the order of two events of one moment.
They are left out of the digests."""
_KEPT: list[tempfile.TemporaryDirectory[str]] = []


@cache
def _folder() -> str:
    """The tokenizer and template that all worlds read, deleted with the process."""
    _KEPT.append(tempfile.TemporaryDirectory())
    return str(chat_folder(Path(_KEPT[-1].name)))


def _line(frame: Frame) -> str:
    """Clients are told apart by the number at the end of their name."""
    client = f"person-{frame.client.rpartition('-')[2]}"
    match frame.kind, frame.content:
        case "closed", None:
            return f"{client} closed"
        case "closed", (code, _):
            return f"{client} closed {int(code)}"
        case _, str() as content:
            return f"{client} {frame.kind} {masked_frame(content)}"
        case _:
            raise AssertionError(f"a frame that is no JSON: {frame}")


def trace(seed: int) -> list[str]:
    """Raises AssertionError where the life breaks a promise of the product."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [_line(frame) for frame in simulate(Random(seed), _folder()).frames]


def digest(group: int) -> str:
    """Of the seeds [group * GROUP, (group + 1) * GROUP): 16 hex digits."""
    lines = hashlib.sha256()
    for seed in sorted({*range(group * GROUP, (group + 1) * GROUP)} - UNSTABLE):
        lines.update(json.dumps([seed, trace(seed)]).encode())
    return lines.hexdigest()[:16]


def frozen() -> dict[int, str]:
    """Digests by group."""
    if not FILE.exists():
        return {}
    rows = (line.split() for line in FILE.read_text().splitlines())
    return {int(seeds.partition("-")[0]) // GROUP: found for seeds, found in rows}


def _numbered(group: int) -> tuple[int, str]:
    return group, digest(group)


def digests(groups: Iterable[int], jobs: int) -> Iterator[tuple[int, str]]:
    """In order, as they are made by so many processes."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_numbered, groups)


def seeds_of(group: int) -> str:
    return f"{group * GROUP}-{(group + 1) * GROUP - 1}"


def check(lives: int, jobs: int) -> list[int]:
    """Compare the first `lives` lives with the file. Returns the groups that differ."""
    known = frozen()
    groups = range(min(-(-lives // GROUP), len(known)))
    differ: list[int] = []
    for group, found in digests(groups, jobs):
        if found != known[group]:
            differ.append(group)
        print(f"seeds {seeds_of(group)}: {'as frozen' if found == known[group] else 'DIFFER'}")
    return differ


def write(lives: int, jobs: int) -> None:
    """Append the digests that the file lacks. To renew the file, delete it first."""
    missing = range(len(frozen()), -(-lives // GROUP))
    with FILE.open("a") as file:
        for group, found in digests(missing, jobs):
            print(seeds_of(group), found, file=file, flush=True)
            print(f"seeds {seeds_of(group)}: written", flush=True)
