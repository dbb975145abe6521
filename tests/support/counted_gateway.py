"""python -m tests.support.counted_gateway COMMAND …: `continuo` that counts its garbage when it
receives SIGUSR1, and prints it: what reference counts did not free, or will not free when it ends.
"""

import json
import signal
import sys

from continuo.realtime.server.cli import main
from tests.support.garbage import collect_own_garbage

if __name__ == "__main__":
    signal.signal(
        signal.SIGUSR1,
        lambda *_: print(f"garbage: {json.dumps(collect_own_garbage())}", flush=True),
    )
    sys.exit(main())
