"""python -m tests.support.digest_host COMMAND …: `continuo` whose engine processes run on the null
device."""

import sys

from continuo.engine.client import engine_process
from continuo.realtime.server.cli import main

if __name__ == "__main__":
    engine_process.ENGINE_MODULE = "tests.support.digest_boot"
    sys.exit(main())
