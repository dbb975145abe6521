"""python -m tests.support.digest_host engine …: `continuo`, whose engines run on the device of
digests."""

import sys

from engine import process
from realtime.server.cli import main

if __name__ == "__main__":
    process.MODULE = "tests.support.digest_boot"
    sys.exit(main())
