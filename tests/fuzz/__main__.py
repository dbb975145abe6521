"""python -m tests.fuzz [--frames N] [--seed S]: sends mutated frames to a server until N are sent.

The same seeds send the same frames. The run stops at the first fault; the last line of output
names the seed to continue with.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tests.fuzz.fuzzer import Fault, Fuzzer, shrink
from tests.fuzz.target import target
from tests.realtime.conftest import chat_folder

REPORT_INTERVAL_S = 5.0


async def run(frames: int, seed: int) -> Fault | None:
    with tempfile.TemporaryDirectory() as folder:
        async with target(chat_folder(Path(folder))) as server:
            with Fuzzer(server.port) as fuzzer:
                return await send_frames(fuzzer, frames, seed)


async def send_frames(fuzzer: Fuzzer, frames: int, seed: int) -> Fault | None:
    began_s = reported_s = time.monotonic()
    while fuzzer.sent < frames:
        fault = await fuzzer.round(seed)
        if fault is not None:
            return await shrink(fuzzer, fault)
        seed += 1
        now_s = time.monotonic()
        if now_s - reported_s >= REPORT_INTERVAL_S or fuzzer.sent >= frames:
            reported_s = now_s
            print(
                f"{fuzzer.sent:>9,} frames, {fuzzer.sent / (now_s - began_s):,.0f} a second, "
                f"longest stall {fuzzer.longest_s * 1e3:.1f} ms, of the interpreter lock "
                f"{fuzzer.longest_lock_s * 1e3:.1f} ms, next seed {seed}",
                flush=True,
            )
    print(
        "close codes and HTTP statuses: "
        + ", ".join(f"{code} {n:,}x" for code, n in sorted(fuzzer.tally.codes.items()))
    )
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first connection")
    options = parser.parse_args()
    fault = uvloop.run(run(options.frames, options.seed))
    if fault is None:
        print("No fault found.")
        return 0
    print(f"seed {fault.seed}: {fault.problem}")
    for payload in fault.payloads:
        print(f"  {str(payload)[:2000]}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
