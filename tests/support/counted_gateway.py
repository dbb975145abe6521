"""python -m tests.support.counted_gateway COMMAND …: `continuo` that prints, when it receives
SIGUSR1, what reference cycles keep for ever (`collect_own_garbage`)."""

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
