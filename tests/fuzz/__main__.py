"""python -m tests.fuzz [--frames N] [--seed S]: throws spoilt frames until N were thrown.

The same seeds throw the same frames. It stops at the first fault; the last line that is printed
says with which seed to go on.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tests.fuzz.fuzzer import Found, Fuzzer, shrink
from tests.fuzz.target import target
from tests.realtime.conftest import chat_folder

EVERY_S = 5.0


async def run(frames: int, seed: int) -> Found | None:
    with tempfile.TemporaryDirectory() as folder:
        async with target(chat_folder(Path(folder))) as server:
            with Fuzzer(server.port) as fuzzer:
                return await throw(fuzzer, frames, seed)


async def throw(fuzzer: Fuzzer, frames: int, seed: int) -> Found | None:
    began = shown = time.monotonic()
    while fuzzer.thrown < frames:
        found = await fuzzer.round(seed)
        if found is not None:
            return await shrink(fuzzer, found)
        seed += 1
        now = time.monotonic()
        if now - shown >= EVERY_S or fuzzer.thrown >= frames:
            shown = now
            print(
                f"{fuzzer.thrown:>9,} frames, {fuzzer.thrown / (now - began):,.0f} a second, "
                f"longest stall {fuzzer.longest_s * 1e3:.1f} ms, of the interpreter lock "
                f"{fuzzer.longest_lock_s * 1e3:.1f} ms, next seed {seed}",
                flush=True,
            )
    print(
        "closed with, or answered: "
        + ", ".join(f"{code} {n:,}x" for code, n in sorted(fuzzer.tally.codes.items()))
    )
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first connection")
    options = parser.parse_args()
    found = uvloop.run(run(options.frames, options.seed))
    if found is None:
        print("Nothing found.")
        return 0
    print(f"seed {found.seed}: {found.what}")
    for thrown in found.frames:
        print(f"  {str(thrown)[:2000]}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
