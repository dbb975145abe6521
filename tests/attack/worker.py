"""python -m tests.attack.worker attack|watch …: one part of a run, in a process of its own.

Attackers run at the lowest priority, because they represent other machines.
"""

import asyncio
import os
import resource
import sys

import msgspec
import uvloop

from tests.attack.attacks import repeat
from tests.attack.bystander import watch
from tests.attack.target import Address


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, *arguments, stdout=asyncio.subprocess.PIPE
    )


def main() -> None:
    match sys.argv[1:]:
        case ["attack", name, port, key, seconds, seed]:
            os.nice(19)
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for 800 connections
            address = Address(int(port), key)
            result: object = uvloop.run(repeat(name, address, float(seconds), int(seed)))
        case ["watch", port, control_port, key, seconds]:
            server, control = Address(int(port), key), Address(int(control_port), key)
            result = uvloop.run(watch(server, control, float(seconds)))
        case _:
            raise SystemExit(__doc__)
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
