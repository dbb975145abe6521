"""Tests that freed memory goes back to the system, each in a process of its own."""

import subprocess
import sys

import pytest

from tests.support.processes import ROOT

pytestmark = pytest.mark.process

SETTLED = """
import asyncio, sys
from continuo.realtime.server import freed_memory
from tests.support.waiting import wait_until

MIB = 1024 * 1024
resident = freed_memory._read_resident_bytes
"""

SMALL_BLOCKS = """
async def main(gives_back):
    freed_memory.LOOK_INTERVAL_S = freed_memory.TRIM_INTERVAL_S = 0.01
    least = resident()
    task = asyncio.create_task(freed_memory.give_back_when_grown()) if gives_back else None
    await asyncio.sleep(0)
    blocks = [bytearray(2000) for _ in range(100_000)]
    grown, kept = resident() - least, blocks[-1]
    del blocks
    if gives_back:
        await wait_until(lambda: resident() - least < 64 * MIB)
    print(grown // MIB, (resident() - least) // MIB)

asyncio.run(main(bool(int(sys.argv[1]))))
"""
"""Frees small blocks below one that is kept. Prints by how much it has grown before, and after."""

LARGE_BLOCKS = """
if int(sys.argv[1]):
    freed_memory.return_large_blocks()
least = resident()
bytearray(30 * MIB)
blocks = [bytearray(b"x") * (8 * MIB) for _ in range(20)]
grown, kept = resident() - least, blocks[-1]
del blocks
print(grown // MIB, (resident() - least) // MIB)
"""


def run(program: str, *, gives_back: bool) -> tuple[int, int]:
    """Returns by how many MiB the process has grown before it freed the blocks, and after."""
    command = [sys.executable, "-c", SETTLED + program, str(int(gives_back))]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    before, after = map(int, printed.split())
    return before, after


@pytest.mark.parametrize("program", [SMALL_BLOCKS, LARGE_BLOCKS], ids=["small", "large"])
def test_freed_memory_goes_back_to_the_system(program: str) -> None:
    kept = run(program, gives_back=False)
    assert kept[0] > 150
    assert kept[1] > 150, "without it the process keeps the memory"
    given_back = run(program, gives_back=True)
    assert given_back[0] > 150
    assert given_back[1] < 64
